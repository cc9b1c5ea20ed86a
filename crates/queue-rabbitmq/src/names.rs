//! Names of queues and exchanges on the server.

use hostler_types::channel::Channel;

/// Names of one installation: each begins with the prefix of the config.
#[derive(Debug, Clone)]
pub(super) struct Names {
    prefix: String,
    /// Beginning of the names of the delay ladder, which several installations on one virtual host can share.
    ladder: String,
}

impl Names {
    pub(super) fn new(prefix: &str, ladder: &str) -> Self {
        Self { prefix: prefix.to_owned(), ladder: format!("{ladder}{LADDER}") }
    }

    /// Returns the name of a queue or an exchange.
    pub(super) fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns the channel of a queue on the server, or of an exchange. `None`: the name has another prefix, or is not a channel's.
    pub(super) fn channel(&self, name: &str) -> Option<Channel> {
        name.strip_prefix(&self.prefix)?.parse().ok().filter(|channel: &Channel| channel.exchange().is_none())
    }

    /// Returns the name of the exclusive queue of the host that receives from an ordered queue.
    pub(super) fn turn(&self, queue: &str) -> String {
        format!("{queue}.turn")
    }

    /// Returns the beginning of the names of the delay ladder.
    pub(super) fn ladder(&self) -> &str {
        &self.ladder
    }

    /// Returns the name of the exchange and the queue of a level of the delay ladder.
    pub(super) fn level(&self, level: u32) -> String {
        format!("{}{level:02}", self.ladder)
    }

    /// Returns the name of the exchange at the foot of the delay ladder, which delivers to the queues.
    pub(super) fn landing(&self) -> String {
        format!("{}due", self.ladder)
    }

    /// Returns the name of the exchange and the queue for delayed messages that found no queue.
    pub(super) fn lost(&self) -> String {
        format!("{}lost", self.ladder)
    }

    /// Returns the name of the exchange that exists once the delay ladder is complete.
    pub(super) fn ladder_is_complete(&self) -> String {
        format!("{}complete", self.ladder)
    }

    /// Returns `true` if the exchange is one of the delay ladder.
    pub(super) fn is_ladder(&self, exchange: &str) -> bool {
        exchange.starts_with(&self.ladder)
    }
}

/// Beginning of the names of the delay ladder. A dot keeps these names apart from the names of channels.
const LADDER: &str = "hostler.delay.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_is_told_from_channels_and_may_be_shared() {
        let names = Names::new("prod-", "shared-");
        for ladder in [names.level(3), names.landing(), names.lost(), names.ladder_is_complete()] {
            assert!(names.is_ladder(&ladder) && ladder.starts_with("shared-"), "{ladder}");
            assert!(ladder.parse::<hostler_types::channel::Channel>().is_err(), "no channel has such a name: {ladder}");
        }
        assert!(!names.is_ladder(&names.full("hostler-delay")));
    }

    #[test]
    fn channels_are_told_from_queues_of_others() {
        let names = Names::new("prod-", "prod-");
        assert_eq!(names.channel(&names.full("orders")), "orders".parse().ok());
        for other in ["orders", "prod-", "prod-a b", "prod-orders.turn", &names.level(3)] {
            assert_eq!(names.channel(other), None, "{other}");
        }
    }
}
