//! The stored form of a message: its headers and its settings, in one attribute.
//!
//! The queue allows ten attributes, with names of few characters. A message of NATS may have any number of headers, so
//! all of them are kept in one attribute. An operator sees them in `hostler dlq`, and a message that goes back by
//! `hostler requeue` brings them along.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::settings::{Defaults, Growth, Settings};
use hostler_types::message::{AttributeValue, Attributes};

/// Name of the attribute.
pub const ATTRIBUTE: &str = "hostler-retry";

/// The headers of a message, in their order.
pub type Headers = Vec<(String, String)>;

#[derive(Serialize, Deserialize)]
struct Stored {
    retries: u32,
    /// Milliseconds; 0: never.
    ttl: u64,
    backoff: Growth,
    base: u64,
    max: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Headers,
}

/// Returns the attributes with which a message is stored.
pub fn seal(settings: &Settings, headers: Headers) -> Attributes {
    let stored = Stored {
        retries: settings.retries,
        ttl: settings.ttl.map_or(0, millis),
        backoff: settings.backoff,
        base: millis(settings.base),
        max: millis(settings.max),
        headers,
    };
    // Serializing numbers and strings cannot fail.
    let text = serde_json::to_string(&stored).unwrap_or_default();
    Attributes::from([(ATTRIBUTE.to_owned(), AttributeValue::Text(text))])
}

/// Reads the settings and the headers of a stored message. A message that an operator sent to the queue has the default
/// settings, and its text attributes as headers.
///
/// # Errors
/// The attribute was damaged. The text says how.
pub fn open(attributes: &Attributes, defaults: &Defaults) -> Result<(Settings, Headers), String> {
    let Some(sealed) = attributes.get(ATTRIBUTE) else {
        let header = |(name, value): (&String, &AttributeValue)| Some((name.clone(), value.as_text()?.to_owned()));
        return Ok((defaults.settings, attributes.iter().filter_map(header).collect()));
    };
    let text = sealed.as_text().ok_or_else(|| format!("its attribute `{ATTRIBUTE}` is not text"))?;
    let stored: Stored = serde_json::from_str(text)
        .map_err(|error| format!("its attribute `{ATTRIBUTE}` is not what the retry service stored ({error})"))?;
    let settings = Settings {
        retries: stored.retries,
        ttl: (stored.ttl > 0).then(|| Duration::from_millis(stored.ttl)),
        backoff: stored.backoff,
        base: Duration::from_millis(stored.base),
        max: Duration::from_millis(stored.max),
        ..defaults.settings
    };
    Ok((settings, stored.headers))
}

/// Returns a duration in whole milliseconds, rounded up, so that a short time to live does not become none.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Priority;

    const SECOND: Duration = Duration::from_secs(1);

    fn defaults() -> Defaults {
        let settings = Settings {
            retries: 20,
            ttl: None,
            delay: Duration::ZERO,
            backoff: Growth::Fixed,
            base: SECOND,
            max: SECOND,
            priority: 0,
        };
        Defaults { settings, priorities: vec![Priority { name: "normal".to_owned(), weight: 1 }] }
    }

    #[test]
    fn headers_are_not_lost_however_many_there_are() {
        let headers: Headers = (0..50)
            .map(|n| (format!("X-Ä {n}"), format!("\"{n}\\")))
            .chain([("Same".to_owned(), "first".to_owned()), ("Same".to_owned(), "second".to_owned())])
            .collect();
        let settings = Settings {
            retries: 3,
            ttl: Some(SECOND * 5),
            backoff: Growth::Exponential,
            max: SECOND * 9,
            ..defaults().settings
        };
        let attributes = seal(&settings, headers.clone());
        assert_eq!(attributes.len(), 1, "a queue allows ten");
        assert_eq!(open(&attributes, &defaults()), Ok((settings, headers)));
    }

    #[test]
    fn a_time_to_live_below_a_millisecond_is_not_none() {
        let ttl = Some(Duration::from_nanos(1));
        let read = open(&seal(&Settings { ttl, ..defaults().settings }, Vec::new()), &defaults());
        assert_eq!(read.map(|(settings, _)| settings.ttl), Ok(Some(Duration::from_millis(1))));
    }

    #[test]
    fn a_message_of_an_operator_has_the_defaults() {
        let attributes = Attributes::from([("a".to_owned(), AttributeValue::Text("1".to_owned()))]);
        let headers = vec![("a".to_owned(), "1".to_owned())];
        assert_eq!(open(&attributes, &defaults()), Ok((defaults().settings, headers)));
    }

    #[test]
    fn damage_is_told() {
        for bad in [AttributeValue::Text("{".to_owned()), AttributeValue::Binary(vec![1])] {
            let attributes = Attributes::from([(ATTRIBUTE.to_owned(), bad)]);
            assert!(open(&attributes, &defaults()).unwrap_err().contains(ATTRIBUTE));
        }
    }
}
