//! Decides on the requests of producers: which message is stored with which settings, or why none is.

use bytes::Bytes;

use crate::envelope::Headers;
use crate::settings::{Defaults, Settings};

/// A request of a producer.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// Subject of the request.
    pub subject: String,
    /// Subject for the reply. `None`: the producer waits for none.
    pub reply: Option<String>,
    /// Headers, in their order.
    pub headers: Headers,
    /// Body.
    pub body: Bytes,
}

impl Incoming {
    /// Returns the number of bytes that the request takes in memory.
    pub fn size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.subject.len() + headers + self.body.len()
    }
}

/// A message to store.
#[derive(Debug, Clone)]
pub struct Accepted {
    /// Subject to which the message is delivered.
    pub target: String,
    /// Settings of the message.
    pub settings: Settings,
    /// Subject for the reply.
    pub reply: Option<String>,
    /// Headers, in their order.
    pub headers: Headers,
    /// Body.
    pub body: Bytes,
    /// Number of bytes that the request takes in memory.
    pub size: usize,
}

/// Decides on a request. `prefix`: subject of the retry service. The message is for the subject after it.
///
/// # Errors
/// The text names the fault and the cure. The message must not be stored.
pub fn accept(prefix: &str, defaults: &Defaults, incoming: Incoming) -> Result<Accepted, String> {
    let target = incoming.subject.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.'));
    let target = target.unwrap_or_default().to_owned();
    if target.is_empty() || target.split('.').any(|token| matches!(token, "" | "*" | ">")) {
        return Err(format!(
            "{:?} names no subject to deliver to: send to `{prefix}.<subject>`, without wildcards",
            incoming.subject
        ));
    }
    if target == prefix || target.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.')) {
        return Err(format!("{target:?} is a subject of the retry service itself: send to another one"));
    }
    let headers = incoming.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let settings = defaults.with(headers).map_err(|error| error.to_string())?;
    let size = incoming.size();
    let Incoming { reply, headers, body, .. } = incoming;
    Ok(Accepted { target, settings, reply, headers, body, size })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::{Growth, Priority};

    fn decide(subject: &str, headers: &[(&str, &str)]) -> Result<Accepted, String> {
        let settings = Settings {
            retries: 20,
            ttl: None,
            delay: Duration::ZERO,
            backoff: Growth::Fixed,
            base: Duration::from_secs(1),
            max: Duration::from_secs(1),
            priority: 0,
        };
        let defaults = Defaults { settings, priorities: vec![Priority { name: "normal".to_owned(), weight: 1 }] };
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let incoming = Incoming { subject: subject.to_owned(), reply: None, headers, body: Bytes::from("x") };
        accept("jobs.retry", &defaults, incoming)
    }

    #[test]
    fn the_subject_after_the_prefix_is_the_target() {
        let accepted = decide("jobs.retry.webhooks.a", &[("Hostler-Retries", "3"), ("X", "1")]).unwrap();
        assert_eq!((&*accepted.target, accepted.settings.retries, accepted.headers.len()), ("webhooks.a", 3, 2));
        assert_eq!(decide("jobs.retry.jobs.retryx", &[]).unwrap().target, "jobs.retryx");
    }

    #[test]
    fn a_request_that_cannot_be_delivered_is_refused() {
        for (subject, fault) in [
            ("jobs.retry", "names no subject"),
            ("jobs.retry.", "names no subject"),
            ("jobs.retry.a..b", "names no subject"),
            ("jobs.retry.a.*", "without wildcards"),
            ("jobs.retry.>", "without wildcards"),
            ("jobs.retry.jobs.retry", "of the retry service itself"),
            ("jobs.retry.jobs.retry.a", "of the retry service itself"),
        ] {
            let error = decide(subject, &[]).unwrap_err();
            assert!(error.contains(fault), "{subject}: {error}");
        }
        assert!(decide("jobs.retry.a", &[("Hostler-TTL", "x")]).unwrap_err().contains("Hostler-TTL"));
    }
}
