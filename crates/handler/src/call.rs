//! One call of a handler: the input, the outcome, and the ways to stop the guest.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{Handler, Limit, Output, with_threads};
use hostler_types::job::JobContext;
use hostler_types::message::{Message, TraceContext};
use hostler_types::printable::shortened;
use hostler_types::{Outbox, OutcomeKind};

/// Maximum length of a reason in bytes: a few pages of text. Limits the text that a guest can write to the dead-letter
/// queue and to the log. The control thread writes the log, so a long reason would delay the control thread.
const MAX_REASON: usize = 16 * 1024;

/// Number of bytes by which a reason may exceed [`MAX_REASON`] without being cut. A reason that was cut exceeds
/// [`MAX_REASON`], because a note about the cut was appended. This tolerance is longer than the note, so the reason is
/// not cut a second time.
const CUT_WORD: usize = 64;

/// The outcome of a call, decided by the handler or by the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The message was processed.
    Ack,
    /// The message was processed. The field is the reply.
    Reply(Vec<u8>),
    /// The handler requests another attempt. The field is the reason, if the handler gave a reason.
    Retry(Option<String>),
    /// The handler requests another attempt after the given time.
    Delay(Duration),
    /// The handler reports that the message can never be processed. The field is the reason.
    DeadLetter(String),
    /// The handler reported an error. The field is the error.
    Failed(String),
    /// The guest trapped, ran out of memory, or could not be started. The field is the reason.
    Trapped(String),
    /// The guest could not run properly because the host reached one of its own limits. The handler is not at fault.
    /// The fields are the limit and the error.
    HostLimit(Limit, String),
    /// The guest was stopped at the processing timeout. The field is the duration of the call.
    TimedOut(Duration),
    /// The guest was stopped because the lease was lost.
    LeaseLost,
    /// The guest was stopped, or not started, because the host shuts down.
    Shutdown,
}

impl Outcome {
    /// Returns the kind of the outcome.
    pub fn kind(&self) -> OutcomeKind {
        match self {
            Self::Ack => OutcomeKind::Ack,
            Self::Reply(_) => OutcomeKind::Reply,
            Self::Retry(_) => OutcomeKind::Retry,
            Self::Delay(_) => OutcomeKind::Delay,
            Self::DeadLetter(_) => OutcomeKind::DeadLetter,
            Self::Failed(_) => OutcomeKind::Failed,
            Self::Trapped(_) => OutcomeKind::Trapped,
            Self::HostLimit(..) => OutcomeKind::HostLimit,
            Self::TimedOut(_) => OutcomeKind::TimedOut,
            Self::LeaseLost => OutcomeKind::LeaseLost,
            Self::Shutdown => OutcomeKind::Shutdown,
        }
    }

    /// Returns the name of the outcome in logs and in `invoke --json`.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Returns the reason. `None`: the outcome has no reason.
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::DeadLetter(reason) | Self::Failed(reason) | Self::Trapped(reason) => Some(reason.clone()),
            Self::Retry(reason) => reason.clone(),
            Self::HostLimit(limit, error) => Some(format!("{limit}: {error}")),
            Self::TimedOut(after) => Some(format!("processing timeout after {:.3} s", after.as_secs_f64())),
            Self::Ack | Self::Reply(_) | Self::Delay(_) | Self::LeaseLost | Self::Shutdown => None,
        }
    }

    /// Cuts the reason to 16 KiB (`MAX_REASON`). A note in the reason gives the full length.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let reason = match &mut self {
            Self::DeadLetter(reason)
            | Self::Failed(reason)
            | Self::Trapped(reason)
            | Self::HostLimit(_, reason)
            | Self::Retry(Some(reason)) => reason,
            Self::Ack
            | Self::Reply(_)
            | Self::Retry(None)
            | Self::Delay(_)
            | Self::TimedOut(_)
            | Self::LeaseLost
            | Self::Shutdown => return self,
        };
        if reason.len() > MAX_REASON + CUT_WORD {
            // Copies the shortened reason to free the memory of the full text now, and not when the processing of the
            // message ends.
            *reason = shortened(reason, MAX_REASON).into_owned();
        }
        self
    }

    /// Returns `true` if the handler failed, that is, if it reported an error, trapped, or reached its processing
    /// timeout. A request for another attempt is not a failure.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Trapped(_) | Self::TimedOut(_))
    }

    /// Returns `true` if the message was processed successfully.
    pub fn is_success(&self) -> bool {
        self.kind().is_success()
    }
}

/// A call of a handler: one delivery of a message.
#[derive(Debug, Clone)]
pub struct Call {
    /// The message.
    pub message: Arc<Message>,
    /// The channel that the message came from, as written in the config.
    pub channel: Arc<str>,
    /// Delivery number of the message, from 1.
    pub attempt: u32,
    /// The deadline of the call, and the handle that stops the guest.
    pub bounds: Bounds,
    /// The trace context that the guest runs in. If the consumer records spans, this is the context of the consumer's
    /// span for the message. Otherwise, this is the context that the message contains.
    pub trace: Option<Arc<TraceContext>>,
    /// The job whose item the message is. `None`: the queue has no jobs.
    pub job: Option<Arc<dyn JobContext>>,
    /// The outbox for the messages that the handler sends. `None`: they are sent at once.
    pub outbox: Option<Arc<dyn Outbox>>,
    /// The guest's standard output and error.
    pub output: Output,
    /// The handler's decision. Set as soon as the handler has returned an outcome. A hook that runs after the handler
    /// and fails therefore cannot change the outcome.
    pub decided: Arc<OnceLock<Outcome>>,
}

impl Call {
    /// Creates a handler call for a message from `channel` that is not an item of a job. The handler has not decided yet.
    pub fn new(message: Arc<Message>, channel: Arc<str>, attempt: u32, bounds: Bounds, output: Output) -> Self {
        let trace = message.trace.clone();
        Self { message, channel, attempt, bounds, trace, job: None, outbox: None, output, decided: Arc::default() }
    }
}

/// The limits of a guest's run.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Time at which the host stops the guest. `context.remaining-ms` returns the time until the deadline.
    pub deadline: Instant,
    /// A handle that stops the guest before the deadline.
    pub stop: Stop,
}

impl Bounds {
    /// Creates bounds with a deadline `after` from now.
    pub fn new(after: Duration) -> Self {
        Self::until(Instant::now() + after)
    }

    /// Creates bounds with the given deadline.
    pub fn until(deadline: Instant) -> Self {
        Self { deadline, stop: Stop::default() }
    }

    /// Returns the time until the deadline.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// A handle that stops a guest. [`Self::ask`] asks the guest to end before its deadline, and [`Self::force`] stops the
/// guest. Clones of a handle stop the same guest.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    asked: AtomicBool,
    forced: CancellationToken,
}

impl Stop {
    /// Asks the guest to end: makes `context.should-stop` return `true`.
    pub fn ask(&self) {
        self.0.asked.store(true, Ordering::Relaxed);
    }

    /// Stops the guest by force. The guest runs for at most one more epoch tick.
    pub fn force(&self) {
        self.ask();
        self.0.forced.cancel();
    }

    /// Returns `true` once [`Self::ask`] or [`Self::force`] was called.
    pub fn is_asked(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// Returns `true` once [`Self::force`] was called.
    pub fn is_forced(&self) -> bool {
        self.0.forced.is_cancelled()
    }
}

/// Calls a handler with the message of `call`, and returns the outcome when the handler completes. If the guest is
/// stopped by force, returns the decision of the handler (see [`Call::decided`]). `None`: the guest was stopped before
/// the handler decided. In any case, the guest no longer runs when this function returns.
pub async fn run(handler: &dyn Handler, call: &Call) -> Option<Outcome> {
    let (outcome, refused) = match run_until_stopped(&call.bounds.stop, with_threads(handler.handle(call))).await {
        Some(Ok(outcome)) => (Some(outcome.bounded()), None),
        Some(Err(refused)) => (None, Some(Outcome::HostLimit(Limit::Threads, refused))),
        None => (None, None),
    };
    // The handler's decision remains valid even if the guest was stopped in a hook afterwards.
    outcome.or_else(|| call.decided.get().cloned()).or(refused)
}

/// Runs a guest's future until the future completes or the guest is stopped by force. `None`: the guest was stopped. In
/// any case, the guest's future is dropped before this function returns.
///
/// Checks before every poll whether the guest is stopped. A guest that is stopped while it waits in the run queue
/// therefore gets no further time slice.
pub async fn run_until_stopped<T>(stop: &Stop, guest: impl Future<Output = T>) -> Option<T> {
    let mut forced = pin!(stop.0.forced.cancelled());
    let mut guest = pin!(guest);
    std::future::poll_fn(move |context| {
        if forced.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        guest.as_mut().poll(context).map(Some)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let short = Outcome::Failed("ä".repeat(MAX_REASON / 2));
        assert_eq!(short.clone().bounded(), short);
        for long in [Outcome::DeadLetter, Outcome::Failed, Outcome::Trapped, |reason| Outcome::Retry(Some(reason))] {
            let reason = long(format!("x{}", "ä".repeat(MAX_REASON))).bounded().bounded().reason().unwrap();
            let kept = reason.strip_suffix(&format!("… (cut, of {} bytes)", 2 * MAX_REASON + 1)).unwrap();
            assert_eq!(kept.len(), MAX_REASON - 1);
        }
    }

    #[tokio::test]
    async fn a_stopped_guest_is_not_polled_again() {
        let stop = Stop::default();
        assert_eq!(run_until_stopped(&stop, async { 1 }).await, Some(1));
        stop.force();
        assert!(stop.is_asked());
        let polled = AtomicBool::new(false);
        let guest = async { polled.store(true, Ordering::Relaxed) };
        assert_eq!(run_until_stopped(&stop, guest).await, None);
        assert!(!polled.load(Ordering::Relaxed));
    }
}
