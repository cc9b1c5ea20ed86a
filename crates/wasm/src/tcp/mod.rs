//! Outgoing TCP connections of guests (`wasi:sockets`). Guests may connect only to granted servers. They can neither listen nor
//! use UDP.
//!
//! | file | job |
//! |---|---|
//! | `imports.rs` | `wasi:sockets` in the linker |
//! | `names.rs` | addresses of granted names |
//! | `outlet.rs` | output that the kernel has not accepted yet |
//!
//! A guest may connect to an address that is granted itself, or that the host answered to this sandbox for a granted name, at a
//! port that is granted with it. Without any granted server, none of this exists: the functions in `denied/` refuse sockets.

mod imports;
mod names;
mod outlet;

pub(super) use imports::add;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use wasmtime_wasi::sockets::SocketAddrUse;

use hostler_types::endpoint::{Endpoint, EndpointHost};
use hostler_types::metadata::is_metadata;
use names::{GrantedName, MAX_ADDRESSES, Resolver};
use outlet::Outlets;

/// Size of a socket's buffer in each direction, in bytes. The kernel reserves twice as much. Without a fixed size, the kernel
/// enlarges the buffers up to several MiB, which count as memory of the container.
const BUFFER: u64 = 64 * 1024;

/// Maximum host memory for one connection, in bytes: the kernel's two buffers, and what wasmtime-wasi reads and writes at once
/// (64 KiB in each direction).
pub const CONNECTION_FOOTPRINT: u64 = 4 * BUFFER + 2 * 64 * 1024;

/// Maximum number of addresses that a sandbox remembers. A sandbox that serves many messages may see a name change its addresses
/// many times. Beyond this number, it has to look names up again.
const MAX_ANSWERED: usize = 16 * MAX_ADDRESSES;

/// The servers to which the guests of one consumer may connect.
pub(super) struct Tcp {
    /// Granted addresses.
    literals: BTreeSet<SocketAddr>,
    names: BTreeMap<String, Server>,
    /// Maximum number of sockets in a sandbox.
    connections: usize,
}

/// A server that is granted by its name.
struct Server {
    ports: BTreeSet<u16>,
    name: Arc<GrantedName>,
}

impl Tcp {
    /// Prepares the connections of guests. `networks`: networks that guests may reach, under the names of servers, besides public
    /// ones. `connections`: maximum number of sockets in a sandbox. `None`: no server is granted.
    pub(super) fn new(servers: &[Endpoint], networks: &[IpNet], connections: u32) -> Option<Arc<Self>> {
        Self::resolved_by(&names::system(), servers, networks, connections)
    }

    fn resolved_by(
        resolver: &Resolver,
        servers: &[Endpoint],
        networks: &[IpNet],
        connections: u32,
    ) -> Option<Arc<Self>> {
        let networks: Arc<[IpNet]> = networks.into();
        let mut tcp = Self { literals: BTreeSet::new(), names: BTreeMap::new(), connections: connections as usize };
        for Endpoint { host, port } in servers {
            match host {
                EndpointHost::Ip(address) => {
                    tcp.literals.insert(SocketAddr::new(address.to_canonical(), *port));
                }
                EndpointHost::Name(name) => {
                    let server = || Server {
                        ports: BTreeSet::new(),
                        name: Arc::new(GrantedName::new(name, &networks, resolver)),
                    };
                    tcp.names.entry(name.clone()).or_insert_with(server).ports.insert(*port);
                }
            }
        }
        (!servers.is_empty()).then(|| Arc::new(tcp))
    }

    /// Returns the server with this name, however the guest writes it. `None`: it is not granted.
    fn server(&self, name: &str) -> Option<&Server> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        self.names.get(&name)
    }

    /// Returns `true` if a guest may use an address in this way. `answered`: the places that the host has answered to the guest.
    fn permits(&self, answered: &BTreeSet<SocketAddr>, at: SocketAddr, usage: SocketAddrUse) -> bool {
        match usage {
            // wasmtime-wasi asks for this before it connects, although it binds nothing.
            SocketAddrUse::TcpBind => at.ip().is_unspecified() && at.port() == 0,
            SocketAddrUse::TcpConnect => {
                let at = SocketAddr::new(at.ip().to_canonical(), at.port());
                !is_metadata(at.ip()) && (self.literals.contains(&at) || answered.contains(&at))
            }
            _ => false,
        }
    }
}

/// The connections of one sandbox.
pub(super) struct Connections {
    tcp: Arc<Tcp>,
    answered: Arc<Answered>,
    outlets: Outlets,
}

/// The addresses and ports that the host has answered to a guest for granted names.
#[derive(Default)]
struct Answered(Mutex<BTreeSet<SocketAddr>>);

/// A check of addresses in the form that wasmtime-wasi requires.
pub(super) type Check =
    Box<dyn Fn(SocketAddr, SocketAddrUse) -> Pin<Box<dyn Future<Output = bool> + Send + Sync>> + Send + Sync>;

impl Connections {
    pub(super) fn new(tcp: &Arc<Tcp>) -> Self {
        Self { tcp: Arc::clone(tcp), answered: Arc::default(), outlets: Outlets::default() }
    }

    /// Returns the check of the addresses that the guest uses.
    pub(super) fn check(&self) -> Check {
        let (tcp, answered) = (Arc::clone(&self.tcp), Arc::clone(&self.answered));
        Box::new(move |at, usage| Box::pin(std::future::ready(answered.permits(&tcp, at, usage))))
    }

    /// Waits until the kernel has all that the guest has written. Returns `false` if a part was lost because a connection broke.
    pub(super) async fn settle(&mut self) -> bool {
        self.outlets.settle().await
    }

    fn may_connect(&self, at: SocketAddr) -> bool {
        self.answered.permits(&self.tcp, at, SocketAddrUse::TcpConnect)
    }
}

impl Answered {
    fn permits(&self, tcp: &Tcp, at: SocketAddr, usage: SocketAddrUse) -> bool {
        tcp.permits(&self.0.lock().unwrap_or_else(PoisonError::into_inner), at, usage)
    }

    /// Permits connections to the addresses of a granted name, at its ports.
    fn add(&self, addresses: &[IpAddr], ports: &BTreeSet<u16>) {
        let mut answered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.len() + addresses.len() * ports.len() > MAX_ANSWERED {
            answered.clear();
        }
        for address in addresses {
            answered.extend(ports.iter().map(|port| SocketAddr::new(*address, *port)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(servers: &[&str]) -> Arc<Tcp> {
        let servers: Vec<_> = servers.iter().map(|server| server.parse().unwrap()).collect();
        Tcp::new(&servers, &[], 8).unwrap()
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn without_a_grant_there_is_nothing() {
        assert!(Tcp::new(&[], &["0.0.0.0/0".parse().unwrap()], 8).is_none());
    }

    #[test]
    fn only_the_very_address_and_port_is_connected_to() {
        let connections = Connections::new(&tcp(&["10.0.3.7:6379", "[fd00::7]:1", "db.internal:5432"]));
        for granted in ["10.0.3.7:6379", "[::ffff:10.0.3.7]:6379", "[fd00::7]:1"] {
            assert!(connections.may_connect(at(granted)), "{granted}");
        }
        for other in ["10.0.3.7:6380", "10.0.3.8:6379", "[fd00::7]:6379", "[fd00::8]:1", "10.0.0.1:5432"] {
            assert!(!connections.may_connect(at(other)), "{other}");
        }
    }

    #[test]
    fn an_answered_address_is_connected_to_at_the_ports_of_its_name_and_by_its_sandbox_only() {
        let tcp = tcp(&["db.internal:5432", "DB.internal:5433", "10.0.3.7:6379"]);
        let (asked, other) = (Connections::new(&tcp), Connections::new(&tcp));
        let server = tcp.server("Db.Internal.").unwrap();
        asked.answered.add(&["10.0.0.1".parse().unwrap()], &server.ports);
        assert!(asked.may_connect(at("10.0.0.1:5432")) && asked.may_connect(at("10.0.0.1:5433")));
        assert!(!asked.may_connect(at("10.0.0.1:6379")) && !asked.may_connect(at("10.0.0.2:5432")));
        assert!(!other.may_connect(at("10.0.0.1:5432")));
    }

    #[test]
    fn nothing_is_used_but_for_connections() {
        let tcp = tcp(&["10.0.3.7:6379"]);
        let permits = |place: &str, usage| tcp.permits(&BTreeSet::new(), at(place), usage);
        assert!(permits("0.0.0.0:0", SocketAddrUse::TcpBind) && permits("[::]:0", SocketAddrUse::TcpBind));
        for place in ["0.0.0.0:80", "127.0.0.1:0", "10.0.3.7:6379", "[::1]:0"] {
            assert!(!permits(place, SocketAddrUse::TcpBind), "{place}");
        }
        use SocketAddrUse::{TcpAccept, TcpListen, UdpBind, UdpReceive, UdpSend};
        for usage in [TcpListen, TcpAccept, UdpBind, UdpSend, UdpReceive] {
            for place in ["0.0.0.0:0", "10.0.3.7:6379"] {
                assert!(!permits(place, usage), "{usage:?} {place}");
            }
        }
    }

    #[test]
    fn a_metadata_service_is_not_even_reached_by_an_answer() {
        let connections = Connections::new(&tcp(&["db.internal:80"]));
        let metadata: [IpAddr; 2] = ["169.254.169.254".parse().unwrap(), "64:ff9b::a9fe:a9fe".parse().unwrap()];
        connections.answered.add(&metadata, &BTreeSet::from([80]));
        assert!(metadata.iter().all(|address| !connections.may_connect(SocketAddr::new(*address, 80))));
    }

    #[test]
    fn a_sandbox_forgets_old_answers_rather_than_growing() {
        let answered = Answered::default();
        for number in 0..10 * MAX_ANSWERED {
            let octets = u32::try_from(number).unwrap().to_be_bytes();
            answered.add(&[IpAddr::from(octets)], &BTreeSet::from([1, 2]));
            assert!(answered.0.lock().unwrap().len() <= MAX_ANSWERED);
        }
    }
}
