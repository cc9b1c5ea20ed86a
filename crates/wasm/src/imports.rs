//! Host functions that components import in addition to WASI: `context` and `producer`. Also sends messages for guests,
//! whatever their contract.

use std::sync::Arc;
use std::time::Duration;

use wasmtime::component::{ComponentType, Lift, Linker, Lower, WasmList};

use super::VERSION;
use super::capabilities::Grants;
use super::contract::milliseconds;
use super::lists::{self, MAX_ENTRIES};
use super::sandbox::{ComponentWasi, Host, Sandbox};
use super::scope::Scope;
use hostler_handler::Limit;
use hostler_queue::request::{self, check_subject};
use hostler_queue::{Request, Requested, SendError};
use hostler_queue_telemetry::Producer;
use hostler_types::channel::Channel;
use hostler_types::message::{AttributeValue, Outgoing};
use hostler_types::{Outbox, OutboxError};

/// Adds the `context` and `producer` interfaces to the linker.
pub(super) fn add(linker: &mut Linker<Sandbox<ComponentWasi>>, grants: &Grants) -> wasmtime::Result<()> {
    let mut context = linker.instance(&format!("hostler:consumer/context@{VERSION}"))?;
    context
        .func_wrap("remaining-ms", |host: Host<'_>, ()| Ok((milliseconds(host.data().scope.bounds.remaining()),)))?;
    context.func_wrap("should-stop", |host: Host<'_>, ()| Ok((host.data().scope.bounds.stop.is_asked(),)))?;
    context.func_wrap("attempt", |host: Host<'_>, ()| Ok((host.data().scope.attempt,)))?;
    context.func_wrap("traceparent", |host: Host<'_>, ()| {
        Ok((host.data().scope.trace.as_ref().map(|trace| trace.traceparent()),))
    })?;

    let mut producer = linker.instance(&format!("hostler:consumer/producer@{VERSION}"))?;
    let grants = grants.clone();
    producer.func_wrap_async("send", move |mut host: Host<'_>, (channel, body, options): (String, Vec<u8>, Options)| {
        let (grants, scope) = (grants.clone(), Arc::clone(&host.data().scope));
        // Copies the attributes only if the guest may send to the channel.
        let outgoing = match granted(&grants, &scope, &channel) {
            Ok(target) => options.outgoing(&mut host, body).map(|taken| taken.map(|outgoing| (target, outgoing))),
            Err(refusal) => Ok(Err(refusal)),
        };
        Box::new(async move {
            Ok((match outgoing? {
                Ok((target, outgoing)) => pass_on(&grants, &scope, target, outgoing).await,
                Err(refusal) => Err(refusal),
            },))
        })
    })
}

/// The WIT type `attribute-value`, passed from a guest.
#[derive(ComponentType, Lift)]
#[component(variant)]
enum Value {
    #[component(name = "text")]
    Text(String),
    #[component(name = "binary")]
    Binary(Vec<u8>),
}

/// The WIT type `attribute`, passed from a guest.
#[derive(ComponentType, Lift)]
#[component(record)]
struct Attribute {
    name: String,
    value: Value,
}

/// The WIT type `options` in the `producer` interface.
#[derive(ComponentType, Lift)]
#[component(record)]
struct Options {
    attributes: WasmList<Attribute>,
    #[component(name = "routing-key")]
    routing_key: Option<String>,
    delay: Option<u32>,
    #[component(name = "group-id")]
    group_id: Option<String>,
    #[component(name = "dedupe-key")]
    dedupe_key: Option<String>,
}

impl Options {
    /// Creates the message to send. An outer error makes the guest trap. An inner error is returned to the guest.
    fn outgoing(self, host: &mut Host<'_>, body: Vec<u8>) -> wasmtime::Result<Result<Outgoing, Refusal>> {
        let attributes = match lists::take(host, &self.attributes, MAX_ENTRIES)? {
            Ok(attributes) => attributes,
            Err(what) => return Ok(Err(Refusal::Invalid(format!("its attributes: {what}")))),
        };
        let attributes = attributes.into_iter().map(|attribute| match attribute.value {
            Value::Text(text) => (attribute.name, AttributeValue::Text(text)),
            Value::Binary(bytes) => (attribute.name, AttributeValue::Binary(bytes)),
        });
        Ok(Ok(Outgoing {
            body,
            attributes: attributes.collect(),
            routing_key: self.routing_key,
            delay: Duration::from_secs(self.delay.unwrap_or(0).into()),
            group: self.group_id,
            dedupe: self.dedupe_key,
            ..Outgoing::default()
        }))
    }
}

/// The WIT type `send-error`.
#[derive(ComponentType, Lower)]
#[component(variant)]
pub(super) enum Refusal {
    #[component(name = "denied")]
    Denied(String),
    #[component(name = "invalid")]
    Invalid(String),
    #[component(name = "unavailable")]
    Unavailable(String),
}

impl From<SendError> for Refusal {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Invalid(error) => Self::Invalid(error.to_string()),
            SendError::Queue(error) => Self::Unavailable(error.to_string()),
        }
    }
}

/// Sends a message to a channel or a subject for a guest, and returns the id of the message. Fails if the consumer's grants do not
/// contain `name`.
#[cfg(feature = "messaging")]
pub(super) async fn send(grants: &Grants, scope: &Scope, name: &str, message: Outgoing) -> Result<String, Refusal> {
    let target = granted(grants, scope, name)?;
    pass_on(grants, scope, target, message).await
}

/// A place that a guest may send to.
enum Target {
    Channel(Channel),
    Subject(String),
}

/// Returns the channel or the subject with this name. If the consumer's grants do not contain it, logs the denial and fails.
fn granted(grants: &Grants, scope: &Scope, name: &str) -> Result<Target, Refusal> {
    let channel = name.parse::<Channel>();
    if let Ok(channel) = &channel
        && grants.send.contains(channel)
    {
        return Ok(Target::Channel(channel.clone()));
    }
    let is_subject = check_subject(name).is_ok();
    if is_subject && grants.subjects.iter().any(|pattern| request::matches(pattern, name)) {
        return Ok(Target::Subject(name.to_owned()));
    }
    Err(match channel {
        _ if is_subject && !grants.subjects.is_empty() => denied(scope, "allow.subjects", name),
        Ok(channel) => denied(scope, "allow.send", &channel.to_string()),
        Err(error) => Refusal::Invalid(format!("{error}")),
    })
}

/// Logs that a guest may not send to a channel or a subject. `key`: the key of the config that grants it.
fn denied(scope: &Scope, key: &str, name: &str) -> Refusal {
    scope.denials.tell(&format!("sending to {name}"), &format!("add \"{name}\" to the consumer's {key}"));
    Refusal::Denied(format!("{key} of this consumer does not name `{name}`"))
}

async fn pass_on(grants: &Grants, scope: &Scope, target: Target, mut message: Outgoing) -> Result<String, Refusal> {
    let producer = producer(grants)?;
    message.trace.clone_from(&scope.trace);
    if let (Target::Channel(channel), Some(outbox)) = (&target, &scope.outbox) {
        return keep(&**outbox, channel, message);
    }
    let sent = match target {
        Target::Channel(channel) => producer.send_one(&channel, message).await,
        Target::Subject(subject) => {
            let request = Request { subject, message, terms: grants.terms.clone() };
            producer.request(request).await.map(Requested::into_id)
        }
    };
    sent.map_err(|error| unsent(scope, error))
}

/// Keeps a message until the handler has succeeded. Returns a text in place of its id.
pub(super) fn keep(outbox: &dyn Outbox, channel: &Channel, message: Outgoing) -> Result<String, Refusal> {
    outbox.push(channel, message).map_err(|error| match error {
        OutboxError::Invalid(_) | OutboxError::Full(_) => Refusal::Invalid(error.to_string()),
        OutboxError::Closed => Refusal::Unavailable(error.to_string()),
    })
}

/// Converts the error of a failed attempt to send. If the queue's client has reached a host limit, records the limit,
/// because the guest is not at fault.
pub(super) fn unsent(scope: &Scope, error: SendError) -> Refusal {
    if let (SendError::Queue(_), Some(limit)) = (&error, Limit::at_hand()) {
        scope.reach(limit);
    }
    error.into()
}

/// Returns the producer that sends guests' messages. Fails if there is none.
pub(super) fn producer(grants: &Grants) -> Result<&Producer, Refusal> {
    let none = || Refusal::Unavailable("this run of the handler has no queue to send to".into());
    grants.producer.as_ref().ok_or_else(none)
}
