//! One call of a handler with several messages: the input, the answers, and the messages that are lost meanwhile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::call::{Bounds, Call, Outcome, run_until_stopped};
use super::{Handler, Limit, Output, with_threads};

/// Maximum size in bytes of all replies that a handler gives before its call ends. The host holds them until their messages are
/// settled, while the handler goes on.
const MAX_EARLY_REPLIES: usize = 64 << 20;

/// Receiver of the answers that a handler gives before its call ends: the index of the message, and its outcome.
pub type Early = Box<dyn Fn(usize, Outcome) + Send + Sync>;

/// A call of a handler with several messages.
pub struct BatchCall {
    /// One call per message, in the order in which the handler gets the messages. The bounds of such a call are those of its
    /// message: its handle is forced once the message is lost, and stops no guest.
    pub calls: Vec<Arc<Call>>,
    /// The deadline of the whole call, and the handle that stops the guest.
    pub bounds: Bounds,
    /// The guest's standard output and error.
    pub output: Output,
    answered: Vec<AtomicBool>,
    /// Size in bytes of the early replies.
    replied: AtomicUsize,
    early: Early,
}

impl fmt::Debug for BatchCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, bounds, output, answered, .. } = self;
        let mut call = f.debug_struct("BatchCall");
        call.field("calls", calls).field("bounds", bounds).field("output", output).field("answered", answered);
        call.finish_non_exhaustive()
    }
}

impl BatchCall {
    /// Creates a call without answers. `early` receives those that the handler gives before its call ends.
    pub fn new(calls: Vec<Arc<Call>>, bounds: Bounds, output: Output, early: Early) -> Self {
        let answered = calls.iter().map(|_| AtomicBool::new(false)).collect();
        Self { calls, bounds, output, answered, replied: AtomicUsize::new(0), early }
    }

    /// Creates the call for a single message, with its own bounds and output. An early answer is the decision of `call`: see
    /// [`Call::decided`].
    pub fn of_one(call: &Call) -> Self {
        let decided = Arc::clone(&call.decided);
        let early = Box::new(move |_, outcome| drop(decided.set(outcome)));
        Self::new(vec![Arc::new(call.clone())], call.bounds.clone(), call.output.clone(), early)
    }

    /// Settles the message at `index` before the call ends. Returns `false` and does nothing if there is no such message, if it
    /// has an answer, or if it is lost. A reply fails if all early replies together are larger than 64 MiB.
    pub fn answer(&self, index: usize, outcome: Outcome) -> bool {
        let Some(answered) = self.answered.get(index) else { return false };
        if self.is_lost(index) || answered.swap(true, Ordering::AcqRel) {
            return false;
        }
        (self.early)(index, self.within_bytes(outcome.bounded()));
        true
    }

    fn within_bytes(&self, outcome: Outcome) -> Outcome {
        let Outcome::Reply(body) = &outcome else { return outcome };
        let before = self.replied.fetch_add(body.len(), Ordering::Relaxed);
        if before.saturating_add(body.len()) <= MAX_EARLY_REPLIES {
            return outcome;
        }
        Outcome::Failed(format!("the early replies of one batch are larger than {MAX_EARLY_REPLIES} bytes"))
    }

    /// Returns `true` if the message at `index` has an answer.
    pub fn is_answered(&self, index: usize) -> bool {
        self.answered.get(index).is_some_and(|answered| answered.load(Ordering::Acquire))
    }

    /// Returns `true` if the lease of the message at `index` is lost. Its answer is ignored.
    pub fn is_lost(&self, index: usize) -> bool {
        // The call for a single message has the bounds of its message.
        self.calls.len() > 1 && self.calls.get(index).is_some_and(|call| call.bounds.stop.is_forced())
    }
}

/// End of a call with several messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchEnd {
    /// The handler returned these answers: one for each message, in order, unless it is at fault.
    Answers(Vec<Outcome>),
    /// The guest trapped, ran out of memory, or could not be started. The field is the reason.
    Trapped(String),
    /// The host reached one of its own limits. The fields are the limit and the error.
    HostLimit(Limit, String),
}

impl BatchEnd {
    /// Returns the reason for which messages fail if the handler gave another number of answers than it got messages.
    pub fn wrong_count(answers: usize, messages: usize) -> String {
        format!("the handler returned {answers} answers for {messages} messages")
    }

    /// Returns the end of a call that ended with `outcome` for all its messages. `messages`: their number.
    pub fn of_all(outcome: Outcome, messages: usize) -> Self {
        match outcome {
            Outcome::Trapped(reason) => Self::Trapped(reason),
            Outcome::HostLimit(limit, reason) => Self::HostLimit(limit, reason),
            outcome => Self::Answers(vec![outcome; messages]),
        }
    }
}

/// Calls a handler with the messages of `batch`, and returns when the handler completes. `None`: the guest was stopped. In any
/// case, the guest no longer runs when this function returns.
pub async fn run_batch(handler: &dyn Handler, batch: &Arc<BatchCall>) -> Option<BatchEnd> {
    match run_until_stopped(&batch.bounds.stop, with_threads(handler.handle_batch(batch))).await? {
        Ok(BatchEnd::Answers(answers)) => Some(BatchEnd::Answers(answers.into_iter().map(Outcome::bounded).collect())),
        Ok(end) => Some(end),
        Err(refused) => Some(BatchEnd::HostLimit(Limit::Threads, refused)),
    }
}

/// Processes a single message as a batch of one. Implements [`Handler::handle`] for a handler whose guest takes batches only.
pub async fn handle_alone(handler: &(impl Handler + ?Sized), call: &Call) -> Outcome {
    let end = handler.handle_batch(&Arc::new(BatchCall::of_one(call))).await;
    // An early answer counts, as in a batch.
    if let Some(decided) = call.decided.get() {
        return decided.clone();
    }
    match end {
        BatchEnd::Answers(mut answers) if answers.len() == 1 => answers.remove(0),
        BatchEnd::Answers(answers) => Outcome::Failed(BatchEnd::wrong_count(answers.len(), 1)),
        BatchEnd::Trapped(reason) => Outcome::Trapped(reason),
        BatchEnd::HostLimit(limit, reason) => Outcome::HostLimit(limit, reason),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use async_trait::async_trait;
    use hostler_types::message::Message;

    use super::*;

    fn call(id: &str) -> Arc<Call> {
        let bounds = Bounds::new(Duration::from_secs(1));
        Arc::new(Call::new(Arc::new(Message::new(id, id.to_owned())), "in".into(), 1, bounds, Output::new(0)))
    }

    type Told = Arc<Mutex<Vec<(usize, Outcome)>>>;

    fn batch(ids: &[&str]) -> (Arc<BatchCall>, Told) {
        let told = Told::default();
        let into = Arc::clone(&told);
        let early = Box::new(move |index, outcome| into.lock().unwrap().push((index, outcome)));
        let calls = ids.iter().map(|id| call(id)).collect();
        (Arc::new(BatchCall::new(calls, Bounds::new(Duration::from_secs(1)), Output::new(0), early)), told)
    }

    #[test]
    fn early_replies_have_a_maximum_size_together() {
        let (batch, told) = batch(&["a", "b", "c"]);
        for (index, size) in [(0, MAX_EARLY_REPLIES - 1), (1, 2), (2, 0)] {
            assert!(batch.answer(index, Outcome::Reply(vec![0; size])));
        }
        let kinds: Vec<_> =
            told.lock().unwrap().iter().map(|(_, outcome)| matches!(outcome, Outcome::Reply(_))).collect();
        assert_eq!(kinds, [true, false, false]);
    }

    #[test]
    fn the_first_answer_counts_and_a_lost_message_takes_none() {
        let (batch, told) = batch(&["a", "b"]);
        assert!(batch.answer(0, Outcome::Ack));
        assert!(!batch.answer(0, Outcome::Retry(None)));
        batch.calls[1].bounds.stop.ask();
        assert!(!batch.is_lost(1), "a drain loses nothing");
        batch.calls[1].bounds.stop.force();
        assert!(batch.is_lost(1) && !batch.answer(1, Outcome::Ack) && !batch.answer(2, Outcome::Ack));
        assert_eq!(*told.lock().unwrap(), [(0, Outcome::Ack)]);
    }

    #[test]
    fn an_early_answer_of_a_single_message_is_its_decision() {
        let call = call("a");
        assert!(BatchCall::of_one(&call).answer(0, Outcome::Ack));
        assert_eq!(call.decided.get(), Some(&Outcome::Ack));
    }

    /// A handler that knows nothing of batches.
    struct ByBody;

    #[async_trait]
    impl Handler for ByBody {
        async fn handle(&self, call: &Call) -> Outcome {
            match &*call.message.body {
                b"fail" => Outcome::Failed("as told".into()),
                _ => Outcome::Ack,
            }
        }
    }

    #[tokio::test]
    async fn a_handler_without_batches_gets_the_messages_one_by_one() {
        let (batch, told) = batch(&["a", "fail", "lost"]);
        batch.calls[2].bounds.stop.force();
        let failed = Outcome::Failed("as told".into());
        let end = run_batch(&ByBody, &batch).await;
        assert_eq!(end, Some(BatchEnd::Answers(vec![Outcome::Ack, failed.clone(), Outcome::LeaseLost])));
        assert_eq!(*told.lock().unwrap(), [(0, Outcome::Ack), (1, failed)]);
        batch.bounds.stop.force();
        assert_eq!(run_batch(&ByBody, &batch).await, None);
    }
}
