//! Outgoing TCP connections of guests (`wasi:sockets`). Guests may connect only to granted servers. They can neither listen nor
//! use UDP.
//!
//! | file | job |
//! |---|---|
//! | `imports.rs` | `wasi:sockets` in the linker |
//! | `connect.rs` | one connection, from its start to its end |
//! | `names.rs` | addresses of granted names |
//! | `probe.rs` | attempts to reach granted servers, for `hostler check` |
//! | `outlet.rs` | output that the kernel has not accepted yet |
//! | `tls.rs` | TLS of granted servers: authorities and names |
//! | `handshake.rs`, `tls_stream.rs` | the beginning of TLS on a connection, and its streams |
//!
//! A guest may connect to an address that is granted itself, or that the host answered to this sandbox for a granted name, at a
//! port that is granted with it. Without any granted server, none of this exists: the functions in `denied/` refuse sockets.
//!
//! Several grants may lead to the same address and port. If one of them has TLS, the host adds TLS: the bytes that one grant
//! protects never leave unprotected by another. Of several grants with TLS, the certificate must have the name that was
//! answered last.

mod connect;
mod handshake;
mod imports;
mod names;
mod outlet;
mod probe;
mod tls;
mod tls_stream;

pub(super) use imports::add;
pub use probe::{ProbeError, probe};
pub(super) use tls::TlsError;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use wasmtime_wasi::sockets::SocketAddrUse;

use hostler_types::endpoint::EndpointHost;
use hostler_types::metadata::is_metadata;
use hostler_types::tcp_grant::TcpGrant;
use names::{GrantedName, MAX_ADDRESSES, Resolver};
use outlet::Outlets;
use tls::{Route, ServerTls, Settings};

/// Size of a socket's buffer in each direction, in bytes. The kernel reserves twice as much. Without a fixed size, the kernel
/// enlarges the buffers up to several MiB, which count as memory of the container.
const BUFFER: u64 = 64 * 1024;

/// Maximum host memory for one connection, in bytes: the kernel's two buffers, and what wasmtime-wasi reads and writes at once
/// (64 KiB in each direction).
pub const CONNECTION_FOOTPRINT: u64 = 4 * BUFFER + 2 * 64 * 1024;

/// Maximum host memory for the TLS of one connection, in bytes: what rustls keeps of a handshake (messages and certificates of
/// up to 64 KiB each), of records that are received (48 KiB) or encrypted (64 KiB), and received bytes that wait for it (16 KiB).
pub const TLS_FOOTPRINT: u64 = 256 * 1024;

/// Maximum number of addresses that a sandbox remembers. A sandbox that serves many messages may see a name change its addresses
/// many times. Beyond this number, it has to look names up again.
const MAX_ANSWERED: usize = 16 * MAX_ADDRESSES;

/// The servers to which the guests of one consumer may connect.
pub(super) struct Tcp {
    /// Granted addresses.
    literals: BTreeMap<SocketAddr, Route>,
    names: BTreeMap<String, Server>,
    /// Maximum number of sockets in a sandbox.
    connections: usize,
}

/// A server that is granted by its name.
struct Server {
    ports: BTreeMap<u16, Route>,
    name: Arc<GrantedName>,
}

impl Tcp {
    /// Prepares the connections of guests. `networks`: networks that guests may reach, under the names of servers, besides public
    /// ones. `connections`: maximum number of sockets in a sandbox. `None`: no server is granted.
    ///
    /// # Errors
    /// The TLS of a server cannot be set up.
    pub(super) fn new(
        servers: &[TcpGrant],
        networks: &[IpNet],
        connections: u32,
    ) -> Result<Option<Arc<Self>>, TlsError> {
        Self::resolved_by(&names::system(), servers, networks, connections)
    }

    fn resolved_by(
        resolver: &Resolver,
        servers: &[TcpGrant],
        networks: &[IpNet],
        connections: u32,
    ) -> Result<Option<Arc<Self>>, TlsError> {
        let networks: Arc<[IpNet]> = networks.into();
        let mut settings = Settings::default();
        let mut tcp = Self { literals: BTreeMap::new(), names: BTreeMap::new(), connections: connections as usize };
        for TcpGrant { to, tls } in servers {
            let route = settings.route(to, tls.as_ref())?;
            match &to.host {
                EndpointHost::Ip(address) => {
                    tcp.literals.insert(SocketAddr::new(address.to_canonical(), to.port), route);
                }
                EndpointHost::Name(name) => {
                    let server = || Server {
                        ports: BTreeMap::new(),
                        name: Arc::new(GrantedName::new(name, &networks, resolver)),
                    };
                    tcp.names.entry(name.clone()).or_insert_with(server).ports.insert(to.port, route);
                }
            }
        }
        Ok((!servers.is_empty()).then(|| Arc::new(tcp)))
    }

    /// Returns the server with this name, however the guest writes it. `None`: it is not granted.
    fn server(&self, name: &str) -> Option<&Server> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        self.names.get(&name)
    }

    /// Returns `true` if a guest may use an address in this way. `answered`: the places that the host has answered to the guest.
    fn permits(&self, answered: &BTreeMap<SocketAddr, Route>, at: SocketAddr, usage: SocketAddrUse) -> bool {
        match usage {
            // wasmtime-wasi asks for this before it connects, although it binds nothing.
            SocketAddrUse::TcpBind => at.ip().is_unspecified() && at.port() == 0,
            SocketAddrUse::TcpConnect => self.route(answered, at).is_some(),
            _ => false,
        }
    }

    /// Returns the way to an address. `None`: the guest may not connect to it.
    fn route(&self, answered: &BTreeMap<SocketAddr, Route>, at: SocketAddr) -> Option<Route> {
        let at = SocketAddr::new(at.ip().to_canonical(), at.port());
        let literal = self.literals.get(&at);
        let route = match answered.get(&at) {
            Some(answered) => Some(answered.or_tls(literal)),
            None => literal.cloned(),
        };
        route.filter(|_| !is_metadata(at.ip()))
    }
}

/// The connections of one sandbox.
pub(super) struct Connections {
    tcp: Arc<Tcp>,
    answered: Arc<Answered>,
    outlets: Outlets,
    /// TLS of the sockets that are connecting to a server with TLS, by their handles.
    connecting: BTreeMap<u32, Arc<ServerTls>>,
}

/// The addresses and ports that the host has answered to a guest for granted names.
#[derive(Default)]
struct Answered(Mutex<BTreeMap<SocketAddr, Route>>);

/// A check of addresses in the form that wasmtime-wasi requires.
pub(super) type Check =
    Box<dyn Fn(SocketAddr, SocketAddrUse) -> Pin<Box<dyn Future<Output = bool> + Send + Sync>> + Send + Sync>;

impl Connections {
    pub(super) fn new(tcp: &Arc<Tcp>) -> Self {
        let (answered, outlets, connecting) = (Arc::default(), Outlets::default(), BTreeMap::new());
        Self { tcp: Arc::clone(tcp), answered, outlets, connecting }
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

    /// Returns the way to an address. `None`: the guest may not connect to it.
    fn route(&self, at: SocketAddr) -> Option<Route> {
        self.tcp.route(&self.answered.0.lock().unwrap_or_else(PoisonError::into_inner), at)
    }
}

impl Answered {
    fn permits(&self, tcp: &Tcp, at: SocketAddr, usage: SocketAddrUse) -> bool {
        tcp.permits(&self.0.lock().unwrap_or_else(PoisonError::into_inner), at, usage)
    }

    /// Permits connections to the addresses of a granted name, at its ports.
    fn add(&self, addresses: &[IpAddr], ports: &BTreeMap<u16, Route>) {
        let mut answered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.len() + addresses.len() * ports.len() > MAX_ANSWERED {
            answered.clear();
        }
        for address in addresses {
            for (port, route) in ports {
                let at = SocketAddr::new(*address, *port);
                let route = route.or_tls(answered.get(&at));
                answered.insert(at, route);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_types::endpoint::Endpoint;
    use hostler_types::tcp_grant::{Tls, TlsStart};

    fn tcp(servers: &[&str]) -> Arc<Tcp> {
        let plain = |server: &&str| TcpGrant::from(server.parse::<Endpoint>().unwrap());
        Tcp::new(&servers.iter().map(plain).collect::<Vec<_>>(), &[], 8).unwrap().unwrap()
    }

    fn plain(ports: &[u16]) -> BTreeMap<u16, Route> {
        ports.iter().map(|port| (*port, Route::Plain)).collect()
    }

    fn may_connect(connections: &Connections, at: SocketAddr) -> bool {
        let may = connections.route(at).is_some();
        assert_eq!(connections.answered.permits(&connections.tcp, at, SocketAddrUse::TcpConnect), may);
        may
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn without_a_grant_there_is_nothing() {
        assert!(Tcp::new(&[], &["0.0.0.0/0".parse().unwrap()], 8).unwrap().is_none());
    }

    #[test]
    fn only_the_very_address_and_port_is_connected_to() {
        let connections = Connections::new(&tcp(&["10.0.3.7:6379", "[fd00::7]:1", "db.internal:5432"]));
        for granted in ["10.0.3.7:6379", "[::ffff:10.0.3.7]:6379", "[fd00::7]:1"] {
            assert!(may_connect(&connections, at(granted)), "{granted}");
        }
        for other in ["10.0.3.7:6380", "10.0.3.8:6379", "[fd00::7]:6379", "[fd00::8]:1", "10.0.0.1:5432"] {
            assert!(!may_connect(&connections, at(other)), "{other}");
        }
    }

    #[test]
    fn an_answered_address_is_connected_to_at_the_ports_of_its_name_and_by_its_sandbox_only() {
        let tcp = tcp(&["db.internal:5432", "DB.internal:5433", "10.0.3.7:6379"]);
        let (asked, other) = (Connections::new(&tcp), Connections::new(&tcp));
        let server = tcp.server("Db.Internal.").unwrap();
        asked.answered.add(&["10.0.0.1".parse().unwrap()], &server.ports);
        let places = ["10.0.0.1:5432", "10.0.0.1:5433", "10.0.0.1:6379", "10.0.0.2:5432"].map(at);
        assert_eq!(places.map(|at| may_connect(&asked, at)), [true, true, false, false]);
        assert!(!may_connect(&other, places[0]));
    }

    /// Returns the host whose certificate is asked for on a connection to this place. `None`: there is no TLS.
    fn tls(connections: &Connections, place: &str) -> Option<String> {
        match connections.route(at(place)).unwrap() {
            Route::Plain => None,
            Route::Tls(tls) => Some(tls.server.to_string()),
        }
    }

    #[test]
    fn tls_is_preferred_where_grants_lead_to_the_same_place() {
        let with_tls = |server: &str| {
            let tls = Tls { start: TlsStart::Direct, ca: None };
            TcpGrant { to: server.parse().unwrap(), tls: Some(tls) }
        };
        let plain = |server: &str| TcpGrant::from(server.parse::<Endpoint>().unwrap());
        let servers = [
            with_tls("10.0.0.1:1"),
            plain("10.0.0.2:1"),
            plain("plain:1"),
            with_tls("one:1"),
            with_tls("two:1"),
            plain("two:2"),
        ];
        let connections = Connections::new(&Tcp::new(&servers, &[], 8).unwrap().unwrap());
        let answer = |name: &str, address: &str| {
            connections.answered.add(&[address.parse().unwrap()], &connections.tcp.server(name).unwrap().ports);
        };
        let named = |name: &str| Some(name.to_owned());
        assert_eq!([tls(&connections, "10.0.0.1:1"), tls(&connections, "10.0.0.2:1")], [named("10.0.0.1:1"), None]);
        answer("plain", "10.0.0.1");
        assert_eq!(tls(&connections, "10.0.0.1:1"), named("10.0.0.1:1"), "the address has TLS");
        answer("one", "10.0.0.2");
        assert_eq!(tls(&connections, "10.0.0.2:1"), named("one:1"), "the name has TLS");
        answer("plain", "10.0.0.2");
        assert_eq!(tls(&connections, "10.0.0.2:1"), named("one:1"), "another name has TLS");
        answer("two", "10.0.0.2");
        assert_eq!(tls(&connections, "10.0.0.2:1"), named("two:1"), "the last of two names with TLS");
        assert_eq!(tls(&connections, "10.0.0.2:2"), None, "another port");
    }

    #[test]
    fn nothing_is_used_but_for_connections() {
        let tcp = tcp(&["10.0.3.7:6379"]);
        let permits = |place: &str, usage| tcp.permits(&BTreeMap::new(), at(place), usage);
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
        connections.answered.add(&metadata, &plain(&[80]));
        assert!(metadata.iter().all(|address| !may_connect(&connections, SocketAddr::new(*address, 80))));
    }

    #[test]
    fn a_sandbox_forgets_old_answers_rather_than_growing() {
        let answered = Answered::default();
        for number in 0..10 * MAX_ANSWERED {
            let octets = u32::try_from(number).unwrap().to_be_bytes();
            answered.add(&[IpAddr::from(octets)], &plain(&[1, 2]));
            assert!(answered.0.lock().unwrap().len() <= MAX_ANSWERED);
        }
    }
}
