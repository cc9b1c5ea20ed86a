//! The beginning of TLS on a connection that a guest has opened. The guest waits until it has ended.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use rustls::{CertificateError, ClientConnection};
use tokio::time::timeout;
use wasmtime_wasi::p2::bindings::sockets::network::ErrorCode;
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, StreamError};

use super::tls::ServerTls;
use super::tls_stream::{CHUNK, Link, encrypted};
use hostler_types::tcp_grant::TlsStart;

/// Maximum duration of a handshake. The guest's processing timeout limits it as well.
const DEADLINE: Duration = Duration::from_secs(10);

/// A message that asks a PostgreSQL server for TLS (PostgreSQL documentation, "Message Formats", SSLRequest).
const POSTGRES_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// The reason for which a connection has no TLS.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("the handshake took longer than {} s", DEADLINE.as_secs())]
    Late,
    #[error("the server has no TLS: it answers PostgreSQL's request for it with `N`")]
    Refused,
    #[error("the server is no PostgreSQL server: it answers a request for TLS with the byte {0:#04x}")]
    NoPostgres(u8),
    #[error("the connection ended during the handshake")]
    Broken,
    #[error("{0}")]
    Tls(#[from] rustls::Error),
}

impl From<StreamError> for HandshakeError {
    fn from(_: StreamError) -> Self {
        Self::Broken
    }
}

impl HandshakeError {
    /// Returns the error that the guest gets for its connection.
    pub(super) fn code(&self) -> ErrorCode {
        match self {
            Self::Late => ErrorCode::Timeout,
            Self::Broken => ErrorCode::ConnectionReset,
            Self::Refused | Self::NoPostgres(_) | Self::Tls(_) => ErrorCode::ConnectionAborted,
        }
    }

    /// Returns the fix, as far as the error shows it.
    pub(super) fn cure(&self) -> &'static str {
        match self {
            Self::Refused => "enable TLS on the server (ssl = on), or remove tls from the grant in allow.tcp",
            Self::NoPostgres(_) => "set tls = \"direct\" in allow.tcp if the server speaks TLS from the first byte",
            Self::Tls(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => "grant a name that the server's certificate has in allow.tcp, or give the server one with this name",
            Self::Tls(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                "name the file with the certificate's authority in the ca of the grant in allow.tcp"
            }
            Self::Tls(rustls::Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            )) => "renew the server's certificate",
            Self::Tls(rustls::Error::InvalidCertificate(_)) => {
                "give the server a certificate for servers, of an authority: its own certificate may not be one (CA:FALSE)"
            }
            Self::Late | Self::Broken | Self::Tls(_) => {
                "check that this port of the server speaks TLS in the way that tls in allow.tcp says"
            }
        }
    }
}

/// Begins TLS on a connection, by both of its streams.
///
/// # Errors
/// The server has not proved that it is the granted one. Nothing of the guest has been sent to it.
pub(super) async fn begin(
    input: DynInputStream,
    output: DynOutputStream,
    tls: &ServerTls,
) -> Result<Link, HandshakeError> {
    timeout(DEADLINE, agreed(Wire { input, output }, tls)).await.unwrap_or(Err(HandshakeError::Late))
}

async fn agreed(mut wire: Wire, tls: &ServerTls) -> Result<Link, HandshakeError> {
    if tls.start == TlsStart::Postgres {
        wire.write(Bytes::from_static(&POSTGRES_REQUEST)).await?;
        // Not a byte more: what comes with the answer was not encrypted, and must not be taken for what comes after it.
        match wire.read(1).await?.first().copied() {
            Some(b'S') => {}
            Some(b'N') => return Err(HandshakeError::Refused),
            other => return Err(HandshakeError::NoPostgres(other.unwrap_or_default())),
        }
    }
    let mut connection = tls.connection()?;
    let mut unread = Bytes::new();
    loop {
        while connection.wants_write() {
            wire.write(encrypted(&mut connection)).await?;
        }
        if !connection.is_handshaking() {
            return Ok(Link::new(connection, wire.input, wire.output, unread));
        }
        unread = wire.read(CHUNK).await?;
        if let Err(error) = process(&mut connection, &mut unread) {
            wire.write_at_once(encrypted(&mut connection));
            return Err(error.into());
        }
    }
}

/// Processes received bytes up to the end of the handshake. The rest belongs to the connection.
fn process(connection: &mut ClientConnection, unread: &mut Bytes) -> Result<(), rustls::Error> {
    while connection.is_handshaking() && unread.has_remaining() {
        let mut rest = &unread[..];
        let taken = connection.read_tls(&mut rest).map_err(|error| rustls::Error::General(error.to_string()))?;
        unread.advance(taken);
        connection.process_new_packets()?;
    }
    Ok(())
}

/// The two streams of a connection without TLS.
struct Wire {
    input: DynInputStream,
    output: DynOutputStream,
}

impl Wire {
    /// Returns up to `most` bytes, at least one.
    async fn read(&mut self, most: usize) -> Result<Bytes, StreamError> {
        loop {
            self.input.ready().await;
            let bytes = self.input.read(most)?;
            if !bytes.is_empty() {
                return Ok(bytes);
            }
        }
    }

    async fn write(&mut self, mut bytes: Bytes) -> Result<(), StreamError> {
        while bytes.has_remaining() {
            self.output.ready().await;
            let permitted = self.output.check_write()?.min(bytes.len());
            if permitted > 0 {
                self.output.write(bytes.split_to(permitted))?;
            }
        }
        Ok(())
    }

    /// Sends bytes if that is possible without waiting, as the reason for which the host gives up.
    fn write_at_once(&mut self, bytes: Bytes) {
        if self.output.check_write().is_ok_and(|permitted| bytes.len() <= permitted) {
            let _ = self.output.write(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use wasmtime_wasi::p2::pipe::{MemoryInputPipe, MemoryOutputPipe};
    use wasmtime_wasi::p2::{InputStream, Pollable, StreamResult};

    use super::super::tls::{Route, Settings};
    use super::*;
    use hostler_types::tcp_grant::Tls;

    /// Returns the error of a handshake with a server that sends this. The second field is what the host has sent to it.
    async fn refused(start: TlsStart, input: DynInputStream) -> (HandshakeError, Bytes) {
        let route = Settings::default().route(&"db:5432".parse().unwrap(), Some(&Tls { start, ca: None })).unwrap();
        let Route::Tls(tls) = route else { panic!("the grant has TLS") };
        let sent = MemoryOutputPipe::new(1 << 16);
        match begin(input, Box::new(sent.clone()), &tls).await {
            Ok(_) => panic!("the server has no certificate"),
            Err(error) => (error, sent.contents()),
        }
    }

    #[tokio::test]
    async fn only_one_answer_of_postgresql_begins_tls() {
        for (answer, error, cure) in [
            ("N", "the server has no TLS", "ssl = on"),
            ("E\0\0\0\x0b", "the byte 0x45", "tls = \"direct\""),
            ("HTTP/1.1 400", "the byte 0x48", "tls = \"direct\""),
            ("", "the connection ended", "this port"),
        ] {
            let (found, sent) = refused(TlsStart::Postgres, Box::new(MemoryInputPipe::new(answer))).await;
            assert!(found.to_string().contains(error), "{answer}: {found}");
            assert!(found.cure().contains(cure), "{answer}: {}", found.cure());
            assert_eq!(sent[..], POSTGRES_REQUEST, "{answer}");
        }
        let (_, sent) = refused(TlsStart::Postgres, Box::new(MemoryInputPipe::new("S"))).await;
        assert_eq!((&sent[..8], sent[8]), (&POSTGRES_REQUEST[..], 22), "a handshake follows (RFC 8446, section 5.1)");
    }

    #[tokio::test]
    async fn bytes_that_came_before_tls_are_not_read_as_bytes_within_it() {
        let stuffed = MemoryInputPipe::new("SE\0\0\0\x0bERROR: no");
        let (error, _) = refused(TlsStart::Postgres, Box::new(stuffed)).await;
        assert!(matches!(error, HandshakeError::Tls(_)), "{error}");
    }

    #[tokio::test]
    async fn direct_tls_begins_with_a_handshake() {
        let (error, sent) = refused(TlsStart::Direct, Box::new(MemoryInputPipe::new(""))).await;
        assert!(matches!(error, HandshakeError::Broken), "{error}");
        assert_eq!(sent[0], 22, "RFC 8446, section 5.1");
    }

    struct Silent;

    #[async_trait]
    impl Pollable for Silent {
        async fn ready(&mut self) {
            std::future::pending().await
        }
    }

    impl InputStream for Silent {
        fn read(&mut self, _: usize) -> StreamResult<Bytes> {
            Ok(Bytes::new())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_has_so_much_time_and_no_more() {
        for start in [TlsStart::Direct, TlsStart::Postgres] {
            let begun = tokio::time::Instant::now();
            let (error, _) = refused(start, Box::new(Silent)).await;
            assert!(matches!(error.code(), ErrorCode::Timeout), "{error}");
            assert_eq!(begun.elapsed().as_secs(), DEADLINE.as_secs());
        }
    }
}
