//! Adds `wasi:sockets` for granted servers to the linker: functions of wasmtime-wasi with a check before them, and name look-ups
//! of our own.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::vec;

use async_trait::async_trait;
use wasmtime::component::{Linker, LinkerInstance, Resource, ResourceType};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddress, IpAddressFamily, IpSocketAddress, Network};
use wasmtime_wasi::p2::bindings::sockets::tcp::{HostTcpSocket as _, ShutdownType};
use wasmtime_wasi::p2::bindings::sockets::tcp_create_socket::Host as _;
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, DynPollable, Pollable, SocketResult, TcpSocket, subscribe};
use wasmtime_wasi::sockets::WasiSocketsView as _;

use super::names::Unresolved;
use super::{BUFFER, Connections};
use crate::expected::before;
use crate::sandbox::{ComponentWasi, Host, Sandbox};
use hostler_handler::Limit;
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

type Socket = Resource<TcpSocket>;
type Streams = (Resource<DynInputStream>, Resource<DynOutputStream>);
type Answer<T> = wasmtime::Result<Result<T, ErrorCode>>;

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
    tcp.func_wrap(finish, |host: Host<'_>, (socket,): (Socket,)| Ok((finish_connect(host, socket)?,)))?;
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

/// Returns the sandbox's connections.
fn of<'a>(host: &'a mut Host<'_>) -> wasmtime::Result<&'a mut Connections> {
    let connections = host.data_mut().wasi.connections.as_mut();
    connections.ok_or_else(|| wasmtime::Error::msg("the sandbox has no connections"))
}

/// Creates a socket with buffers of a fixed size. Returns an error to the guest if the sandbox has as many sockets as it may.
fn create_socket(mut host: Host<'_>, family: IpAddressFamily) -> Answer<Socket> {
    let most = of(&mut host)?.tcp.connections;
    let mut sockets = host.data_mut().sockets();
    if sockets.table.iter_mut().filter(|entry| entry.is::<TcpSocket>()).count() >= most {
        let cure = "close connections, or raise the consumer's limits.connections";
        host.data().scope.denials.tell(&format!("more than {most} TCP sockets"), cure);
        return Ok(Err(ErrorCode::NewSocketLimit));
    }
    let socket = match answered(sockets.create_tcp_socket(family))? {
        Ok(socket) => socket,
        Err(error) => {
            // The code for a process without free descriptors is that of any other error.
            if let Some(limit) = Limit::of_descriptors() {
                host.data().scope.reach(limit);
            }
            return Ok(Err(error));
        }
    };
    let same = || Socket::new_borrow(socket.rep());
    let sized = sockets.set_receive_buffer_size(same(), BUFFER);
    let sized = sized.and_then(|()| sockets.set_send_buffer_size(same(), BUFFER));
    Ok(answered(sized)?.map(|()| socket))
}

/// Starts to connect, if the guest may connect to this address.
fn start_connect(mut host: Host<'_>, socket: Socket, network: Resource<Network>, to: IpSocketAddress) -> Answer<()> {
    let at = SocketAddr::from(to);
    if !of(&mut host)?.may_connect(at) {
        let cure = format!("add \"{at}\", or the name that leads to it, to the consumer's allow.tcp");
        host.data().scope.denials.tell(&format!("TCP to {at}"), &cure);
        return Ok(Err(ErrorCode::AccessDenied));
    }
    answered(host.data_mut().sockets().start_connect(socket, network, to))
}

/// Finishes to connect, and tracks what the guest writes.
fn finish_connect(mut host: Host<'_>, socket: Socket) -> Answer<Streams> {
    let handle = socket.rep();
    let (input, output) = match answered(host.data_mut().sockets().finish_connect(socket))? {
        Ok(streams) => streams,
        Err(error) => return Ok(Err(error)),
    };
    let wasi = &mut host.data_mut().wasi;
    let (table, connections) = wasi.connections();
    if let Some(connections) = connections {
        let stream = table.get_mut(&output)?;
        let untracked = std::mem::replace(stream, Box::new(wasmtime_wasi::p2::pipe::SinkOutputStream));
        *stream = connections.outlets.track(handle, untracked);
    }
    Ok(Ok((input, output)))
}

fn shutdown(mut host: Host<'_>, socket: Socket, how: ShutdownType) -> Answer<()> {
    if matches!(how, ShutdownType::Send | ShutdownType::Both) {
        of(&mut host)?.outlets.shut(socket.rep());
    }
    answered(host.data_mut().sockets().shutdown(socket, how))
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

/// Converts a result for the guest. An error of `wasi:sockets` is returned to the guest. Any other error makes the guest trap.
fn answered<T>(result: SocketResult<T>) -> Answer<T> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) => Ok(Err(error.downcast()?)),
    }
}
