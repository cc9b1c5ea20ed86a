//! Two lanes for guests: those that compute for long run apart, so that they cannot slow those that do not.
//!
//! A guest yields at every epoch tick, but where others need a tenth of a millisecond, taking turns with one that uses up
//! its tick each time leaves them a hundredth of the time. So a guest that has computed for a few ticks goes on in the long
//! lane, and where a consumer's guests usually take much more than others might, they begin there. Its threads have a lower
//! priority: they get the time that the quick lane leaves, and a small share of it at least.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

/// How long a guest may compute in the quick lane; it is looked at when it yields, so at the next epoch tick.
const QUICK: Duration = Duration::from_millis(15);

/// A consumer whose guests usually compute for longer has them begin in the long lane.
const USUALLY_QUICK: Duration = Duration::from_millis(1);

/// How many messages it takes, more or less, until what is usual has changed.
const MEMORY: u64 = 8;

/// How much nicer the long lane's threads are than others (`nice(2)`): a fifteenth of the weight in the kernel's scheduler. With
/// its slices of 3 ms, such a thread waits for 45 ms at most for its turn on a busy CPU, so that guests still stop in time.
const NICENESS: i32 = 12;

/// Where the guests of one consumer run.
#[derive(Debug, Clone)]
pub struct Lanes {
    /// Where guests begin.
    pub quick: Handle,
    /// Where those run that compute for long; none: with the others.
    long: Option<Arc<Long>>,
}

/// Where those guests of one consumer run that compute for long.
#[derive(Debug)]
struct Long {
    runtime: Handle,
    /// How many microseconds one of the consumer's guests usually computes.
    usual: AtomicU64,
}

impl Lanes {
    /// Lanes on these runtimes, of which the second's threads [yield to others](Self::yield_to_others).
    pub fn new(quick: Handle, long: Option<Handle>) -> Self {
        Self { quick, long: long.map(|runtime| Arc::new(Long { runtime, usual: AtomicU64::default() })) }
    }

    /// The same lanes for another consumer, whose guests take as long as they take.
    #[must_use]
    pub fn for_another(&self) -> Self {
        Self::new(self.quick.clone(), self.long.as_ref().map(|long| long.runtime.clone()))
    }

    /// Makes the calling thread one of the long lane.
    pub fn yield_to_others() {
        if let Err(error) = rustix::process::nice(NICENESS) {
            tracing::debug!(%error, "guests that compute for long keep the priority of the others");
        }
    }

    /// Whether the consumer's guests usually compute for so short a time that what is done about each is worth saving.
    pub fn are_quick(&self) -> bool {
        self.long.as_ref().is_some_and(|long| long.is_usually_quick())
    }

    /// Runs a guest.
    pub fn spawn(&self, guest: impl Future<Output = ()> + Send + 'static) {
        let Some(long) = &self.long else {
            self.quick.spawn(guest);
            return;
        };
        let guest = Timed { guest: Box::pin(guest), computed: Duration::ZERO, long: Arc::clone(long) };
        if !long.is_usually_quick() {
            long.runtime.spawn(guest);
            return;
        }
        self.quick.spawn(async move {
            if let Some(guest) = quickly(guest).await {
                let long = Arc::clone(&guest.long);
                long.runtime.spawn(guest);
            }
        });
    }
}

impl Long {
    fn is_usually_quick(&self) -> bool {
        Duration::from_micros(self.usual.load(Ordering::Relaxed)) <= USUALLY_QUICK
    }
}

/// A guest, and how long it has computed.
struct Timed<G> {
    guest: Pin<Box<G>>,
    computed: Duration,
    long: Arc<Long>,
}

impl<G: Future<Output = ()>> Future for Timed<G> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let started = Instant::now();
        let polled = self.guest.as_mut().poll(context);
        self.computed += started.elapsed();
        polled
    }
}

impl<G> Drop for Timed<G> {
    /// It is over: what is usual moves towards what it took. Two that end at once may count as one.
    fn drop(&mut self) {
        let usual = self.long.usual.load(Ordering::Relaxed);
        let computed = u64::try_from(self.computed.as_micros()).unwrap_or(u64::MAX / MEMORY);
        self.long.usual.store((usual * (MEMORY - 1)).saturating_add(computed) / MEMORY, Ordering::Relaxed);
    }
}

/// Runs a guest until it is over, or has computed for too long: then it comes back as it is.
async fn quickly<G: Future<Output = ()>>(guest: Timed<G>) -> Option<Timed<G>> {
    let mut guest = Some(guest);
    poll_fn(|context| {
        let Some(running) = &mut guest else { return Poll::Ready(None) };
        match Pin::new(&mut *running).poll(context) {
            Poll::Pending if running.computed < QUICK => Poll::Pending,
            Poll::Pending => Poll::Ready(guest.take()),
            Poll::Ready(()) => Poll::Ready(None),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Runtime;
    use tokio::sync::oneshot;

    fn runtimes() -> (Runtime, Runtime, Lanes) {
        let lane = |name: &str| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).thread_name(name).enable_all().build().unwrap()
        };
        let (quick, long) = (lane("quick"), lane("long"));
        let lanes = Lanes::new(quick.handle().clone(), Some(long.handle().clone()));
        (quick, long, lanes)
    }

    /// The lanes in which a guest begins and ends that computes so often for so long.
    fn lanes_of(lanes: &Lanes, turns: u32, turn: Duration) -> (String, String) {
        let (sender, receiver) = oneshot::channel();
        let lane = || std::thread::current().name().unwrap_or_default().to_owned();
        lanes.spawn(async move {
            let begun = lane();
            for _ in 0..turns {
                let end = Instant::now() + turn;
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                tokio::task::yield_now().await;
            }
            let _ = sender.send((begun, lane()));
        });
        receiver.blocking_recv().unwrap()
    }

    #[test]
    fn who_computes_for_long_goes_on_in_the_long_lane() {
        let (_quick, _long, lanes) = runtimes();
        assert_eq!(lanes_of(&lanes, 4, QUICK / 2), ("quick".into(), "long".into()));
        let other = lanes.for_another();
        assert_eq!(lanes_of(&other, 1, Duration::ZERO), ("quick".into(), "quick".into()));
    }

    #[test]
    fn who_usually_computes_for_long_begins_there_until_that_changes() {
        let (_quick, _long, lanes) = runtimes();
        let begun = |turn| lanes_of(&lanes, 1, turn).0;
        // A guest counts once it is dropped, which may be a little after its answer.
        assert!(lanes.are_quick());
        assert!((0..200).any(|_| begun(USUALLY_QUICK * 4) == "long"));
        assert!(!lanes.are_quick());
        assert!((0..200).any(|_| begun(Duration::ZERO) == "quick"));
    }

    #[tokio::test]
    async fn waiting_is_not_computing() {
        let (sender, receiver) = oneshot::channel::<()>();
        let guest = async {
            let _ = receiver.await;
        };
        let long = Arc::new(Long { runtime: Handle::current(), usual: AtomicU64::default() });
        let guest = Timed { guest: Box::pin(guest), computed: Duration::ZERO, long: Arc::clone(&long) };
        let waits = tokio::spawn(quickly(guest));
        tokio::time::sleep(QUICK * 2).await;
        sender.send(()).unwrap();
        assert!(waits.await.unwrap().is_none());
        assert!(Duration::from_micros(long.usual.load(Ordering::Relaxed)) < USUALLY_QUICK);
    }
}
