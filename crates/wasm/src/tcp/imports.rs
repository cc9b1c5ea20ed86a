//! Adds `wasi:sockets` for granted servers to the linker: functions of wasmtime-wasi with a check before them, and name look-ups
//! of our own.

use std::net::IpAddr;
use std::sync::Arc;
use std::vec;

use async_trait::async_trait;
use wasmtime::component::{Linker, LinkerInstance, Resource, ResourceType};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddress, IpAddressFamily, IpSocketAddress, Network};
use wasmtime_wasi::p2::bindings::sockets::tcp::ShutdownType;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};
use wasmtime_wasi::sockets::WasiSocketsView as _;

use super::connect::{Answer, Socket, create_socket, finish_connect, of, shutdown, start_connect};
use super::names::Unresolved;
use crate::expected::before;
use crate::sandbox::{ComponentWasi, Host, Sandbox};
use hostler_types::metadata::is_metadata;

/// The interfaces whose functions are overridden here.
const CREATE: &str = "wasi:sockets/tcp-create-socket@0.2.12";
const TCP: &str = "wasi:sockets/tcp@0.2.12";
const NAMES: &str = "wasi:sockets/ip-name-lookup@0.2.12";

/// The functions of [`TCP`] that are overridden here.
const FUNCTIONS: [&str; 5] = [
    "[method]tcp-socket.start-connect",
    "[method]tcp-socket.finish-connect",
    "[method]tcp-socket.shutdown",
    "[method]tcp-socket.set-receive-buffer-size",
    "[method]tcp-socket.set-send-buffer-size",
];

/// The functions of [`NAMES`], all of which are overridden here.
const LOOK_UPS: [&str; 3] = [
    "resolve-addresses",
    "[method]resolve-address-stream.resolve-next-address",
    "[method]resolve-address-stream.subscribe",
];

/// Longest name that a log line shows, in characters.
const SHOWN: usize = 256;

/// Overrides the functions of `wasi:sockets` by which a guest connects. The sandboxes must have [`Connections`].
pub(crate) fn add(linker: &mut Linker<Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    before(linker, CREATE, &["create-tcp-socket"], |create| {
        create.func_wrap("create-tcp-socket", |host: Host<'_>, (family,): (IpAddressFamily,)| {
            Ok((create_socket(host, family)?,))
        })
    })?;
    before(linker, TCP, &FUNCTIONS, connections)?;
    before(linker, NAMES, &LOOK_UPS, names)
}

fn connections(tcp: &mut LinkerInstance<'_, Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    let [start, finish, shut, set_receive, set_send] = FUNCTIONS;
    tcp.func_wrap(start, |host: Host<'_>, (socket, network, to): (Socket, Resource<Network>, IpSocketAddress)| {
        Ok((start_connect(host, socket, network, to)?,))
    })?;
    tcp.func_wrap_async(finish, |host: Host<'_>, (socket,): (Socket,)| {
        Box::new(async move { Ok((finish_connect(host, socket).await?,)) })
    })?;
    tcp.func_wrap(shut, |host: Host<'_>, (socket, how): (Socket, ShutdownType)| Ok((shutdown(host, socket, how)?,)))?;
    for set in [set_receive, set_send] {
        // The sizes are hints by the contract. The host has set its own.
        tcp.func_wrap(set, |_: Host<'_>, (_, size): (Socket, u64)| {
            Ok((if size == 0 { Err(ErrorCode::InvalidArgument) } else { Ok(()) },))
        })?;
    }
    Ok(())
}

fn names(names: &mut LinkerInstance<'_, Sandbox<ComponentWasi>>) -> wasmtime::Result<()> {
    let [resolve, next, ready] = LOOK_UPS;
    names.resource("resolve-address-stream", ResourceType::host::<Found>(), |mut store, handle| {
        store.data_mut().sockets().table.delete(Resource::<Found>::new_own(handle))?;
        Ok(())
    })?;
    names.func_wrap_async(resolve, |host: Host<'_>, (_, name): (Resource<Network>, String)| {
        Box::new(async move { Ok((look_up(host, &name).await?,)) })
    })?;
    names.func_wrap(next, |mut host: Host<'_>, (found,): (Resource<Found>,)| {
        let next = host.data_mut().sockets().table.get_mut(&found)?.0.next();
        Ok((Ok::<_, ErrorCode>(next.map(IpAddress::from)),))
    })?;
    names.func_wrap(ready, |mut host: Host<'_>, (found,): (Resource<Found>,)| {
        let pollable: Resource<DynPollable> = subscribe(host.data_mut().sockets().table, found)?;
        Ok((pollable,))
    })
}

/// Addresses of a name that the guest has not fetched yet.
struct Found(vec::IntoIter<IpAddr>);

#[async_trait]
impl Pollable for Found {
    async fn ready(&mut self) {}
}

/// Looks up a name for the guest. An address is its own answer. A granted name is looked up by the host, and the guest may then
/// connect to the answered addresses. Any other name is refused without a look-up, because a look-up could carry data out.
async fn look_up(mut host: Host<'_>, name: &str) -> Answer<Resource<Found>> {
    let in_brackets = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Ok(address) = in_brackets.unwrap_or(name).parse::<IpAddr>() {
        return found(host, vec![address.to_canonical()]);
    }
    let connections = of(&mut host)?;
    let (tcp, answered) = (Arc::clone(&connections.tcp), Arc::clone(&connections.answered));
    let Some(server) = tcp.server(name) else {
        let shown: String = name.chars().take(SHOWN).collect();
        let cure = "add the name with a port (\"NAME:PORT\") to the consumer's allow.tcp";
        host.data().scope.denials.tell(&format!("a look-up of the name {shown:?}"), cure);
        return Ok(Err(ErrorCode::PermanentResolverFailure));
    };
    match server.name.addresses().await {
        Ok(addresses) => {
            answered.add(&addresses, &server.ports);
            found(host, addresses.to_vec())
        }
        Err(Unresolved::Failed(limit)) => {
            if let Some(limit) = limit {
                host.data().scope.reach(limit);
            }
            Ok(Err(ErrorCode::NameUnresolvable))
        }
        Err(Unresolved::Prohibited(prohibited)) => {
            let cure = if is_metadata(prohibited.address) {
                "let the name lead to another address: no grant leads to this one".to_owned()
            } else {
                prohibited.cure()
            };
            host.data().scope.denials.tell(&format!("TCP: {prohibited}"), &cure);
            Ok(Err(ErrorCode::PermanentResolverFailure))
        }
    }
}

fn found(mut host: Host<'_>, addresses: Vec<IpAddr>) -> Answer<Resource<Found>> {
    Ok(Ok(host.data_mut().sockets().table.push(Found(addresses.into_iter()))?))
}
