//! Output streams of TCP connections. wasmtime-wasi accepts up to 64 KiB that the kernel has no room for yet, and discards them
//! when the sandbox is dropped. The host therefore waits for them before a message counts as processed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::tls_stream::Closer;
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{Mutex, MutexGuard};
use wasmtime_wasi::p2::{DynOutputStream, OutputStream, Pollable, StreamError, StreamResult};

/// The output streams of one sandbox's connections.
#[derive(Default)]
pub(super) struct Outlets {
    open: Vec<Outlet>,
    /// Set once bytes were lost that a connection had accepted from the guest.
    lost: Arc<AtomicBool>,
}

struct Outlet {
    /// Handle of the connection's socket in the guest's table.
    socket: u32,
    stream: Weak<Shared>,
    /// Ends the streams of a connection with TLS.
    closer: Option<Closer>,
}

/// The guest's side of an output stream.
struct Tracked(Arc<Shared>);

struct Shared {
    stream: Mutex<DynOutputStream>,
    /// Set once the guest has shut the stream down. Then it is closed without any fault.
    is_shut: AtomicBool,
    /// Set while the stream has accepted bytes of which the guest does not know yet whether the kernel took them.
    is_owing: AtomicBool,
    lost: Arc<AtomicBool>,
}

impl Outlets {
    /// Wraps the output stream of a new connection. `socket`: handle of its socket in the guest's table. `closer`: ends the
    /// streams if the connection has TLS.
    pub(super) fn track(&mut self, socket: u32, stream: DynOutputStream, closer: Option<Closer>) -> DynOutputStream {
        let (is_shut, is_owing) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { stream: Mutex::new(stream), is_shut, is_owing, lost: Arc::clone(&self.lost) });
        // A handle is reused only after the stream of its last connection is gone.
        self.open.retain(|outlet| outlet.stream.strong_count() > 0);
        self.open.push(Outlet { socket, stream: Arc::downgrade(&shared), closer });
        Box::new(Tracked(shared))
    }

    /// Records that the guest shuts down the output of the connection with this socket.
    pub(super) fn shut(&mut self, socket: u32) {
        for outlet in self.open.iter().filter(|outlet| outlet.socket == socket) {
            if let Some(stream) = outlet.stream.upgrade() {
                stream.is_shut.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Returns the means to end the streams of the connection with this socket. `None`: it has no TLS, or no output stream.
    pub(super) fn closer(&self, socket: u32) -> Option<Closer> {
        let is_open = |outlet: &&Outlet| outlet.socket == socket && outlet.stream.strong_count() > 0;
        self.open.iter().find(is_open)?.closer.clone()
    }

    /// Waits until the kernel has all bytes that the connections have accepted. Returns `false` if some of them were lost, since
    /// the last call of this function, because a connection broke. The wait has no limit of its own: the other side may never
    /// read.
    pub(super) async fn settle(&mut self) -> bool {
        for outlet in &self.open {
            if let Some(stream) = outlet.stream.upgrade() {
                stream.settle().await;
            }
        }
        !self.lost.swap(false, Ordering::Relaxed)
    }
}

impl Shared {
    /// Waits until the kernel has all accepted bytes, or the connection is broken.
    async fn settle(&self) {
        let mut stream = self.stream.lock().await;
        let mut permit = stream.check_write();
        // Without a permit, an earlier write is still going on.
        if matches!(permit, Ok(0)) {
            stream.ready().await;
            permit = stream.check_write();
        }
        let is_broken = match permit {
            Ok(_) => false,
            Err(StreamError::Closed) => !self.is_shut.load(Ordering::Relaxed),
            Err(_) => true,
        };
        if self.is_owing.swap(false, Ordering::Relaxed) && is_broken {
            self.lost.store(true, Ordering::Relaxed);
        }
    }
}

impl Tracked {
    /// Returns the stream. Only one call of a sandbox runs at a time, so nobody else holds it.
    fn stream(&self) -> StreamResult<MutexGuard<'_, DynOutputStream>> {
        let in_use = |_| StreamError::Trap(wasmtime::Error::msg("the stream of a connection is in use"));
        self.0.stream.try_lock().map_err(in_use)
    }

    fn owe(&self, is_owing: bool) {
        self.0.is_owing.store(is_owing, Ordering::Relaxed);
    }
}

#[async_trait]
impl Pollable for Tracked {
    async fn ready(&mut self) {
        self.0.stream.lock().await.ready().await;
    }
}

#[async_trait]
impl OutputStream for Tracked {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let has_bytes = !bytes.is_empty();
        let written = self.stream()?.write(bytes);
        self.owe(has_bytes && written.is_ok());
        written
    }

    fn flush(&mut self) -> StreamResult<()> {
        let flushed = self.stream()?.flush();
        if flushed.is_err() {
            self.owe(false);
        }
        flushed
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        let permit = self.stream()?.check_write();
        // The guest learns the end of its last write.
        if !matches!(permit, Ok(0)) {
            self.owe(false);
        }
        permit
    }

    /// Waits, when the guest drops the stream, for the bytes that it has accepted.
    async fn cancel(&mut self) {
        self.0.settle().await;
        self.0.stream.lock().await.cancel().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;

    /// A stream that accepts one write, and finishes it with this end once it is told to.
    struct Slow {
        pending: bool,
        go: Arc<Notify>,
        end: fn() -> StreamResult<usize>,
    }

    #[async_trait]
    impl Pollable for Slow {
        async fn ready(&mut self) {
            if self.pending {
                self.go.notified().await;
                self.pending = false;
            }
        }
    }

    #[async_trait]
    impl OutputStream for Slow {
        fn write(&mut self, _: Bytes) -> StreamResult<()> {
            self.pending = true;
            Ok(())
        }

        fn flush(&mut self) -> StreamResult<()> {
            Ok(())
        }

        fn check_write(&mut self) -> StreamResult<usize> {
            if self.pending { Ok(0) } else { (self.end)() }
        }
    }

    fn slow(end: fn() -> StreamResult<usize>) -> (DynOutputStream, Arc<Notify>) {
        let go = Arc::new(Notify::new());
        (Box::new(Slow { pending: false, go: Arc::clone(&go), end }), go)
    }

    fn closed() -> StreamResult<usize> {
        Err(StreamError::Closed)
    }

    fn reset() -> StreamResult<usize> {
        Err(StreamError::LastOperationFailed(wasmtime::Error::msg("reset")))
    }

    /// Returns the verdict on a guest that has written to a stream with this end, and shuts it down or not.
    async fn verdict(end: fn() -> StreamResult<usize>, shuts: bool) -> bool {
        let mut outlets = Outlets::default();
        let (stream, go) = slow(end);
        let mut stream = outlets.track(7, stream, None);
        stream.write(Bytes::from_static(b"x")).unwrap();
        if shuts {
            outlets.shut(7);
        }
        go.notify_one();
        outlets.settle().await
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_waits_for_what_its_connections_have_accepted() {
        let mut outlets = Outlets::default();
        let (stream, go) = slow(|| Ok(1));
        let mut stream = outlets.track(7, stream, None);
        assert!(outlets.settle().await, "nothing is written yet");
        stream.write(Bytes::from_static(b"x")).unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(60), outlets.settle()).await.is_err());
        go.notify_one();
        assert!(outlets.settle().await);
    }

    #[tokio::test]
    async fn only_lost_bytes_fail_a_message() {
        assert!(verdict(|| Ok(1), false).await);
        assert!(verdict(closed, true).await, "the guest has closed it");
        assert!(!verdict(closed, false).await);
        assert!(!verdict(reset, false).await);
        assert!(!verdict(reset, true).await);
    }

    #[tokio::test]
    async fn a_write_that_failed_before_anyone_waits_is_lost_unless_the_guest_saw_it() {
        for guest_looks in [false, true] {
            let mut outlets = Outlets::default();
            let (stream, go) = slow(reset);
            let mut stream = outlets.track(7, stream, None);
            stream.write(Bytes::from_static(b"x")).unwrap();
            go.notify_one();
            stream.ready().await;
            assert!(!guest_looks || stream.check_write().is_err());
            assert_eq!(outlets.settle().await, guest_looks);
            assert!(outlets.settle().await, "the next message has lost nothing");
        }
    }

    #[tokio::test]
    async fn a_broken_connection_without_output_loses_nothing() {
        let mut outlets = Outlets::default();
        let _kept = outlets.track(7, slow(reset).0, None);
        assert!(outlets.settle().await);
    }

    #[tokio::test]
    async fn bytes_of_a_dropped_stream_are_waited_for_and_their_loss_is_told_once() {
        let mut outlets = Outlets::default();
        let (stream, go) = slow(reset);
        let mut stream = outlets.track(7, stream, None);
        stream.write(Bytes::from_static(b"x")).unwrap();
        go.notify_one();
        stream.cancel().await;
        drop(stream);
        assert!(!outlets.settle().await);
        assert!(outlets.settle().await, "the next message has lost nothing");
    }
}
