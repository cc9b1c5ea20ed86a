//! The streams of a connection with TLS, as the guest sees them. They encrypt and decrypt within the guest's calls, so TLS needs
//! no task of its own. What the guest has written leaves at once: an encrypted write is one write to the stream below, which
//! tracks it until the kernel has it.

use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::{Buf as _, Bytes, BytesMut};
use rustls::ClientConnection;
use wasmtime_wasi::p2::bindings::sockets::network::ErrorCode;
use wasmtime_wasi::p2::{
    DynInputStream, DynOutputStream, InputStream, OutputStream, Pollable, StreamError, StreamResult,
};

/// Number of encrypted bytes that are read at once.
pub(super) const CHUNK: usize = 16 * 1024;

/// Maximum number of bytes that the guest writes at once. Encrypted, they fit into one write to the stream below (64 KiB).
const MAX_WRITE: usize = 48 * 1024;

/// Maximum number of bytes that the guest reads at once.
const MAX_READ: usize = 64 * 1024;

/// A connection with TLS, and the streams below it.
pub(super) struct Link {
    connection: ClientConnection,
    input: DynInputStream,
    output: DynOutputStream,
    /// Received bytes that are not decrypted yet.
    unread: Bytes,
    /// Number of decrypted bytes that the guest has not read.
    plain: usize,
    /// The error that the guest gets once it has read all decrypted bytes.
    fault: Option<StreamError>,
    /// Set once nothing is received any more.
    is_ended: bool,
    /// Number of bytes that the guest may write next.
    permit: usize,
    closing: Closing,
}

/// The state of the end of a connection's output, which TLS announces with an alert (`close_notify`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    Open,
    /// The guest has shut the output down. The alert is not sent, because the stream below takes nothing.
    Due,
    Sent,
}

/// Returns all bytes that TLS has to send.
pub(super) fn encrypted(connection: &mut ClientConnection) -> Bytes {
    let mut bytes = Vec::new();
    while connection.wants_write() {
        // A write to memory does not fail.
        if connection.write_tls(&mut bytes).is_err() {
            break;
        }
    }
    bytes.into()
}

impl Link {
    /// Creates a link after the handshake. `unread`: bytes that were received after it.
    pub(super) fn new(
        connection: ClientConnection,
        input: DynInputStream,
        output: DynOutputStream,
        unread: Bytes,
    ) -> Self {
        let closing = Closing::Open;
        let mut link =
            Self { connection, input, output, unread, plain: 0, fault: None, is_ended: false, permit: 0, closing };
        // The server may have sent its first bytes with the end of the handshake.
        link.decrypt();
        link
    }

    /// Returns the guest's streams, and the means to end them.
    pub(super) fn split(self) -> (DynInputStream, DynOutputStream, Closer) {
        let link = Arc::new(Mutex::new(self));
        let closer = Closer(Arc::downgrade(&link));
        (Box::new(Input(Arc::clone(&link))), Box::new(Output(link)), closer)
    }

    /// Returns `true` if a read returns at once: with bytes, with an error, or with the end.
    fn is_readable(&self) -> bool {
        self.plain > 0 || self.fault.is_some() || self.is_ended
    }

    /// Lets TLS process what is decrypted already or can be without further bytes.
    fn decrypt(&mut self) {
        match self.connection.process_new_packets() {
            Ok(state) => {
                self.plain = state.plaintext_bytes_to_read();
                self.is_ended |= state.peer_has_closed();
            }
            Err(error) => self.fail(wasmtime::Error::msg(format!("TLS: {error}"))),
        }
    }

    /// Decrypts received bytes until the guest can read, or no byte is left.
    fn advance(&mut self) {
        while !self.is_readable() && self.unread.has_remaining() {
            let mut rest = &self.unread[..];
            match self.connection.read_tls(&mut rest) {
                Ok(taken) => {
                    self.unread.advance(taken);
                    self.decrypt();
                }
                Err(error) => self.fail(error.into()),
            }
        }
    }

    /// Ends the input with an error.
    fn fail(&mut self, error: wasmtime::Error) {
        self.fault = Some(StreamError::LastOperationFailed(error));
    }

    /// Takes bytes from the stream below. Returns `false` if it has none at present.
    fn receive(&mut self) -> bool {
        match self.input.read(CHUNK) {
            Ok(bytes) if bytes.is_empty() => return false,
            Ok(bytes) => self.unread = bytes,
            // Without the alert, somebody else may have cut the connection.
            Err(StreamError::Closed) => self.fail(ErrorCode::ConnectionReset.into()),
            Err(error) => self.fault = Some(error),
        }
        true
    }

    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        self.advance();
        // Only once: a server that sends records without data must not keep the host in this call.
        if !self.is_readable() && self.receive() {
            self.advance();
        }
        if !self.is_readable() {
            return Ok(Bytes::new());
        }
        if self.plain > 0 {
            let mut bytes = BytesMut::zeroed(size.min(self.plain).min(MAX_READ));
            let read = self.connection.reader().read(&mut bytes);
            bytes.truncate(read.map_err(|error| StreamError::LastOperationFailed(error.into()))?);
            self.plain -= bytes.len();
            return Ok(bytes.freeze());
        }
        self.is_ended = true;
        Err(self.fault.take().unwrap_or(StreamError::Closed))
    }

    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // A guest that waits for the answer to its last bytes may have no other call that announces their end.
        if self.closing == Closing::Due {
            let _ = self.poll_writable(context);
        }
        loop {
            self.advance();
            if self.is_readable() {
                return Poll::Ready(());
            }
            ready!(self.input.ready().as_mut().poll(context));
            self.receive();
        }
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        self.permit = 0;
        if self.output.check_write()? == 0 {
            return Ok(0);
        }
        match self.closing {
            Closing::Open => {
                self.permit = MAX_WRITE;
                Ok(MAX_WRITE)
            }
            Closing::Due => {
                self.announce_end()?;
                self.check_write()
            }
            Closing::Sent => Err(StreamError::Closed),
        }
    }

    fn write(&mut self, bytes: &Bytes) -> StreamResult<()> {
        if self.closing != Closing::Open {
            return Err(StreamError::Closed);
        }
        if bytes.len() > self.permit {
            return Err(StreamError::trap("the guest may not write so many bytes"));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        self.permit = 0;
        let written = self.connection.writer().write_all(bytes);
        written.map_err(|error| StreamError::LastOperationFailed(error.into()))?;
        self.output.write(encrypted(&mut self.connection))
    }

    fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.output.ready().as_mut().poll(context));
        if self.closing == Closing::Due && matches!(self.output.check_write(), Ok(1..)) && self.announce_end().is_ok() {
            ready!(self.output.ready().as_mut().poll(context));
        }
        Poll::Ready(())
    }

    /// Ends the output, now or as soon as the stream below takes bytes.
    fn end_output(&mut self) {
        if self.closing == Closing::Open {
            self.closing = Closing::Due;
            if matches!(self.output.check_write(), Ok(1..)) {
                // The guest gets the error with its next call.
                let _ = self.announce_end();
            }
        }
    }

    /// Sends the alert. The stream below must have permitted a write.
    fn announce_end(&mut self) -> StreamResult<()> {
        self.closing = Closing::Sent;
        self.connection.send_close_notify();
        self.output.write(encrypted(&mut self.connection))
    }
}

fn locked(link: &Mutex<Link>) -> MutexGuard<'_, Link> {
    link.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the streams of a connection when the guest shuts its socket down.
#[derive(Clone)]
pub(super) struct Closer(Weak<Mutex<Link>>);

impl Closer {
    /// Announces the end of the guest's output, after all that it has written.
    pub(super) fn end_output(&self) {
        if let Some(link) = self.0.upgrade() {
            locked(&link).end_output();
        }
    }

    /// Ends the guest's input.
    pub(super) fn end_input(&self) {
        if let Some(link) = self.0.upgrade() {
            locked(&link).is_ended = true;
        }
    }
}

/// The guest's input stream.
struct Input(Arc<Mutex<Link>>);

#[async_trait]
impl Pollable for Input {
    async fn ready(&mut self) {
        std::future::poll_fn(|context| locked(&self.0).poll_readable(context)).await;
    }
}

#[async_trait]
impl InputStream for Input {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        if size == 0 { Ok(Bytes::new()) } else { locked(&self.0).read(size) }
    }
}

/// The guest's output stream.
struct Output(Arc<Mutex<Link>>);

#[async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {
        std::future::poll_fn(|context| locked(&self.0).poll_writable(context)).await;
    }
}

#[async_trait]
impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        locked(&self.0).write(&bytes)
    }

    fn flush(&mut self) -> StreamResult<()> {
        locked(&self.0).output.flush()
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        locked(&self.0).check_write()
    }

    /// Waits for the bytes that were accepted, and announces their end.
    async fn cancel(&mut self) {
        self.ready().await;
        locked(&self.0).end_output();
    }
}
