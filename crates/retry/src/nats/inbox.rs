//! The reply subjects of the service, and the replies that come on them. No I/O.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use async_nats::{HeaderValue, Message};

use crate::accept::MARK;
use crate::answer;
use crate::engine::Event;
use crate::requests::Token;

/// Number that no request has, for messages of the service to itself. They show that the connection works. A request to which
/// nobody listens would not: the server does not answer it if somebody has subscribed to all subjects.
pub(super) const ECHO: Token = 0;

/// The reply subjects of the service. Each ends with the number of its request and a code, which only the server and the
/// receiver of that request know. A receiver can therefore not acknowledge the messages of others.
pub(super) struct Inbox {
    subject: String,
    secret: RandomState,
}

impl Inbox {
    pub(super) fn new(unique: &str) -> Self {
        Self { subject: format!("{unique}.{MARK}"), secret: RandomState::new() }
    }

    pub(super) fn subscription(&self) -> String {
        format!("{}.*", self.subject)
    }

    pub(super) fn reply_to(&self, token: Token) -> String {
        format!("{}.{token}-{:016x}", self.subject, self.secret.hash_one(token))
    }

    /// Returns the number of the request. `None`: the reply is for none of the requests.
    fn token(&self, subject: &str) -> Option<Token> {
        let (token, code) = subject.rsplit('.').next()?.split_once('-')?;
        let token = token.parse().ok()?;
        (code == format!("{:016x}", self.secret.hash_one(token))).then_some(token)
    }
}

/// Reads a message that came on a reply subject. `None`: it is for no request.
pub(super) fn reply(inbox: &Inbox, message: &Message) -> Option<Event> {
    let token = inbox.token(&message.subject)?;
    if token == ECHO {
        return std::str::from_utf8(&message.payload).ok()?.parse().ok().map(Event::Heard);
    }
    let header = |name: &str| message.headers.as_ref()?.get(name).map(HeaderValue::as_str);
    let status = message.status.map(|status| status.as_u16());
    Some(Event::Reply(token, answer::read(&message.payload, status, header)))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::accept::Incoming;

    #[test]
    fn a_receiver_cannot_make_up_the_reply_to_another_request() {
        let (inbox, other) = (Inbox::new("_INBOX.a"), Inbox::new("_INBOX.a"));
        let own = inbox.reply_to(7);
        assert_eq!((inbox.token(&own), other.token(&own)), (Some(7), None));
        let code = own.rsplit('-').next().unwrap();
        for forged in [format!("_INBOX.a.{MARK}.8-{code}"), format!("_INBOX.a.{MARK}.8"), "8".to_owned(), String::new()]
        {
            assert_eq!(inbox.token(&forged), None, "{forged}");
        }
        let incoming = Incoming {
            subject: "retry.a".to_owned(),
            reply: Some(own),
            headers: Vec::new(),
            body: Bytes::new(),
            max_payload: 1_000,
        };
        assert!(incoming.is_delivery());
    }

    #[test]
    fn an_echo_tells_when_the_connection_worked() {
        let inbox = Inbox::new("_INBOX.a");
        let came = |subject: String, payload: &str| {
            let payload = Bytes::copy_from_slice(payload.as_bytes());
            let (subject, length) = (subject.into(), payload.len());
            let (headers, status, description) = (None, None, None);
            reply(&inbox, &Message { subject, reply: None, payload, headers, status, description, length })
        };
        assert!(matches!(came(inbox.reply_to(ECHO), "1234"), Some(Event::Heard(1_234))));
        assert!(came(inbox.reply_to(ECHO), "+ACK").is_none());
        assert!(came(format!("_INBOX.a.{MARK}.{ECHO}-0"), "1234").is_none(), "it is made up");
        assert!(matches!(came(inbox.reply_to(1), ""), Some(Event::Reply(1, answer::Reply::End(_)))));
    }
}
