//! Which messages a command works on: `--id` and `--filter`.

use std::collections::BTreeSet;

use clap::builder::NonEmptyStringValueParser;

use crate::exit::{Exit, Failure};
use hostler_ops::requeue::Condition;
use hostler_types::channel::Channel;

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

    /// The failure that some of the ids met no message in `at`, where `met` messages were picked and so many `unseen`.
    pub(super) fn unmet(&self, met: u64, unseen: u64, at: &Channel) -> Option<Failure> {
        let (ids, others) = self.ids();
        let named = ids.len() as u64;
        if met >= named {
            return None;
        }
        let fits = if others == 0 { "" } else { " and fits the filter" };
        let seen = if unseen == 0 { "" } else { " that was looked at" };
        let text = match ids.first() {
            Some(id) if named == 1 => format!("no message in {at}{seen} has the id {id}{fits}"),
            _ => format!("{met} of the {named} messages that --id names are in {at}"),
        };
        let list = format!("`hostler dlq ls {at}` lists what is there");
        let text = match unseen {
            0 => format!("{text}\n  cure: {list}"),
            _ => format!(
                "{text}; {unseen} were not looked at: they are delayed, in flight, or behind a message of their group that stays\n  \
                 cure: {list}; of an ordered queue, pick those before it in its group as well"
            ),
        };
        Some(Failure::new(Exit::Failed, text))
    }

    /// The ids that messages are named by, and how many conditions there are beside.
    fn ids(&self) -> (BTreeSet<&String>, usize) {
        let named = self.filter.iter().filter_map(|condition| match condition {
            Condition::Id(ids) => Some(ids),
            _ => None,
        });
        match self.id.is_empty() {
            false => (self.id.iter().collect(), self.filter.len()),
            // All filters must hold, so that one of those that name a message is enough to tell.
            true => {
                let ids = named.clone().next().into_iter().flatten().collect();
                (ids, self.filter.len().saturating_sub(1))
            }
        }
    }

    /// Whether it leaves nothing out.
    pub(super) fn is_all(&self) -> bool {
        self.id.is_empty() && self.filter.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_meet_nothing_are_told() {
        let said = |ids: &[&str], filter: &[&str], met| {
            let id = ids.iter().map(|id| (*id).to_owned()).collect();
            let filter = filter.iter().map(|text| text.parse().unwrap()).collect();
            let failure = Picked { id, filter }.unmet(met, 0, &"orders-dlq".parse().unwrap());
            failure.map(|failure| failure.message.lines().next().unwrap().to_owned())
        };
        assert_eq!(said(&["7"], &[], 0).unwrap(), "no message in orders-dlq has the id 7");
        assert_eq!(
            said(&["7"], &["older:1s"], 0).unwrap(),
            "no message in orders-dlq has the id 7 and fits the filter"
        );
        assert_eq!(said(&["7", "8"], &[], 1).unwrap(), "1 of the 2 messages that --id names are in orders-dlq");
        assert_eq!(said(&[], &["id=7", "older:1s"], 0), said(&["7"], &["older:1s"], 0));
        assert_eq!(said(&[], &["id=7"], 0), said(&["7"], &[], 0));
        for (ids, filter, met) in
            [(&[][..], &["older:1s"][..], 0), (&[], &[], 0), (&["7"], &[], 1), (&["7", "7"], &[], 1)]
        {
            assert_eq!(said(ids, filter, met), None, "{ids:?} {met}");
        }
    }
}
