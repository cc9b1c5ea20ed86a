//! Creates the copy of a message to move. Interprets the queue's answer to that copy.

use hostler_queue::{ATTEMPTS_ATTRIBUTE, ORIGINAL_ID_ATTRIBUTE, QueueError, SendError, Sent};
use hostler_types::channel::Channel;
use hostler_types::message::{AttributeValue, Attributes, Invalid, MAX_ATTRIBUTES, Message, Outgoing};

/// Additions that a copy gets. An addition is left out if the target does not accept it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extras {
    /// Set to add a dedupe key. If a copy is sent twice within a short time, the queue drops the second one.
    pub(super) key: bool,
    /// Set to add an attribute with the original id.
    pub(super) id: bool,
}

/// Creates the copy of a message that was received from the queue `source`. The copy has the message's body or claim,
/// its attributes, its group and its routing key.
pub(super) fn outgoing(message: &Message, source: &Channel, extras: Extras) -> Outgoing {
    Outgoing {
        body: message.body.to_vec(),
        attributes: if extras.id { attributes(message) } else { message.attributes.clone() },
        routing_key: message.routing_key.clone(),
        group: message.group.clone(),
        // The key is unique for one dead-lettering in one queue. A message that fails again has another id, and copies
        // of a published message share an id. The key has at most 128 characters (SQS limit): a name of up to 75
        // characters and a UUID.
        dedupe: extras.key.then(|| format!("requeue:{}:{}", source.queue(), message.id)),
        claim: message.claim.clone(),
        trace: message.trace.clone(),
        ..Outgoing::default()
    }
}

/// Returns the message's attributes, plus one with the id that the message had before its first move. Keeps the
/// attributes that describe the dead-lettering. If the message already has the maximum number of attributes, the one
/// with the number of attempts is replaced, because attempts for the copy are counted anew.
fn attributes(message: &Message) -> Attributes {
    let mut attributes = message.attributes.clone();
    if attributes.contains_key(ORIGINAL_ID_ATTRIBUTE) {
        return attributes;
    }
    if attributes.len() < MAX_ATTRIBUTES || attributes.remove(ATTEMPTS_ATTRIBUTE).is_some() {
        attributes.insert(ORIGINAL_ID_ATTRIBUTE.to_owned(), AttributeValue::Text(message.id.clone()));
    }
    attributes
}

/// Next step after the queue's answer to a copy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Remove the original, because the target has the copy, from this or an earlier attempt.
    Ack,
    /// Send the copy again immediately, with only these additions.
    Again(Extras),
    /// Send the copy again after a pause.
    Later(QueueError),
    /// Stop: the queue refuses the copy.
    Refused(QueueError),
    /// Give up this message, because it cannot be sent in its current form.
    Never(Invalid),
}

/// Returns the next step. `answer`: the queue's answer to the copy. `extras`: additions that the copy had.
pub(super) fn after(answer: Result<Sent, SendError>, extras: Extras) -> Next {
    match answer {
        Ok(_) => Next::Ack,
        Err(SendError::Invalid(Invalid::DedupeUnsupported(_))) if extras.key => {
            Next::Again(Extras { key: false, ..extras })
        }
        Err(SendError::Invalid(Invalid::TooLarge { .. } | Invalid::TooManyAttributes { .. })) if extras.id => {
            Next::Again(Extras { id: false, ..extras })
        }
        Err(SendError::Invalid(invalid)) => Next::Never(invalid),
        Err(SendError::Queue(error @ QueueError::Unavailable(_))) => Next::Later(error),
        Err(SendError::Queue(error)) => Next::Refused(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use hostler_queue::{REASON_ATTRIBUTE, SOURCE_ATTRIBUTE};
    use hostler_types::message::{Claim, Typed};

    const ALL: Extras = Extras { key: true, id: true };

    fn text(text: &str) -> AttributeValue {
        AttributeValue::Text(text.to_owned())
    }

    /// Returns a message with the attributes of a dead letter, and with `own` further attributes.
    fn message(own: usize) -> Message {
        let story = [(REASON_ATTRIBUTE, "why"), (SOURCE_ATTRIBUTE, "orders"), (ATTEMPTS_ATTRIBUTE, "3")];
        let story = story.map(|(name, value)| (name.to_owned(), text(value)));
        let typed = Typed { data_type: "Number".into(), value: text("1") };
        let own = (0..own).map(|n| (format!("a{n}"), AttributeValue::Typed(Box::new(typed.clone()))));
        Message {
            id: "7".into(),
            body: "body".into(),
            attributes: own.chain(story).collect(),
            enqueued_at: SystemTime::UNIX_EPOCH,
            group: Some("g".into()),
            routing_key: Some("k".into()),
            claim: Some(Arc::new(Claim { bucket: "b".into(), key: "k".into(), size: Some(1) })),
            trace: None,
        }
    }

    fn sent(message: &Message, extras: Extras) -> Outgoing {
        outgoing(message, &"orders-dlq".parse().unwrap(), extras)
    }

    #[test]
    fn everything_is_kept_and_the_id_is_added() {
        let message = message(6);
        let copy = sent(&message, ALL);
        let mut expected = message.attributes.clone();
        expected.insert(ORIGINAL_ID_ATTRIBUTE.into(), text("7"));
        assert_eq!(copy.attributes, expected);
        assert_eq!((copy.body.as_slice(), &copy.claim), (&b"body"[..], &message.claim));
        assert_eq!((copy.group.as_deref(), copy.routing_key.as_deref()), (Some("g"), Some("k")));
        assert_eq!(copy.dedupe.as_deref(), Some("requeue:orders-dlq:7"));
        let bare = sent(&message, Extras { key: false, id: false });
        assert_eq!((bare.attributes, bare.dedupe), (message.attributes, None));
    }

    #[test]
    fn the_first_id_counts() {
        let mut message = message(0);
        message.attributes.insert(ORIGINAL_ID_ATTRIBUTE.into(), text("5"));
        assert_eq!(sent(&message, ALL).attributes, message.attributes);
    }

    #[test]
    fn where_there_is_no_room_the_count_of_attempts_gives_way_and_nothing_else() {
        let full = message(7);
        let copy = sent(&full, ALL).attributes;
        assert_eq!(copy.len(), MAX_ATTRIBUTES);
        assert_eq!((copy.get(ORIGINAL_ID_ATTRIBUTE), copy.get(ATTEMPTS_ATTRIBUTE)), (Some(&text("7")), None));
        assert!(copy.contains_key(REASON_ATTRIBUTE) && copy.contains_key("a6"));
        let mut all_own = message(10);
        all_own.attributes.retain(|name, _| name.starts_with('a'));
        assert_eq!(sent(&all_own, ALL).attributes, all_own.attributes);
    }

    #[test]
    fn the_longest_key_is_what_sqs_takes() {
        let longest: Channel = format!("{}-dlq", "q".repeat(hostler_types::channel::MAX_NAME)).parse().unwrap();
        let message = Message { id: uuid::Uuid::nil().to_string(), ..message(0) };
        assert!(outgoing(&message, &longest, ALL).dedupe.unwrap().len() <= 128);
    }

    #[test]
    fn what_the_target_does_not_take_is_left_out_before_giving_up() {
        let large = Invalid::TooLarge { size: 2, max: 1 };
        let invalid = |invalid: Invalid, extras| after(Err(invalid.into()), extras);
        let keyless = Extras { key: false, id: true };
        assert_eq!(invalid(Invalid::DedupeUnsupported("no"), ALL), Next::Again(keyless));
        assert_eq!(invalid(large.clone(), ALL), Next::Again(Extras { key: true, id: false }));
        assert_eq!(invalid(large.clone(), keyless), Next::Again(Extras { key: false, id: false }));
        assert_eq!(invalid(large.clone(), Extras { key: true, id: false }), Next::Never(large));
        let no = Invalid::DedupeUnsupported("no");
        assert_eq!(invalid(no.clone(), keyless), Next::Never(no));
    }

    #[test]
    fn answers_are_told_apart_by_what_to_do() {
        let duplicate = Sent { id: "1".into(), queues: Some(0) };
        assert_eq!(after(Ok(duplicate), ALL), Next::Ack);
        let later = QueueError::Unavailable("throttled".into());
        assert_eq!(after(Err(later.clone().into()), ALL), Next::Later(later));
        let never = QueueError::Refused("denied".into());
        assert_eq!(after(Err(never.clone().into()), ALL), Next::Refused(never));
    }
}
