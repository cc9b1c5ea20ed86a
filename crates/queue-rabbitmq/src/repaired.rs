//! Connections of the client library whose frames are repaired before the library reads them: see `screen` and `tuning`.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_core::Stream;
use futures_io::{AsyncRead, AsyncWrite};
use lapin::tcp::{AMQPUriTcpExt, AsyncTcpStream, OwnedTLSConfig};
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};

use super::screen::Screen;
use super::tuning::{self, Opening};

/// Connects. `spare`: bytes by which frames of the server may exceed the limit that both sides agree on.
///
/// # Errors
/// The server cannot be reached, or refuses the connection.
pub(super) async fn connect(
    mut uri: AMQPUri,
    properties: ConnectionProperties,
    tls: OwnedTLSConfig,
    spare: u32,
) -> lapin::Result<Connection> {
    uri.query.frame_max = tuning::raise_own(uri.query.frame_max, spare);
    let tokio = Tokio::current();
    let runtime = Runtime::new(RuntimeParts::new(tokio.clone(), Wires { tokio: tokio.clone(), spare }));
    let plain = Runtime::new(tokio);
    let open = async move |uri: AMQPUri, _: Runtime<RuntimeParts<Tokio, Wires>>| {
        let stream = uri.connect_with_config_async(tls.as_ref(), &plain).await.map_err(lapin::Error::from)?;
        Ok::<_, lapin::Error>(AsyncTcpStream::Plain(Wire::new(stream, spare)))
    };
    Connection::connector(uri, runtime, open, properties).await
}

/// A connection, with TLS or without.
type Socket = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;

/// A connection whose incoming frames are repaired.
struct Wire {
    stream: Socket,
    screen: Screen,
    /// The library's part of the opening. `None`: it is over, or not changed.
    opening: Option<Opening>,
    /// Set once a repair was logged.
    told: bool,
}

impl Wire {
    fn new(stream: Socket, spare: u32) -> Self {
        let opening = (spare > 0).then(|| Opening::new(spare));
        Self { stream, screen: Screen::new(spare), opening, told: false }
    }

    /// Sends what is ready of the opening.
    fn poll_opening(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(opening) = self.opening.as_mut().filter(|opening| !opening.ready().is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, opening.ready()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => opening.sent(count),
            }
        }
        self.opening.take_if(|opening| opening.is_over());
        Poll::Ready(Ok(()))
    }

    fn tell(&mut self, repairs: usize) {
        if repairs > 0 && !std::mem::replace(&mut self.told, true) {
            tracing::warn!(
                "a message of RabbitMQ has text that is not UTF-8, or headers in many levels: `?` stands for such bytes, and a \
                 byte array for deep headers; let its producer send UTF-8 (further ones on this connection are not logged)"
            );
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, target: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        while !this.screen.has_some() {
            let count = ready!(Pin::new(&mut this.stream).poll_read(cx, this.screen.room()))?;
            if count == 0 {
                return Poll::Ready(Ok(0));
            }
            let repairs = this.screen.fill(count)?;
            this.tell(repairs);
        }
        Poll::Ready(Ok(this.screen.take(target)))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_opening(cx))?;
        let Some(opening) = &mut this.opening else { return Pin::new(&mut this.stream).poll_write(cx, bytes) };
        opening.add(bytes);
        // What cannot be sent now is sent by the next flush.
        match this.poll_opening(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.opening.is_some() {
            let first = parts.iter().find(|part| !part.is_empty()).map_or(&[][..], |part| part);
            return self.poll_write(cx, first);
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_opening(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_close(cx)
    }
}

/// Makes the client library take [`Wire`] for a connection of tokio. Everything else is tokio's.
#[derive(Clone, Debug)]
struct Wires {
    tokio: Tokio,
    spare: u32,
}

impl Reactor for Wires {
    type TcpStream = Wire;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.tokio.register(socket)
    }

    fn sleep(&self, time: Duration) -> Self::Sleep {
        self.tokio.sleep(time)
    }

    fn interval(&self, time: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.tokio.interval(time)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let (connecting, spare) = (self.tokio.tcp_connect_addr(address), self.spare);
        async move { Ok(Wire::new(AsyncTcpStream::Plain(connecting.await?), spare)) }
    }
}
