//! Retries of downloads, with pauses between the attempts.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{Fault, Reference};
use hostler_types::Backoff;

/// Limits on the number and the duration of attempts to fetch a handler.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Maximum number of attempts.
    pub tries: u32,
    /// Maximum duration of one attempt.
    pub each: Duration,
    /// Maximum duration of all attempts and pauses together.
    pub all: Duration,
    /// Pause between attempts, with full jitter.
    pub pause: Backoff,
}

impl Default for Patience {
    /// Returns the default limits. One minute per attempt is enough to download a handler of the maximum size over a
    /// slow connection. If every connection is refused immediately, all attempts together take 6 s on average.
    fn default() -> Self {
        Self {
            tries: 6,
            each: Duration::from_secs(60),
            all: Duration::from_secs(150),
            pause: Backoff::new(Duration::from_millis(500), Duration::from_secs(4)),
        }
    }
}

/// Repeats `work` until an attempt succeeds, a fault is permanent, or a limit in `patience` is reached. If no attempt
/// succeeds, returns the last fault.
pub(super) async fn tries<T, F, W>(reference: &Reference, patience: Patience, mut work: W) -> Result<T, Fault>
where
    F: Future<Output = Result<T, Fault>>,
    W: FnMut() -> F,
{
    let mut last = format!("no answer within {}", humantime::format_duration(patience.each));
    let work = async {
        let mut failed = 0;
        loop {
            let result = timeout(patience.each, work()).await;
            last = match result {
                Ok(Err(Fault::Passing(what))) => what,
                Ok(result) => return result,
                Err(_) => format!("it was not there after {}", humantime::format_duration(patience.each)),
            };
            failed += 1;
            if failed >= patience.tries {
                return Err(Fault::Passing(format!("{last} (tried {failed} times)")));
            }
            let pause = patience.pause.spread(failed - 1, fastrand::f64());
            tracing::warn!(handler = %reference, reason = last, pause_ms = pause.as_millis(), "cannot fetch the handler; trying again");
            sleep(pause).await;
        }
    };
    match timeout(patience.all, work).await {
        Ok(result) => result,
        Err(_) => {
            let all = humantime::format_duration(patience.all);
            Err(Fault::Passing(format!("{last} (gave up after {all})")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    fn reference() -> Reference {
        "s3://b/k".parse().unwrap()
    }

    async fn run(answers: impl Fn(u32) -> Result<(), Fault>) -> (Result<(), Fault>, u32) {
        let tried = Cell::new(0);
        let work = || {
            tried.set(tried.get() + 1);
            std::future::ready(answers(tried.get()))
        };
        (tries(&reference(), Patience::default(), work).await, tried.get())
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_tried_again() {
        let passing = || Err(Fault::Passing("busy".into()));
        assert!(matches!(run(|tried| if tried < 3 { passing() } else { Ok(()) }).await, (Ok(()), 3)));
        let begun = Instant::now();
        let (result, tried) = run(|_| passing()).await;
        assert!(matches!(&result, Err(Fault::Passing(text)) if text == "busy (tried 6 times)"), "{result:?}");
        assert!(tried == 6 && begun.elapsed() <= Duration::from_millis(500 + 1000 + 2000 + 4000 + 4000));
    }

    #[tokio::test(start_paused = true)]
    async fn what_will_not_pass_is_tried_once() {
        let (result, tried) = run(|_| Err(Fault::Lasting("gone".into(), "none"))).await;
        assert!(matches!(result, Err(Fault::Lasting(..))) && tried == 1);
    }

    #[tokio::test(start_paused = true)]
    async fn no_try_lasts_for_ever_nor_do_all_together() {
        let begun = Instant::now();
        let hang = std::future::pending::<Result<(), Fault>>;
        let result = tries(&reference(), Patience::default(), hang).await;
        assert!(matches!(&result, Err(Fault::Passing(text)) if text.contains("gave up after 2m 30s")), "{result:?}");
        assert_eq!(begun.elapsed().as_secs(), 150);
    }
}
