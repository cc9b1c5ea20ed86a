//! Two pools for guests: those that compute for long run apart, so that they do not slow down the others.
//!
//! A guest yields at every epoch tick. A guest that needs a tenth of a millisecond still gets only a hundredth of the time
//! while it takes turns with one that uses up every tick. So a guest that has computed for a few ticks continues in the background
//! pool. If a consumer's guests usually compute for long, they start there. The threads of the background pool have a lower
//! priority: they get the time that the fast pool leaves, and always a small share.
//!
//! Guests of the fast pool start on one thread as long as it will soon reach them, because waking another thread costs about
//! as much as a small guest does.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

/// The longest that a guest may compute in the fast pool. It is checked when the guest yields, so at the next epoch tick.
const FAST: Duration = Duration::from_millis(15);

/// The usual computing time beyond which a consumer's guests start in the background pool.
const USUALLY_FAST: Duration = Duration::from_millis(1);

/// The number of messages, roughly, after which the usual computing time reflects a change.
const MEMORY: u64 = 8;

/// The niceness (`nice(2)`) of the background pool's threads relative to others: a fifteenth of the weight in the kernel's
/// scheduler. With slices of 3 ms, such a thread waits at most 45 ms for its turn on a busy CPU, so guests still stop in time.
const NICENESS: i32 = 12;

/// The computing time, in microseconds, that may wait for the fast pool's first thread before further guests go to other
/// threads. Waking a thread costs as much as one or two small guests, so a thread that will be free in a moment is better
/// than a sleeping one.
const SOON: u64 = 1_000;

/// The computing time assumed of a guest, in microseconds, before any is known. It is low enough to keep the first few guests
/// together, and high enough to spread out guests that compute for long.
const UNKNOWN: u64 = SOON / 4;

thread_local! {
    /// The time that other threads computed for the guest of this thread since it was last polled.
    static ELSEWHERE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Counts time that another thread computed for the current guest as the guest's own. Call it where the guest runs.
pub fn charge(computed: Duration) {
    ELSEWHERE.set(ELSEWHERE.get() + computed);
}

/// The pools in which one consumer's guests run.
#[derive(Debug, Clone)]
pub struct Pools {
    /// The fast pool's first thread, where most guests start.
    pub fast: Handle,
    /// The choice among the other pools; `None`: there is only the first thread.
    choice: Option<Arc<Choice>>,
}

/// The runtimes beside the fast pool's first thread.
#[derive(Debug, Clone)]
pub struct Beyond {
    /// The fast pool's other threads, if it has any.
    pub fast: Option<Handle>,
    /// The background pool.
    pub background: Handle,
}

/// The state by which a pool is chosen for each of a consumer's guests.
#[derive(Debug)]
struct Choice {
    beyond: Beyond,
    /// The usual computing time of one of the consumer's guests, in microseconds.
    usual: AtomicU64,
    /// The estimated computing time, in microseconds, of the guests of all consumers that wait for the fast pool's first thread.
    waiting: Arc<AtomicU64>,
}

impl Pools {
    /// Creates pools on these runtimes. The first has one thread; the threads of the background pool
    /// [yield to others](Self::yield_to_others).
    pub fn new(fast: Handle, beyond: Option<Beyond>) -> Self {
        Self { fast, choice: beyond.map(|beyond| Arc::new(Choice::new(beyond, Arc::default()))) }
    }

    /// Returns the same pools for another consumer, whose usual computing time is measured separately.
    #[must_use]
    pub fn for_another(&self) -> Self {
        let another = |choice: &Arc<Choice>| Arc::new(Choice::new(choice.beyond.clone(), Arc::clone(&choice.waiting)));
        Self { fast: self.fast.clone(), choice: self.choice.as_ref().map(another) }
    }

    /// Makes the calling thread one of the background pool, by lowering its priority.
    pub fn yield_to_others() {
        if let Err(error) = rustix::process::nice(NICENESS) {
            tracing::debug!(%error, "guests that compute for long keep the priority of the others");
        }
    }

    /// Returns `true` if the consumer's guests usually compute so briefly that overhead for each is worth saving.
    pub fn are_fast(&self) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.is_usually_quick())
    }

    /// Runs a guest.
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

    /// Returns the runtime where another guest of the fast pool starts, and its cost while it waits for the first thread.
    fn fast<'a>(&'a self, first: &'a Handle) -> (&'a Handle, u64) {
        match &self.beyond.fast {
            None => (first, 0),
            Some(others) => self.wait().map_or((others, 0), |cost| (first, cost)),
        }
    }

    /// Queues another guest for the first thread and returns its cost in microseconds; `None`: its turn would not come soon.
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

/// A guest and the time that it has computed.
struct Timed<G> {
    guest: Pin<Box<G>>,
    computed: Duration,
    /// Its cost in [`Choice::waiting`] until it has had a turn.
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
    /// Moves the usual computing time towards this guest's. Two guests that end at once may count as one.
    fn drop(&mut self) {
        self.waits_no_more();
        let usual = self.choice.usual.load(Ordering::Relaxed);
        let computed = u64::try_from(self.computed.as_micros()).unwrap_or(u64::MAX / MEMORY);
        self.choice.usual.store((usual * (MEMORY - 1)).saturating_add(computed) / MEMORY, Ordering::Relaxed);
    }
}

/// Runs a guest until it is over, or returns it once it has computed for too long.
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

    /// Returns the pools in which a guest starts and ends that computes for this many turns of this length.
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
        // A guest counts once it is dropped, which may be slightly after its answer.
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
        // Holds up the first thread in its first turn until it receives the end.
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
        // Its turn would come soon: it waits until the first thread is free.
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
