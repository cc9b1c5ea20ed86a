//! Differences between a queue as it exists and as hostler declares it. No I/O.

use hostler_queue::Finding;

/// A difference that the server named when it refused a declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Drift {
    /// Name of the queue or exchange on the server.
    pub(super) resource: String,
    /// Argument that differs, for example `x-queue-type`. `None`: the server's text has another form.
    pub(super) argument: Option<String>,
    /// The server's text.
    pub(super) text: String,
}

/// Argument of a queue from which one consumer at a time receives.
pub(super) const SINGLE: &str = "x-single-active-consumer";

impl Drift {
    /// Returns the difference of an ordered or other queue from the one that is wanted.
    pub(super) fn of_order(resource: &str, single: bool) -> Self {
        let text = if single { "it has a single active consumer" } else { "it has no single active consumer" };
        Self { resource: resource.to_owned(), argument: Some(SINGLE.to_owned()), text: text.to_owned() }
    }

    /// Reads the server's text, for example `PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'orders' in
    /// vhost '/': received 'quorum' but current is 'classic'`.
    pub(super) fn of(resource: &str, text: String) -> Self {
        let argument = text.split_once("inequivalent arg '").and_then(|(_, rest)| rest.split_once('\''));
        Self { resource: resource.to_owned(), argument: argument.map(|(argument, _)| argument.to_owned()), text }
    }

    /// Returns `true` if the consumer of an ordered or other channel cannot work with the queue.
    pub(super) fn is_fatal(&self) -> bool {
        // Without a single active consumer, two hosts would take messages of one group. With one, a plain channel would be
        // processed by one host at a time.
        self.argument.as_deref() == Some(SINGLE)
    }

    /// Returns the finding for the operator. RabbitMQ cannot change the arguments of a queue.
    pub(super) fn finding(&self) -> Finding {
        Finding {
            fault: format!("`{}` is not as hostler declares it: {}", self.resource, self.consequence()),
            cure: format!(
                "RabbitMQ cannot change arguments; stop its producers, let it drain, delete it (`rabbitmqctl delete_queue \
                 {}`), and run `hostler provision`",
                self.resource
            ),
            fatal: self.is_fatal(),
        }
    }

    fn consequence(&self) -> String {
        let meaning = match self.argument.as_deref() {
            Some("x-queue-type") => {
                "its deliveries are not counted, so a message that kills the host comes again for ever"
            }
            Some("x-delivery-limit") => "another number of deliveries ends the server's patience with a message",
            Some("x-dead-letter-exchange" | "x-dead-letter-routing-key" | "x-dead-letter-strategy" | "x-overflow") => {
                "a message that the server gives up may be lost"
            }
            Some(SINGLE) => "whether one host at a time receives from it",
            _ => return self.text.clone(),
        };
        format!("{meaning} ({})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'orders' in vhost '/': received \
                        'quorum' but current is 'classic'";

    #[test]
    fn the_argument_is_found_and_the_way_out_is_named() {
        let drift = Drift::of("orders", TYPE.to_owned());
        assert_eq!((drift.argument.as_deref(), drift.is_fatal()), (Some("x-queue-type"), false));
        let finding = drift.finding().to_string();
        assert!(
            finding.contains("rabbitmqctl delete_queue orders") && finding.contains("current is 'classic'"),
            "{finding}"
        );
        assert!(Drift::of("o", TYPE.replace("x-queue-type", "x-single-active-consumer")).is_fatal());
        let other = Drift::of("o", "another text".to_owned());
        assert!(other.argument.is_none() && other.finding().fault.ends_with("another text"));
    }
}
