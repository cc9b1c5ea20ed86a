//! Task that calls the ECS agent when the state machine in `protection` requests a call. Logs changes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::agent::{Call, Endpoint, Fault};
use super::protection::{Answer, Event, Machine};
use hostler_consumer::StatusHandle;

/// Minimum interval between two checks of the consumers. Quickly processed messages can start and end thousands of times a
/// second, and a check for each of these changes would burden the control thread. The first change after an interval without
/// changes causes an immediate check.
const SPACING: Duration = Duration::from_millis(50);

/// Maximum time that the process waits at its end until the protection is removed.
const PARTING: Duration = Duration::from_secs(1);

/// Keeps the ECS task protected while any consumer has messages in hand. A message is in hand from its receipt until it
/// is settled. Neither the protection calls nor their failures delay a message.
pub(in crate::host) struct Guard {
    drained: CancellationToken,
    running: JoinHandle<()>,
}

impl Guard {
    /// Starts the task. `boards` contains the status of each consumer. `work` receives a notification when a consumer
    /// may have become busy or idle. Must be called within a runtime.
    pub(super) fn start(agent: Endpoint, minutes: u16, boards: Vec<StatusHandle>, work: Arc<Notify>) -> Self {
        let drained = CancellationToken::new();
        let machine = Machine::new(minutes, Instant::now());
        let keeper = Keeper { agent, machine, calls: JoinSet::new(), shown: Shown::Off };
        Self { running: tokio::spawn(keeper.run(boards, work, drained.clone())), drained }
    }

    /// Removes the protection after the drain. Waits at most [`PARTING`], and never beyond `latest`.
    pub(in crate::host) async fn end(mut self, latest: Instant) {
        self.drained.cancel();
        if timeout_at(latest.min(Instant::now() + PARTING), &mut self.running).await.is_err() {
            self.running.abort();
            tracing::warn!("the ECS agent did not answer in time; scale-in protection may remain until the task ends");
        }
    }
}

/// State that was last logged.
#[derive(Debug, PartialEq, Eq)]
enum Shown {
    On,
    Off,
    Failing(String),
}

struct Keeper {
    agent: Endpoint,
    machine: Machine,
    /// Current call to the agent, if any.
    calls: JoinSet<(Call, Result<(), Fault>)>,
    shown: Shown,
}

impl Keeper {
    async fn run(mut self, boards: Vec<StatusHandle>, work: Arc<Notify>, drained: CancellationToken) {
        let mut look_at = None;
        loop {
            let now = Instant::now();
            if self.machine.is_over(now) {
                return;
            }
            let wake_at = self.machine.next_at(now);
            let event = tokio::select! {
                () = work.notified(), if look_at.is_none() => {
                    look_at = Some(Instant::now() + SPACING);
                    look(&boards)
                }
                () = sleep_until(look_at.unwrap_or(now)), if look_at.is_some() => {
                    look_at = None;
                    continue;
                }
                () = sleep_until(wake_at.unwrap_or(now)), if wake_at.is_some() => Event::Time,
                Some(ended) = self.calls.join_next() => match ended {
                    Ok((call, result)) => self.answered(call, result),
                    Err(_) => Event::Answered { how: Answer::Unknown, jitter: fastrand::f64() },
                },
                () = drained.cancelled(), if !self.machine.is_drained() => Event::Drained,
            };
            if let Some(call) = self.machine.handle(event, Instant::now()) {
                let agent = self.agent.clone();
                self.calls.spawn(async move { (call, agent.set_protection(call).await) });
            }
        }
    }

    /// Converts the result of a call to an event. Logs the result if it differs from the previous result.
    fn answered(&mut self, call: Call, result: Result<(), Fault>) -> Event {
        let shown = match (&result, call) {
            (Ok(()), Call::Protect(_)) => Shown::On,
            (Ok(()), Call::Unprotect) => Shown::Off,
            (Err(fault), _) => Shown::Failing(fault.kind().to_owned()),
        };
        if shown != self.shown {
            match (&result, call) {
                (Ok(()), Call::Protect(minutes)) => tracing::info!(minutes, "protected from scale-in"),
                (Ok(()), Call::Unprotect) => tracing::info!("no longer protected from scale-in"),
                (Err(fault), _) => {
                    tracing::warn!(%fault, "cannot set scale-in protection; messages are processed without it")
                }
            }
            self.shown = shown;
        }
        let how = match result {
            Ok(()) => Answer::Done,
            Err(fault) if fault.is_refusal() => Answer::Refused,
            Err(_) => Answer::Unknown,
        };
        Event::Answered { how, jitter: fastrand::f64() }
    }
}

/// Returns [`Event::Busy`] if any consumer has messages in hand, otherwise [`Event::Idle`]. Messages that wait to be processed or
/// settled count too, because a waiting message would lose an attempt if ECS stopped the task now.
fn look(boards: &[StatusHandle]) -> Event {
    if boards.iter().any(|board| board.get().in_hand > 0) { Event::Busy } else { Event::Idle }
}
