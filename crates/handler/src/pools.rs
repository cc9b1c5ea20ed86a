//! Two pools of threads for guests: the fast pool and the background pool. A guest that computes for long runs in the
//! background pool, because the guest would slow down other guests in the fast pool.
//!
//! A guest yields at every epoch tick. Suppose that two guests take turns on a thread: one computes for 0.1 ms in each
//! turn, the other for a whole tick of 10 ms. The guest with the short turns then gets only a hundredth of the thread's
//! time. A guest that has computed for more than a tick (`FAST`) therefore continues in the background pool. If a
//! consumer's guests usually compute for more than 1 ms (`USUALLY_FAST`), the consumer's guests start in the
//! background pool. The threads of the background pool have a lower priority. These threads get the CPU time that the
//! fast pool does not use, but always at least a small share.
//!
//! A guest of the fast pool starts on the pool's first thread if this thread will soon be free. Waking another thread
//! costs about as much as running a small guest.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

/// Computing time after which a guest leaves the fast pool. The time is checked only when the guest yields, which is at
/// the next epoch tick at the latest.
const FAST: Duration = Duration::from_millis(15);

/// Maximum usual computing time of guests that start in the fast pool. If the usual computing time of a consumer's
/// guests is longer, the consumer's guests start in the background pool.
const USUALLY_FAST: Duration = Duration::from_millis(1);

/// Approximate number of messages after which the usual computing time reflects a change in the guests' computing time.
const MEMORY: u64 = 8;

/// Niceness (`nice(2)`) of the background pool's threads relative to other threads. A thread with this niceness has a
/// fifteenth of the weight of another thread in the kernel's scheduler. With time slices of 3 ms, a background thread
/// on a busy CPU waits at most 45 ms for its turn. A guest in the background pool can therefore still be stopped within
/// 50 ms after its processing timeout.
const NICENESS: i32 = 12;

/// Maximum total computing time, in microseconds, of the guests that wait for the fast pool's first thread. If the
/// limit is reached, further guests start on the pool's other threads. Waking a sleeping thread costs as much as
/// running one or two small guests, so a wait of this length for the first thread costs less than waking another
/// thread.
const SOON: u64 = 1_000;

/// Assumed computing time of a consumer's guests, in microseconds, before any guest of the consumer has been measured.
/// Low enough that the first few guests all queue for the fast pool's first thread (see [`SOON`]), and high enough that
/// later guests start on other threads, because the guests may turn out to compute for a long time.
const UNKNOWN: u64 = SOON / 4;

thread_local! {
    /// Computing time that other threads have spent on this thread's current guest since the start of the current poll.
    static ELSEWHERE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Adds the computing time of another thread to that of the current guest. Must be called on the guest's thread.
pub fn charge(computed: Duration) {
    ELSEWHERE.set(ELSEWHERE.get() + computed);
}

/// The pools that one consumer's guests run in.
#[derive(Debug, Clone)]
pub struct Pools {
    /// The first thread of the fast pool, where most guests start.
    pub fast: Handle,
    /// Chooses the pool for each guest. `None`: the fast pool's first thread is the only thread.
    choice: Option<Arc<Choice>>,
}

/// Runtimes of all threads other than the fast pool's first thread.
#[derive(Debug, Clone)]
pub struct Beyond {
    /// The other threads of the fast pool. `None`: the fast pool has only the first thread.
    pub fast: Option<Handle>,
    /// The background pool.
    pub background: Handle,
}

/// The state that decides in which pool each guest of a consumer starts.
#[derive(Debug)]
struct Choice {
    beyond: Beyond,
    /// Usual computing time of the consumer's guests, in microseconds.
    usual: AtomicU64,
    /// Estimated total computing time, in microseconds, of the guests that wait for the fast pool's first thread.
    /// Shared by all consumers.
    waiting: Arc<AtomicU64>,
}

impl Pools {
    /// Creates pools from runtimes. `fast` must have one thread. The threads of the background pool must call
    /// [`Self::yield_to_others`] at their start.
    pub fn new(fast: Handle, beyond: Option<Beyond>) -> Self {
        Self { fast, choice: beyond.map(|beyond| Arc::new(Choice::new(beyond, Arc::default()))) }
    }

    /// Returns the same pools for another consumer. Each consumer has its own usual computing time.
    #[must_use]
    pub fn for_another(&self) -> Self {
        let another = |choice: &Arc<Choice>| Arc::new(Choice::new(choice.beyond.clone(), Arc::clone(&choice.waiting)));
        Self { fast: self.fast.clone(), choice: self.choice.as_ref().map(another) }
    }

    /// Lowers the priority of the calling thread. Must be called by the threads of the background pool.
    pub fn yield_to_others() {
        if let Err(error) = rustix::process::nice(NICENESS) {
            tracing::debug!(%error, "guests that compute for long keep the priority of the others");
        }
    }

    /// Returns `true` if the consumer's guests usually compute so briefly that the host's overhead for each guest
    /// matters.
    pub fn are_fast(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.is_usually_quick())
    }

    /// Starts a guest in the pool that suits the consumer's usual computing time.
    pub fn spawn(&self, guest: impl Future<Output = ()> + Send + 'static) {
        let Some(choice) = &self.choice else {
            self.fast.spawn(guest);
            return;
        };
        if !choice.is_usually_quick() {
            choice.beyond.background.spawn(Timed::new(guest, 0, choice));
            return;
        }
        let (runtime, waits) = choice.fast(&self.fast);
        let guest = Timed::new(guest, waits, choice);
        runtime.spawn(async move {
            if let Some(guest) = quickly(guest).await {
                let choice = Arc::clone(&guest.choice);
                choice.beyond.background.spawn(guest);
            }
        });
    }
}

impl Choice {
    fn new(beyond: Beyond, waiting: Arc<AtomicU64>) -> Self {
        Self { beyond, usual: AtomicU64::new(UNKNOWN), waiting }
    }

    fn is_usually_quick(&self) -> bool {
        Duration::from_micros(self.usual.load(Ordering::Relaxed)) <= USUALLY_FAST
    }

    /// Returns the runtime on which a guest of the fast pool starts, and the number of microseconds that was added to
    /// [`Choice::waiting`] for this guest. This number is the guest's expected computing time, or 0 if nothing was
    /// added.
    fn fast<'a>(&'a self, first: &'a Handle) -> (&'a Handle, u64) {
        match &self.beyond.fast {
            None => (first, 0),
            Some(others) => self.wait().map_or((others, 0), |cost| (first, cost)),
        }
    }

    /// Reserves a turn on the first thread for a guest. Returns the guest's expected computing time in microseconds,
    /// which counts in [`Choice::waiting`]. `None`: the guest would wait too long.
    fn wait(&self) -> Option<u64> {
        let cost = self.usual.load(Ordering::Relaxed).max(1);
        let before = self.waiting.fetch_add(cost, Ordering::Relaxed);
        if before > 0 && before + cost > SOON {
            self.waiting.fetch_sub(cost, Ordering::Relaxed);
            return None;
        }
        Some(cost)
    }
}

/// A guest's future that measures the guest's computing time.
struct Timed<G> {
    guest: Pin<Box<G>>,
    computed: Duration,
    /// Part of [`Choice::waiting`] that this guest accounts for until its first turn, in microseconds.
    waits: u64,
    choice: Arc<Choice>,
}

impl<G> Timed<G> {
    fn new(guest: G, waits: u64, choice: &Arc<Choice>) -> Self {
        Self { guest: Box::pin(guest), computed: Duration::ZERO, waits, choice: Arc::clone(choice) }
    }

    fn waits_no_more(&mut self) {
        if self.waits > 0 {
            self.choice.waiting.fetch_sub(std::mem::take(&mut self.waits), Ordering::Relaxed);
        }
    }
}

impl<G: Future<Output = ()>> Future for Timed<G> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let started = Instant::now();
        ELSEWHERE.set(Duration::ZERO);
        let polled = self.guest.as_mut().poll(context);
        self.computed += started.elapsed() + ELSEWHERE.get();
        self.waits_no_more();
        polled
    }
}

impl<G> Drop for Timed<G> {
    /// Adjusts the usual computing time towards the computing time of this guest. If two guests end at the same time,
    /// one of the two adjustments may be lost.
    fn drop(&mut self) {
        self.waits_no_more();
        let usual = self.choice.usual.load(Ordering::Relaxed);
        let computed = u64::try_from(self.computed.as_micros()).unwrap_or(u64::MAX / MEMORY);
        self.choice.usual.store((usual * (MEMORY - 1)).saturating_add(computed) / MEMORY, Ordering::Relaxed);
    }
}

/// Runs a guest until the guest completes. If the guest has computed for [`FAST`] or longer when it yields, returns the
/// guest. The caller then continues the guest in the background pool.
async fn quickly<G: Future<Output = ()>>(guest: Timed<G>) -> Option<Timed<G>> {
    let mut guest = Some(guest);
    poll_fn(|context| {
        let Some(running) = &mut guest else { return Poll::Ready(None) };
        match Pin::new(&mut *running).poll(context) {
            Poll::Pending if running.computed < FAST => Poll::Pending,
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

    fn runtimes() -> (Vec<Runtime>, Pools) {
        let runtime = |name: &str| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).thread_name(name).enable_all().build().unwrap()
        };
        let runtimes: Vec<_> = ["fast", "others", "background"].into_iter().map(runtime).collect();
        let handle = |pool: usize| runtimes[pool].handle().clone();
        let pools = Pools::new(handle(0), Some(Beyond { fast: Some(handle(1)), background: handle(2) }));
        (runtimes, pools)
    }

    /// Returns the pool of the calling thread.
    fn pool() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    /// Returns the pools in which a guest starts and ends. The guest computes for `turns` turns of length `turn`.
    fn pools_of(pools: &Pools, turns: u32, turn: Duration) -> (String, String) {
        let (sender, receiver) = oneshot::channel();
        pools.spawn(async move {
            let begun = pool();
            for _ in 0..turns {
                let end = Instant::now() + turn;
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                tokio::task::yield_now().await;
            }
            let _ = sender.send((begun, pool()));
        });
        receiver.blocking_recv().unwrap()
    }

    #[test]
    fn who_computes_for_long_goes_on_in_the_long_lane() {
        let (_runtimes, pools) = runtimes();
        assert_eq!(pools_of(&pools, 4, FAST / 2), ("fast".into(), "background".into()));
        let other = pools.for_another();
        assert_eq!(pools_of(&other, 1, Duration::ZERO), ("fast".into(), "fast".into()));
    }

    #[test]
    fn who_usually_computes_for_long_begins_there_until_that_changes() {
        let (_runtimes, pools) = runtimes();
        let begun = |turn| pools_of(&pools, 1, turn).0;
        // The computing time of a guest counts when the guest is dropped. This may be slightly after the guest's
        // response.
        assert!(pools.are_fast());
        assert!((0..200).any(|_| begun(USUALLY_FAST * 4) == "background"));
        assert!(!pools.are_fast());
        assert!((0..200).any(|_| begun(Duration::ZERO) == "fast"));
    }

    #[test]
    fn what_would_wait_for_the_first_thread_for_long_begins_on_another() {
        let (_runtimes, pools) = runtimes();
        let usual = |micros| pools.choice.as_ref().unwrap().usual.store(micros, Ordering::Relaxed);
        usual(SOON / 2 + 1);
        // Blocks the first thread in the guest's first turn until the test sends a value.
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let (begin, begins) = std::sync::mpsc::channel();
        pools.spawn(async move {
            begin.send(pool()).unwrap();
            let _ = ends.recv();
        });
        assert_eq!(begins.recv().unwrap(), "fast");
        let another = pools.for_another();
        another.choice.as_ref().unwrap().usual.store(SOON / 2, Ordering::Relaxed);
        assert_eq!(pools_of(&another, 1, Duration::ZERO).0, "others");
        // The guest's turn would come soon, so the guest waits until the first thread is free.
        usual(1);
        let (sender, receiver) = std::sync::mpsc::channel();
        pools.spawn(async move { sender.send(pool()).unwrap() });
        end.send(()).unwrap();
        assert_eq!(receiver.recv().unwrap(), "fast");
    }

    #[tokio::test]
    async fn who_had_a_turn_or_is_gone_waits_no_more() {
        let beyond = Beyond { fast: Some(Handle::current()), background: Handle::current() };
        let choice = Arc::new(Choice::new(beyond, Arc::default()));
        choice.usual.store(SOON, Ordering::Relaxed);
        let waiting = || choice.waiting.load(Ordering::Relaxed);
        let begun = || {
            let waits = choice.wait().unwrap();
            Timed::new(std::future::pending(), waits, &choice)
        };
        let mut guest = begun();
        assert_eq!((waiting(), choice.wait()), (SOON, None));
        let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut guest).poll(context))).await;
        assert_eq!(polled, Poll::<()>::Pending);
        assert_eq!(waiting(), 0);
        drop(guest);
        let gone = begun();
        assert!(waiting() > 0);
        drop(gone);
        assert_eq!(waiting(), 0);
    }

    #[tokio::test]
    async fn what_others_compute_for_a_guest_is_its_own_time() {
        let beyond = Beyond { fast: None, background: Handle::current() };
        let choice = Arc::new(Choice::new(beyond, Arc::default()));
        let guest = async {
            for _ in 0..3 {
                charge(FAST / 2);
                tokio::task::yield_now().await;
            }
        };
        let guest = quickly(Timed::new(guest, 0, &choice)).await.expect("it is to go on in the background pool");
        assert!(guest.computed >= FAST, "{:?}", guest.computed);
    }

    #[tokio::test]
    async fn waiting_is_not_computing() {
        let (sender, receiver) = oneshot::channel::<()>();
        let guest = async {
            let _ = receiver.await;
        };
        let beyond = Beyond { fast: None, background: Handle::current() };
        let choice = Arc::new(Choice::new(beyond, Arc::default()));
        let waits = tokio::spawn(quickly(Timed::new(guest, 0, &choice)));
        tokio::time::sleep(FAST * 2).await;
        sender.send(()).unwrap();
        assert!(waits.await.unwrap().is_none());
        assert!(Duration::from_micros(choice.usual.load(Ordering::Relaxed)) < USUALLY_FAST);
    }
}
