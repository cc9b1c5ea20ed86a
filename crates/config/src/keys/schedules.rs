//! The keys of `[schedules.NAME]`.

use std::time::Duration;

use super::{DefaultValue, Key, SECOND, key, lasting};
use crate::kind::Kind;
use hostler_schedules::Missed;

/// Maximum size of a scheduled message in bytes. 1 KiB less than the 256 KiB that each queue takes, for the attributes that hostler adds.
pub(crate) const MAX_MESSAGE: usize = 255 << 10;

/// The keys, in the order of the documentation.
pub(super) const KEYS: &[Key] = &[
    key(
        "schedules.*.cron",
        Kind::Cron,
        DefaultValue::Required,
        "The times at which a message is sent to the channel: minute, hour, day of the month, month and day of the week (0 to 6 from \
         Sunday, or `SUN` to `SAT`), with the second before them if there are six fields; or `@hourly`, `@daily`, `@weekly`, `@monthly`, \
         `@yearly`. `L` is the last day of the month, `15W` the weekday closest to the 15th, `FRI#2` the second Friday.",
    ),
    key(
        "schedules.*.timezone",
        Kind::Zone,
        DefaultValue::Value("UTC"),
        "The time zone of `cron`, by its name in the IANA database.",
    ),
    key("schedules.*.channel", Kind::Channel, DefaultValue::Required, "The channel that the messages are sent to."),
    key(
        "schedules.*.body",
        Kind::Text { max: MAX_MESSAGE },
        DefaultValue::Value(""),
        "The body of each message. The attributes `hostler-schedule` and `hostler-due` hold the name of the schedule and the due time.",
    ),
    key(
        "schedules.*.attributes.*",
        Kind::Text { max: MAX_MESSAGE },
        DefaultValue::Unset,
        "Attributes of each message, at most six.",
    ),
    key(
        "schedules.*.group",
        Kind::Text { max: 128 },
        DefaultValue::Unset,
        "The FIFO group of the messages, on an ordered channel.",
    ),
    key(
        "schedules.*.routing_key",
        Kind::Text { max: 255 },
        DefaultValue::Unset,
        "The routing key of the messages, by which the filters of an exchange's queues select them.",
    ),
    key(
        "schedules.*.jitter",
        lasting(Duration::ZERO, Duration::from_secs(24 * 3600)),
        DefaultValue::Value("0s"),
        "Longest time by which a message is sent after its due time: another one for each due time, the same on all hosts, and never beyond \
         the next due time.",
    ),
    key(
        "schedules.*.missed",
        Kind::Choice(Missed::WORDS),
        DefaultValue::Value("last"),
        "Due times at which no host could send: `last`: the last one is sent late; `skip`: none; `all`: each one, the oldest first.",
    ),
    key(
        "schedules.*.catch_up",
        lasting(SECOND, Duration::from_secs(366 * 24 * 3600)),
        DefaultValue::Value("1h"),
        "Longest time after which a missed message is still sent.",
    ),
];
