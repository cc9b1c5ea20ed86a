//! Attempts to reach a granted server as a guest would, before any guest runs: for `hostler check`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::net::TcpStream;
use tokio::time::timeout;
use wasmtime_wasi::p2::pipe::{AsyncReadStream, AsyncWriteStream};

use super::handshake;
use super::names::{GrantedName, Resolver, Unresolved, system};
use super::tls::{Route, ServerTls, Settings};
use hostler_types::endpoint::{Endpoint, EndpointHost};
use hostler_types::metadata::is_metadata;
use hostler_types::tcp_grant::TcpGrant;

/// Bytes of a handshake that may wait to be sent.
const UNSENT: usize = 64 * 1024;

/// Time for a look-up, all connections and the handshakes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time for the connection to one of several addresses.
const EACH: Duration = Duration::from_secs(3);

/// The reason for which a guest would not reach a granted server now.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The look-up of the name failed, or gave no address.
    #[error("the name has no address")]
    NoAddress,
    /// The name leads to this address only, which guests do not reach.
    #[error("the name resolves to {0}, which guests do not reach")]
    Prohibited(IpAddr),
    /// No address of the server takes a connection.
    #[error("no connection to {0}: {1}")]
    NoConnection(SocketAddr, io::Error),
    /// The server takes connections, and TLS of the grant does not begin. The other fields are the reason and the fix.
    #[error("no TLS with {0}: {1}")]
    NoTls(SocketAddr, String, &'static str),
    /// TLS of the grant cannot be set up. The fields are the reason and the fix.
    #[error("{0}")]
    Unready(String, &'static str),
    /// The look-up and the connections together take too long.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Slow,
}

impl ProbeError {
    /// Returns the fix.
    pub fn cure(&self) -> String {
        match self {
            Self::NoAddress => "correct the name, or let the machine's resolver know it".to_owned(),
            Self::Prohibited(address) if is_metadata(*address) => {
                "let the name lead to another address: no grant leads to this one".to_owned()
            }
            Self::Prohibited(address) => format!("add \"{address}\" or its network to the consumer's allow.networks"),
            Self::NoTls(.., cure) | Self::Unready(_, cure) => (*cure).to_owned(),
            Self::NoConnection(..) | Self::Slow => {
                "start the server, correct host and port, or open the way in firewalls and security groups".to_owned()
            }
        }
    }
}

/// Connects to a granted server, begins TLS if the grant has it, and closes the connection without a word of a guest's. Returns the
/// address that took it. Takes 10 s at most. `networks`: networks that guests may reach under the names of servers, besides
/// public ones.
///
/// # Errors
/// A guest would not reach the server now. It may later.
pub async fn probe(grant: &TcpGrant, networks: &[IpNet]) -> Result<SocketAddr, ProbeError> {
    let route = Settings::default().route(&grant.to, grant.tls.as_ref());
    let route = route.map_err(|error| ProbeError::Unready(error.to_string(), error.cure()))?;
    let reached = async {
        let (at, stream) = resolved_by(&system(), &grant.to, networks).await?;
        match route {
            Route::Plain => Ok(at),
            Route::Tls(tls) => encrypted(at, stream, &tls).await,
        }
    };
    timeout(PATIENCE, reached).await.unwrap_or(Err(ProbeError::Slow))
}

async fn encrypted(at: SocketAddr, stream: TcpStream, tls: &ServerTls) -> Result<SocketAddr, ProbeError> {
    let (read, write) = stream.into_split();
    let (input, output) = (AsyncReadStream::new(read), AsyncWriteStream::new(UNSENT, write));
    match handshake::begin(Box::new(input), Box::new(output), tls).await {
        Ok(_) => Ok(at),
        Err(error) => Err(ProbeError::NoTls(at, error.to_string(), error.cure())),
    }
}

async fn resolved_by(
    resolver: &Resolver,
    server: &Endpoint,
    networks: &[IpNet],
) -> Result<(SocketAddr, TcpStream), ProbeError> {
    let addresses = match &server.host {
        EndpointHost::Ip(address) => vec![*address].into(),
        EndpointHost::Name(name) => {
            let name = Arc::new(GrantedName::new(name, &networks.into(), resolver));
            name.addresses().await.map_err(|unresolved| match unresolved {
                Unresolved::Failed(_) => ProbeError::NoAddress,
                Unresolved::Prohibited(prohibited) => ProbeError::Prohibited(prohibited.address),
            })?
        }
    };
    let mut last = ProbeError::NoAddress;
    for address in addresses.iter() {
        let at = SocketAddr::new(*address, server.port);
        let connected = timeout(EACH, TcpStream::connect(at)).await;
        match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => return Ok((at, stream)),
            Err(error) => last = ProbeError::NoConnection(at, error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use hostler_types::tcp_grant::{Tls, TlsStart};
    use tokio::net::TcpListener;

    use super::*;

    /// Probes a server whose name leads to these addresses, with loopback granted.
    async fn probed(server: &str, addresses: &'static [&'static str]) -> Result<SocketAddr, ProbeError> {
        let resolver: Resolver = Arc::new(move |_| {
            Box::pin(async move {
                let found: Vec<_> = addresses.iter().map(|address| address.parse().unwrap()).collect();
                if found.is_empty() { Err(io::Error::other("no such name")) } else { Ok(found) }
            })
        });
        let networks = ["127.0.0.0/8".parse().unwrap()];
        resolved_by(&resolver, &server.parse().unwrap(), &networks).await.map(|(at, _)| at)
    }

    #[tokio::test]
    async fn any_address_of_a_server_may_take_the_connection() {
        let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        assert_eq!(probed(&at.to_string(), &[]).await.unwrap(), at);
        let named = format!("db.test:{}", at.port());
        assert_eq!(probed(&named, &["127.0.0.3", "127.0.0.2"]).await.unwrap(), at);
        drop(listener);
        let error = probed(&named, &["127.0.0.3", "127.0.0.2"]).await.unwrap_err();
        assert!(matches!(&error, ProbeError::NoConnection(last, _) if *last == at), "{error}");
    }

    #[tokio::test]
    async fn a_server_without_the_tls_of_its_grant_is_not_reached() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to: Endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
        let serving = tokio::spawn(async move {
            loop {
                drop(listener.accept().await.unwrap());
            }
        });
        let tls = Some(Tls { start: TlsStart::Direct, ca: None });
        let error = probe(&TcpGrant { to: to.clone(), tls }, &[]).await.unwrap_err();
        assert!(
            matches!(error, ProbeError::NoTls(..)) && error.cure().contains("speaks TLS"),
            "{error}: {}",
            error.cure()
        );
        let tls = Some(Tls { start: TlsStart::Direct, ca: Some("absent.pem".into()) });
        let error = probe(&TcpGrant { to: to.clone(), tls }, &[]).await.unwrap_err();
        assert!(matches!(error, ProbeError::Unready(..)) && error.cure().contains("PEM"), "{error}");
        assert!(probe(&TcpGrant::from(to), &[]).await.is_ok());
        serving.abort();
    }

    #[tokio::test]
    async fn a_name_is_held_to_what_guests_may_reach() {
        let error = probed("db.test:5432", &["10.0.0.7"]).await.unwrap_err();
        assert_eq!(error.to_string(), "the name resolves to 10.0.0.7, which guests do not reach");
        assert!(error.cure().contains("allow.networks"));
        let error = probed("db.test:80", &["169.254.169.254"]).await.unwrap_err();
        assert!(error.cure().contains("no grant"), "{}", error.cure());
        assert!(matches!(probed("db.test:80", &[]).await.unwrap_err(), ProbeError::NoAddress));
    }
}
