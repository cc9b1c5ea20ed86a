//! `[schedules.NAME]`: messages that are sent at given times.

use std::collections::BTreeMap;
use std::time::Duration;

use figment::value::Value;

use super::read::{Read, quoted, text};
use super::settings::{Mismatch, Section, Settings};
use hostler_schedules::{Cron, Missed, Schedule as Times};
use hostler_types::Timestamp;
use hostler_types::channel::Channel;
use hostler_types::message::{AttributeValue, Outgoing};

/// Name of the attribute with the name of the schedule.
const NAME_ATTRIBUTE: &str = "hostler-schedule";

/// Name of the attribute with the due time, as RFC 3339 in UTC.
const DUE_ATTRIBUTE: &str = "hostler-due";

/// A schedule: messages that the hosts with this configuration send to a channel at given times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Cron expression, as written.
    pub cron: String,
    /// Name, due times, and the treatment of missed ones.
    pub times: Times,
    /// Channel that the messages are sent to.
    pub channel: Channel,
    /// Body of each message: at most 255 KiB with the attributes.
    pub body: String,
    /// Attributes of each message: at most six.
    pub attributes: BTreeMap<String, String>,
    /// FIFO group of the messages.
    pub group: Option<String>,
    /// Routing key of the messages.
    pub routing_key: Option<String>,
}

impl Schedule {
    /// Converts the checked settings of all schedules.
    pub(super) fn all(settings: &Settings) -> Result<Vec<Self>, Mismatch> {
        settings.schedules.keys().map(|name| Self::read(name, settings)).collect()
    }

    /// Converts the checked settings of the schedule `name`. Returns an error if the table of keys does not match this code.
    fn read(name: &str, settings: &Settings) -> Result<Self, Mismatch> {
        let at = settings.schedule(name);
        let (expression, zone): (String, String) = (at.need("cron")?, at.need("timezone")?);
        let cron = Cron::parse(&expression, &zone).map_err(|fault| at.mismatch("cron", fault.to_string()))?;
        let mut schedule = Self {
            cron: expression,
            times: Times {
                name: name.to_owned(),
                cron,
                jitter: at.need("jitter")?,
                missed: at.need("missed")?,
                catch_up: at.need::<Duration>("catch_up")?,
                definition: String::new(),
            },
            channel: at.need("channel")?,
            body: at.need("body")?,
            attributes: at.values("attributes"),
            group: at.maybe("group")?,
            routing_key: at.maybe("routing_key")?,
        };
        schedule.times.definition = schedule.definition(&zone);
        Ok(schedule)
    }

    /// Returns the message of a due time.
    pub fn message(&self, due: Timestamp) -> Outgoing {
        message(&self.times.name, due, &self.body, &self.attributes, (self.group.clone(), self.routing_key.clone()))
    }

    /// Returns a digest of when messages are due and what they contain. Jitter and the treatment of missed messages do not count:
    /// hosts may differ in them.
    fn definition(&self, zone: &str) -> String {
        let channel = self.channel.to_string();
        // An unset text differs from an empty one.
        let optional = |text: &Option<String>| text.as_ref().map_or_else(|| "-".to_owned(), |text| format!("+{text}"));
        let (group, key) = (optional(&self.group), optional(&self.routing_key));
        let fixed = [self.cron.as_str(), zone, &channel, &self.body, &group, &key];
        let attributes = self.attributes.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        Times::digest(fixed.into_iter().chain(attributes))
    }
}

/// Returns the message of the schedule in `at`, with a due time of the same size as any other. `None`: a value is faulty.
pub(super) fn sample(name: &str, at: &Section<'_>) -> Option<Outgoing> {
    let keys = (at.get("group"), at.get("routing_key"));
    Some(message(name, Timestamp::from_micros(0), &at.get::<String>("body")?, &at.values("attributes"), keys))
}

fn message(
    name: &str,
    due: Timestamp,
    body: &str,
    attributes: &BTreeMap<String, String>,
    (group, routing_key): (Option<String>, Option<String>),
) -> Outgoing {
    let own = [(NAME_ATTRIBUTE, name.to_owned()), (DUE_ATTRIBUTE, due.to_string())];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), AttributeValue::Text(value)));
    let others = attributes.iter().map(|(name, value)| (name.clone(), AttributeValue::Text(value.clone())));
    Outgoing {
        body: body.as_bytes().to_vec(),
        attributes: others.chain(own).collect(),
        group,
        routing_key,
        ..Outgoing::default()
    }
}

impl Read for Missed {
    fn read(value: &Value) -> Result<Self, String> {
        let word = text(value)?;
        Self::of_word(word).ok_or_else(|| format!("{} is not one of the choices", quoted(word)))
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    fn config(text: &str) -> Config {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hostler.toml");
        std::fs::write(&file, format!("[consumers.a]\nchannel = 'a'\nhandler = 'a.wasm'\n[schedules.one]\n{text}"))
            .unwrap();
        crate::load(Some(&file), std::iter::empty::<(String, String)>()).unwrap().config
    }

    #[test]
    fn a_definition_is_all_that_a_message_depends_on() {
        let definition = |text: &str| {
            config(&format!("cron = '0 2 * * *'\nchannel = 'a'\n{text}")).schedules[0].times.definition.clone()
        };
        let plain = definition("");
        for same in ["timezone = 'UTC'", "body = ''", "jitter = '5m'", "missed = 'all'", "catch_up = '2h'"] {
            assert_eq!(definition(same), plain, "{same}");
        }
        let others = [
            "timezone = 'Europe/Berlin'",
            "body = 'x'",
            "group = 'x'",
            "routing_key = 'x'",
            "attributes.y = 'x'",
            "attributes.x = 'y'",
        ];
        let mut seen: Vec<_> = others.iter().map(|text| definition(text)).chain([plain]).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), others.len() + 1);
    }

    #[test]
    fn a_message_names_its_schedule_and_its_due_time() {
        let schedule =
            &config("cron = '@daily'\nchannel = 'a'\nbody = 'x'\nattributes.kind = 'night'\ngroup = 'g'").schedules[0];
        let message = schedule.message(hostler_types::Timestamp::from_micros(86_400_000_000));
        let attributes: Vec<_> =
            message.attributes.iter().map(|(name, value)| (name.as_str(), value.as_text().unwrap())).collect();
        assert_eq!(
            attributes,
            [("hostler-due", "1970-01-02T00:00:00.000000Z"), ("hostler-schedule", "one"), ("kind", "night")]
        );
        assert_eq!((message.body.as_slice(), message.group.as_deref()), (&b"x"[..], Some("g")));
    }
}
