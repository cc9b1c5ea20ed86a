//! Which messages a command works on: `--id` and `--filter`.

use clap::builder::NonEmptyStringValueParser;

use crate::upkeep::requeue::Condition;

/// What picks messages; nothing picks all.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Picked {
    /// Only messages with one of these ids, now or before they were first moved
    #[arg(long, value_name = "ID", num_args = 1.., value_parser = NonEmptyStringValueParser::new())]
    id: Vec<String>,
    /// Only messages with attr:NAME=VALUE, reason~TEXT (why it was dead-lettered), older:DURATION, younger:DURATION, id=ID
    /// or body~TEXT; of several all must hold
    #[arg(long, value_name = "FILTER")]
    filter: Vec<Condition>,
}

impl Picked {
    /// What a message has to be; all must hold.
    pub(super) fn conditions(&self) -> Vec<Condition> {
        let ids = (!self.id.is_empty()).then(|| Condition::Id(self.id.iter().cloned().collect()));
        ids.into_iter().chain(self.filter.iter().cloned()).collect()
    }

    /// Whether it leaves nothing out.
    pub(super) fn is_all(&self) -> bool {
        self.id.is_empty() && self.filter.is_empty()
    }
}
