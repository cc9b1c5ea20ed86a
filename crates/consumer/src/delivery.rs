//! State machine of one delivery: events in, actions out. No I/O.
//!
//! ```text
//! Waiting ─start→ Running ─finished→ (Replying) → StoppingHeartbeat ─stopped→ Settling ─settled→ Done
//!                    │ deadline, drain deadline, lease lost, cancelled
//!                    ▼
//!                 Stopping ─guest ended→ (Deciding: the processing-timeout hook) → StoppingHeartbeat
//! ```
//!
//! A message of a batch goes back from Running to Waiting if the batch gave no answer for it, and the message is to run alone.
//!
//! A lost lease leads from every state to Done without a settlement. If a guest is running, the delivery first waits
//! until the guest has ended.

use std::time::Duration;

use super::in_flight::Stage;
use super::policy::{Disposition, Policy};
use hostler_handler::Outcome;

/// Maximum size in bytes of a reply that occupies no slot while it is being sent. The host's memory plan already
/// includes a reply of this size for each message.
pub(super) const LARGE_REPLY: usize = 256 * 1024;

/// Failure reason of a message that an operator cancelled.
const CANCELLED: &str = "cancelled by an operator";

/// Event in the life of a delivery.
#[derive(Debug)]
pub enum Event {
    /// The delivery may start.
    Start,
    /// The guest has ended with this outcome. `None`: the guest ended without an outcome, for example because it was
    /// stopped.
    Ended(Option<Outcome>),
    /// The call has ended without an outcome before its handler could start. Contains the outcome if the processing timeout was the
    /// cause.
    Unstarted(Outcome),
    /// The processing timeout was reached. Contains the run time of the handler.
    Deadline(Duration),
    /// The batch in which the message ran has ended without an answer for it, so the message is to run again, alone.
    Again,
    /// The lease is lost.
    LeaseLost,
    /// An operator cancels the delivery.
    Cancel,
    /// The process starts to shut down, or the consumer stops receiving because of a pause or the breaker.
    Drain,
    /// The drain deadline was reached. The consumer no longer waits for the handler or the hook.
    DrainDeadline,
    /// The message was received too early, so it goes back to the queue unprocessed. Contains the time until the
    /// message may start.
    NotDue(Duration),
    /// An earlier message of the same FIFO group was not acked, so this message must go back to the queue unprocessed.
    /// Contains the redelivery delay of the earlier message, which is the minimum redelivery delay of this message.
    Overtaken(Duration),
    /// The processing-timeout hook has decided. `None`: the hook made no decision, or there is no hook.
    Decided(Option<Outcome>),
    /// The attempt to send the reply has ended. On failure, contains the outcome of the message.
    Replied(Result<(), Outcome>),
    /// No heartbeat is in progress, and no more will be sent.
    HeartbeatStopped,
    /// The move to the dead-letter queue failed, and no time is left for a retry. The message is released instead.
    CopyGivenUp,
    /// `true`: the queue has carried out the settlement. `false`: the settlement failed and will not be repeated.
    Settled(bool),
}

/// Action that the event loop must carry out after an event.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Action {
    /// Do nothing.
    Nothing,
    /// Run the handler.
    Run,
    /// Ask the guest to finish early.
    AskToStop,
    /// Stop the guest, which runs the handler or the processing-timeout hook.
    Stop,
    /// Run the processing-timeout hook. Contains the run time of the handler.
    Decide(Duration),
    /// Send the reply.
    Reply(Vec<u8>),
    /// Record the success, and send [`Event::Replied`].
    Record,
    /// Stop the heartbeat, and send [`Event::HeartbeatStopped`] when no heartbeat is in progress.
    StopHeartbeat,
    /// Settle the message with this disposition.
    Settle(Disposition),
    /// Remove the delivery, which has ended.
    Finish,
}

#[derive(Debug)]
enum State {
    Waiting,
    Running,
    Stopping(Cause),
    Deciding,
    Replying(Outcome),
    StoppingHeartbeat,
    Settling,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Timeout(Duration),
    LeaseLost,
    Cancelled,
    Shutdown,
}

/// State machine of one delivery.
#[derive(Debug)]
pub struct Machine {
    state: State,
    attempt: u32,
    spoilt: u32,
    /// Outcome of the message. `None`: not known yet.
    outcome: Option<Outcome>,
    disposition: Disposition,
    /// Set if the message was received too early, that is, before the time at which its handler may start.
    is_not_due: bool,
    /// Set if the processing-timeout hook has decided.
    hook_decided: bool,
    replies: Replies,
    /// Set if the reply is larger than [`LARGE_REPLY`]. In that case, the delivery holds its slot until the reply is
    /// sent.
    large_reply: bool,
    /// Set if the delivery holds its slot until the message is settled.
    keeps_slot: bool,
    /// Result for the service, until the message is settled.
    result: Option<Vec<u8>>,
    jitter: f64,
}

/// Receiver of the replies of a consumer's handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replies {
    /// Nobody: a reply counts as an ack.
    Nowhere,
    /// The reply channel.
    Channel,
    /// The record of the message's key, which is written before the message is acked, and from which the reply is sent.
    Record,
    /// The service, which decides about retries itself, and takes the reply as the result.
    Service,
}

impl Machine {
    /// Creates the state machine of a delivery that was just received. `attempt`: number of the attempt, not counting
    /// attempts that ended because of a host limit. `spoilt`: number of preceding attempts in a row that ended because
    /// of a host limit. `replies`: receiver of the handler's reply. `jitter`: random number from 0 to 1.
    pub fn new(attempt: u32, spoilt: u32, replies: Replies, jitter: f64) -> Self {
        Self {
            state: State::Waiting,
            attempt,
            spoilt,
            outcome: None,
            disposition: Disposition::None,
            is_not_due: false,
            hook_decided: false,
            replies,
            large_reply: false,
            keeps_slot: false,
            result: None,
            jitter,
        }
    }

    /// Handles an event, and returns the action to carry out. `policy`: escalation policy of the consumer.
    pub fn handle(&mut self, event: Event, policy: &Policy) -> Action {
        match (std::mem::replace(&mut self.state, State::Done), event) {
            (State::Waiting, Event::Start) => self.go(State::Running, Action::Run),
            (State::Waiting, Event::Drain | Event::DrainDeadline) => self.go_back(Outcome::Shutdown, Duration::ZERO),
            (State::Waiting, Event::Overtaken(delay)) => {
                self.go_back(Outcome::Retry(Some("an earlier message of its group failed".into())), delay)
            }
            (State::Waiting, Event::NotDue(wait)) => {
                self.is_not_due = true;
                self.go_back(Outcome::Delay(wait), wait)
            }
            (State::Waiting | State::StoppingHeartbeat | State::Settling, Event::LeaseLost) => self.forget(),

            (State::Running, Event::Ended(Some(outcome))) => self.conclude(outcome, policy),
            (State::Running, Event::Ended(None)) => {
                self.stop_heartbeat(Outcome::Trapped("the host failed to run it".into()), policy)
            }
            (State::Running, Event::Drain) => self.go(State::Running, Action::AskToStop),
            (State::Running, Event::Deadline(after)) => self.go(State::Stopping(Cause::Timeout(after)), Action::Stop),
            (State::Running, Event::Cancel) => self.go(State::Stopping(Cause::Cancelled), Action::Stop),
            (State::Running, Event::LeaseLost) => self.go(State::Stopping(Cause::LeaseLost), Action::Stop),
            (State::Running, Event::DrainDeadline) => self.go(State::Stopping(Cause::Shutdown), Action::Stop),
            (State::Stopping(Cause::Timeout(_)), Event::Unstarted(outcome)) => self.stop_heartbeat(outcome, policy),
            (state, Event::Unstarted(_)) => {
                self.state = state;
                self.handle(Event::Ended(None), policy)
            }

            (State::Running, Event::Again) => self.go(State::Waiting, Action::Nothing),
            (stopping @ State::Stopping(_), Event::Again) => {
                self.state = stopping;
                self.handle(Event::Ended(None), policy)
            }

            (State::Stopping(_), Event::LeaseLost) => self.go(State::Stopping(Cause::LeaseLost), Action::Nothing),
            (State::Stopping(Cause::LeaseLost), Event::Ended(_)) => self.forget(),
            (State::Stopping(_), Event::Ended(Some(outcome))) => self.conclude(outcome, policy),
            (State::Stopping(Cause::Timeout(after)), Event::Ended(None)) => {
                self.outcome = Some(Outcome::TimedOut(after));
                self.go(State::Deciding, Action::Decide(after))
            }
            (State::Stopping(Cause::Cancelled), Event::Ended(None)) => {
                self.stop_heartbeat(Outcome::Failed(CANCELLED.into()), policy)
            }
            (State::Stopping(Cause::Shutdown), Event::Ended(None)) => self.stop_heartbeat(Outcome::Shutdown, policy),

            (State::Deciding, Event::Decided(decision)) => self.decided(decision, policy),
            (State::Deciding, Event::DrainDeadline) => self.go(State::Deciding, Action::Stop),
            (State::Deciding, Event::LeaseLost) => self.go(State::Stopping(Cause::LeaseLost), Action::Stop),
            (State::Stopping(Cause::LeaseLost), Event::Decided(_)) => self.forget(),

            (State::Replying(outcome), Event::Replied(Ok(()))) => self.stop_heartbeat(outcome, policy),
            (State::Replying(_), Event::Replied(Err(outcome))) => self.stop_heartbeat(outcome, policy),
            (State::Replying(_), Event::LeaseLost) => self.forget(),

            (State::StoppingHeartbeat, Event::HeartbeatStopped) => {
                self.go(State::Settling, Action::Settle(self.disposition.clone()))
            }
            (State::Settling, Event::CopyGivenUp) => {
                self.disposition = Disposition::Release(Duration::ZERO);
                self.go(State::Settling, Action::Nothing)
            }
            (State::Settling, Event::Settled(true)) => Action::Finish,
            (State::Settling, Event::Settled(false)) => self.forget(),

            (state, _) => self.go(state, Action::Nothing),
        }
    }

    /// Returns `true` if the handler has not been started.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    /// Returns `true` if guest code may be running for this delivery.
    pub fn is_running(&self) -> bool {
        self.stage().is_some()
    }

    /// Returns the stage of the message if it is in flight. `None`: the handler has not started, or both the handler
    /// and the processing-timeout hook have ended.
    pub fn stage(&self) -> Option<Stage> {
        match self.state {
            State::Running => Some(Stage::Running),
            State::Stopping(_) => Some(Stage::Stopping),
            State::Deciding => Some(Stage::Deciding),
            _ => None,
        }
    }

    /// Returns `true` if the delivery holds a slot. A large reply stays in memory until it is sent, although its
    /// sandbox no longer exists. The host's memory plan counts such a reply as part of the sandbox. Therefore, the
    /// delivery holds its slot until the reply is sent.
    pub fn holds_slot(&self) -> bool {
        let replies = self.large_reply
            && match self.replies {
                Replies::Service => matches!(self.state, State::StoppingHeartbeat | State::Settling),
                Replies::Nowhere | Replies::Channel | Replies::Record => matches!(self.state, State::Replying(_)),
            };
        let keeps = self.keeps_slot && !matches!(self.state, State::Done);
        self.is_waiting() || self.is_running() || replies || keeps
    }

    /// Holds the slot until the message is settled, because of what is sent with its settlement.
    pub fn keep_slot(&mut self) {
        self.keeps_slot = true;
    }

    /// Returns `true` if the delivery is waiting for the queue to answer its settlement.
    pub fn is_settling(&self) -> bool {
        matches!(self.state, State::Settling)
    }

    /// Returns the outcome of the message. Until the outcome is known, returns [`Outcome::LeaseLost`].
    pub fn outcome(&self) -> &Outcome {
        self.outcome.as_ref().unwrap_or(&Outcome::LeaseLost)
    }

    /// Returns `true` if the message was received too early, and therefore went back to the queue.
    pub fn is_not_due(&self) -> bool {
        self.is_not_due
    }

    /// Returns `true` if the delivery reached its processing timeout without a decision by the hook. In that case, the
    /// `on_processing_timeout` setting applies.
    pub fn timed_out_undecided(&self) -> bool {
        matches!(self.outcome, Some(Outcome::TimedOut(_))) && !self.hook_decided
    }

    /// Returns the disposition of the message. Until the disposition is known, returns [`Disposition::None`].
    pub fn disposition(&self) -> &Disposition {
        &self.disposition
    }

    /// Removes and returns the result that the settlement carries to the service. `None`: the handler has given none.
    pub fn take_result(&mut self) -> Option<Vec<u8>> {
        self.result.take()
    }

    fn go(&mut self, state: State, action: Action) -> Action {
        self.state = state;
        action
    }

    fn conclude(&mut self, outcome: Outcome, policy: &Policy) -> Action {
        match outcome {
            Outcome::Reply(body) if self.replies == Replies::Channel => {
                self.large_reply = body.len() > LARGE_REPLY;
                self.go(State::Replying(Outcome::Reply(Vec::new())), Action::Reply(body))
            }
            Outcome::Reply(body) if self.replies == Replies::Service => {
                self.large_reply = body.len() > LARGE_REPLY;
                self.result = Some(body);
                self.stop_heartbeat(Outcome::Reply(Vec::new()), policy)
            }
            outcome @ (Outcome::Ack | Outcome::Reply(_)) if self.replies == Replies::Record => {
                self.go(State::Replying(outcome), Action::Record)
            }
            outcome => self.stop_heartbeat(outcome, policy),
        }
    }

    /// Sets the disposition that follows from `outcome`, and stops the heartbeat. An outcome that is already known is
    /// kept. For example, a message that timed out keeps the outcome "timed out", whatever the hook decides.
    fn stop_heartbeat(&mut self, outcome: Outcome, policy: &Policy) -> Action {
        self.disposition = match &outcome {
            Outcome::HostLimit(..) => Policy::give_back(self.spoilt, self.jitter),
            outcome if self.replies == Replies::Service => Policy::reported(outcome),
            outcome => policy.disposition(outcome, self.attempt, self.jitter),
        };
        self.outcome.get_or_insert(outcome);
        self.go(State::StoppingHeartbeat, Action::StopHeartbeat)
    }

    /// Gives back a message whose handler never ran, with this redelivery delay. The attempt does not count if the
    /// queue can undo attempts.
    fn go_back(&mut self, outcome: Outcome, delay: Duration) -> Action {
        self.disposition = Disposition::GiveBack(delay);
        self.outcome = Some(outcome);
        self.go(State::StoppingHeartbeat, Action::StopHeartbeat)
    }

    /// Applies the decision of the processing-timeout hook like the outcome of a handler. If the hook made no decision,
    /// applies the `on_processing_timeout` setting.
    fn decided(&mut self, decision: Option<Outcome>, policy: &Policy) -> Action {
        self.hook_decided = decision.is_some();
        match decision.or_else(|| self.outcome.clone()) {
            Some(outcome) => self.conclude(outcome, policy),
            None => self.forget(),
        }
    }

    /// Ends a delivery that will not be settled, because its lease is lost or its settlement failed. Keeps the
    /// handler's outcome, if there is one, for the log.
    fn forget(&mut self) -> Action {
        self.disposition = Disposition::None;
        self.result = None;
        if self.outcome.is_none() {
            self.outcome = Some(Outcome::LeaseLost);
        }
        Action::Finish
    }
}

#[cfg(test)]
mod tests;
