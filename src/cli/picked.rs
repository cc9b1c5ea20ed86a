//! Selection of messages by `--id` and `--filter`.

use std::collections::BTreeSet;

use clap::builder::NonEmptyStringValueParser;

use super::output::{counted, say};
use crate::exit::{Exit, Failure, Result};
use hostler_ops::Looked;
use hostler_ops::requeue::Condition;
use hostler_types::channel::Channel;
use hostler_types::printable::on_one_line;

/// The options that select messages; without any, all are selected.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Picked {
    /// Only messages with one of these current or original ids
    #[arg(long, value_name = "ID", num_args = 1.., value_parser = NonEmptyStringValueParser::new())]
    id: Vec<String>,
    /// Only messages with attr:NAME=VALUE, reason~TEXT, body~TEXT, id=ID, older:DURATION or
    /// younger:DURATION; repeated filters must all match
    #[arg(long, value_name = "FILTER")]
    filter: Vec<Condition>,
}

impl Picked {
    /// Selects the message with this id.
    pub(super) fn of_id(id: &str) -> Self {
        Self { id: vec![id.to_owned()], filter: Vec::new() }
    }

    /// Returns the conditions. A message must meet all of them.
    pub(super) fn conditions(&self) -> Vec<Condition> {
        let ids = (!self.id.is_empty()).then(|| Condition::Id(self.id.iter().cloned().collect()));
        ids.into_iter().chain(self.filter.iter().cloned()).collect()
    }

    /// Returns a failure if the ids or filters may have missed messages in the channel `at`. `met` is the number of
    /// selected messages. `unseen` is the number of messages that were not inspected. If ids were given, fails if fewer
    /// messages than ids were selected. If no ids were given, fails if the filters may match messages that were not
    /// inspected.
    pub(super) fn unmet(&self, met: u64, unseen: u64, at: &Channel) -> Option<Failure> {
        let (ids, others) = self.ids();
        let named = ids.len() as u64;
        if named == 0 && unseen > 0 && !self.is_all() {
            let text = format!(
                "{unseen} of the messages in {at} were not inspected, and the filter may match them: {UNSEEN}\n  \
                 cure: try again later; of an ordered queue, pick those before them in their group as well"
            );
            return Some(Failure::new(Exit::Failed, text));
        }
        if met >= named {
            return None;
        }
        let fits = if others == 0 { "" } else { " and matches the filter" };
        let seen = if unseen == 0 { "" } else { " that was inspected" };
        let text = match ids.first() {
            Some(id) if named == 1 => format!("no message in {at}{seen} has the id {id}{fits}"),
            _ => format!("{met} of the {named} messages that --id names are in {at}"),
        };
        let list = format!("`hostler dlq ls {at}` lists what is there");
        let text = match unseen {
            0 => format!("{text}\n  cure: {list}"),
            _ => format!(
                "{text}; {unseen} were not inspected: {UNSEEN}\n  \
                 cure: {list}; of an ordered queue, pick those before it in its group as well"
            ),
        };
        Some(Failure::new(Exit::Failed, text))
    }

    /// Returns a failure if the ids or filters may have missed messages in the channel `at` during a peek. Used instead
    /// of [`Self::unmet`], because a peek at an ordered queue does not see all messages of a group. `service` is the name of the
    /// queue service.
    pub(super) fn unseen(&self, met: u64, looked: &Looked, at: &Channel, service: &str) -> Option<Failure> {
        let (ids, named) = (self.ids().0, self.ids().0.len() as u64);
        if looked.unseen == 0 || self.is_all() || named > 0 && met >= named {
            return None;
        }
        let told = not_looked_at(looked, at, service);
        let text = match ids.first() {
            Some(id) if named == 1 => format!("the message {id} is not among those that {at} shows, and {told}"),
            Some(_) => format!("{at} shows {met} of the {named} messages that --id names, and {told}"),
            None => format!("{told}, and the filter may match them"),
        };
        Some(Failure::new(Exit::Failed, format!("{text}\n  cure: {}", cure(looked))))
    }

    /// Completes a peek that showed `met` messages (at most `max`). Prints a note if messages may have been left out. Fails if
    /// the ids or filters may match these messages.
    pub(super) fn looked(&self, met: u64, max: u64, looked: &Looked, at: &Channel, service: &str) -> Result {
        if met == max {
            say(format_args!("hostler: note: {}; there may be more, see --max", shown(max)));
        } else if self.is_all() && looked.unseen > 0 {
            say(format_args!("hostler: {}", not_looked_at(looked, at, service)));
        }
        self.unseen(met, looked, at, service).map_or(Ok(Exit::Ok), Err)
    }

    /// Returns the selected ids. Also returns the number of further conditions that a message must meet to be selected.
    fn ids(&self) -> (BTreeSet<&String>, usize) {
        let named = self.filter.iter().filter_map(|condition| match condition {
            Condition::Id(ids) => Some(ids),
            _ => None,
        });
        match self.id.is_empty() {
            false => (self.id.iter().collect(), self.filter.len()),
            // A message must match all filters. Therefore, the ids of one filter are enough.
            true => {
                let ids = named.clone().next().into_iter().flatten().collect();
                (ids, self.filter.len().saturating_sub(1))
            }
        }
    }

    /// Returns true if all messages are selected.
    pub(super) fn is_all(&self) -> bool {
        self.id.is_empty() && self.filter.is_empty()
    }
}

/// Returns a clause that says how many messages are shown.
fn shown(count: u64) -> String {
    format!("{} {} shown", counted(count, "message"), if count == 1 { "is" } else { "are" })
}

/// Reasons why some messages cannot be inspected, for error messages.
const UNSEEN: &str = "they are delayed, in flight, or behind a message of their group that stays";

/// Maximum number of groups that an error message names.
const NAMED: usize = 12;

/// Describes the messages that a peek could not inspect.
fn not_looked_at(Looked { unseen, unfinished, .. }: &Looked, at: &Channel, service: &str) -> String {
    let text = format!("{unseen} of the messages in {at} could not be inspected");
    if unfinished.is_empty() {
        return format!("{text}: {UNSEEN}");
    }
    let named: Vec<_> = unfinished.iter().take(NAMED).map(|group| format!("`{}`", on_one_line(group))).collect();
    let more = unfinished.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!(
        "{text}: {service} shows only the first messages of a group, and there may be more in the groups {}{more}, or they are \
         delayed or in flight",
        named.join(", ")
    )
}

fn cure(looked: &Looked) -> &'static str {
    if looked.unfinished.is_empty() {
        "try again once they are visible; of an ordered queue, requeue or drop those before them in their group"
    } else {
        "requeue or drop those before them in their group, and look again"
    }
}

#[cfg(test)]
mod tests {
    use hostler_ops::requeue::Ended;

    use super::*;

    #[test]
    fn one_message_is_shown_and_two_are() {
        assert_eq!([shown(1), shown(2)], ["1 message is shown", "2 messages are shown"]);
    }

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
            "no message in orders-dlq has the id 7 and matches the filter"
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

    #[test]
    fn what_could_not_be_looked_at_is_told() {
        let picked = |ids: &[&str], filter: &[&str]| {
            let id = ids.iter().map(|id| (*id).to_owned()).collect();
            Picked { id, filter: filter.iter().map(|text| text.parse().unwrap()).collect() }
        };
        let at = "orders-dlq".parse().unwrap();
        let looked = |unseen, groups: usize| {
            let unfinished = (0..groups).map(|n| format!("g{n}")).collect();
            Looked { ended: Ended::Done, unseen, unfinished }
        };
        let said = |ids: &[&str], filter: &[&str], met, looked: &Looked| {
            picked(ids, filter).unseen(met, looked, &at, "RabbitMQ").map(|failure| failure.message)
        };
        let groups = said(&["7"], &[], 0, &looked(3, 14)).unwrap();
        assert!(groups.starts_with("the message 7 is not among those that orders-dlq shows, and 3 of"), "{groups}");
        assert!(groups.contains("RabbitMQ shows only the first messages of a group, and there may be"), "{groups}");
        assert!(groups.contains("in the groups `g0`, `g1`, ") && groups.contains("`g11` and 2 more, or"), "{groups}");
        let flying = said(&[], &["older:1s"], 5, &looked(1, 0)).unwrap();
        assert!(
            flying.contains("or behind a message of their group that stays, and the filter may match them"),
            "{flying}"
        );
        assert!(
            flying.contains("cure: try again") && flying.contains("drop those before them in their group"),
            "{flying}"
        );
        for (ids, filter, met, unseen) in
            [(&["7"][..], &[][..], 1, 3), (&[], &[], 0, 3), (&["7"], &[], 0, 0), (&[], &["older:1s"], 0, 0)]
        {
            assert_eq!(said(ids, filter, met, &looked(unseen, 1)), None, "{ids:?} {filter:?} {met} {unseen}");
        }
        let moves = |unseen| picked(&[], &["older:1s"]).unmet(5, unseen, &at).map(|failure| failure.message);
        assert!(moves(2).unwrap().starts_with("2 of the messages in orders-dlq were not inspected"));
        assert!(moves(0).is_none() && picked(&[], &[]).unmet(5, 2, &at).is_none());
    }
}
