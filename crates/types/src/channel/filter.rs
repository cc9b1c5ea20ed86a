//! Subscription filters. A filter selects the messages that a queue receives from an exchange, by their routing keys.

/// A filter on the routing key. A message without a routing key passes only [`Filter::All`], as with an SNS filter
/// policy on an attribute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Filter {
    /// Passes every message.
    #[default]
    All,
    /// Passes messages whose routing key is in the list.
    Exact(Vec<String>),
    /// Passes messages whose routing key starts with a prefix in the list.
    Prefix(Vec<String>),
    /// Passes messages whose routing key is not in the list.
    Exclude(Vec<String>),
}

impl Filter {
    /// Returns `true` if a message with this routing key passes the filter.
    pub fn passes(&self, routing_key: Option<&str>) -> bool {
        match (self, routing_key) {
            (Self::All, _) => true,
            (_, None) => false,
            (Self::Exact(keys), Some(key)) => keys.iter().any(|wanted| wanted == key),
            (Self::Prefix(prefixes), Some(key)) => prefixes.iter().any(|prefix| key.starts_with(prefix)),
            (Self::Exclude(keys), Some(key)) => keys.iter().all(|unwanted| unwanted != key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_as_sns_does() {
        let keys = [None, Some("MOBILE.APPLE"), Some("MOBILE.GOOGLE"), Some("DESKTOP")];
        let passing = |filter: Filter| keys.map(|key| filter.passes(key));
        let list = |value: &str| vec![value.to_owned()];
        assert_eq!(passing(Filter::All), [true, true, true, true]);
        assert_eq!(passing(Filter::Exact(list("MOBILE.APPLE"))), [false, true, false, false]);
        assert_eq!(passing(Filter::Prefix(list("MOBILE."))), [false, true, true, false]);
        assert_eq!(passing(Filter::Exclude(list("DESKTOP"))), [false, true, true, false]);
    }
}
