//! The worker threads of this process, each of which must close its file before the process ends.
//!
//! Closing the file writes the messages of the `-wal` into the file. Without that, the messages of a `-wal` that was
//! removed while it was open would be lost with the process.

use std::convert::Infallible;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::Request;

/// The threads that were started and may not have ended yet.
static STARTED: Mutex<Vec<Started>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Started {
    /// The requests of the thread. Does not keep the thread alive.
    orders: Weak<Sender<Request>>,
    /// Disconnected once the thread has closed its file.
    end: Receiver<Infallible>,
}

/// Remembers a thread that receives `orders`. The thread must drop the returned sender after it has closed its file.
pub(super) fn remember(orders: &Arc<Sender<Request>>) -> Sender<Infallible> {
    let (ended, end) = mpsc::channel();
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    started.retain(|thread| matches!(thread.end.try_recv(), Err(mpsc::TryRecvError::Empty)));
    started.push(Started { orders: Arc::downgrade(orders), end });
    ended
}

/// Makes all threads finish their work and close their files, even if queues are still open. Waits for this, but not
/// longer than `patience`.
pub(crate) fn close_all(patience: Duration) {
    let threads = std::mem::take(&mut *STARTED.lock().unwrap_or_else(PoisonError::into_inner));
    for thread in &threads {
        if let Some(orders) = thread.orders.upgrade() {
            // If the thread has ended, there is nothing to close.
            let _ = orders.send(Request::Close);
        }
    }
    let deadline = Instant::now() + patience;
    for thread in threads {
        let _ = thread.end.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}
