//! The contract in `wit/consumer.wit`: the types that the host and its guests exchange, and the call to the handler.

use std::time::{Duration, UNIX_EPOCH};

use wasmtime::component::{ComponentType, Lift, Lower};

use super::guest::{Contract, Export, Guest, Live};
use super::load_error::LoadError;
use super::signature::{Function, Interface};
use super::{VERSION, WIT};
use hostler_handler::{Call, Outcome};
use hostler_types::State;
use hostler_types::message::Plain;

/// The `handler` interface, which identifies a component as a handler.
pub(super) const HANDLER: Interface = own("hostler:consumer/handler");

/// The `handle` function of the `handler` interface.
const HANDLE: Function = Function { interface: HANDLER, name: "handle", alone: false };

/// The hooks. Each hook is an interface with one function of the same name.
pub(super) const MESSAGE_START: Function = hook("hostler:consumer/message-start", "message-start");
pub(super) const MESSAGE_END: Function = hook("hostler:consumer/message-end", "message-end");
pub(super) const PROCESSING_TIMEOUT: Function = hook("hostler:consumer/processing-timeout", "processing-timeout");
pub(super) const STATE_CHANGED: Function = hook("hostler:consumer/state-changed", "state-changed");

pub(super) const fn own(name: &'static str) -> Interface {
    Interface { name, version: VERSION, wit: WIT }
}

const fn hook(interface: &'static str, name: &'static str) -> Function {
    Function { interface: own(interface), name, alone: false }
}

/// The result of the `handle` function.
type HandleResult = (Result<GuestOutcome, String>,);

/// A component that exports the `handler` interface of hostler's own contract.
pub(super) struct Consumer {
    handle: Export,
}

impl Contract for Consumer {
    fn find(guest: &Guest) -> Result<Self, LoadError> {
        Ok(Self { handle: HANDLE.required::<(MessageRef<'_>,), HandleResult>(guest)? })
    }

    async fn handle(&self, live: &mut Live, call: &Call) -> Result<Outcome, wasmtime::Error> {
        let params = (MessageRef::new(call),);
        let (result,) = live.call::<_, HandleResult>(&self.handle, params).await?;
        Ok(result.map_or_else(Outcome::Failed, Outcome::from))
    }
}

/// The WIT type `attribute-value`.
#[derive(ComponentType, Lower)]
#[component(variant)]
pub(super) enum ValueRef<'a> {
    #[component(name = "text")]
    Text(&'a str),
    #[component(name = "binary")]
    Binary(&'a [u8]),
}

/// The WIT type `attribute`.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(super) struct AttributeRef<'a> {
    name: &'a str,
    value: ValueRef<'a>,
}

/// The WIT type `message`. Borrows from the call, so the message is copied only once, into the guest's memory.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(super) struct MessageRef<'a> {
    id: &'a str,
    channel: &'a str,
    body: &'a [u8],
    #[component(name = "content-type")]
    content_type: Option<&'a str>,
    attributes: Vec<AttributeRef<'a>>,
    attempt: u32,
    #[component(name = "enqueued-at")]
    enqueued_at: u64,
    #[component(name = "group-id")]
    group_id: Option<&'a str>,
    #[component(name = "routing-key")]
    routing_key: Option<&'a str>,
}

impl<'a> MessageRef<'a> {
    pub(super) fn new(call: &'a Call) -> Self {
        let message = &*call.message;
        let attributes = message.attributes.iter().map(|(name, value)| AttributeRef {
            name,
            value: match value.plain() {
                Plain::Text(text) => ValueRef::Text(text),
                Plain::Binary(bytes) => ValueRef::Binary(bytes),
            },
        });
        Self {
            id: &message.id,
            channel: &call.channel,
            body: &message.body,
            content_type: message.content_type(),
            attributes: attributes.collect(),
            attempt: call.attempt,
            enqueued_at: message.enqueued_at.duration_since(UNIX_EPOCH).map_or(0, milliseconds),
            group_id: message.group.as_deref(),
            routing_key: message.routing_key.as_deref(),
        }
    }
}

/// The WIT type `outcome`.
#[derive(ComponentType, Lift)]
#[component(variant)]
pub(super) enum GuestOutcome {
    #[component(name = "ack")]
    Ack,
    #[component(name = "reply")]
    Reply(Vec<u8>),
    #[component(name = "retry")]
    Retry,
    #[component(name = "delay")]
    Delay(u32),
    #[component(name = "dead-letter")]
    DeadLetter(String),
}

impl From<GuestOutcome> for Outcome {
    fn from(outcome: GuestOutcome) -> Self {
        match outcome {
            GuestOutcome::Ack => Self::Ack,
            GuestOutcome::Reply(body) => Self::Reply(body),
            GuestOutcome::Retry => Self::Retry(None),
            GuestOutcome::Delay(seconds) => Self::Delay(Duration::from_secs(seconds.into())),
            GuestOutcome::DeadLetter(reason) => Self::DeadLetter(reason),
        }
    }
}

/// The WIT type `report`.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(super) struct ReportRef<'a> {
    #[component(name = "message-id")]
    message_id: &'a str,
    attempt: u32,
    outcome: &'a str,
    reason: Option<String>,
    #[component(name = "duration-ms")]
    duration_ms: u64,
}

impl<'a> ReportRef<'a> {
    pub(super) fn new(call: &'a Call, outcome: &'a Outcome, took: Duration) -> Self {
        Self {
            message_id: &call.message.id,
            attempt: call.attempt,
            outcome: outcome.name(),
            reason: outcome.reason(),
            duration_ms: milliseconds(took),
        }
    }
}

/// The WIT type `state`.
#[derive(ComponentType, Lower, Clone, Copy)]
#[component(enum)]
#[repr(u8)]
pub(super) enum GuestState {
    #[component(name = "initializing")]
    Initializing,
    #[component(name = "initialized")]
    Initialized,
    #[component(name = "listening")]
    Listening,
    #[component(name = "processing")]
    Processing,
    #[component(name = "idle")]
    Idle,
    #[component(name = "exiting")]
    Exiting,
}

impl From<State> for GuestState {
    fn from(state: State) -> Self {
        match state {
            State::Initializing => Self::Initializing,
            State::Initialized => Self::Initialized,
            State::Listening => Self::Listening,
            State::Processing => Self::Processing,
            State::Idle => Self::Idle,
            State::Exiting => Self::Exiting,
        }
    }
}

/// Returns a duration in whole milliseconds, or `u64::MAX` if the number is larger.
pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
