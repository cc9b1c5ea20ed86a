//! Requests of handlers on the jobs of their items, kept until the items are settled. No I/O.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hostler_types::job::{Buffered, BufferedJob, Progress};

/// Number of buffers from which on those of finished deliveries are looked for.
const MANY: usize = 1024;

/// The buffers of deliveries, by the handles of their leases. Each lives as long as its delivery.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<HashMap<String, Weak<BufferedJob>>>);

impl Buffers {
    /// Adds the buffer of a delivery.
    pub(crate) fn enter(&self, handle: &str, job: &Arc<BufferedJob>) {
        let mut jobs = self.lock();
        if jobs.len() >= MANY && jobs.len() == jobs.capacity() {
            jobs.retain(|_, job| job.strong_count() > 0);
        }
        jobs.insert(handle.to_owned(), Arc::downgrade(job));
    }

    /// Takes what a handler asks for, to send it with the result.
    pub(crate) fn take(&self, handle: &str) -> Buffered {
        let job = self.lock().get(handle).and_then(Weak::upgrade);
        job.map(|job| job.take()).unwrap_or_default()
    }

    /// Returns the latest progress of a delivery's handler. `None`: it has reported none.
    pub(crate) fn progress(&self, handle: &str) -> Option<Progress> {
        self.lock().get(handle).and_then(Weak::upgrade)?.latest_progress()
    }

    /// Keeps what was not sent for certain, for the next attempt to send it.
    pub(crate) fn put_back(&self, handle: &str, buffered: Buffered) {
        if let Some(job) = self.lock().get(handle).and_then(Weak::upgrade) {
            job.put_back(buffered);
        }
    }

    /// Forgets a delivery that is settled, or whose lease is lost.
    pub(crate) fn forget(&self, handle: &str) {
        self.lock().remove(handle);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Weak<BufferedJob>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
