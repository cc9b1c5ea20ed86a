//! Names of queues and topics on AWS: `<prefix><name>`, with `.fifo` if ordered.

/// Suffix that AWS requires in the name of a FIFO queue or topic.
const FIFO: &str = ".fifo";

/// Naming scheme of one deployment.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// Returns the prefix of all names, which may be empty.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the AWS name of a queue or an exchange.
    pub(super) fn on_aws(&self, name: &str, ordered: bool) -> String {
        let suffix = if ordered { FIFO } else { "" };
        format!("{}{name}{suffix}", self.prefix)
    }

    /// Returns the name of the queue or exchange whose AWS name is `name`. The flag is `true` for FIFO. `None`: `name`
    /// does not begin with our prefix, so it belongs to another deployment.
    pub(super) fn here<'a>(&self, name: &'a str) -> Option<(&'a str, bool)> {
        let name = name.strip_prefix(&self.prefix)?;
        Some(match name.strip_suffix(FIFO) {
            Some(name) => (name, true),
            None => (name, false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let names = Names::new("prod-");
        for (name, ordered, aws) in [("orders", false, "prod-orders"), ("orders-dlq", true, "prod-orders-dlq.fifo")] {
            assert_eq!(names.on_aws(name, ordered), aws);
            assert_eq!(names.here(aws), Some((name, ordered)));
        }
        assert_eq!(names.here("test-orders"), None);
    }
}
