//! TCP servers that a config grants to guests, with or without TLS.

use std::path::PathBuf;

use super::endpoint::Endpoint;

/// A TCP server to which guests may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpGrant {
    /// The server.
    pub to: Endpoint,
    /// TLS that the host adds to each connection. `None`: the guest's bytes are sent as they are.
    pub tls: Option<Tls>,
}

/// TLS between the host and a granted server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The way in which TLS begins.
    pub start: TlsStart,
    /// PEM file with the certificates of the authorities that are trusted. `None`: those of the system. A relative path is
    /// resolved from the current directory.
    pub ca: Option<PathBuf>,
}

/// The way in which TLS begins on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsStart {
    /// With the first byte.
    Direct,
    /// After the request for TLS that PostgreSQL defines.
    Postgres,
}

impl From<Endpoint> for TcpGrant {
    /// Returns the grant of a server without TLS.
    fn from(to: Endpoint) -> Self {
        Self { to, tls: None }
    }
}
