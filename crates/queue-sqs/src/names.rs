//! How channels are named on AWS: `<prefix><name>`, with `.fifo` when ordered.

/// What AWS wants at the end of an ordered queue's or topic's name.
const FIFO: &str = ".fifo";

/// The names of one deployment.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// What all names begin with; may be empty.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The name on AWS of a queue or an exchange.
    pub(super) fn on_aws(&self, name: &str, ordered: bool) -> String {
        let suffix = if ordered { FIFO } else { "" };
        format!("{}{name}{suffix}", self.prefix)
    }

    /// The queue or exchange of a name on AWS, and whether it is ordered; `None`: it is another deployment's.
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
