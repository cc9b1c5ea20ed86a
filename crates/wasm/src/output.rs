//! Standard output and standard error of a guest. Writes to them go to the output of the call that the guest handles.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use super::lines::Lines;
use hostler_handler::{Output, Stream};
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError};

/// Maximum number of bytes that a guest can write at once.
const WRITE_SIZE: usize = 64 * 1024;

/// The destination of a sandbox's standard streams, which is the output of the current call.
#[derive(Debug, Clone)]
pub(super) struct Sink(Arc<Mutex<Output>>);

impl Sink {
    pub(super) fn new(output: &Output) -> Self {
        Self(Arc::new(Mutex::new(output.clone())))
    }

    /// Redirects the streams to the output of another call.
    pub(super) fn redirect(&self, output: &Output) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = output.clone();
    }

    /// Returns a standard stream that writes to this destination.
    pub(super) fn stream(&self, stream: Stream) -> GuestStream {
        GuestStream(Target::Kept(self.clone(), stream))
    }
}

/// A standard stream of a guest.
#[derive(Clone)]
pub(super) struct GuestStream(Target);

/// Receiver of a stream.
#[derive(Clone)]
enum Target {
    Kept(Sink, Stream),
    Answers(Lines),
}

impl GuestStream {
    /// Returns the standard output of a command that answers for the messages of a batch.
    pub(super) fn answers(lines: Lines) -> Self {
        Self(Target::Answers(lines))
    }
}

impl GuestStream {
    fn put(&self, bytes: &[u8]) {
        match &self.0 {
            Target::Kept(sink, stream) => {
                sink.0.lock().unwrap_or_else(PoisonError::into_inner).write(*stream, bytes);
            }
            Target::Answers(lines) => lines.write(bytes),
        }
    }
}

impl IsTerminal for GuestStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestStream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait::async_trait]
impl Pollable for GuestStream {
    /// Reading answers takes time, so a guest that writes many of them gives way to others, and can be stopped.
    async fn ready(&mut self) {
        if let Target::Answers(_) = self.0 {
            tokio::task::consume_budget().await;
        }
    }
}

impl OutputStream for GuestStream {
    fn write(&mut self, bytes: bytes::Bytes) -> Result<(), StreamError> {
        self.put(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StreamError> {
        Ok(())
    }

    fn check_write(&mut self) -> Result<usize, StreamError> {
        Ok(WRITE_SIZE)
    }
}

impl AsyncWrite for GuestStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.put(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
