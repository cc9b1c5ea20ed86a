//! Components that export `wasmcloud:messaging/handler`, and the host functions that they import.

use std::sync::Arc;

use wasmtime::component::{ComponentType, Lift, Linker, Lower};

use super::capabilities::Grants;
use super::guest::{Contract, Export, Guest, Live};
use super::imports::{self, Refusal};
use super::load_error::LoadError;
use super::sandbox::{Answering, ComponentWasi, Host, Sandbox};
use super::scope::Scope;
use super::signature::{Function, Interface};
use hostler_handler::{Call, Outcome};
use hostler_queue_telemetry::Replies;
use hostler_types::channel::Channel;
use hostler_types::message::{AttributeValue, Outgoing};

/// The interface whose export marks a component as a handler for this contract.
pub(super) const HANDLER: Interface =
    Interface { name: "wasmcloud:messaging/handler", version: "0.2.0", wit: "wasmcloud:messaging@0.2.0" };

/// The `handle-message` function of [`HANDLER`].
const HANDLE: Function = Function { interface: HANDLER, name: "handle-message", alone: true };

/// Name of the attribute that contains the `reply-to` field of a message that a guest sends.
const REPLY_TO_ATTRIBUTE: &str = "reply-to";

/// A component that exports the `handler` interface of wasmcloud:messaging.
pub(super) struct Wasmcloud {
    handle: Export,
    /// The consumer's reply channel, passed to the guest as `reply-to`.
    reply_to: Option<String>,
}

/// The WIT type `broker-message`. Borrows from the call, so the message is copied only once, into the guest's memory.
#[derive(ComponentType, Lower)]
#[component(record)]
struct MessageRef<'a> {
    subject: &'a str,
    body: &'a [u8],
    #[component(name = "reply-to")]
    reply_to: Option<&'a str>,
}

/// The WIT type `broker-message`, passed from a guest.
#[derive(ComponentType, Lift, Lower)]
#[component(record)]
struct BrokerMessage {
    subject: String,
    body: Vec<u8>,
    #[component(name = "reply-to")]
    reply_to: Option<String>,
}

impl Contract for Wasmcloud {
    fn find(guest: &Guest) -> Result<Self, LoadError> {
        let handle = HANDLE.required::<(MessageRef<'_>,), (Result<(), String>,)>(guest)?;
        Ok(Self { handle, reply_to: guest.definition().grants.reply_channel.as_ref().map(ToString::to_string) })
    }

    async fn handle(&self, live: &mut Live, call: &Call) -> Result<Outcome, wasmtime::Error> {
        let (message, from) = (Arc::clone(&call.message), Arc::clone(&call.channel));
        live.sandbox().answering = Some(Answering { message, from, replies: 0 });
        let message =
            MessageRef { subject: &call.channel, body: &call.message.body, reply_to: self.reply_to.as_deref() };
        let (result,) = live.call::<_, (Result<(), String>,)>(&self.handle, (message,)).await?;
        Ok(result.map_or_else(Outcome::Failed, |()| Outcome::Ack))
    }
}

/// Adds the `consumer` interface to the linker.
pub(super) fn add(linker: &mut Linker<Sandbox<ComponentWasi>>, grants: &Grants) -> wasmtime::Result<()> {
    let mut consumer = linker.instance(&format!("wasmcloud:messaging/consumer@{}", HANDLER.version))?;
    let grants = grants.clone();
    consumer.func_wrap_async("publish", move |mut host: Host<'_>, (message,): (BrokerMessage,)| {
        let (grants, scope) = (grants.clone(), Arc::clone(&host.data().scope));
        let answered = answered(&mut host, &grants, &message.subject);
        Box::new(async move { Ok((publish(&grants, &scope, message, answered).await.map_err(text),)) })
    })?;
    consumer.func_wrap("request", |_: Host<'_>, (subject, ..): (String, Vec<u8>, u32)| {
        let refusal = format!("`request` to `{subject}`: this host offers no request and reply, as queues have none");
        Ok((Err::<BrokerMessage, _>(refusal),))
    })
}

/// Checks whether a message that the guest sends to `subject` is a reply. If `subject` is the name of the reply
/// channel, counts the reply, and returns the reply channel and the message to which the guest replies. `None`:
/// `subject` is another channel.
fn answered(host: &mut Host<'_>, grants: &Grants, subject: &str) -> Option<(Channel, Answering)> {
    let channel = grants.reply_channel.as_ref().filter(|channel| channel.to_string() == subject)?;
    let answering = host.data_mut().answering.as_mut()?;
    let (message, from) = (Arc::clone(&answering.message), Arc::clone(&answering.from));
    let answered = Answering { message, from, replies: answering.replies };
    answering.replies += 1;
    Some((channel.clone(), answered))
}

async fn publish(
    grants: &Grants,
    scope: &Scope,
    message: BrokerMessage,
    answered: Option<(Channel, Answering)>,
) -> Result<(), Refusal> {
    let BrokerMessage { subject, body, reply_to } = message;
    let reply_to = reply_to.map(|channel| (REPLY_TO_ATTRIBUTE.to_owned(), AttributeValue::Text(channel)));
    let (attributes, trace) = (reply_to.into_iter().collect(), scope.trace.clone());
    let outgoing = Outgoing { body, attributes, trace, ..Outgoing::default() };
    let sent = match answered {
        Some((channel, Answering { message, from, replies })) => {
            let producer = imports::producer(grants)?.clone();
            let answers = Replies { producer, channel, from };
            if let Some(outbox) = &scope.outbox {
                let reply = answers.compose(&message, replies, outgoing);
                return imports::keep(&**outbox, &answers.channel, reply).map(drop);
            }
            let sent = answers.send(&message, replies, outgoing).await;
            sent.map_err(|error| imports::unsent(scope, error))
        }
        None => imports::send(grants, scope, &subject, outgoing).await,
    };
    sent.map(drop)
}

fn text(refusal: Refusal) -> String {
    match refusal {
        Refusal::Denied(text) | Refusal::Invalid(text) | Refusal::Unavailable(text) => text,
    }
}
