//! Permissions that a RabbitMQ user needs for a config: patterns of the names that it may configure, write to and read from. No
//! I/O.

use std::collections::BTreeSet;

use hostler_queue::ChannelSpec;
use hostler_types::channel::Channel;

use super::names::Names;
use super::topology;

/// RabbitMQ's name for the exchange that delivers to the queue with the name of the routing key.
const DEFAULT_EXCHANGE: &str = r"amq\.default";

/// Pattern that no name matches.
const NOTHING: &str = "^$";

/// The three patterns of a user on a virtual host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permissions {
    /// Names of the queues and exchanges that the user may create and delete.
    pub configure: String,
    /// Names of the exchanges that the user may publish to, and of the queues that it may bind.
    pub write: String,
    /// Names of the queues that the user may receive from, and of the exchanges that it may bind queues to. From 4.3 on, RabbitMQ lets a
    /// user look up only the names for which it has one of these permissions.
    pub read: String,
}

/// The names that a config uses.
#[derive(Debug)]
pub struct Needs {
    names: Names,
    queues: BTreeSet<String>,
    turns: BTreeSet<String>,
    exchanges: BTreeSet<String>,
    /// Queues or exchanges that are sent to.
    sent_to: BTreeSet<String>,
    /// Queues that commands count the messages of.
    counted: BTreeSet<String>,
}

impl Needs {
    /// Collects the names. `prefix`: beginning of all names. `consumed`: the channels that are consumed. `sent_to`: the channels
    /// that are sent to.
    pub fn new(prefix: &str, consumed: &[ChannelSpec], sent_to: &[Channel]) -> Self {
        let names = Names::new(prefix, prefix);
        let queues = consumed.iter().flat_map(|spec| topology::queues(&names, spec)).map(|queue| queue.name);
        // Commands take turns at dead-letter queues as well.
        let ordered = consumed.iter().filter(|spec| spec.ordered).flat_map(|spec| topology::queues(&names, spec));
        let exchanges = consumed.iter().filter_map(|spec| spec.channel.exchange());
        let sent = sent_to.iter().map(|channel| channel.exchange().unwrap_or(channel.queue()));
        let known = consumed.iter().map(|spec| &spec.channel).chain(sent_to);
        let counted = known.flat_map(|channel| [channel.queue().to_owned(), channel.dead_letter_queue()]);
        Self {
            queues: queues.collect(),
            turns: ordered.map(|queue| names.turn(&queue.name)).collect(),
            exchanges: exchanges.map(|exchange| names.full(exchange)).collect(),
            sent_to: sent.map(|name| names.full(name)).collect(),
            counted: counted.map(|name| names.full(&name)).collect(),
            names,
        }
    }

    /// Returns what `hostler run` needs if nothing is missing, and the commands that look at messages and move them.
    ///
    /// RabbitMQ 4.3 looks up a queue or an exchange only for users who may configure, write to or read from it. What is looked up
    /// and nothing else has the right that allows the least: to publish to the exchange, or to bind the queue.
    pub fn to_run(&self) -> Permissions {
        let levels = format!("{}[0-9]+", escaped(self.names.ladder()));
        let looked_up = [self.names.lost(), self.names.ladder_is_complete()].into();
        let written = all(&[&self.queues, &self.sent_to, &self.counted, &looked_up]);
        Permissions {
            configure: pattern(all(&[&self.turns])),
            write: pattern([DEFAULT_EXCHANGE.to_owned(), levels].into_iter().chain(written)),
            // A host may bind its queues to the exchanges that feed them, and not publish there.
            read: pattern(all(&[&self.queues, &self.exchanges, &[self.names.landing()].into()])),
        }
    }

    /// Returns what `hostler provision` needs, and `hostler run` if it creates what is missing.
    pub fn to_provision(&self) -> Permissions {
        let ladder = || [format!("{}.+", escaped(self.names.ladder()))];
        let made = [&self.queues, &self.exchanges, &self.sent_to];
        let written = all(&[&self.queues, &self.exchanges, &self.sent_to, &self.counted]);
        Permissions {
            configure: pattern(ladder().into_iter().chain(all(&made)).chain(all(&[&self.turns]))),
            write: pattern([DEFAULT_EXCHANGE.to_owned()].into_iter().chain(ladder()).chain(written)),
            read: pattern(ladder().into_iter().chain(all(&made))),
        }
    }
}

fn all(sets: &[&BTreeSet<String>]) -> impl Iterator<Item = String> + use<> {
    let names: BTreeSet<_> = sets.iter().copied().flatten().map(|name| escaped(name)).collect();
    names.into_iter()
}

/// Returns the pattern of these names, which are patterns themselves.
fn pattern(names: impl Iterator<Item = String>) -> String {
    let names: Vec<_> = names.collect();
    if names.is_empty() { NOTHING.to_owned() } else { format!("^({})$", names.join("|")) }
}

/// Returns the pattern that only this text matches.
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for character in text.chars() {
        if !character.is_alphanumeric() && !"-_".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(ordered: bool) -> Needs {
        let spec = ChannelSpec { ordered, max_receives: Some(5), ..ChannelSpec::new("shop.orders".parse().unwrap()) };
        Needs::new("p.", &[spec], &["done".parse().unwrap(), "mails.x".parse().unwrap()])
    }

    #[test]
    fn a_host_creates_nothing_but_the_turn_of_an_ordered_queue() {
        let run = needs(false).to_run();
        assert_eq!(run.configure, "^$");
        let sent_to = r"p\.done|p\.done-dlq|p\.hostler\.delay\.complete|p\.hostler\.delay\.lost|p\.mails";
        let queues = r"p\.orders|p\.orders-dlq|p\.x|p\.x-dlq";
        assert_eq!(run.write, format!(r"^(amq\.default|p\.hostler\.delay\.[0-9]+|{sent_to}|{queues})$"));
        assert_eq!(run.read, r"^(p\.hostler\.delay\.due|p\.orders|p\.orders-dlq|p\.shop)$");
        assert_eq!(needs(true).to_run().configure, r"^(p\.orders-dlq\.turn|p\.orders\.turn)$");
    }

    #[test]
    fn provision_may_do_with_its_own_names_what_it_likes() {
        let provision = needs(false).to_provision();
        let made = r"p\.hostler\.delay\..+|p\.done|p\.mails|p\.orders|p\.orders-dlq|p\.shop";
        assert_eq!((provision.configure, provision.read), (format!("^({made})$"), format!("^({made})$")));
        let written = r"p\.done|p\.done-dlq|p\.mails|p\.orders|p\.orders-dlq|p\.shop|p\.x|p\.x-dlq";
        assert_eq!(provision.write, format!(r"^(amq\.default|p\.hostler\.delay\..+|{written})$"));
    }

    /// Commands count the dead letters of every channel that they know.
    #[test]
    fn a_queue_that_is_only_counted_is_not_read() {
        let spec = ChannelSpec { max_receives: None, ..ChannelSpec::new("orders".parse().unwrap()) };
        let run = Needs::new("", &[spec], &[]).to_run();
        assert!(run.write.contains("|orders-dlq)") && !run.read.contains("orders-dlq"), "{run:?}");
    }
}
