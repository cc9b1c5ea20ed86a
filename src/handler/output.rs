//! A guest's standard output and error: kept up to a limit, the rest counted and dropped.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError};

/// How much a guest may hand over in one write.
const WRITE_SIZE: usize = 64 * 1024;

/// Which of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Takes what a guest writes. Both streams share one limit, and a write never fails: what is beyond is dropped.
#[derive(Debug, Clone)]
pub struct Output {
    limit: usize,
    kept: Arc<Mutex<Captured>>,
}

/// What was kept of a guest's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// How many bytes were dropped.
    pub dropped: u64,
}

/// How far an output is, to tell what is written from there on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mark {
    stdout: usize,
    stderr: usize,
    dropped: u64,
}

impl Captured {
    /// Its lines, each with the name of its stream: those of standard output first.
    pub fn lines(&self) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
        let streams = [("stdout", &self.stdout), ("stderr", &self.stderr)];
        streams.into_iter().flat_map(|(name, bytes)| {
            bytes.split_inclusive(|byte| *byte == b'\n').map(move |line| {
                let line = line.strip_suffix(b"\n").map_or(line, |line| line.strip_suffix(b"\r").unwrap_or(line));
                (name, String::from_utf8_lossy(line))
            })
        })
    }
}

impl Output {
    /// Keeps up to `limit` bytes, both streams together.
    pub fn new(limit: usize) -> Self {
        Self { limit, kept: Arc::default() }
    }

    /// Takes what has been kept so far, and starts anew.
    pub fn take(&self) -> Captured {
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How far it is now.
    pub(super) fn mark(&self) -> Mark {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Mark { stdout: kept.stdout.len(), stderr: kept.stderr.len(), dropped: kept.dropped }
    }

    /// A copy of standard output from there on; `None`: some of what was written since was dropped.
    pub(super) fn stdout_since(&self, mark: Mark) -> Option<Vec<u8>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.dropped == mark.dropped).then(|| kept.stdout.get(mark.stdout..).unwrap_or_default().to_vec())
    }

    /// The last line that is not blank on standard error from there on, which by custom says why a program failed.
    pub(super) fn last_error_line_since(&self, mark: Mark) -> Option<String> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(kept.stderr.get(mark.stderr..).unwrap_or_default());
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    }

    fn write(&self, stream: Stream, bytes: &[u8]) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.limit.saturating_sub(kept.stdout.len() + kept.stderr.len());
        let (keep, drop) = bytes.split_at(bytes.len().min(room));
        match stream {
            Stream::Stdout => kept.stdout.extend_from_slice(keep),
            Stream::Stderr => kept.stderr.extend_from_slice(keep),
        }
        kept.dropped += drop.len() as u64;
    }
}

/// Where the streams of a sandbox lead: to the output of the call that runs in it.
#[derive(Debug, Clone)]
pub(super) struct Sink(Arc<Mutex<Output>>);

impl Sink {
    pub(super) fn new(output: &Output) -> Self {
        Self(Arc::new(Mutex::new(output.clone())))
    }

    /// Leads to another call's output from now on.
    pub(super) fn redirect(&self, output: &Output) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = output.clone();
    }

    /// One of the two, as a guest's standard stream.
    pub(super) fn stream(&self, stream: Stream) -> GuestStream {
        GuestStream { sink: self.clone(), stream }
    }
}

/// A standard stream of a guest.
#[derive(Debug, Clone)]
pub(super) struct GuestStream {
    sink: Sink,
    stream: Stream,
}

impl GuestStream {
    fn put(&self, bytes: &[u8]) {
        self.sink.0.lock().unwrap_or_else(PoisonError::into_inner).write(self.stream, bytes);
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
    async fn ready(&mut self) {}
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_share_the_limit_and_the_rest_is_counted() {
        let output = Output::new(8);
        output.write(Stream::Stdout, b"12345");
        output.write(Stream::Stderr, b"abcdef");
        let kept = output.take();
        assert_eq!((kept.stdout.as_slice(), kept.stderr.as_slice(), kept.dropped), (&b"12345"[..], &b"abc"[..], 3));
        assert_eq!(output.take(), Captured::default());
    }

    #[test]
    fn lines_are_told_with_their_stream() {
        let captured = Captured { stdout: b"a\r\n\n\xff".to_vec(), stderr: b"b\n".to_vec(), dropped: 0 };
        let lines: Vec<_> = captured.lines().map(|(stream, line)| format!("{stream} {line}")).collect();
        assert_eq!(lines, ["stdout a", "stdout ", "stdout \u{fffd}", "stderr b"]);
    }

    #[test]
    fn what_was_there_before_is_not_told_as_the_program_s_own() {
        let output = Output::new(20);
        output.write(Stream::Stdout, b"before");
        output.write(Stream::Stderr, b"hook\n");
        let mark = output.mark();
        assert_eq!((output.stdout_since(mark), output.last_error_line_since(mark)), (Some(Vec::new()), None));
        output.write(Stream::Stdout, b"reply");
        assert_eq!(output.stdout_since(mark).as_deref(), Some(&b"reply"[..]));
        output.write(Stream::Stdout, b"too much");
        assert_eq!(output.stdout_since(mark), None);
        assert_eq!(output.stdout_since(output.mark()), Some(Vec::new()));
        assert_eq!(output.take().stdout, b"beforereplytoo ");
    }

    #[test]
    fn the_last_error_line_is_the_last_one_with_text() {
        let output = Output::new(100);
        let mark = output.mark();
        assert_eq!(output.last_error_line_since(mark), None);
        output.write(Stream::Stderr, b"first\n  bad row \n\n");
        assert_eq!(output.last_error_line_since(mark).as_deref(), Some("bad row"));
    }
}
