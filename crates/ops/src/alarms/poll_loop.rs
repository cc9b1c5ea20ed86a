//! Polls the queues at an interval and notifies people of changes.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::level::{Level, levels, uncounted};
use super::report::notice;
use super::watch::{Look, Watch};
use crate::delivery::{Notifier, deliver};
use crate::notice::Notice;
use hostler_queue::{Inventory, QueueError, Unread};
use hostler_types::BoxFuture;

/// Maximum random variation of the interval, in both directions, as a fraction of the interval. Prevents many processes
/// from polling at the same time.
const JITTER: f64 = 0.1;

/// Settings of the poll loop.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// Default threshold in messages, for queues without a threshold in their tags.
    pub threshold: u64,
    /// Interval between two polls.
    pub every: Duration,
    /// Interval between reports of a continuing alarm.
    pub remind: Duration,
}

/// Result of one poll.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Levels of all queues that hostler owns and could read.
    pub levels: Vec<Level>,
    /// Queues that could not be read.
    pub unread: Vec<Unread>,
    /// Kinds of messages that the service does not count in some queue, for people.
    pub uncounted: Vec<&'static str>,
}

/// An event of the poll loop.
#[derive(Debug)]
pub enum Step<'a> {
    /// A notice was created. It is delivered if there is a notifier.
    Tells(&'a Notice),
    /// The notice was not delivered, for this reason. The next delivery attempt follows the next poll.
    Untold(&'a str),
    /// The poll failed, for this reason.
    Failed(&'a str),
    /// The service does not count these kinds of messages. Reported when the kinds change.
    Uncounted(&'a [&'static str]),
}

/// Polls the queues once. `threshold`: threshold of queues that have none in their tags.
///
/// # Errors
/// [`QueueError`]: the queues cannot be listed, or none of them can be read.
pub async fn look(inventory: &dyn Inventory, threshold: u64) -> Result<Seen, QueueError> {
    let listing = inventory.queues().await?;
    if let (true, Some(first)) = (listing.found.is_empty(), listing.unread.first()) {
        let count = listing.unread.len();
        let Unread { name, reason, denied } = first;
        let text = format!("none of {count} queues can be checked: {name}: {reason}");
        return Err(if *denied {
            QueueError::Refused(format!("{text} (`hostler iam --with-alarms` prints the policy that is needed)"))
        } else {
            QueueError::Unavailable(text)
        });
    }
    let uncounted = uncounted(&listing.found);
    Ok(Seen { levels: levels(&listing.found, threshold), unread: listing.unread, uncounted })
}

/// Polls the queues until `stop` is cancelled. If there are changes, delivers a notice about them through the notifier.
/// Passes each event to `step`.
pub fn poll_loop<'a>(
    inventory: &'a dyn Inventory,
    schedule: Schedule,
    notifier: Option<&'a dyn Notifier>,
    stop: &'a CancellationToken,
    step: &'a mut (dyn FnMut(Step<'_>) + Send),
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let (begun, mut watch) = (Instant::now(), Watch::new(schedule.remind));
        let mut uncounted = Vec::new();
        loop {
            let seen = tokio::select! {
                seen = look(inventory, schedule.threshold) => seen.map_err(|error| error.to_string()),
                () = stop.cancelled() => return,
            };
            let result = match &seen {
                Ok(seen) => {
                    if seen.uncounted != uncounted {
                        uncounted.clone_from(&seen.uncounted);
                        step(Step::Uncounted(&uncounted));
                    }
                    Look::Seen(&seen.levels, &seen.unread)
                }
                Err(error) => {
                    step(Step::Failed(error));
                    Look::Failed(error)
                }
            };
            let (delta, next) = watch.after(begun.elapsed(), &result);
            let unread = seen.as_ref().map_or(&[][..], |seen| &seen.unread);
            let told = delta.is_empty() || {
                let notice = notice(&delta, unread, SystemTime::now());
                step(Step::Tells(&notice));
                tell(notifier, &notice, stop, step).await
            };
            if told {
                watch = next;
            }
            tokio::select! {
                () = sleep(jittered(schedule.every, fastrand::f64())) => {}
                () = stop.cancelled() => return,
            }
        }
    })
}

/// Delivers a notice. Returns `true` if the notice was delivered, or if there is no notifier.
async fn tell(
    notifier: Option<&dyn Notifier>,
    notice: &Notice,
    stop: &CancellationToken,
    step: &mut (dyn FnMut(Step<'_>) + Send),
) -> bool {
    let Some(notifier) = notifier else { return true };
    match deliver(notifier, notice, stop).await {
        Ok(()) => true,
        Err(error) => {
            step(Step::Untold(&error.to_string()));
            false
        }
    }
}

/// Returns the interval `pause`, varied at random. `chance`: random number from 0 to 1.
fn jittered(pause: Duration, chance: f64) -> Duration {
    pause.mul_f64(1.0 - JITTER + 2.0 * JITTER * chance)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;

    use super::*;
    use crate::delivery::Undelivered;
    use hostler_queue::{Listing, ManagedQueue, tag};

    #[test]
    fn pauses_differ_by_a_tenth() {
        let pause = |chance| jittered(Duration::from_secs(900), chance).as_secs_f64().round();
        assert_eq!((pause(0.0), pause(0.5), pause(1.0)), (810.0, 900.0, 990.0));
    }

    /// A service with one queue. Each poll reads the next message count of a script. Stops the loop at the end of the
    /// script.
    struct Script {
        depths: Mutex<Vec<Result<u64, QueueError>>>,
        stop: CancellationToken,
    }

    #[async_trait]
    impl Inventory for Script {
        async fn queues(&self) -> Result<Listing<ManagedQueue>, QueueError> {
            let next = {
                let mut depths = self.depths.lock().unwrap();
                if depths.is_empty() { None } else { Some(depths.remove(0)) }
            };
            let Some(next) = next else {
                self.stop.cancel();
                return std::future::pending().await;
            };
            let tags = [(tag::MANAGED.to_owned(), "true".to_owned())].into();
            let visible = next?;
            let held = ManagedQueue { name: "a".into(), queue: "a".into(), tags, visible, ..ManagedQueue::default() };
            Ok(Listing { found: vec![held], unread: Vec::new() })
        }
    }

    /// A notifier that records each notice, unless its script says that the delivery fails.
    struct Ear(Mutex<(Vec<String>, Vec<bool>)>);

    #[async_trait]
    impl Notifier for Ear {
        async fn carry(&self, notice: &Notice) -> Result<(), Undelivered> {
            let mut ear = self.0.lock().unwrap();
            if !ear.1.is_empty() && ear.1.remove(0) {
                return Err(Undelivered::Lasting("deaf".into()));
            }
            ear.0.push(notice.summary.clone());
            Ok(())
        }
    }

    /// Polls a queue with these message counts. `deaf`: `true` for each delivery that fails. Returns the delivered
    /// notices, the number of failed deliveries, and the number of failed polls.
    async fn heard(depths: Vec<Result<u64, QueueError>>, deaf: Vec<bool>) -> (Vec<String>, usize, usize) {
        let stop = CancellationToken::new();
        let script = Script { depths: Mutex::new(depths), stop: stop.clone() };
        let ear = Ear(Mutex::new((Vec::new(), deaf)));
        let every = Duration::from_secs(900);
        let schedule = Schedule { threshold: 10, every, remind: 48 * every };
        let (mut untold, mut failed) = (0, 0);
        let mut step = |step: Step<'_>| match step {
            Step::Tells(_) => {}
            Step::Untold(_) => untold += 1,
            Step::Failed(_) => failed += 1,
            Step::Uncounted(_) => {}
        };
        poll_loop(&script, schedule, Some(&ear), &stop, &mut step).await;
        (ear.0.into_inner().unwrap().0, untold, failed)
    }

    #[tokio::test(start_paused = true)]
    async fn only_news_is_told() {
        let (told, untold, failed) = heard([9, 10, 11, 19, 20, 3].map(Ok).into(), vec![]).await;
        assert_eq!(told, ["queue alarms: 1 new", "queue alarms: 1 worse", "queue alarms: 1 resolved"]);
        assert_eq!((untold, failed), (0, 0));
        let (told, ..) = heard(vec![Ok(10); 120], vec![]).await;
        assert!(
            (3..=4).contains(&told.len()) && told[1..].iter().all(|told| told == "queue alarms: 1 still there"),
            "{told:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_told_comes_again() {
        let (told, untold, _) = heard([10, 10, 10].map(Ok).into(), vec![true, false]).await;
        assert_eq!((told, untold), (vec!["queue alarms: 1 new".to_owned()], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn looks_that_fail_do_not_end_the_rounds() {
        let fault = || Err(QueueError::Unavailable("no network".into()));
        let (told, _, failed) = heard(vec![Ok(10), fault(), fault(), fault(), Ok(10)], vec![]).await;
        let expected = ["queue alarms: 1 new", "the queues cannot be checked", "the queues can be checked again"];
        assert_eq!((told, failed), (expected.map(str::to_owned).into(), 3));
    }
}
