//! Delivers notices, with bounded retries.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::notice::Notice;
use hostler_types::Backoff;
use hostler_types::BoxFuture;

/// Maximum number of attempts per notice.
const TRIES: u32 = 5;
/// Pauses after failed attempts. The longest pause is also the maximum for a pause that the receiver requests.
const PAUSE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// A way to deliver notices to people, for example a webhook.
#[async_trait]
pub trait Notifier: Send + Sync {
    /// Makes one attempt to deliver a notice, within a time limit.
    ///
    /// # Errors
    /// [`Undelivered`]: the notifier has no confirmation that the notice arrived.
    async fn carry(&self, notice: &Notice) -> Result<(), Undelivered>;
}

/// Reason why a notice was not delivered. The error message contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Undelivered {
    /// A temporary failure. Contains the error message, and the pause that the receiver requested, if any.
    #[error("{0}")]
    Passing(String, Option<Duration>),
    /// A failure that persists until a person intervenes.
    #[error("{0}")]
    Lasting(String),
}

/// Delivers a notice in up to five attempts. The pauses grow from 1 s to 8 s. A receiver may request pauses of up to 60
/// s each. If `stop` is cancelled during a pause, returns the error.
///
/// # Errors
/// The error of the last attempt.
pub fn deliver<'a>(
    notifier: &'a dyn Notifier,
    notice: &'a Notice,
    stop: &'a CancellationToken,
) -> BoxFuture<'a, Result<(), Undelivered>> {
    Box::pin(async move {
        for tried in 1.. {
            let (text, asked) = match notifier.carry(notice).await {
                Err(Undelivered::Passing(text, asked)) if tried < TRIES => (text, asked),
                ended => return ended,
            };
            let wait = asked.map_or_else(|| PAUSE.rest(tried - 1, fastrand::f64()), |asked| asked.min(PAUSE.longest));
            tokio::select! {
                () = sleep(wait) => {}
                () = stop.cancelled() => return Err(Undelivered::Passing(text, None)),
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;

    /// A notifier that answers each attempt with the next result of a script.
    struct Scripted(Mutex<Vec<Result<(), Undelivered>>>);

    #[async_trait]
    impl Notifier for Scripted {
        async fn carry(&self, _: &Notice) -> Result<(), Undelivered> {
            self.0.lock().unwrap().remove(0)
        }
    }

    /// Delivers a notice through a notifier with this script. Returns the result, the number of unused results, and the
    /// elapsed time.
    async fn run(script: Vec<Result<(), Undelivered>>) -> (Result<(), Undelivered>, usize, Duration) {
        let notice = Notice { summary: String::new(), lines: Vec::new(), document: serde_json::Value::Null };
        let (notifier, begun) = (Scripted(Mutex::new(script)), Instant::now());
        let ended = deliver(&notifier, &notice, &CancellationToken::new()).await;
        (ended, notifier.0.into_inner().unwrap().len(), begun.elapsed())
    }

    fn passing(asked: Option<u64>) -> Result<(), Undelivered> {
        Err(Undelivered::Passing("busy".into(), asked.map(Duration::from_secs)))
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_work_is_tried_again_and_not_for_ever() {
        assert!(matches!(run(vec![passing(None), passing(None), Ok(())]).await, (Ok(()), 0, _)));
        let (ended, left, took) = run(vec![passing(None); 7]).await;
        assert_eq!((ended, left), (passing(None), 2));
        assert!(took >= Duration::from_millis(7500) && took <= Duration::from_secs(15), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_other_side_may_ask_for_a_longer_pause() {
        let (ended, _, took) = run(vec![passing(Some(30)), passing(Some(900)), Ok(())]).await;
        assert_eq!((ended, took.as_secs()), (Ok(()), 90));
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_work_is_tried_once() {
        let lasting = || Err(Undelivered::Lasting("gone".into()));
        let (ended, left, took) = run(vec![lasting(), Ok(())]).await;
        assert_eq!((ended, left, took), (lasting(), 1, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_waiting() {
        let notice = Notice { summary: String::new(), lines: Vec::new(), document: serde_json::Value::Null };
        let stop = CancellationToken::new();
        stop.cancel();
        let notifier = Scripted(Mutex::new(vec![passing(Some(60)), Ok(())]));
        assert_eq!(deliver(&notifier, &notice, &stop).await, passing(None));
    }
}
