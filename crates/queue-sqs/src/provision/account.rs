//! The account and region of the resources, parsed from one ARN. All other ARNs are derived from them, without calls to
//! AWS.

/// An account in a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    partition: String,
    region: String,
    id: String,
}

impl Account {
    /// Parses the account and the region in an ARN (`arn:partition:service:region:account:resource`).
    pub(super) fn of(arn: &str) -> Option<Self> {
        let mut parts = arn.splitn(6, ':').map(str::to_owned);
        let (scheme, partition, _service) = (parts.next()?, parts.next()?, parts.next()?);
        let (region, id, _resource) = (parts.next()?, parts.next()?, parts.next()?);
        (scheme == "arn").then_some(Self { partition, region, id })
    }

    /// Returns the ARN of the queue in this account whose AWS name is `name`.
    pub(super) fn queue(&self, name: &str) -> String {
        self.arn("sqs", name)
    }

    /// Returns the ARN of the topic in this account whose AWS name is `name`.
    pub(super) fn topic(&self, name: &str) -> String {
        self.arn("sns", name)
    }

    fn arn(&self, service: &str, name: &str) -> String {
        let Self { partition, region, id } = self;
        format!("arn:{partition}:{service}:{region}:{id}:{name}")
    }
}

/// Returns the last part of an ARN: the AWS name of a queue or topic.
pub(super) fn name_in(arn: &str) -> &str {
    arn.rsplit(':').next().unwrap_or(arn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_arn_leads_to_its_siblings() {
        let account = Account::of("arn:aws-cn:sqs:cn-north-1:123456789012:orders").unwrap();
        assert_eq!(account.queue("orders-dlq"), "arn:aws-cn:sqs:cn-north-1:123456789012:orders-dlq");
        assert_eq!(account.topic("uploads.fifo"), "arn:aws-cn:sns:cn-north-1:123456789012:uploads.fifo");
        assert_eq!(name_in(&account.topic("uploads.fifo")), "uploads.fifo");
        for no_arn in ["", "orders", "arn:aws:sqs:eu-west-1", "urn:aws:sqs:eu-west-1:1:orders"] {
            assert_eq!(Account::of(no_arn), None, "{no_arn}");
        }
    }
}
