//! The kinds of outcomes, and their names in logs, metrics and spans.

/// The kind of an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutcomeKind {
    /// The message was processed.
    Ack,
    /// The message was processed, and the handler returned a reply.
    Reply,
    /// The handler requests another attempt.
    Retry,
    /// The handler requests another attempt after a delay.
    Delay,
    /// The handler reports that the message can never be processed.
    DeadLetter,
    /// The handler reported an error.
    Failed,
    /// The guest trapped.
    Trapped,
    /// The host reached one of its own limits.
    HostLimit,
    /// The guest was stopped at its processing timeout.
    TimedOut,
    /// The guest was stopped because the lease was lost.
    LeaseLost,
    /// The guest was stopped, or not started, because the host is shutting down.
    Shutdown,
}

impl OutcomeKind {
    /// All kinds of outcomes: first the kinds that a handler may return under the contract, then the kinds that only
    /// the host determines.
    pub const ALL: [Self; 11] = [
        Self::Ack,
        Self::Reply,
        Self::Retry,
        Self::Delay,
        Self::DeadLetter,
        Self::Failed,
        Self::Trapped,
        Self::HostLimit,
        Self::TimedOut,
        Self::LeaseLost,
        Self::Shutdown,
    ];

    /// Returns the name in logs, metrics, spans and `invoke --json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Reply => "reply",
            Self::Retry => "retry",
            Self::Delay => "delay",
            Self::DeadLetter => "dead-letter",
            Self::Failed => "failed",
            Self::Trapped => "trapped",
            Self::HostLimit => "host-limit",
            Self::TimedOut => "timed-out",
            Self::LeaseLost => "lease-lost",
            Self::Shutdown => "shutdown",
        }
    }

    /// Returns `true` if the message was processed successfully.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Ack | Self::Reply)
    }

    /// Returns `true` if spans record the outcome as an error. A requested delay is neither a success nor an error.
    pub const fn is_error(self) -> bool {
        !self.is_success() && !matches!(self, Self::Delay)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(kinds: impl IntoIterator<Item = OutcomeKind>) -> BTreeSet<&'static str> {
        kinds.into_iter().map(OutcomeKind::name).collect()
    }

    /// Returns the words in backquotes on a page, between `from` and the next `to`.
    fn quoted<'a>(page: &'a str, from: &str, to: &str) -> BTreeSet<&'a str> {
        let (_, rest) = page.split_once(from).unwrap();
        let (list, _) = rest.split_once(to).unwrap();
        list.split('`').skip(1).step_by(2).collect()
    }

    #[test]
    fn each_kind_has_its_place_and_a_name_of_its_own() {
        assert!(OutcomeKind::ALL.iter().enumerate().all(|(place, kind)| *kind as usize == place));
        assert_eq!(names(OutcomeKind::ALL).len(), OutcomeKind::ALL.len());
    }

    #[test]
    fn docs_name_the_same_outcomes() {
        let metrics = include_str!("../../../book/src/metrics.md");
        assert_eq!(quoted(metrics, "by `hostler.outcome` (", ")"), names(OutcomeKind::ALL));
        let traces = include_str!("../../../book/src/traces.md");
        let errors = OutcomeKind::ALL.into_iter().filter(|kind| kind.is_error());
        assert_eq!(quoted(traces, "- the outcome: ", "("), names(errors));
        let outcomes = include_str!("../../../book/src/outcomes.md");
        let (_, table) = outcomes.split_once("| the handler | outcome in the log | then |").unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let column = rows.filter_map(|row| row.split('|').nth(2)).collect::<String>();
        assert_eq!(column.split('`').skip(1).step_by(2).collect::<BTreeSet<_>>(), names(OutcomeKind::ALL));
    }

    #[test]
    fn the_contract_lets_a_handler_say_the_first_of_them() {
        let wit = include_str!("../../../wit/consumer.wit");
        let (_, variant) = wit.split_once("variant outcome {").unwrap();
        let cases = variant.lines().map(str::trim).take_while(|line| *line != "}");
        let cases: Vec<_> = cases
            .filter(|line| !line.is_empty() && !line.starts_with("///"))
            .filter_map(|line| line.split([',', '(']).next())
            .collect();
        assert_eq!(cases, OutcomeKind::ALL[..cases.len()].iter().map(|kind| kind.name()).collect::<Vec<_>>());
        assert_eq!(OutcomeKind::ALL[cases.len()], OutcomeKind::Failed);
    }
}
