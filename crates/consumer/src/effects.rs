//! Side effects of a consumer: queue calls and guest runs. Each effect is a task that sends one signal when it ends.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Consumer;
use super::changes::Changes;
use super::failures::Kind;
use super::in_flight::{DeliveryId, Request};
use super::in_hand::{BatchId, Place};
use super::leases::Heartbeat;
use super::log::{self, Named};
use super::signals::Signals;
use super::spans::{self, Spans};
use hostler_handler::{self as handler};
use hostler_handler::{BatchCall, BatchEnd, Bounds, Call, Early, HOOK_TIMEOUT, Handler, Limit, Outcome, Output, Pools};
use hostler_handler::{run_until_stopped, with_threads};
use hostler_queue::{Delivery, LeaseError, LeaseHandle, Queue, QueueError, Receive, SendError, Settlement, Unsettled};
use hostler_queue_telemetry::Replies;
use hostler_telemetry::traces::Span;
use hostler_types::State;
use hostler_types::message::Outgoing;

/// Time limit for the processing-timeout hook, including the time to load the message body.
const DECISION: Duration = HOOK_TIMEOUT.saturating_mul(2);

/// Maximum time until the event loop receives the hook's decision. Includes one second for the hook's task to start,
/// because the task may have to wait for a thread.
pub(super) const DECIDED_AFTER: Duration = DECISION.saturating_add(Duration::from_secs(1));

/// Maximum time for which a consumer that has ended waits until its queue rests. The service takes back the messages of a
/// host that does not give them back.
const REST_LIMIT: Duration = Duration::from_secs(10);

/// Delay before a queue that broke the contract of [`Queue::taken_back`] is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Identifies a delivery within its consumer.
pub(super) type Id = DeliveryId;

/// Result of an effect, or a request from an operator.
pub(super) enum Signal {
    /// A receive call for up to `asked` messages has ended.
    Received { asked: usize, result: Result<Vec<Delivery>, QueueError> },
    /// A guest has ended. `None`: the guest was stopped.
    Ended { id: Id, outcome: Option<Outcome> },
    /// The guest of a batch has ended. `ids`: the messages that the handler got, in order. `end`: `None` if the guest was
    /// stopped.
    BatchEnded { batch: BatchId, ids: Vec<Id>, end: Option<BatchEnd> },
    /// The processing-timeout hook has ended. `None`: the hook made no decision.
    Decided { id: Id, outcome: Option<Outcome> },
    /// The attempt to send a reply has ended. On failure, contains the outcome of the message.
    Replied { id: Id, result: Result<(), Outcome> },
    /// The queue has answered a batch of lease extensions. Contains the result of each extension, in the order of
    /// `ids`.
    Extended { ids: Vec<Id>, by: Duration, sent_at: Instant, results: Vec<Result<(), LeaseError>> },
    /// The queue has answered a batch of settlements. Contains the result of each settlement, in the order of `ids`.
    Settled { ids: Vec<(Id, Kind)>, results: Vec<Result<(), Unsettled>> },
    /// The service has taken leases away before their ends.
    TakenBack(Vec<LeaseHandle>),
    /// An operator has sent a request.
    Requested(Request),
}

/// Starts the effects of one consumer.
pub(super) struct Effects {
    world: Arc<World>,
    replies: Option<Replies>,
    /// Token that ends long polls early. Cancelled when the process drains, and when an operator or the breaker pauses
    /// receiving.
    pub(super) stop_polling: CancellationToken,
    spans: Option<Spans>,
    states: Option<Changes>,
    /// Cancelled when the queue has carried out the last announcement of a rest. Every later receive call waits for that,
    /// because a rest that ends after the beginning of a receive call would stop its messages. So does the next rest.
    resting: Option<CancellationToken>,
    /// Task that signals the leases which the service takes away. Ends with this value.
    _losses: JoinSet<()>,
}

/// Context of all effects, and the queue for their signals. Effects share one `Arc` of this struct instead of one `Arc`
/// for each field. Every message changes the reference count of each `Arc` that it uses, and threads on several CPUs
/// would contend for the counts.
struct World {
    queue: Arc<dyn Queue>,
    handler: Arc<dyn Handler>,
    guests: Pools,
    signals: Arc<Signals<Signal>>,
    /// Name of the consumer.
    name: Arc<str>,
}

impl World {
    /// Logs the output that the guest wrote during this handler call. Called on the thread that ran the guest.
    /// `sampled`: `true` if the span of the call is exported.
    fn log_output(&self, call: &Call, sampled: bool) {
        let place = Place { trace: call.trace.as_deref(), own: sampled };
        log::output(&self.name, Named::Message(&call.message.id), place, &call.output.take());
    }
}

impl Effects {
    pub(super) fn new(consumer: &Consumer, spans: Option<Spans>, signals: Arc<Signals<Signal>>) -> Self {
        let (queue, handler) = (Arc::clone(&consumer.queue), Arc::clone(&consumer.handler));
        let (guests, name) = (consumer.guests.clone(), Arc::clone(&consumer.spec.name));
        Self {
            resting: None,
            _losses: watch_losses(&queue, &name, &signals),
            world: Arc::new(World { queue, handler, guests, signals, name }),
            replies: consumer.replies.clone(),
            stop_polling: CancellationToken::new(),
            spans,
            states: Changes::watch(&consumer.handler, &consumer.guests),
        }
    }

    /// Starts a receive call. If an earlier pause has cancelled `stop_polling`, first replaces the token, so that the
    /// new call can wait for messages. The task of the call is never cancelled, because the received messages are
    /// leased to this process.
    pub(super) fn receive(&mut self, request: Receive) {
        if self.stop_polling.is_cancelled() {
            self.stop_polling = CancellationToken::new();
        }
        let asked = request.max;
        let stop = self.stop_polling.clone();
        let spans = self.spans.clone().map(|spans| (spans, SystemTime::now()));
        let answer = self.answer(Signal::Received { asked, result: Err(died("receive")) });
        let resting = self.resting.clone();
        tokio::spawn(async move {
            // A stop ends the wait, so that a rest that hangs holds up no drain.
            let _ = stop.run_until_cancelled(ended(resting)).await;
            let result = answer.world.queue.receive(request, &stop).await;
            if let Some((spans, since)) = spans {
                spans.received(since, &result);
            }
            answer.now(Signal::Received { asked, result });
        });
    }

    /// Announces to the queue that nothing will be received for a while. The announcements and the receive calls after them
    /// reach the queue one after another, because a receive call ends the rest.
    pub(super) fn rest(&mut self) {
        let (world, done) = (Arc::clone(&self.world), CancellationToken::new());
        let before = self.resting.replace(done.clone());
        tokio::spawn(async move {
            // Also cancels the token if the queue panics.
            let _done = done.drop_guard();
            ended(before).await;
            world.queue.rest().await;
        });
    }

    /// Waits until the queue has given back what it must for a rest, up to [`REST_LIMIT`].
    pub(super) async fn rested(&self) {
        if timeout(REST_LIMIT, ended(self.resting.clone())).await.is_err() {
            let consumer = &*self.world.name;
            tracing::warn!(
                consumer,
                "the queue did not rest in time; the service itself takes back what it sent ahead"
            );
        }
    }

    /// Extends the leases in `heartbeat`. The new lease duration counts from `sent_at`.
    pub(super) fn extend(&self, heartbeat: Heartbeat<Id>, sent_at: Instant) {
        let Heartbeat { ids, leases, by } = heartbeat;
        let answer = self.answer(Signal::Extended { ids: ids.clone(), by, sent_at, results: Vec::new() });
        tokio::spawn(async move {
            let results = answer.world.queue.extend(&leases, by).await;
            answer.now(Signal::Extended { ids, by, sent_at, results });
        });
    }

    /// Settles a batch of messages with one call to the queue. `span`: span of that call.
    pub(super) fn settle(&self, batch: Vec<(Id, Settlement)>, span: Option<Span>) {
        let named = batch.into_iter().map(|(id, settlement)| ((id, Kind::of(&settlement)), settlement));
        let (ids, settlements): (Vec<_>, _) = named.unzip();
        let answer = self.answer(Signal::Settled { ids: ids.clone(), results: Vec::new() });
        tokio::spawn(async move {
            let results = answer.world.queue.settle(settlements).await;
            if let Some(span) = span {
                spans::settled(span, &results);
            }
            answer.now(Signal::Settled { ids, results });
        });
    }

    /// Runs the handler, and logs its output. `sampled`: `true` if the span of the message is exported.
    pub(super) fn run(&self, id: Id, call: Arc<Call>, sampled: bool) {
        let answer = self.answer(Signal::Ended { id, outcome: None });
        self.world.guests.spawn(async move {
            let World { queue, handler, .. } = &*answer.world;
            let outcome = match load(&**queue, call).await {
                Some(Ok(call)) => {
                    let outcome = handler::run(&**handler, &call).await;
                    answer.world.log_output(&call, sampled);
                    outcome
                }
                Some(Err(fault)) => Some(unfit(fault, Limit::at_hand())),
                None => None,
            };
            // If the guest was stopped, `answer` is dropped here, which sends the signal at once.
            if outcome.is_some() {
                answer.soon(Signal::Ended { id, outcome }).await;
            }
        });
    }

    /// Runs the handler on a batch, and logs its output, of which `output` bytes are kept. A message that cannot be loaded, or
    /// that the handler answers early, sends its own signal.
    pub(super) fn run_batch(&self, batch: BatchId, members: Vec<(Id, Arc<Call>)>, bounds: Bounds, output: usize) {
        let answer = self.answer(Signal::BatchEnded { batch, ids: Vec::new(), end: None });
        self.world.guests.spawn(async move {
            let world = Arc::clone(&answer.world);
            let stop = bounds.stop.clone();
            let Some(members) = run_until_stopped(&stop, load_all(&world, members)).await else { return };
            let (ids, calls): (Vec<_>, Vec<_>) = members.into_iter().unzip();
            let size = calls.len();
            let early = early_answers(&world, ids.clone());
            let call = Arc::new(BatchCall::new(calls, bounds, Output::new(output), early));
            let end = match size {
                0 => Some(BatchEnd::Answers(Vec::new())),
                _ => handler::run_batch(&*world.handler, &call).await,
            };
            log::output(&world.name, Named::Batch(size), Place { trace: None, own: false }, &call.output.take());
            drop(call);
            answer.soon(Signal::BatchEnded { batch, ids, end }).await;
        });
    }

    /// Runs the processing-timeout hook, and logs its output. Without a hook, reports that there is no decision.
    /// `elapsed`: run time of the handler. `sampled`: `true` if the span of the message is exported.
    pub(super) fn decide(&self, id: Id, call: Arc<Call>, elapsed: Duration, sampled: bool) {
        let answer = self.answer(Signal::Decided { id, outcome: None });
        if !self.world.handler.decides_timeouts() {
            return;
        }
        self.world.guests.spawn(async move {
            let World { queue, handler, .. } = &*answer.world;
            let stop = call.bounds.stop.clone();
            let decision = async {
                let call = load(&**queue, Arc::clone(&call)).await?.ok()?;
                handler.processing_timeout(&call, elapsed).await
            };
            let decision = tokio::time::timeout(DECISION, decision);
            let outcome = run_until_stopped(&stop, decision).await.and_then(Result::ok).flatten();
            answer.world.log_output(&call, sampled);
            answer.soon(Signal::Decided { id, outcome: outcome.map(Outcome::bounded) }).await;
        });
    }

    /// Sends `body` as the reply to the message of `call`. If the consumer has no reply channel, reports success.
    pub(super) fn reply(&self, id: Id, call: &Call, body: Vec<u8>) {
        let Some(replies) = self.replies.clone() else {
            self.world.signals.send(Signal::Replied { id, result: Ok(()) });
            return;
        };
        let (message, trace) = (Arc::clone(&call.message), call.trace.clone());
        let answer = self.answer(Signal::Replied { id, result: Err(unsent(&died("reply"), None)) });
        tokio::spawn(async move {
            let sent = replies.send(&message, 0, Outgoing { body, trace, ..Outgoing::default() });
            let result = match with_threads(sent).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error @ SendError::Queue(_))) => Err(unsent(&error, Limit::at_hand())),
                Ok(Err(error @ SendError::Invalid(_))) => Err(unsent(&error, None)),
                Err(refused) => Err(unsent(&refused, Some(Limit::Threads))),
            };
            answer.now(Signal::Replied { id, result });
        });
    }

    /// Records the success of a message by `recording`, whose error is the outcome of the message.
    pub(super) fn record(&self, id: Id, recording: impl Future<Output = Result<(), Outcome>> + Send + 'static) {
        let answer = self.answer(Signal::Replied { id, result: Err(unsent(&died("record"), None)) });
        tokio::spawn(async move {
            let result = match with_threads(recording).await {
                Ok(result) => result,
                Err(refused) => Err(unsent(&refused, Some(Limit::Threads))),
            };
            answer.now(Signal::Replied { id, result });
        });
    }

    /// Creates the value through which an effect sends its signal. If the task ends without sending a signal, `lost` is
    /// sent.
    fn answer(&self, lost: Signal) -> Answer {
        Answer { world: Arc::clone(&self.world), signal: Some(lost) }
    }

    /// Notifies the state-changed hook of `transition`. Does nothing if there is no hook or no transition. The hook
    /// receives transitions in order.
    pub(super) fn state_changed(&self, transition: Option<(State, State)>) {
        if let (Some(states), Some((from, to))) = (&self.states, transition) {
            states.tell(from, to);
        }
    }

    /// Waits until the state-changed hook has received every change. Returns at once if there is no hook.
    pub(super) async fn all_told(&mut self) {
        if let Some(states) = &mut self.states {
            states.all_told().await;
        }
    }
}

/// Waits for the end of a rest, if there is one.
async fn ended(rest: Option<CancellationToken>) {
    if let Some(rest) = rest {
        rest.cancelled().await;
    }
}

/// Starts the task that signals the leases which the service takes away. The queue is asked again after a panic, and after
/// an empty answer, which the contract forbids.
fn watch_losses(queue: &Arc<dyn Queue>, name: &Arc<str>, signals: &Arc<Signals<Signal>>) -> JoinSet<()> {
    let (queue, name, signals) = (Arc::clone(queue), Arc::clone(name), Arc::clone(signals));
    let mut task = JoinSet::new();
    task.spawn(async move {
        loop {
            // A task of its own, because it may panic. Ends with this one. It signals by itself: the message may come again
            // at once, and its first handler must be stopped before that.
            let mut asking = JoinSet::new();
            asking.spawn(signal_losses(Arc::clone(&queue), Arc::clone(&signals)));
            let error = asking.join_next().await.and_then(Result::err).map(|error| error.to_string());
            let error = error.unwrap_or_else(|| "the queue named no lease".to_owned());
            tracing::error!(consumer = &*name, error, "cannot learn which leases are taken away; asking again");
            sleep(AGAIN).await;
        }
    });
    task
}

/// Signals the leases that the service takes away, until the queue answers with none.
async fn signal_losses(queue: Arc<dyn Queue>, signals: Arc<Signals<Signal>>) {
    loop {
        let leases = queue.taken_back().await;
        if leases.is_empty() {
            return;
        }
        signals.send(Signal::TakenBack(leases));
    }
}

/// Returns the outcome of a message whose body could not be loaded. `limit`: host limit that prevented the loading, or
/// `None` for another cause.
fn unfit(fault: String, limit: Option<Limit>) -> Outcome {
    match limit {
        Some(limit) => Outcome::HostLimit(limit, fault),
        None => Outcome::Failed(fault),
    }
}

/// Returns the outcome of a message whose reply could not be sent. `limit`: host limit that prevented the sending, or
/// `None` for another cause.
fn unsent(error: &dyn Display, limit: Option<Limit>) -> Outcome {
    unfit(format!("its reply was not sent: {error}"), limit)
}

/// Loads the body of the message if the body is stored outside the queue, and returns the handler call with the loaded
/// body. `None`: the handler call was stopped while the body was being loaded.
async fn load(queue: &dyn Queue, mut call: Arc<Call>) -> Option<Result<Arc<Call>, String>> {
    if call.message.claim.is_some() {
        let stop = call.bounds.stop.clone();
        match run_until_stopped(&stop, queue.load(&call.message)).await? {
            Ok(message) => Arc::make_mut(&mut call).message = message,
            Err(fault) => return Some(Err(fault)),
        }
    }
    Some(Ok(call))
}

/// Loads the bodies of a batch that are stored outside the queue. Returns the messages that the handler gets, in order. One
/// that cannot be loaded sends its signal, and one whose lease is lost meanwhile is left out.
async fn load_all(world: &Arc<World>, members: Vec<(Id, Arc<Call>)>) -> Vec<(Id, Arc<Call>)> {
    if members.iter().all(|(_, call)| call.message.claim.is_none()) {
        return members;
    }
    let mut loads = JoinSet::new();
    for (place, (id, call)) in members.into_iter().enumerate() {
        let world = Arc::clone(world);
        loads.spawn(async move {
            let loaded = load(&*world.queue, call).await?;
            Some((place, id, loaded.map_err(|fault| unfit(fault, Limit::at_hand()))))
        });
    }
    let mut loaded = Vec::new();
    while let Some(load) = loads.join_next().await {
        // A message whose load panicked has no answer, and is handled at the end of the batch.
        match load.ok().flatten() {
            Some((place, id, Ok(call))) => loaded.push((place, id, call)),
            // Sent here, and not by the task: that may outlive this future, which ends with the batch's deadline.
            Some((_, id, Err(outcome))) => world.signals.send(Signal::Ended { id, outcome: Some(outcome) }),
            None => {}
        }
    }
    loaded.sort_unstable_by_key(|(place, ..)| *place);
    loaded.into_iter().map(|(_, id, call)| (id, call)).collect()
}

/// Returns the receiver of the answers that the handler gives before the end of its batch. `ids`: the messages of the batch.
fn early_answers(world: &Arc<World>, ids: Vec<Id>) -> Early {
    // Not the whole context: it has the handler, whose instances may keep their last batch.
    let signals = Arc::clone(&world.signals);
    Box::new(move |index, outcome| {
        if let Some(id) = ids.get(index) {
            signals.send(Signal::Ended { id: *id, outcome: Some(outcome) });
        }
    })
}

/// Sends the signal of an effect when dropped. An effect that runs a guest drops its answer only after the guest has
/// released all resources. Because the drop sends the signal, every task answers, even if it panics.
struct Answer {
    world: Arc<World>,
    signal: Option<Signal>,
}

impl Answer {
    /// Sends the signal at once.
    fn now(mut self, signal: Signal) {
        self.signal = Some(signal);
    }

    /// If the guest ran on the fast pool, sends the signal together with those of the guests that end next, to wake the
    /// event loop less often. Otherwise, sends the signal at once.
    async fn soon(mut self, signal: Signal) {
        self.signal = None;
        if self.world.guests.are_fast() {
            self.world.signals.send_coalesced(signal).await;
        } else {
            self.world.signals.send(signal);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(signal) = self.signal.take() {
            self.world.signals.send(signal);
        }
    }
}

/// Returns the error for a task that ended without an answer. Only a bug in hostler can cause this.
fn died(task: &str) -> QueueError {
    QueueError::Unavailable(format!("the {task} ended without an answer"))
}

#[cfg(test)]
mod tests;
