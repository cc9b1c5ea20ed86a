//! Decides on the requests of producers: which message is stored with which settings, or why none is.

use bytes::Bytes;

use crate::envelope::Headers;
use crate::settings::{Defaults, Settings};
use crate::targets::{MAX_SUBJECT, Targets};

/// Number of bytes that a message may need on the way to its receiver in addition to its own: the first line of the headers
/// and the header with the number of the delivery.
const ADDED: usize = "NATS/1.0\r\nHostler-Attempt: 4294967295\r\n\r\n".len();

/// Number of bytes that a request takes in memory besides its texts and its body.
const OVERHEAD: usize = 256;

/// Number of bytes that each header takes in memory besides its texts.
const HEADER_OVERHEAD: usize = 64;

/// Token in the reply subjects of retry services, by which they know the deliveries of one another.
pub const MARK: &str = "hostler-retry";

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
    /// Maximum size of a message on the connection, in bytes, with its headers.
    pub max_payload: usize,
}

impl Incoming {
    /// Returns the number of bytes that the request takes in memory.
    pub fn size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len() + HEADER_OVERHEAD).sum();
        OVERHEAD + self.subject.len() + self.reply.as_ref().map_or(0, String::len) + headers + self.body.len()
    }

    /// Returns the size of the message when it is delivered, as the server counts it.
    fn delivered_size(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + ": \r\n".len() + value.len()).sum();
        ADDED + headers + self.body.len()
    }

    /// Returns `true` if the request is a delivery of another retry service.
    pub(crate) fn is_delivery(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply.rsplit('.').nth(1) == Some(MARK))
    }
}

/// Returns `true` if a producer may have its reply on this subject. Below `$`, a reply would be a command to the server, which a
/// producer could give with the rights of this service.
pub fn may_be_answered(reply: &str) -> bool {
    !reply.starts_with('$')
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

/// Decides on a request. The message is for the subject after that of the service.
///
/// # Errors
/// The text names the fault and the cure. The message must not be stored.
pub fn accept(targets: &Targets, defaults: &Defaults, incoming: Incoming) -> Result<Accepted, String> {
    let prefix = targets.service();
    let target = incoming.subject.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('.'));
    let Some(target) = target.map(str::to_owned).filter(|target| !target.is_empty()) else {
        return Err(format!("{:?} names no subject to deliver to: send to `{prefix}.<subject>`", incoming.subject));
    };
    if let Some(fault) = targets.fault(&target) {
        return Err(fault);
    }
    if incoming.is_delivery() {
        return Err(
            "the message comes from another retry service, and would multiply: send it to one of them only".to_owned()
        );
    }
    // The reply has a control line too.
    if incoming.reply.as_ref().is_some_and(|reply| reply.len() > MAX_SUBJECT) {
        return Err(format!("the reply subject is too long: use at most {MAX_SUBJECT} bytes"));
    }
    let (size, max) = (incoming.delivered_size(), incoming.max_payload);
    if size > max {
        return Err(format!(
            "the message has {size} bytes with its headers and `Hostler-Attempt`, and the server accepts {max}: \
             send a smaller one, or raise the server's `max_payload`"
        ));
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

    #[test]
    fn no_reply_is_a_command_to_the_server() {
        let refused = ["$JS.API.STREAM.PURGE.orders", "$JS.ACK.orders.work.1.1.1.1.0", "$SYS.REQ.USER.INFO"];
        assert!(!refused.iter().any(|reply| may_be_answered(reply)));
        assert!(["_INBOX.a.b", "replies.of.me"].iter().all(|reply| may_be_answered(reply)));
    }

    fn incoming(subject: &str, headers: &[(&str, &str)]) -> Incoming {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Incoming { subject: subject.to_owned(), reply: None, headers, body: Bytes::from("x"), max_payload: 1_000 }
    }

    fn decide(incoming: Incoming) -> Result<Accepted, String> {
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
        accept(&Targets::new("jobs.retry", vec![">".to_owned()]), &defaults, incoming)
    }

    #[test]
    fn the_subject_after_the_prefix_is_the_target() {
        let accepted = decide(incoming("jobs.retry.webhooks.a", &[("Hostler-Retries", "3"), ("X", "1")])).unwrap();
        assert_eq!((&*accepted.target, accepted.settings.retries, accepted.headers.len()), ("webhooks.a", 3, 2));
        assert_eq!(decide(incoming("jobs.retry.jobs.retryx", &[])).unwrap().target, "jobs.retryx");
    }

    #[test]
    fn a_request_that_cannot_be_delivered_is_refused() {
        for (subject, fault) in [
            ("jobs.retry", "names no subject"),
            ("jobs.retry.", "names no subject"),
            ("jobs.retry.a..b", "no empty parts"),
            ("jobs.retry.>", "wildcards"),
            ("jobs.retry.jobs.retry.a", "of the retry service itself"),
            ("jobs.retry.$JS.API.STREAM.PURGE.A", "of NATS itself"),
        ] {
            let error = decide(incoming(subject, &[])).unwrap_err();
            assert!(error.contains(fault), "{subject}: {error}");
        }
        assert!(decide(incoming("jobs.retry.a", &[("Hostler-TTL", "x")])).unwrap_err().contains("Hostler-TTL"));
        let long = Incoming { reply: Some("a".repeat(MAX_SUBJECT + 1)), ..incoming("jobs.retry.a", &[]) };
        assert!(decide(long).unwrap_err().contains("reply subject"));
    }

    #[test]
    fn a_delivery_of_another_retry_service_is_refused() {
        let reply = |reply: &str| Incoming { reply: Some(reply.to_owned()), ..incoming("jobs.retry.a", &[]) };
        assert!(decide(reply("_INBOX.abc.hostler-retry.7-1f")).unwrap_err().contains("another retry service"));
        assert!(decide(reply("_INBOX.abc.7")).is_ok());
    }

    #[test]
    fn a_message_fits_with_what_is_added_to_it() {
        let sized =
            |size: usize| Incoming { body: Bytes::from(vec![0; size]), ..incoming("jobs.retry.a", &[("A", "1")]) };
        let room = 1_000 - ADDED - "A: 1\r\n".len();
        assert!(decide(sized(room)).is_ok());
        let error = decide(sized(room + 1)).unwrap_err();
        assert!(error.contains("1001 bytes") && error.contains("max_payload"), "{error}");
    }
}
