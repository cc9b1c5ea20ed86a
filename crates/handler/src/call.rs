//! One call of a handler: what goes in, what comes out, and how it is stopped.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{Handler, Limit, Output, with_threads};
use hostler_types::OutcomeKind;
use hostler_types::message::{Message, TraceContext};
use hostler_types::printable::shortened;

/// The longest reason that a guest can give, in bytes: a few pages. The limit bounds what a guest can add to the log, which
/// is written on the control thread, and to the dead-letter queue.
const MAX_REASON: usize = 16 * 1024;

/// The bytes by which a reason may exceed [`MAX_REASON`] uncut. They leave room for the note about the cut, so that a reason
/// is cut only once, however often it is bounded.
const CUT_WORD: usize = 64;

/// The outcome of a call, from the handler or the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Ack,
    /// Done, with a reply.
    Reply(Vec<u8>),
    /// The handler asks for another attempt, with its reason if it gave one.
    Retry(Option<String>),
    /// The handler asks for another attempt after this time.
    Delay(Duration),
    /// The handler reports that the message can never succeed, with its reason.
    DeadLetter(String),
    /// The handler reported an error.
    Failed(String),
    /// The guest trapped, ran out of memory, or could not be started.
    Trapped(String),
    /// The host was at a limit of its own, so the guest could not run as it should; with the error. The handler is not at fault.
    HostLimit(Limit, String),
    /// It was stopped at the processing timeout, after this time.
    TimedOut(Duration),
    /// It was stopped because the lease was lost.
    LeaseLost,
    /// It was stopped, or never started, because the host shuts down.
    Shutdown,
}

impl Outcome {
    /// Returns its kind.
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

    /// Returns its name in logs and in `invoke --json`.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Returns the reason, if there is one.
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::DeadLetter(reason) | Self::Failed(reason) | Self::Trapped(reason) => Some(reason.clone()),
            Self::Retry(reason) => reason.clone(),
            Self::HostLimit(limit, error) => Some(format!("{limit}: {error}")),
            Self::TimedOut(after) => Some(format!("processing timeout after {:.3} s", after.as_secs_f64())),
            Self::Ack | Self::Reply(_) | Self::Delay(_) | Self::LeaseLost | Self::Shutdown => None,
        }
    }

    /// Cuts the reason to 16 KiB (`MAX_REASON`) and notes its full length.
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
            // The copy frees the part that is cut off now instead of when the message is over.
            *reason = shortened(reason, MAX_REASON).into_owned();
        }
        self
    }

    /// Returns `true` if the handler failed: it reported an error, trapped, or reached its processing timeout. A request for
    /// another attempt is not a failure.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Trapped(_) | Self::TimedOut(_))
    }

    /// Returns `true` if the message's work is done.
    pub fn is_success(&self) -> bool {
        self.kind().is_success()
    }
}

/// One delivery on its way into a handler.
#[derive(Debug, Clone)]
pub struct Call {
    /// The message.
    pub message: Arc<Message>,
    /// The channel that it came from, as configured.
    pub channel: Arc<str>,
    /// The number of this delivery of the message; 1 is the first.
    pub attempt: u32,
    /// The time that it may take.
    pub bounds: Bounds,
    /// The trace that it runs in: the message's own, or the consumer's span for it.
    pub trace: Option<Arc<TraceContext>>,
    /// The guest's standard output and error.
    pub output: Output,
    /// The handler's decision, set as soon as it is made, so that nothing that follows (a hook) can undo it.
    pub decided: Arc<OnceLock<Outcome>>,
}

impl Call {
    /// Creates an undecided call of `message` from `channel`.
    pub fn new(message: Arc<Message>, channel: Arc<str>, attempt: u32, bounds: Bounds, output: Output) -> Self {
        let trace = message.trace.clone();
        Self { message, channel, attempt, bounds, trace, output, decided: Arc::default() }
    }
}

/// The bounds of a guest's run.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// The time at which the host stops the guest; `context.remaining-ms` counts down to it.
    pub deadline: Instant,
    /// Stops the guest earlier.
    pub stop: Stop,
}

impl Bounds {
    /// Creates bounds that end `after` from now.
    pub fn new(after: Duration) -> Self {
        Self::until(Instant::now() + after)
    }

    /// Creates bounds that end at `deadline`.
    pub fn until(deadline: Instant) -> Self {
        Self { deadline, stop: Stop::default() }
    }

    /// Returns the time left until the deadline.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// A handle that stops a guest: first by asking it to finish early, then by force. Clones stop the same guest.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    asked: AtomicBool,
    forced: CancellationToken,
}

impl Stop {
    /// Makes `context.should-stop` return `true`.
    pub fn ask(&self) {
        self.0.asked.store(true, Ordering::Relaxed);
    }

    /// Stops the guest by force. No guest code runs later than one epoch tick after this.
    pub fn force(&self) {
        self.ask();
        self.0.forced.cancel();
    }

    /// Returns `true` once the guest should finish early.
    pub fn is_asked(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed)
    }
}

/// Runs a handler on one message until it is done or stopped by force; `None`: it was stopped before it decided, and its
/// guest is gone.
pub async fn run(handler: &dyn Handler, call: &Call) -> Option<Outcome> {
    let (outcome, refused) = match run_until_stopped(&call.bounds.stop, with_threads(handler.handle(call))).await {
        Some(Ok(outcome)) => (Some(outcome.bounded()), None),
        Some(Err(refused)) => (None, Some(Outcome::HostLimit(Limit::Threads, refused))),
        None => (None, None),
    };
    // A decision stands, even if the guest was stopped in a hook that followed.
    outcome.or_else(|| call.decided.get().cloned()).or(refused)
}

/// Runs a guest's future until it is done or stopped by force; `None`: it was stopped, and its guest is gone.
///
/// The check comes before every poll, so a guest whose time passed while it waited in the run queue does not get another slice.
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
