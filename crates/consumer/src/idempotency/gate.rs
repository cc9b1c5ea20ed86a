//! Wraps the handler: begins a run, and lets the handler run only if the key was not processed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::run::Run;
use super::{MARGIN, Shared, unsent};
use hostler_handler::{Call, Handler, Limit, Outcome};
use hostler_queue::{Begin, Begun, Done, Hold, MAX_LABEL, QueueError, RecordId, RunEnd};
use hostler_telemetry::metrics::names::KeyResult;
use hostler_types::State;
use hostler_types::digest::sha256;
use hostler_types::message::ORIGINAL_ID_ATTRIBUTE;
use hostler_types::printable::{on_one_line, shortened};

/// Maximum length in bytes of a key in reasons and in the log.
const LONGEST_KEY: usize = 200;

/// A handler whose calls are runs of idempotency keys.
pub(super) struct Gate {
    pub(super) inner: Arc<dyn Handler>,
    pub(super) shared: Arc<Shared>,
}

/// Notes the handler's decision if its call is stopped after it has decided.
struct Watch<'a> {
    run: &'a Run,
    call: &'a Call,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some(decided) = self.call.decided.get() {
            self.run.ended(decided.clone());
        }
    }
}

#[async_trait]
impl Handler for Gate {
    async fn handle(&self, call: &Call) -> Outcome {
        let Some(run) = Run::of(call) else { return self.inner.handle(call).await };
        if let Err(outcome) = self.begin(run, call).await {
            return outcome;
        }
        let _watch = Watch { run, call };
        let outcome = self.inner.handle(call).await.bounded();
        run.ended(outcome)
    }

    fn decides_timeouts(&self) -> bool {
        self.inner.decides_timeouts()
    }

    async fn processing_timeout(&self, call: &Call, elapsed: Duration) -> Option<Outcome> {
        let Some(run) = Run::of(call) else { return self.inner.processing_timeout(call, elapsed).await };
        // A message whose run had not begun has nothing that a hook could decide about.
        if !run.is_running() {
            return None;
        }
        let outcome = self.inner.processing_timeout(call, elapsed).await?;
        Some(run.ended(outcome.bounded()))
    }

    fn observes_states(&self) -> bool {
        self.inner.observes_states()
    }

    async fn state_changed(&self, from: State, to: State) {
        self.inner.state_changed(from, to).await;
    }
}

impl Gate {
    /// Begins a run. If the handler must not run, returns the outcome of the message.
    async fn begin(&self, run: &Run, call: &Call) -> Result<(), Outcome> {
        let (shared, message) = (&*self.shared, &call.message);
        let settings = &shared.settings;
        let key = settings.key.of(message).map_err(|why| {
            self.count(KeyResult::NoKey);
            Outcome::DeadLetter(why)
        })?;
        let hold = Hold { record: RecordId::new(&settings.scope, &key), token: fastrand::i64(..) };
        run.beginning(hold, call.trace.as_ref());
        let begin = Begin {
            hold,
            label: label(&settings.scope, &key),
            body: sha256(&message.body),
            lease: shared.lease + MARGIN,
            ttl: settings.ttl,
            takes_over: settings.runs_again || is_requeued(call),
        };
        let asked_at = Instant::now();
        let begun = timeout(shared.patience, start(shared, begin)).await;
        let silent = |_| Err(QueueError::Unavailable(format!("no answer in {:?}", shared.patience)));
        let mut begun = begun.unwrap_or_else(silent);
        // Until the store has answered, heartbeats extend the message alone.
        if matches!(begun, Ok(Begun::Started | Begun::TakenOver)) && asked_at.elapsed() > MARGIN / 2 {
            let left = shared.patience.saturating_sub(asked_at.elapsed());
            begun = self.renew(hold, left).await.and(begun);
        }
        self.act(run, call, &key, begun)?;
        // The host has begun to drain meanwhile. The handler has not started, so it does not start any more.
        if call.bounds.stop.is_asked() {
            run.unanswered();
            return Err(Outcome::Shutdown);
        }
        Ok(())
    }

    /// Extends a run that took long to begin, so that its lease outlasts that of its message.
    /// `within`: maximum time for that.
    async fn renew(&self, hold: Hold, within: Duration) -> Result<Begun, QueueError> {
        let Shared { settings, patience, lease, .. } = &*self.shared;
        let extended = timeout(within, settings.records.extend(&[hold], *lease + MARGIN)).await;
        match extended.ok().and_then(|mut results| results.pop()) {
            Some(Ok(())) => Ok(Begun::Started),
            Some(Err(error)) => Err(QueueError::Unavailable(error.to_string())),
            None => Err(QueueError::Unavailable(format!("no answer in {patience:?}"))),
        }
    }

    /// Acts on the answer of the store.
    fn act(&self, run: &Run, call: &Call, key: &str, begun: Result<Begun, QueueError>) -> Result<(), Outcome> {
        let key = shortened(&on_one_line(key), LONGEST_KEY).into_owned();
        let (name, refusal) = match begun {
            Ok(Begun::Started) => {
                run.running();
                self.count(KeyResult::Started);
                return Ok(());
            }
            Ok(Begun::TakenOver) => {
                run.running();
                let (consumer, message_id) = (&*self.shared.consumer, &*call.message.id);
                tracing::warn!(
                    consumer,
                    message_id,
                    key,
                    "an earlier run of the key ended without a result: it runs again"
                );
                self.count(KeyResult::TakenOver);
                return Ok(());
            }
            Ok(Begun::Done(done)) => {
                self.count(KeyResult::Repeated);
                return Err(repeat(run, done));
            }
            Ok(Begun::Busy(_)) => {
                let text = format!("another delivery with the key {key} is being processed");
                (KeyResult::Busy, Outcome::HostLimit(Limit::Key, text))
            }
            Ok(Begun::Unknown) => (
                KeyResult::Unknown,
                Outcome::DeadLetter(format!("an earlier run of the key {key} ended without a result")),
            ),
            Ok(Begun::OtherBody) => (
                KeyResult::OtherBody,
                Outcome::DeadLetter(format!("the key {key} was used for a message with another body")),
            ),
            Err(error) => {
                run.unanswered();
                self.count(KeyResult::Unavailable);
                return Err(Outcome::HostLimit(Limit::Records, error.to_string()));
            }
        };
        run.refused();
        self.count(name);
        Err(refusal)
    }

    fn count(&self, result: KeyResult) {
        if let Some(metrics) = &self.shared.metrics {
            metrics.key_looked_up(result);
        }
    }
}

/// Begins a run. If the caller no longer waits, ends the run as soon as it has begun: an end that came before would change nothing.
async fn start(shared: &Shared, begin: Begin) -> Result<Begun, QueueError> {
    let (tell, told) = oneshot::channel();
    let records = Arc::clone(&shared.settings.records);
    shared.runtime.spawn(async move {
        let hold = begin.hold;
        if tell.send(records.begin(begin).await).is_err() {
            // If this fails, the record lapses by itself.
            let _ = records.end(&[(hold, RunEnd::Forget)]).await;
        }
    });
    told.await
        .unwrap_or_else(|_| Err(QueueError::Unavailable("the start of the run ended without an answer".to_owned())))
}

/// Returns `true` if an operator has requeued the message, and thereby decided that it runs again: once, so that a later delivery of the
/// same message is not meant.
fn is_requeued(call: &Call) -> bool {
    call.attempt == 1 && call.message.attributes.contains_key(ORIGINAL_ID_ATTRIBUTE)
}

/// Takes over what the run that processed the key has left to do, and returns the outcome.
fn repeat(run: &Run, Done { hold, reply, unsent }: Done) -> Outcome {
    match unsent.as_deref().map_or(Ok(Vec::new()), unsent::read) {
        Ok(sends) => run.repeated(hold, reply, sends),
        Err(why) => {
            run.refused();
            Outcome::DeadLetter(format!("its key was processed, and the messages in its record cannot be read: {why}"))
        }
    }
}

/// Returns the text of a key for people who read the store.
fn label(scope: &str, key: &str) -> String {
    let mut label = format!("{scope} {}", on_one_line(key));
    label.truncate(label.floor_char_boundary(MAX_LABEL));
    label
}
