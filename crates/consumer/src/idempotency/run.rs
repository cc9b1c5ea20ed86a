//! The attempt of one delivery: its stage, its reply, and the messages that it sends. No I/O.
//!
//! ```text
//! Waiting ─begin→ Beginning ─started→ Running ─success→ Succeeded ─recorded→ Recorded (separate store) ─all sent→ Sent
//!                     │ refused → Refused   │ failure → Failed
//!                     └ done before → Recorded, with the reply and the unsent messages of that run
//! ```

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::super::delivery::LARGE_REPLY;
use super::{Idempotency, unsent};
use hostler_handler::{Call, Limit, Outcome};
use hostler_queue::{Commit, Finish, Hold, RunEnd};
use hostler_queue_telemetry::{Producer, Replies};
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, MAX_ATTRIBUTES, Message, Outgoing, TraceContext};
use hostler_types::{Outbox, OutboxError};

/// Maximum size in bytes of the reply and the messages that one attempt sends.
const MAX_SIZE: usize = 4 << 20;

/// Maximum number of messages that are sent in one call.
const MOST_AT_ONCE: usize = 100;

/// Size in bytes of a message in a record beside its body and attributes.
const FRAME: usize = 256;

/// The attempt of one delivery.
#[derive(Debug)]
pub(super) struct Run {
    message: Arc<Message>,
    producer: Producer,
    replies: Option<Replies>,
    /// Maximum size in bytes of what the record can keep.
    max: usize,
    is_transactional: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    hold: Option<Hold>,
    trace: Option<Arc<TraceContext>>,
    reply: Option<Vec<u8>>,
    sends: Vec<(Channel, Outgoing)>,
    /// Size of `sends` in bytes, in a record.
    size: usize,
    /// The changes of the ack, once they were asked for.
    commit: Option<Arc<Commit>>,
    /// Number of messages that were sent since the success was recorded: of the sends, and then the reply.
    sent: usize,
    /// Set if an earlier run has processed the key.
    is_repeated: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The run has not begun, or was refused: nothing is recorded of it.
    #[default]
    Waiting,
    /// The store was asked, and has not answered.
    Beginning,
    /// The store has refused the run.
    Refused,
    /// The handler may run.
    Running,
    /// The handler said that it has failed.
    Failed,
    Succeeded,
    /// The record says that the key was processed.
    Recorded,
    /// All messages were sent.
    Sent,
}

/// Returns `true` if so much is to be sent for this call that it holds its slot until the message is settled. The host's memory plan
/// counts that much as a part of the sandbox.
pub(in super::super) fn is_large(call: &Call) -> bool {
    Run::of(call).is_some_and(|run| {
        let state = run.state();
        let is_success = matches!(state.stage, Stage::Succeeded | Stage::Recorded);
        is_success && state.size + state.reply.as_ref().map_or(0, Vec::len) > LARGE_REPLY
    })
}

/// Returns the outcome of a call that was stopped before its handler could run, because the store has not answered. `None`: the
/// handler has run, or the call has no run.
pub(in super::super) fn never_started(call: &Call) -> Option<Outcome> {
    let stage = Run::of(call)?.state().stage;
    let text = "the store of idempotency records did not answer before the processing timeout";
    matches!(stage, Stage::Waiting | Stage::Beginning).then(|| Outcome::HostLimit(Limit::Records, text.to_owned()))
}

/// Returns `true` if an earlier run has processed the key of this call's message.
pub(in super::super) fn is_repeated(call: &Call) -> bool {
    Run::of(call).is_some_and(|run| run.state().is_repeated)
}

impl Run {
    pub(super) fn new(message: &Arc<Message>, settings: &Idempotency, replies: Option<Replies>) -> Self {
        Self {
            message: Arc::clone(message),
            producer: settings.producer.clone(),
            replies,
            max: settings.records.max_size().min(MAX_SIZE),
            is_transactional: settings.is_transactional,
            state: Mutex::default(),
        }
    }

    /// Returns the run of a call. `None`: the call has none.
    pub(super) fn of(call: &Call) -> Option<&Self> {
        let outbox: &dyn Any = call.outbox.as_deref()?;
        outbox.downcast_ref()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the store is asked to begin the run. `trace`: context of the call.
    pub(super) fn beginning(&self, hold: Hold, trace: Option<&Arc<TraceContext>>) {
        let mut state = self.state();
        (state.stage, state.hold, state.trace) = (Stage::Beginning, Some(hold), trace.cloned());
    }

    /// Notes that the run holds its record.
    pub(super) fn running(&self) {
        self.state().stage = Stage::Running;
    }

    /// Returns `true` if the run holds its record, and its handler has not said how it ended.
    pub(super) fn is_running(&self) -> bool {
        self.state().stage == Stage::Running
    }

    /// Notes that the run does not hold its record.
    pub(super) fn refused(&self) {
        let mut state = self.state();
        (state.stage, state.hold) = (Stage::Refused, None);
    }

    /// Notes that the handler does not run, although the run holds its record, or may do so. The record has to be forgotten.
    pub(super) fn unanswered(&self) {
        self.state().stage = Stage::Failed;
    }

    /// Notes that an earlier run has processed the key, and takes over what is left to do.
    pub(super) fn repeated(&self, hold: Hold, reply: Option<Vec<u8>>, sends: Vec<(Channel, Outgoing)>) -> Outcome {
        let mut state = self.state();
        let outcome = if reply.is_some() { Outcome::Reply(Vec::new()) } else { Outcome::Ack };
        let size = sends.iter().map(|(_, message)| message.size()).sum();
        let hold = Some(hold);
        let trace = state.trace.take();
        *state =
            State { stage: Stage::Recorded, hold, trace, reply, sends, size, is_repeated: true, ..State::default() };
        outcome
    }

    /// Notes the outcome of the handler or of its hook, and returns it without the reply that the run keeps. Only the first outcome
    /// counts.
    pub(super) fn ended(&self, outcome: Outcome) -> Outcome {
        let mut state = self.state();
        if state.stage != Stage::Running {
            return outcome;
        }
        let outcome = match outcome {
            Outcome::Reply(body) if self.replies.is_some() => self.keep(&mut state, body),
            other => other,
        };
        state.stage = match &outcome {
            Outcome::Ack | Outcome::Reply(_) => Stage::Succeeded,
            // The handler may have done its work before it was stopped.
            Outcome::Trapped(_) | Outcome::TimedOut(_) | Outcome::LeaseLost | Outcome::Shutdown => Stage::Running,
            Outcome::Failed(_)
            | Outcome::Retry(_)
            | Outcome::Delay(_)
            | Outcome::DeadLetter(_)
            | Outcome::HostLimit(..) => Stage::Failed,
        };
        if state.stage == Stage::Failed {
            (state.sends, state.size) = (Vec::new(), 0);
        }
        outcome
    }

    /// Keeps a reply. Returns the outcome without it, or the failure of a reply that cannot be sent.
    fn keep(&self, state: &mut State, body: Vec<u8>) -> Outcome {
        let size = state.size + body.len() + FRAME;
        if size > self.max {
            let max = self.max;
            return Outcome::Failed(format!(
                "its reply and the messages that it sent have {size} bytes together, and a record takes {max}"
            ));
        }
        state.reply = Some(body);
        let fault = self.reply(state).and_then(|(channel, reply)| self.check(&channel, &reply).err());
        match fault {
            None => Outcome::Reply(Vec::new()),
            Some(error) => {
                state.reply = None;
                Outcome::Failed(format!("its reply cannot be sent: {error}"))
            }
        }
    }

    /// Checks a message. A deduplication key where the channel takes none is left out later.
    fn check(&self, channel: &Channel, message: &Outgoing) -> Result<(), Invalid> {
        match self.producer.check(channel, message) {
            Err(Invalid::DedupeUnsupported(_)) => {
                self.producer.check(channel, &Outgoing { dedupe: None, ..message.clone() })
            }
            checked => checked,
        }
    }

    /// Returns the right to the record while its lease has to be extended. `None`: there is nothing to extend.
    pub(super) fn extends(&self) -> Option<Hold> {
        let state = self.state();
        state.hold.filter(|_| matches!(state.stage, Stage::Running | Stage::Failed | Stage::Succeeded))
    }

    /// Returns `true` if the message can be acked: the handler has succeeded, in this run or in an earlier one.
    pub(super) fn has_succeeded(&self) -> bool {
        matches!(self.state().stage, Stage::Succeeded | Stage::Recorded | Stage::Sent)
    }

    /// Returns how the run ends if its message is not acked. `None`: nothing is recorded of it, or its success is.
    pub(super) fn end(&self) -> Option<(Hold, RunEnd)> {
        let state = self.state();
        let end = match state.stage {
            Stage::Failed => RunEnd::Forget,
            Stage::Running | Stage::Succeeded => RunEnd::Lapse,
            Stage::Waiting | Stage::Beginning | Stage::Refused | Stage::Recorded | Stage::Sent => return None,
        };
        Some((state.hold?, end))
    }

    /// Returns the success to record in a store of its own. `None`: there is none, or it is recorded.
    pub(super) fn finish(&self, ttl: Duration) -> Option<Finish> {
        let state = self.state();
        let hold = state.hold.filter(|_| state.stage == Stage::Succeeded)?;
        let unsent = (!state.sends.is_empty()).then(|| unsent::write(&state.sends));
        Some(Finish { hold, ttl, reply: state.reply.clone(), unsent })
    }

    /// Notes that the success is recorded.
    pub(super) fn recorded(&self) {
        self.state().stage = Stage::Recorded;
    }

    /// Returns the changes that the ack makes in its transaction: the same at each call. `None`: it only removes the message.
    pub(super) fn commit(&self, ttl: Duration) -> Option<Arc<Commit>> {
        let mut state = self.state();
        if state.commit.is_some() {
            return state.commit.clone();
        }
        let is_success = state.stage == Stage::Succeeded;
        if !is_success && state.stage != Stage::Recorded {
            return None;
        }
        // The messages move, because they may be large.
        let messages: Vec<_> = std::mem::take(&mut state.sends).into_iter().chain(self.reply(&state)).collect();
        let hold = state.hold.filter(|_| is_success);
        let finish = hold.map(|hold| Finish { hold, ttl, reply: state.reply.take(), unsent: None });
        if finish.is_some() || !messages.is_empty() {
            state.commit = Some(Arc::new(Commit { finish, messages }));
        }
        state.commit.clone()
    }

    /// Returns the next messages to send after the success was recorded, all to one channel.
    pub(super) fn next(&self) -> Option<(Channel, Vec<Outgoing>)> {
        let state = self.state();
        if state.stage != Stage::Recorded {
            return None;
        }
        let Some((channel, _)) = state.sends.get(state.sent) else {
            let (channel, reply) = self.reply(&state).filter(|_| state.sent == state.sends.len())?;
            return Some((channel, vec![reply]));
        };
        // Another run of the key, after its time, has another token, so that its messages are not taken for duplicates.
        let key = state.hold.map(|hold| format!("{:.32}-{:x}", hold.record.hex(), hold.token)).unwrap_or_default();
        let messages = state.sends.iter().enumerate().skip(state.sent).take(MOST_AT_ONCE);
        let batch = messages.take_while(|(_, (other, _))| other == channel).map(|(number, (_, message))| {
            let dedupe = message.dedupe.clone().or_else(|| Some(format!("{key}-{number}")));
            Outgoing { dedupe, ..message.clone() }
        });
        Some((channel.clone(), batch.collect()))
    }

    /// Notes that the first messages of [`Self::next`] were sent.
    pub(super) fn advance(&self, count: usize) {
        self.state().sent += count;
    }

    /// Notes that all messages were sent. Returns the right to the record if it has to be told.
    pub(super) fn all_sent(&self) -> Option<Hold> {
        let mut state = self.state();
        let has_sent = state.stage == Stage::Recorded && !state.sends.is_empty();
        if state.stage == Stage::Recorded {
            state.stage = Stage::Sent;
        }
        state.hold.filter(|_| has_sent)
    }

    fn reply(&self, state: &State) -> Option<(Channel, Outgoing)> {
        let (replies, body) = (self.replies.as_ref()?, state.reply.as_ref()?);
        let reply = Outgoing { body: body.clone(), trace: state.trace.clone(), ..Outgoing::default() };
        Some((replies.channel.clone(), replies.compose(&self.message, 0, reply)))
    }
}

impl Outbox for Run {
    fn push(&self, channel: &Channel, mut message: Outgoing) -> Result<String, OutboxError> {
        self.check(channel, &message)?;
        message.carry_trace(MAX_ATTRIBUTES);
        let mut state = self.state();
        if state.stage != Stage::Running {
            return Err(OutboxError::Closed);
        }
        // In a record, bodies are written as Base64.
        let body = if self.is_transactional { message.body.len() } else { message.body.len().div_ceil(3) * 4 };
        let size = state.size + body + (message.size() - message.body.len()) * 2 + FRAME;
        if size > self.max {
            return Err(OutboxError::Full(self.max));
        }
        state.size = size;
        state.sends.push((channel.clone(), message));
        Ok(format!("pending-{}", state.sends.len()))
    }
}
