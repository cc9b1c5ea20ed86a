//! One TCP connection of a guest: the socket, the check of the address, TLS, and the end.

use std::net::SocketAddr;

use wasmtime::component::Resource;
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddressFamily, IpSocketAddress, Network};
use wasmtime_wasi::p2::bindings::sockets::tcp::{HostTcpSocket as _, ShutdownType};
use wasmtime_wasi::p2::bindings::sockets::tcp_create_socket::Host as _;
use wasmtime_wasi::p2::pipe::{ClosedInputStream, SinkOutputStream};
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, SocketResult, TcpSocket};
use wasmtime_wasi::sockets::WasiSocketsView as _;

use super::tls::Route;
use super::{BUFFER, Connections, handshake};
use crate::sandbox::Host;
use hostler_handler::Limit;
use hostler_types::metadata::is_metadata;

pub(super) type Socket = Resource<TcpSocket>;
pub(super) type Streams = (Resource<DynInputStream>, Resource<DynOutputStream>);
pub(super) type Answer<T> = wasmtime::Result<Result<T, ErrorCode>>;

/// Returns the sandbox's connections.
pub(super) fn of<'a>(host: &'a mut Host<'_>) -> wasmtime::Result<&'a mut Connections> {
    let connections = host.data_mut().wasi.connections.as_mut();
    connections.ok_or_else(|| wasmtime::Error::msg("the sandbox has no connections"))
}

/// Creates a socket with buffers of a fixed size. Returns an error to the guest if the sandbox has as many sockets as it may.
pub(super) fn create_socket(mut host: Host<'_>, family: IpAddressFamily) -> Answer<Socket> {
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
pub(super) fn start_connect(
    mut host: Host<'_>,
    socket: Socket,
    network: Resource<Network>,
    to: IpSocketAddress,
) -> Answer<()> {
    let at = SocketAddr::from(to);
    let Some(route) = of(&mut host)?.route(at) else {
        let cure = if is_metadata(at.ip()) {
            "use another address: no grant leads to this one".to_owned()
        } else {
            format!("add \"{at}\", or the name that leads to it, to the consumer's allow.tcp")
        };
        host.data().scope.denials.tell(&format!("TCP to {at}"), &cure);
        return Ok(Err(ErrorCode::AccessDenied));
    };
    let handle = socket.rep();
    let started = answered(host.data_mut().sockets().start_connect(socket, network, to))?;
    // A call that fails leaves a connection that has started before as it is.
    if started.is_ok() {
        let connecting = &mut of(&mut host)?.connecting;
        match route {
            Route::Plain => connecting.remove(&handle),
            Route::Tls(tls) => connecting.insert(handle, tls),
        };
    }
    Ok(started)
}

/// Finishes to connect, and tracks what the guest writes. If the server has TLS, waits for the handshake.
pub(super) async fn finish_connect(mut host: Host<'_>, socket: Socket) -> Answer<Streams> {
    let handle = socket.rep();
    let (input, output) = match answered(host.data_mut().sockets().finish_connect(socket))? {
        Ok(streams) => streams,
        Err(error) => return Ok(Err(error)),
    };
    let tls = of(&mut host)?.connecting.remove(&handle);
    let (table, _) = host.data_mut().wasi.connections();
    let below_input = std::mem::replace(table.get_mut(&input)?, Box::new(ClosedInputStream));
    let below_output = std::mem::replace(table.get_mut(&output)?, Box::new(SinkOutputStream));
    let (read, write, closer) = match tls {
        None => (below_input, below_output, None),
        Some(tls) => match handshake::begin(below_input, below_output, &tls).await {
            Ok(link) => {
                let (read, write, closer) = link.split();
                (read, write, Some(closer))
            }
            Err(error) => {
                let (server, reason) = (tls.server.to_string(), error.to_string());
                host.data().scope.denials.no_tls(&server, &reason, error.cure());
                return abandon(host, handle, (input, output), error.code());
            }
        },
    };
    let (table, connections) = host.data_mut().wasi.connections();
    *table.get_mut(&input)? = read;
    if let Some(connections) = connections {
        *table.get_mut(&output)? = connections.outlets.track(handle, write, closer);
    }
    Ok(Ok((input, output)))
}

/// Closes a connection whose handshake has failed. The guest gets the error, and no streams.
fn abandon(mut host: Host<'_>, socket: u32, (input, output): Streams, code: ErrorCode) -> Answer<Streams> {
    let mut sockets = host.data_mut().sockets();
    sockets.table.delete(input)?;
    sockets.table.delete(output)?;
    // What the guest learns is why, not whether the socket could be closed.
    let _ = answered(sockets.shutdown(Socket::new_borrow(socket), ShutdownType::Both))?;
    Ok(Err(code))
}

/// Shuts down a connection in one direction or both. With TLS, the end of the output is an alert: the socket stays open below
/// until the guest drops it, because the alert may have to wait for the bytes before it.
pub(super) fn shutdown(mut host: Host<'_>, socket: Socket, how: ShutdownType) -> Answer<()> {
    let ends_output = matches!(how, ShutdownType::Send | ShutdownType::Both);
    let outlets = &mut of(&mut host)?.outlets;
    if ends_output {
        outlets.shut(socket.rep());
    }
    let Some(closer) = outlets.closer(socket.rep()) else {
        return answered(host.data_mut().sockets().shutdown(socket, how));
    };
    if ends_output {
        closer.end_output();
    }
    if matches!(how, ShutdownType::Send) {
        return Ok(Ok(()));
    }
    closer.end_input();
    answered(host.data_mut().sockets().shutdown(socket, ShutdownType::Receive))
}

/// Converts a result for the guest. An error of `wasi:sockets` is returned to the guest. Any other error makes the guest trap.
fn answered<T>(result: SocketResult<T>) -> Answer<T> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) => Ok(Err(error.downcast()?)),
    }
}
