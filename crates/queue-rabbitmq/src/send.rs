//! Sends messages to queues and exchanges.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use hostler_queue::{QueueError, SendError, Sent, no_queue};
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, MAX_ATTRIBUTES, Outgoing};
use uuid::Uuid;

use super::envelope::{self, MAX_KEY, Parcel};
use super::ladder;
use super::publisher::Routed;
use super::{MAX_MESSAGE, Service, topology};

/// Bytes that an attribute has in AMQP, beside its name and its value.
const ATTRIBUTE: usize = 16;

/// Bytes of the properties and headers that each message has, with the routing key and the context of its trace.
const OWN_HEADERS: usize = 1024;

/// Place to which a channel's messages go.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Queue(String),
    Exchange(String),
}

/// A known place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    target: Target,
    /// Set if the delay ladder delivers to the queue, as far as is known.
    lands: bool,
}

/// Known places.
#[derive(Debug, Default)]
pub(super) struct Targets(Mutex<HashMap<Channel, Known>>);

impl Targets {
    fn get(&self, channel: &Channel) -> Option<Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(channel).cloned()
    }

    fn learn(&self, channel: &Channel, known: Known) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(channel.clone(), known);
    }

    fn forget(&self, channel: &Channel) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(channel);
    }
}

/// Sends messages to a channel. Returns the results in the order of the messages.
pub(super) async fn send(service: &Service, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
    let most = service.publisher.frame_limits().sent();
    let checked: Vec<_> = batch.iter().map(|message| check(message, most)).collect();
    let mut valid: Vec<_> = batch.into_iter().zip(&checked).filter(|(_, check)| check.is_ok()).collect();
    valid.iter_mut().for_each(|(message, _)| message.carry_trace(MAX_ATTRIBUTES));
    let messages: Vec<_> = valid.into_iter().map(|(message, _)| (Uuid::now_v7().to_string(), message)).collect();
    let mut sent = deliver(service, channel, &messages).await.into_iter();
    let result = |check: Result<(), Invalid>| {
        check?;
        sent.next()
            .unwrap_or_else(|| Err(QueueError::Unavailable("the message was not sent".to_owned())))
            .map_err(Into::into)
    };
    checked.into_iter().map(result).collect()
}

/// Checks a message. `most`: the limit to the frame with its headers.
pub(super) fn check(message: &Outgoing, most: usize) -> Result<(), Invalid> {
    message.validate(MAX_MESSAGE)?;
    if message.dedupe.is_some() {
        return Err(Invalid::DedupeUnsupported(
            "RabbitMQ cannot drop duplicates: leave the dedupe key out, and let the handler tell duplicates by their content",
        ));
    }
    if let Some(name) = message.attributes.keys().find(|name| name.len() > MAX_KEY) {
        return Err(Invalid::Unsupported(format!(
            "the attribute name `{name}` has {} bytes; RabbitMQ takes at most {MAX_KEY}",
            name.len()
        )));
    }
    if let Some(key) = message.routing_key.as_ref().filter(|key| key.len() > MAX_KEY) {
        return Err(Invalid::Unsupported(format!(
            "the routing key has {} bytes; RabbitMQ takes at most {MAX_KEY}",
            key.len()
        )));
    }
    let size = headers_size(message);
    if size > most {
        return Err(Invalid::Unsupported(format!(
            "the attributes and the group have {size} bytes; RabbitMQ takes at most {most} in headers: put the others into the \
             body"
        )));
    }
    Ok(())
}

/// Returns a number of bytes that the headers of a message do not exceed.
fn headers_size(message: &Outgoing) -> usize {
    let attributes = message.attributes.iter().map(|(name, value)| ATTRIBUTE + name.len() + value.len());
    OWN_HEADERS + attributes.sum::<usize>() + message.group.as_ref().map_or(0, String::len)
}

/// Publishes messages. If the place has gone, looks for it once more.
async fn deliver(
    service: &Service,
    channel: &Channel,
    messages: &[(String, Outgoing)],
) -> Vec<Result<Sent, QueueError>> {
    let mut results: Vec<Option<Result<Sent, QueueError>>> = messages.iter().map(|_| None).collect();
    for is_last in [false, true] {
        let open: Vec<_> = results.iter().enumerate().filter(|(_, result)| result.is_none()).map(|(n, _)| n).collect();
        if open.is_empty() {
            break;
        }
        let target = match target(service, channel, Needs::of(messages)).await {
            Ok(target) => target,
            Err(error) => {
                open.iter().for_each(|n| results[*n] = Some(Err(error.clone())));
                break;
            }
        };
        let parcels = open.iter().map(|n| parcel(service, &target, &messages[*n].0, &messages[*n].1)).collect();
        for (n, routed) in open.iter().zip(service.publisher.publish(parcels).await) {
            let is_gone = matches!(
                (&target, &routed),
                (Target::Queue(_), Ok(Routed::Nowhere)) | (_, Err(QueueError::Refused(_)))
            );
            if is_gone {
                service.targets.forget(channel);
            }
            if !is_gone || is_last {
                results[*n] = Some(routed.and_then(|routed| told(channel, &target, routed, &messages[*n].0)));
            }
        }
    }
    let missing = || QueueError::Unavailable("the message was not sent".to_owned());
    results.into_iter().map(|result| result.unwrap_or_else(|| Err(missing()))).collect()
}

fn told(channel: &Channel, target: &Target, routed: Routed, id: &str) -> Result<Sent, QueueError> {
    let queues = match (target, routed) {
        (Target::Queue(_), Routed::Stored) => Some(1),
        (Target::Queue(_), Routed::Nowhere) => return Err(no_queue(channel)),
        (Target::Exchange(_), Routed::Nowhere) => Some(0),
        // RabbitMQ does not tell how many.
        (Target::Exchange(_), Routed::Stored) => None,
    };
    Ok(Sent { id: id.to_owned(), queues })
}

/// Returns the message in AMQP's form. A delayed message goes down the delay ladder. If the message has a group, or if the
/// exchange must still choose the queues, it goes to its queues at once, and its receiver holds it back: a ladder would change
/// the order of the group, and has room for one queue.
fn parcel(service: &Service, target: &Target, id: &str, message: &Outgoing) -> Parcel {
    let now = SystemTime::now();
    let body = message.body.clone().into();
    let key = message.routing_key.as_deref();
    let waits = (!message.delay.is_zero()).then(|| now + message.delay);
    match target {
        Target::Exchange(exchange) => Parcel {
            exchange: exchange.clone(),
            key: key.unwrap_or_default().to_owned(),
            properties: envelope::outgoing(message, id, None, waits, now),
            body,
        },
        Target::Queue(queue) => match ladder::rung(&service.names, message.delay, queue) {
            Some(rung) if message.group.is_none() => Parcel {
                exchange: rung.exchange,
                key: rung.key,
                properties: envelope::outgoing(message, id, key, None, now),
                body,
            },
            _ => Parcel {
                exchange: String::new(),
                key: queue.clone(),
                properties: envelope::outgoing(message, id, key, waits, now),
                body,
            },
        },
    }
}

/// Demands of messages on the queue or exchange that they are sent to.
#[derive(Debug, Clone, Copy)]
struct Needs {
    /// Set if a message has a group. A new queue is then ordered.
    order: bool,
    /// Set if a message has a delay. The delay ladder must then deliver to the queue.
    delay: bool,
}

impl Needs {
    fn of(messages: &[(String, Outgoing)]) -> Self {
        let any = |needs: fn(&Outgoing) -> bool| messages.iter().any(|(_, message)| needs(message));
        Self { order: any(|message| message.group.is_some()), delay: any(|message| !message.delay.is_zero()) }
    }
}

/// Returns the place to which a channel's messages go.
async fn target(service: &Service, channel: &Channel, needs: Needs) -> Result<Target, QueueError> {
    let Known { target, lands } = match service.targets.get(channel) {
        Some(known) => known,
        None => find(service, channel, needs).await?,
    };
    let lands = match &target {
        Target::Queue(queue) if needs.delay && !lands => {
            service.land(queue).await?;
            true
        }
        _ => lands,
    };
    service.targets.learn(channel, Known { target: target.clone(), lands });
    Ok(target)
}

/// Looks for the place to which a channel's messages go. A bare name is a queue, or else an exchange. Creates what is missing
/// if the options say so.
async fn find(service: &Service, channel: &Channel, needs: Needs) -> Result<Known, QueueError> {
    let (declarer, creates) = (&service.declarer, service.options.create_missing);
    if creates {
        declarer.ladder().await?;
    }
    let name = service.names.full(channel.exchange().unwrap_or(channel.queue()));
    let found = |target| Ok(Known { target, lands: false });
    if channel.exchange().is_some() {
        if creates {
            declarer.exchange(&name).await?;
        } else if !declarer.has_exchange(&name).await? {
            return Err(missing(&format!("exchange `{name}`"), creates));
        }
        found(Target::Exchange(name))
    } else if declarer.ready(&name).await?.is_some() {
        found(Target::Queue(name))
    } else if declarer.has_exchange(&name).await? {
        found(Target::Exchange(name))
    } else if creates {
        let ordered = needs.order || service.is_ordered(channel);
        declarer.queue(&topology::queue(&service.names, channel, ordered)).await?;
        Ok(Known { target: Target::Queue(name), lands: true })
    } else {
        Err(missing(&format!("queue `{name}`"), creates))
    }
}

/// Returns the error for a missing queue or exchange. `creates`: missing ones are created when a host starts.
pub(super) fn missing(what: &str, creates: bool) -> QueueError {
    QueueError::Refused(format!("there is no {what} on RabbitMQ: {}", cure_of_missing(creates)))
}

/// Returns the way out if something is missing. `creates`: missing parts are created when a host starts.
pub(super) fn cure_of_missing(creates: bool) -> &'static str {
    if creates {
        "run `hostler provision`, or start the host again"
    } else {
        "run `hostler provision`, or set queue.rabbitmq.provision = \"auto\""
    }
}

#[cfg(test)]
mod tests {
    use hostler_types::message::{AttributeValue, Typed};

    use super::*;
    use crate::frame::{self, DEFAULT_MAX, FrameLimits};

    /// A header frame that is too large ends the connection, with the messages of all others.
    #[test]
    fn headers_that_do_not_fit_are_refused_and_all_others_fit() {
        let most = FrameLimits::new(DEFAULT_MAX).sent();
        let typed = |kind: &str, text: &str| {
            let value = AttributeValue::Text(text.to_owned());
            AttributeValue::Typed(Box::new(Typed { data_type: format!("amqp:{kind}"), value }))
        };
        let message = |length: usize| Outgoing {
            attributes: [
                ("text".to_owned(), AttributeValue::Text("x".repeat(length))),
                ("n".to_owned(), typed("l", "1")),
                ("a".to_owned(), typed("A", r#"{"FieldArray":[{"Double":0.5},"Void",{"Timestamp":1}]}"#)),
            ]
            .into(),
            routing_key: Some("k".repeat(MAX_KEY)),
            group: Some("g".repeat(300)),
            ..Outgoing::default()
        };
        let fixed = headers_size(&message(0));
        let largest = message(most - fixed);
        assert_eq!(check(&largest, most), Ok(()));
        let now = SystemTime::now();
        let key = largest.routing_key.as_deref();
        let properties = envelope::outgoing(&largest, &Uuid::now_v7().to_string(), key, Some(now), now);
        assert!(frame::size(&properties) < most, "{}", frame::size(&properties));
        let error = check(&message(most - fixed + 1), most).unwrap_err().to_string();
        assert!(error.contains("65537 bytes; RabbitMQ takes at most 65536"), "{error}");
    }

    #[test]
    fn what_amqp_cannot_encode_is_refused() {
        let message = |name: usize, key: usize| Outgoing {
            attributes: [("n".repeat(name), AttributeValue::Text("x".to_owned()))].into(),
            routing_key: Some("k".repeat(key)),
            ..Outgoing::default()
        };
        let check = |message: &Outgoing| check(message, 10_000);
        assert_eq!(check(&message(255, 255)), Ok(()));
        for wrong in [message(256, 1), message(1, 256)] {
            let error = check(&wrong).unwrap_err().to_string();
            assert!(error.contains("256 bytes; RabbitMQ takes at most 255"), "{error}");
        }
    }
}
