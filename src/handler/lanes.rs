//! Two lanes for guests: one that computes for long leaves the quick lane, so that it cannot slow those that do not.
//!
//! A guest yields at every epoch tick, but where others need a tenth of a millisecond, taking turns with one that uses up
//! its tick each time leaves them a hundredth of the time. So after a few ticks a guest goes on in the long lane, whose
//! threads have a lower priority: they get the time that the quick lane leaves, and a small share of it at least.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

/// How long a guest may compute in the quick lane; it is looked at when it yields, so at the next epoch tick.
const QUICK: Duration = Duration::from_millis(15);

/// How much nicer the long lane's threads are than others (`nice(2)`): a tenth of the weight in the kernel's scheduler,
/// so that they still stop in time when the CPUs are busy.
const NICENESS: i32 = 10;

/// Where guests run.
#[derive(Debug, Clone)]
pub struct Lanes {
    /// Where all guests begin.
    pub quick: Handle,
    /// Where those go on that compute for long; none: they stay.
    pub long: Option<Handle>,
}

impl Lanes {
    /// Both lanes on one runtime.
    pub fn one(runtime: Handle) -> Self {
        Self { quick: runtime, long: None }
    }

    /// Makes the calling thread one of the long lane.
    pub fn yield_to_others() {
        if let Err(error) = rustix::process::nice(NICENESS) {
            tracing::debug!(%error, "guests that compute for long keep the priority of the others");
        }
    }

    /// Runs a guest.
    pub fn spawn(&self, guest: impl Future<Output = ()> + Send + 'static) {
        let Some(long) = self.long.clone() else {
            self.quick.spawn(guest);
            return;
        };
        self.quick.spawn(async move {
            if let Some(guest) = quickly(Box::pin(guest)).await {
                long.spawn(guest);
            }
        });
    }
}

/// Runs a guest until it is over, or has computed for too long: then it comes back as it is.
async fn quickly<G: Future<Output = ()>>(guest: Pin<Box<G>>) -> Option<Pin<Box<G>>> {
    let mut guest = Some(guest);
    let mut computed = Duration::ZERO;
    poll_fn(|context| {
        let Some(running) = &mut guest else { return Poll::Ready(None) };
        let started = Instant::now();
        if running.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        computed += started.elapsed();
        if computed < QUICK { Poll::Pending } else { Poll::Ready(guest.take()) }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    /// The name of the thread that runs a guest in the end, which computes so often for so long.
    fn ends_on(turns: u32, turn: Duration) -> String {
        let lane = |name: &str| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).thread_name(name).enable_all().build().unwrap()
        };
        let (quick, long) = (lane("quick"), lane("long"));
        let lanes = Lanes { quick: quick.handle().clone(), long: Some(long.handle().clone()) };
        let (sender, receiver) = oneshot::channel();
        lanes.spawn(async move {
            for _ in 0..turns {
                let end = Instant::now() + turn;
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                tokio::task::yield_now().await;
            }
            let _ = sender.send(std::thread::current().name().unwrap_or_default().to_owned());
        });
        receiver.blocking_recv().unwrap()
    }

    #[test]
    fn who_computes_for_long_goes_on_in_the_long_lane() {
        assert_eq!(ends_on(4, QUICK / 2), "long");
        assert_eq!(ends_on(0, QUICK), "quick");
    }

    #[tokio::test]
    async fn waiting_is_not_computing() {
        let (sender, receiver) = oneshot::channel::<()>();
        let guest = async {
            let _ = receiver.await;
        };
        let waits = tokio::spawn(quickly(Box::pin(guest)));
        tokio::time::sleep(QUICK * 2).await;
        sender.send(()).unwrap();
        assert!(waits.await.unwrap().is_none());
    }
}
