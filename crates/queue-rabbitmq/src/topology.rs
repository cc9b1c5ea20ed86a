//! The parts of a channel on the server: queues, exchanges and bindings. No I/O.

use hostler_queue::{ChannelSpec, QueueError};
use hostler_types::channel::{Channel, Filter};
use lapin::types::{AMQPValue, FieldTable, LongString};

use super::envelope::MAX_KEY;
use super::ladder;
use super::management::Arguments;
use super::names::Names;

/// Deliveries after which the server itself dead-letters a message. The driver counts a message's attempts, and gives up
/// earlier. The limit is the net for a message that the driver never sees to its end. It is the same for all queues, because
/// RabbitMQ cannot change it.
pub(super) const SERVER_LIMIT: u32 = 1000;

/// Number of deliveries that the server never reaches, for queues from which no message may go.
const UNLIMITED: i64 = i32::MAX as i64;

/// Arguments of a queue without which the server may lose a message that is rejected.
const NET: [&str; 5] =
    ["x-queue-type", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-overflow"];

/// The pattern that all routing keys match.
pub(super) const EVERYTHING: &str = "#";

/// A queue as hostler declares it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct QueueSpec {
    /// Name on the server.
    pub(super) name: String,
    /// Arguments, which the server never changes.
    pub(super) arguments: FieldTable,
}

/// A binding of a queue to an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) exchange: String,
    pub(super) queue: String,
    pub(super) pattern: String,
}

/// Returns a channel's queues: its dead-letter queue first, so that no message can be dead-lettered to nowhere.
pub(super) fn queues(names: &Names, spec: &ChannelSpec) -> Vec<QueueSpec> {
    let dead_letters = spec.max_receives.map(|_| spec.channel.dead_letter_queue());
    let channels = dead_letters.iter().filter_map(|name| name.parse().ok()).chain([spec.channel.clone()]);
    channels.map(|channel: Channel| queue(names, &channel, spec.ordered)).collect()
}

/// Returns a channel's queue.
pub(super) fn queue(names: &Names, channel: &Channel, ordered: bool) -> QueueSpec {
    let mut arguments = FieldTable::default();
    let mut set = |name: &str, value: AMQPValue| {
        arguments.insert(name.into(), value);
    };
    set("x-queue-type", text("quorum"));
    if channel.of_dead_letters().is_some() {
        set("x-delivery-limit", AMQPValue::LongLongInt(UNLIMITED));
    } else {
        set("x-delivery-limit", AMQPValue::LongLongInt(SERVER_LIMIT.into()));
        // At least once: if the dead-letter queue is missing or full, the message stays.
        set("x-dead-letter-exchange", text(""));
        set("x-dead-letter-routing-key", text(&names.full(&channel.dead_letter_queue())));
        set("x-dead-letter-strategy", text("at-least-once"));
        set("x-overflow", text("reject-publish"));
    }
    if ordered {
        set("x-single-active-consumer", AMQPValue::Boolean(true));
    }
    QueueSpec { name: names.full(channel.queue()), arguments }
}

/// Returns `true` if a queue with these arguments hands a message that is rejected to its dead-letter queue, and keeps it until
/// that has stored it. `wanted`: the queue as hostler declares it.
pub(super) fn has_net(arguments: &Arguments, wanted: &QueueSpec) -> bool {
    NET.iter().all(|name| match wanted.arguments.inner().get(*name) {
        Some(AMQPValue::LongString(value)) => {
            arguments.get(*name).and_then(serde_json::Value::as_str).map(str::as_bytes) == Some(value.as_bytes())
        }
        _ => false,
    })
}

/// Returns the arguments of a level's queue in the delay ladder.
pub(super) fn level_arguments(level: &ladder::Level) -> FieldTable {
    let mut arguments = FieldTable::default();
    for (name, value) in [
        ("x-queue-type", text("quorum")),
        ("x-message-ttl", AMQPValue::LongLongInt(level.holds)),
        ("x-dead-letter-exchange", text(&level.next)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ] {
        arguments.insert(name.into(), value);
    }
    arguments
}

/// Returns the arguments of the exchange at the foot of the delay ladder. A message whose queue is missing or not bound goes to
/// a queue of its own. It would otherwise stay in the lowest level, and stop the messages of all queues behind it.
pub(super) fn landing_arguments(names: &Names) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("alternate-exchange".into(), text(&names.lost()));
    arguments
}

/// Returns the arguments of the queue for delayed messages that found no queue.
pub(super) fn lost_arguments() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(UNLIMITED));
    arguments
}

/// Returns the binding of the queue for delayed messages that found no queue.
pub(super) fn lost_binding(names: &Names) -> Binding {
    Binding { exchange: names.lost(), queue: names.lost(), pattern: EVERYTHING.to_owned() }
}

/// Returns the binding by which the delay ladder delivers to a queue.
pub(super) fn landing(names: &Names, queue: &str) -> Binding {
    Binding { exchange: names.landing(), queue: queue.to_owned(), pattern: ladder::landing_pattern(queue) }
}

/// Returns the bindings of a channel's queue to its exchange.
///
/// # Errors
/// A value of the filter is longer than any routing key.
pub(super) fn bindings(names: &Names, spec: &ChannelSpec) -> Result<Vec<Binding>, QueueError> {
    let Some(exchange) = spec.channel.exchange() else { return Ok(Vec::new()) };
    let (exchange, queue) = (names.full(exchange), names.full(spec.channel.queue()));
    let binding = |pattern: String| match pattern.len() {
        0..=MAX_KEY => Ok(Binding { exchange: exchange.clone(), queue: queue.clone(), pattern }),
        length => Err(QueueError::Refused(format!(
            "the filter of the channel `{}` makes a binding of {length} bytes, and RabbitMQ takes at most {MAX_KEY}: shorten \
             its value `{}…`",
            spec.channel,
            &pattern[..pattern.floor_char_boundary(40)]
        ))),
    };
    patterns(&spec.filter).into_iter().map(binding).collect()
}

/// Returns the topic patterns that let at least the messages of a filter pass.
fn patterns(filter: &Filter) -> Vec<String> {
    let everything = || vec![EVERYTHING.to_owned()];
    match filter {
        Filter::All | Filter::Exclude(_) => everything(),
        Filter::Exact(keys) => keys.clone(),
        Filter::Prefix(prefixes) if prefixes.iter().all(|prefix| prefix.ends_with('.')) => {
            prefixes.iter().map(|prefix| format!("{prefix}#")).collect()
        }
        Filter::Prefix(_) => everything(),
    }
}

/// Returns `true` if the bindings may let other messages pass than the filter. The driver then applies the filter. The bindings of an
/// earlier filter may still exist, as AMQP does not list them.
pub(super) fn is_loose(filter: &Filter) -> bool {
    *filter != Filter::All
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(channel: &str) -> ChannelSpec {
        ChannelSpec { max_receives: Some(5), ..ChannelSpec::new(channel.parse().unwrap()) }
    }

    fn names(arguments: &FieldTable) -> Vec<&str> {
        arguments.inner().keys().map(|name| name.as_str()).collect()
    }

    #[test]
    fn a_channel_has_a_dead_letter_queue_that_keeps_everything() {
        let queues = queues(&Names::new("p-", "p-"), &spec("shop.orders"));
        assert_eq!(queues.iter().map(|queue| &*queue.name).collect::<Vec<_>>(), ["p-orders-dlq", "p-orders"]);
        assert_eq!(names(&queues[0].arguments), ["x-delivery-limit", "x-queue-type"]);
        let target = &queues[1].arguments.inner()["x-dead-letter-routing-key"];
        assert_eq!(*target, text("p-orders-dlq"));
        let alone = super::queues(&Names::new("", ""), &ChannelSpec { max_receives: None, ..spec("orders") });
        assert_eq!(alone.len(), 1);
    }

    #[test]
    fn a_queue_of_others_is_no_net_unless_it_keeps_what_it_rejects() {
        let wanted = queue(&Names::new("p-", "p-"), &"orders".parse().unwrap(), false);
        let ours = serde_json::json!({
            "x-queue-type": "quorum", "x-delivery-limit": 20, "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "p-orders-dlq", "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        });
        let ours = ours.as_object().unwrap();
        assert!(has_net(ours, &wanted), "the limit does not matter");
        for name in NET {
            let (mut other, mut less) = (ours.clone(), ours.clone());
            other.insert(name.to_owned(), "other".into());
            less.remove(name);
            assert!(!has_net(&other, &wanted) && !has_net(&less, &wanted), "{name}");
        }
        let dead_letters = queue(&Names::new("p-", "p-"), &"orders-dlq".parse().unwrap(), false);
        assert!(!has_net(ours, &dead_letters));
    }

    #[test]
    fn arguments_do_not_depend_on_settings_that_change() {
        let queue = |spec: &ChannelSpec| queues(&Names::new("", ""), spec).pop().unwrap();
        let (few, many) = (spec("orders"), ChannelSpec { max_receives: Some(200), ..spec("orders") });
        assert_eq!(queue(&few), queue(&many));
        assert_eq!(queue(&few), queue(&ChannelSpec { max_receives: None, ..few.clone() }));
        let ordered = queue(&ChannelSpec { ordered: true, ..few });
        assert!(names(&ordered.arguments).contains(&"x-single-active-consumer"));
    }

    #[test]
    fn a_filter_that_amqp_cannot_encode_is_refused() {
        let bound = |filter| bindings(&Names::new("", ""), &ChannelSpec { filter, ..spec("shop.orders") });
        let exact = |length: usize| Filter::Exact(vec!["k".repeat(length)]);
        let prefix = |length: usize| Filter::Prefix(vec!["é".repeat((length - 1) / 2) + "."]);
        assert_eq!([bound(exact(255)), bound(prefix(254))].map(|bound| bound.unwrap().len()), [1, 1]);
        for wrong in [exact(256), prefix(255)] {
            let error = bound(wrong).unwrap_err();
            assert!(matches!(&error, QueueError::Refused(text) if text.contains("`shop.orders`")), "{error:?}");
        }
        let late = Filter::Exclude(vec!["k".repeat(256)]);
        assert_eq!(bound(late).unwrap().len(), 1, "the driver applies it");
    }

    #[test]
    fn filters_become_patterns_and_the_driver_does_the_rest() {
        let of = |filter: &Filter| (patterns(filter), is_loose(filter));
        let list = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        assert_eq!(of(&Filter::All), (list(&["#"]), false));
        assert_eq!(of(&Filter::Exact(list(&["EU.order", "x"]))), (list(&["EU.order", "x"]), true));
        assert_eq!(of(&Filter::Exact(list(&["EU.*"]))), (list(&["EU.*"]), true));
        assert_eq!(of(&Filter::Prefix(list(&["EU.", "US."]))), (list(&["EU.#", "US.#"]), true));
        assert_eq!(of(&Filter::Prefix(list(&["EU.", "U"]))), (list(&["#"]), true));
        assert_eq!(of(&Filter::Exclude(list(&["x"]))), (list(&["#"]), true));
    }
}
