//! Faults around the file: locks of other processes, failing changes, a file that is moved away, and a slow disk.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, sleep};

use super::super::scenario::Scenario;
use super::file::{File, RECORDS};

/// Maximum time for which another process holds a lock, except in an outage.
const LOCK: Duration = Duration::from_secs(3);
/// Delay before an outage retries, if another fault is active.
const LATER: Duration = Duration::from_millis(10);

/// Causes faults, at the rates of the scenario.
pub struct Trouble {
    scenario: Arc<Scenario>,
    file: Arc<File>,
    started_at: Instant,
    rng: Mutex<Rng>,
    /// True while the file is locked or changes fail. Only one fault is active at a time.
    busy: AtomicBool,
}

impl Trouble {
    pub fn new(scenario: Arc<Scenario>, file: Arc<File>) -> Self {
        let rng = Mutex::new(Rng::with_seed(!scenario.key.seed));
        Self { scenario, file, started_at: Instant::now(), rng, busy: AtomicBool::new(false) }
    }

    fn random(&self) -> f64 {
        self.rng.lock().unwrap().f64()
    }

    fn is_struck(&self, rate: f64) -> bool {
        self.started_at.elapsed() < self.scenario.calm_at && rate > 0.0 && self.random() < rate
    }

    /// Returns a random latency: usually milliseconds, sometimes seconds.
    pub fn latency(&self) -> Duration {
        let most = if self.is_struck(self.scenario.rates.latency) { 8.0 } else { 0.02 };
        Duration::from_secs_f64(self.random() * most)
    }

    /// At a random rate, lets another process lock the file.
    pub fn may_lock(self: &Arc<Self>) {
        if self.is_struck(self.scenario.rates.refusals) && !self.busy.swap(true, Ordering::Relaxed) {
            let held = LOCK.mul_f64(self.random());
            let locked = self.file.lock();
            let this = Arc::clone(self);
            tokio::spawn(async move {
                sleep(held).await;
                if locked {
                    this.file.unlock();
                }
                this.busy.store(false, Ordering::Relaxed);
            });
        }
    }

    /// At a random rate, makes changes of one of these entries fail, until the returned value is dropped.
    pub fn may_spoil(self: &Arc<Self>, receipts: &[String]) -> Option<Spoilt> {
        let is_due = !receipts.is_empty() && self.is_struck(self.scenario.rates.entries);
        if !is_due || self.busy.swap(true, Ordering::Relaxed) {
            return None;
        }
        let index = self.rng.lock().unwrap().usize(0..receipts.len());
        let is_of_records = self.scenario.keyed.is_some() && self.rng.lock().unwrap().bool();
        let seq = receipts[index].split('.').nth(1).expect("an entry's number");
        let seq = if is_of_records { RECORDS } else { seq };
        self.file.spoil(Some(seq)).then(|| Spoilt(Arc::clone(self))).or_else(|| {
            self.busy.store(false, Ordering::Relaxed);
            None
        })
    }

    /// For this duration, the file is locked, cannot be changed, or is missing.
    pub async fn outage(self: Arc<Self>, duration: Duration) {
        while self.busy.swap(true, Ordering::Relaxed) {
            sleep(LATER).await;
        }
        let kind = self.rng.lock().unwrap().u32(0..3);
        match kind {
            0 if self.file.lock() => {
                sleep(duration).await;
                self.file.unlock();
            }
            1 if self.file.spoil(None) => {
                sleep(duration).await;
                self.file.mend();
            }
            _ => {
                self.file.hide();
                sleep(duration).await;
                self.file.show();
            }
        }
        self.busy.store(false, Ordering::Relaxed);
    }
}

/// An entry that cannot be changed. Dropping this value ends the fault.
pub struct Spoilt(Arc<Trouble>);

impl Drop for Spoilt {
    fn drop(&mut self) {
        self.0.file.mend();
        self.0.busy.store(false, Ordering::Relaxed);
    }
}
