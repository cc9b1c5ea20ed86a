//! Components that export `wasi:messaging/incoming-handler`, and the host functions that they import.
//!
//! All drafts of the package have the same version. The host supports the newest draft (December 2024), which it
//! detects by the types of the functions.

mod message;

use std::fmt;
use std::sync::Arc;

use wasmtime::component::{ComponentType, Lift, Linker, LinkerInstance, Lower, Resource, ResourceType};
use wasmtime_wasi::WasiView as _;

use super::capabilities::Grants;
use super::guest::{Contract, Export, Guest, Live};
use super::imports::{Refusal, send};
use super::load_error::LoadError;
use super::sandbox::{ComponentWasi, Host, Sandbox};
use super::signature::{Function, Interface};
use hostler_handler::{Call, Outcome};
use hostler_types::message::Outgoing;
use message::Message;

/// The interface whose export marks a component as a handler for this contract.
pub(super) const HANDLER: Interface = Interface {
    name: "wasi:messaging/incoming-handler",
    version: VERSION,
    wit: "the newest draft of wasi:messaging@0.2.0-draft (`topic` of a message is an option<string>)",
};

/// The version that the host supports.
const VERSION: &str = "0.2.0-draft";

/// The `handle` function of [`HANDLER`].
const HANDLE: Function = Function { interface: HANDLER, name: "handle", alone: true };

/// A component that exports the `incoming-handler` interface of wasi:messaging.
pub(super) struct Messaging {
    handle: Export,
}

/// The WIT resource `client`. Every client connects to the consumer's own queue, regardless of the name that the guest
/// passes to `connect`.
struct Client {
    connected: bool,
}

/// The WIT resource `request-options`. The options are ignored.
struct RequestOptions;

/// The WIT type `error`.
#[derive(ComponentType, Lift, Lower)]
#[component(variant)]
enum Error {
    #[component(name = "timeout")]
    Timeout,
    #[component(name = "connection")]
    Connection(String),
    #[component(name = "permission-denied")]
    PermissionDenied(String),
    #[component(name = "other")]
    Other(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("timeout"),
            Self::Connection(text) => write!(f, "connection: {text}"),
            Self::PermissionDenied(text) => write!(f, "permission denied: {text}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Denied(text) => Self::PermissionDenied(text),
            Refusal::Invalid(text) => Self::Other(text),
            Refusal::Unavailable(text) => Self::Connection(text),
        }
    }
}

impl Contract for Messaging {
    fn find(guest: &Guest) -> Result<Self, LoadError> {
        Ok(Self { handle: HANDLE.required::<(Resource<Message>,), (Result<(), Error>,)>(guest)? })
    }

    async fn handle(&self, live: &mut Live, call: &Call) -> Result<Outcome, wasmtime::Error> {
        let message = Message::received(call).enter(live.sandbox().ctx().table)?;
        let (result,) = live.call::<_, (Result<(), Error>,)>(&self.handle, (message,)).await?;
        Ok(result.map_or_else(|error| Outcome::Failed(error.to_string()), |()| Outcome::Ack))
    }
}

/// Adds the `types`, `producer` and `request-reply` interfaces to the linker.
pub(super) fn add(linker: &mut Linker<Sandbox<ComponentWasi>>, grants: &Grants) -> wasmtime::Result<()> {
    type Send = (Resource<Client>, String, Resource<Message>);
    let interface = |name: &str| format!("wasi:messaging/{name}@{VERSION}");
    let mut types = linker.instance(&interface("types"))?;
    message::add(&mut types)?;
    add_client(&mut types)?;
    let mut producer = linker.instance(&interface("producer"))?;
    let grants = grants.clone();
    producer.func_wrap_async("send", move |mut host: Host<'_>, (client, topic, message): Send| {
        let (grants, scope) = (grants.clone(), Arc::clone(&host.data().scope));
        let outgoing = take(&mut host, &client, message);
        Box::new(async move {
            let result = match outgoing? {
                Ok(outgoing) => send(&grants, &scope, &topic, outgoing).await.map(drop).map_err(Error::from),
                Err(error) => Err(error),
            };
            Ok((result,))
        })
    })?;
    add_request_reply(&mut linker.instance(&interface("request-reply"))?)
}

fn add_client(types: &mut LinkerInstance<'_, Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    types.resource("client", ResourceType::host::<Client>(), |mut host, handle| {
        host.data_mut().ctx().table.delete(Resource::<Client>::new_own(handle))?;
        Ok(())
    })?;
    types.func_wrap("[static]client.connect", |mut host: Host<'_>, (_,): (String,)| {
        let client = host.data_mut().ctx().table.push(Client { connected: true })?;
        Ok((Ok::<_, Error>(client),))
    })?;
    types.func_wrap("[method]client.disconnect", |mut host: Host<'_>, (client,): (Resource<Client>,)| {
        host.data_mut().ctx().table.get_mut(&client)?.connected = false;
        Ok((Ok::<_, Error>(()),))
    })
}

/// Removes a message from the table, so that it can be sent. An outer error makes the guest trap. An inner error
/// reports that the client is disconnected, and is returned to the guest.
fn take(
    host: &mut Host<'_>,
    client: &Resource<Client>,
    message: Resource<Message>,
) -> wasmtime::Result<Result<Outgoing, Error>> {
    let table = host.data_mut().ctx().table;
    let message = Message::leave(table, message)?;
    Ok(if table.get(client)?.connected {
        Ok(message.into())
    } else {
        Err(Error::Connection("the client is disconnected".into()))
    })
}

/// Adds the `request-reply` interface. Queues do not support requests with replies, so its functions return errors.
fn add_request_reply(linker: &mut LinkerInstance<'_, Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    type Request = (Resource<Client>, String, Resource<Message>, Option<Resource<RequestOptions>>);
    // Options have no state, so they need no entry in the table.
    linker.resource("request-options", ResourceType::host::<RequestOptions>(), |_, _| Ok(()))?;
    linker
        .func_wrap("[constructor]request-options", |_: Host<'_>, ()| Ok((Resource::<RequestOptions>::new_own(0),)))?;
    for setter in ["set-timeout-ms", "set-expected-replies"] {
        let name = format!("[method]request-options.{setter}");
        linker.func_wrap(&name, |_: Host<'_>, _: (Resource<RequestOptions>, u32)| Ok(()))?;
    }
    linker.func_wrap("request", |_: Host<'_>, _: Request| {
        Ok((Err::<Vec<Resource<Message>>, _>(not_offered("request")),))
    })?;
    linker.func_wrap("reply", |mut host: Host<'_>, (_, reply): (Resource<Message>, Resource<Message>)| {
        Message::leave(host.data_mut().ctx().table, reply)?;
        Ok((Err::<(), _>(not_offered("reply")),))
    })
}

fn not_offered(function: &str) -> Error {
    Error::Other(format!("`{function}`: this host does not offer wasi:messaging/request-reply; use producer.send"))
}
