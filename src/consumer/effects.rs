//! What a consumer does to the world: each effect is a task that answers with one signal.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Consumer;
use super::ledger::Heartbeat;
use super::spans::{self, Spans};
use crate::handler::{self, Call, HOOK_TIMEOUT, Handler, Lanes, Outcome, Stop, run_until_stopped};
use crate::health::State;
use crate::message::Outgoing;
use crate::queue::{Delivery, LeaseError, Queue, QueueError, Receive, Replies, Settlement, Unsettled};
use crate::telemetry::traces::Span;

/// Names a delivery within its consumer.
pub(super) type Id = u64;

/// What the world answers.
pub(super) enum Signal {
    /// A receive that had reserved so many slots is back.
    Received { reserved: usize, result: Result<Vec<Delivery>, QueueError> },
    /// A guest is gone; with its outcome, unless it was stopped.
    Ended { id: Id, outcome: Option<Outcome> },
    /// The processing-timeout hook is gone.
    Decided { id: Id, outcome: Option<Outcome> },
    /// A reply was sent, or not.
    Replied { id: Id, result: Result<(), String> },
    /// A batch of heartbeats is answered.
    Extended { ids: Vec<Id>, by: Duration, sent_at: Instant, results: Vec<Result<(), LeaseError>> },
    /// A batch of settlements is answered.
    Settled { ids: Vec<Id>, results: Vec<Result<(), Unsettled>> },
}

/// Starts effects. There is one per consumer.
pub(super) struct Effects {
    queue: Arc<dyn Queue>,
    handler: Arc<dyn Handler>,
    replies: Option<Replies>,
    guests: Lanes,
    /// Cuts long polls short when the host drains, or nothing is to be received for a while.
    pub(super) stop_polling: CancellationToken,
    signals: UnboundedSender<Signal>,
    spans: Option<Spans>,
    states: Option<UnboundedSender<(State, State)>>,
}

impl Effects {
    pub(super) fn new(consumer: &Consumer, spans: Option<Spans>, signals: UnboundedSender<Signal>) -> Self {
        Self {
            queue: Arc::clone(&consumer.queue),
            handler: Arc::clone(&consumer.handler),
            replies: consumer.replies.clone(),
            guests: consumer.guests.clone(),
            stop_polling: CancellationToken::new(),
            signals,
            spans,
            states: watch_states(consumer),
        }
    }

    /// Receives. It is never cancelled, because what it brings is leased to us.
    pub(super) fn receive(&self, request: Receive, reserved: usize) {
        let (queue, stop, signals) = (Arc::clone(&self.queue), self.stop_polling.clone(), self.signals.clone());
        let spans = self.spans.clone().map(|spans| (spans, SystemTime::now()));
        tokio::spawn(async move {
            let result = queue.receive(request, &stop).await;
            if let Some((spans, since)) = spans {
                spans.received(since, &result);
            }
            let _ = signals.send(Signal::Received { reserved, result });
        });
    }

    /// Lets receives that begin from now on wait, though earlier ones were cut short.
    pub(super) fn poll_again(&mut self) {
        if self.stop_polling.is_cancelled() {
            self.stop_polling = CancellationToken::new();
        }
    }

    /// Extends leases.
    pub(super) fn extend(&self, heartbeat: Heartbeat<Id>) {
        let (queue, signals) = (Arc::clone(&self.queue), self.signals.clone());
        tokio::spawn(async move {
            let Heartbeat { ids, leases, by } = heartbeat;
            let sent_at = Instant::now();
            let results = queue.extend(&leases, by).await;
            let _ = signals.send(Signal::Extended { ids, by, sent_at, results });
        });
    }

    /// Settles. `span` is about it.
    pub(super) fn settle(&self, batch: Vec<(Id, Settlement)>, span: Option<Span>) {
        let (queue, signals) = (Arc::clone(&self.queue), self.signals.clone());
        tokio::spawn(async move {
            let (ids, settlements) = batch.into_iter().unzip();
            let results = queue.settle(settlements).await;
            if let Some(span) = span {
                spans::settled(span, &results);
            }
            let _ = signals.send(Signal::Settled { ids, results });
        });
    }

    /// Runs the handler.
    pub(super) fn run(&self, id: Id, call: Call) {
        let (queue, handler) = (Arc::clone(&self.queue), Arc::clone(&self.handler));
        let answer = Answer { signals: self.signals.clone(), signal: Some(Signal::Ended { id, outcome: None }) };
        self.guests.spawn(async move {
            let outcome = match load(&*queue, call).await {
                Some(Ok(call)) => handler::run(&*handler, &call).await,
                Some(Err(fault)) => Some(Outcome::Failed(fault)),
                None => None,
            };
            answer.send(Signal::Ended { id, outcome });
        });
    }

    /// Runs the processing-timeout hook.
    pub(super) fn decide(&self, id: Id, call: Call, elapsed: Duration, stop: Stop) {
        let (queue, handler) = (Arc::clone(&self.queue), Arc::clone(&self.handler));
        let answer = Answer { signals: self.signals.clone(), signal: Some(Signal::Decided { id, outcome: None }) };
        if !handler.decides_timeouts() {
            return;
        }
        self.guests.spawn(async move {
            let decision = async {
                let call = load(&*queue, call).await?.ok()?;
                handler.processing_timeout(&call, elapsed).await
            };
            let decision = tokio::time::timeout(HOOK_TIMEOUT * 2, decision);
            let outcome = run_until_stopped(&stop, decision).await.and_then(Result::ok).flatten();
            answer.send(Signal::Decided { id, outcome });
        });
    }

    /// Sends a reply.
    pub(super) fn reply(&self, id: Id, call: &Call, body: Vec<u8>) {
        let Some(replies) = self.replies.clone() else {
            let _ = self.signals.send(Signal::Replied { id, result: Ok(()) });
            return;
        };
        let (message, trace, signals) = (Arc::clone(&call.message), call.trace.clone(), self.signals.clone());
        tokio::spawn(async move {
            let result = replies.send(&message, 0, Outgoing { body, trace, ..Outgoing::default() }).await;
            let result = result.map(drop).map_err(|error| error.to_string());
            let _ = signals.send(Signal::Replied { id, result });
        });
    }

    /// Tells the state-changed hook, if there is one, in the order of the changes.
    pub(super) fn state_changed(&self, transition: Option<(State, State)>) {
        if let (Some(states), Some(transition)) = (&self.states, transition) {
            let _ = states.send(transition);
        }
    }
}

/// The call with its message's body, wherever that lies; `None` if it is stopped meanwhile.
async fn load(queue: &dyn Queue, mut call: Call) -> Option<Result<Call, String>> {
    if call.message.claim.is_some() {
        let stop = call.bounds.stop.clone();
        call.message = match run_until_stopped(&stop, queue.load(&call.message)).await? {
            Ok(message) => message,
            Err(fault) => return Some(Err(fault)),
        };
    }
    Some(Ok(call))
}

/// Sends its signal when it is dropped, so that a guest's task answers even if it panics, and only once all of the guest
/// is gone.
struct Answer {
    signals: UnboundedSender<Signal>,
    signal: Option<Signal>,
}

impl Answer {
    fn send(mut self, signal: Signal) {
        self.signal = Some(signal);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(signal) = self.signal.take() {
            let _ = self.signals.send(signal);
        }
    }
}

fn watch_states(consumer: &Consumer) -> Option<UnboundedSender<(State, State)>> {
    if !consumer.handler.observes_states() {
        return None;
    }
    let handler = Arc::clone(&consumer.handler);
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    // Hooks have a deadline of their own each, and so stay in the quick lane.
    consumer.guests.quick.spawn(async move {
        while let Some((from, to)) = receiver.recv().await {
            handler.state_changed(from, to).await;
        }
    });
    Some(sender)
}
