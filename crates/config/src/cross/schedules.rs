//! Checks schedules against the queue and the consumers.

use std::time::Duration;

use super::{Section, beside, listening, problem};
use crate::choice::Driver;
use crate::error::Problem;
use crate::keys::MAX_MESSAGE;
use crate::schedules::sample;
use crate::settings::Settings;
use hostler_types::channel::Channel;
use hostler_types::message::Invalid;

/// Maximum number of attributes in the configuration. hostler adds two, and on SQS one each for an empty body and a routing key.
const MAX_ATTRIBUTES: usize = 6;

/// Maximum of `catch_up` on SQS: less than its 5-minute deduplication interval (AWS limit).
const SQS_CATCH_UP: Duration = Duration::from_secs(4 * 60);

/// Checks all schedules.
pub(super) fn check(settings: &Settings) -> Vec<Problem> {
    let driver = settings.root().get::<Driver>("queue.driver");
    let of_one = |name: &String| {
        let at = settings.schedule(name);
        let elsewhere = on_rabbitmq(&at, driver);
        [elsewhere, on_sqs(&at, settings, driver), message(name, &at), catch_up(&at), own_attribute(&at)]
    };
    settings.schedules.keys().flat_map(of_one).flatten().collect()
}

fn on_rabbitmq(at: &Section<'_>, driver: Option<Driver>) -> Option<Problem> {
    (driver == Some(Driver::RabbitMq)).then(|| {
        let fault = "RabbitMQ keeps no state by which several hosts could agree on who sends".to_owned();
        let cure = "let another program send to the channel, or use the embedded queue, PostgreSQL, NATS, or a FIFO queue of SQS";
        problem(at, "cron", fault, cure.to_owned())
    })
}

/// Checks that the queue is a FIFO queue of SQS, and that no key needs a state, which there is none of on SQS.
fn on_sqs(at: &Section<'_>, settings: &Settings, driver: Option<Driver>) -> Option<Problem> {
    if driver != Some(Driver::Sqs) {
        return None;
    }
    let channel: Channel = at.get("channel")?;
    let cure = "name the channel of a consumer with `ordered = true`, or let EventBridge Scheduler send to the queue"
        .to_owned();
    let why = "each host sends the message, and SQS drops duplicates only in FIFO queues";
    match listening(settings, channel.queue()) {
        Some(consumer) if consumer.get("ordered") == Some(false) => {
            let fault = format!("{why}: {}", beside(&consumer, "ordered", "false"));
            return Some(problem(at, "channel", fault, cure));
        }
        None => {
            let fault = format!("{why}: no consumer here says that {:?} is one", channel.to_string());
            return Some(problem(at, "channel", fault, cure));
        }
        Some(_) => {}
    }
    if at.get::<Duration>("jitter").is_some_and(|jitter| !jitter.is_zero()) {
        let fault =
            "SQS keeps no state: a host that starts between the due time and the delayed one would not know of it";
        return Some(problem(at, "jitter", fault.to_owned(), "remove `jitter`".to_owned()));
    }
    let is_long = at.is_set("catch_up") && at.get::<Duration>("catch_up").is_some_and(|time| time > SQS_CATCH_UP);
    is_long.then(|| {
        let fault =
            "SQS drops duplicates for 5 minutes only, so a message that several hosts send later would be doubled";
        problem(at, "catch_up", fault.to_owned(), "write at most `4m`".to_owned())
    })
}

fn message(name: &str, at: &Section<'_>) -> Option<Problem> {
    let count = at.values::<String>("attributes").len();
    if count > MAX_ATTRIBUTES {
        let fault = format!("has {count} attributes; a queue takes ten, of which hostler needs four");
        let cure = format!("keep {MAX_ATTRIBUTES}, and put the others into the body");
        return Some(Problem { place: at.place("cron"), ..problem(at, "attributes", fault, cure) });
    }
    let fault = sample(name, at)?.validate(MAX_MESSAGE).err()?;
    let (key, cure) = match &fault {
        Invalid::AttributeName { name } => (format!("attributes.{name}"), "rename the attribute"),
        _ => ("body".to_owned(), "shorten the body or the attributes"),
    };
    // The name of an attribute may have dots, which stand between the names of tables elsewhere.
    let place = at.place(if at.is_set(&key) { &key } else { "cron" });
    Some(Problem { place, ..problem(at, &key, fault.to_string(), cure.to_owned()) })
}

fn catch_up(at: &Section<'_>) -> Option<Problem> {
    (at.is_set("catch_up") && at.get::<String>("missed").as_deref() == Some("skip")).then(|| {
        let fault = format!("has no effect: {}", beside(at, "missed", "\"skip\""));
        problem(at, "catch_up", fault, "remove it, or write `missed = \"last\"` or `\"all\"`".to_owned())
    })
}

/// Checks that no attribute has a name that hostler sets itself.
fn own_attribute(at: &Section<'_>) -> Option<Problem> {
    let attributes = at.values::<String>("attributes");
    let name = attributes.keys().find(|name| name.to_ascii_lowercase().starts_with("hostler-"))?;
    let key = format!("attributes.{name}");
    Some(problem(
        at,
        &key,
        "names that begin with `hostler-` are hostler's own".to_owned(),
        "rename the attribute".to_owned(),
    ))
}
