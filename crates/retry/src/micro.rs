//! The service's answers to discovery by NATS micro: `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`.
//!
//! The client library has such answers too, but its endpoints end without a drain, which would lose requests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{Client, Subscriber};
use futures_util::StreamExt as _;
use futures_util::stream::select_all;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::accept::may_be_answered;
use hostler_types::Timestamp;

/// Name of the service.
const NAME: &str = "hostler-retry";

/// Description of the service.
const DESCRIPTION: &str = "Stores messages, and delivers them until a receiver acknowledges them";

/// Name of the endpoint that takes messages.
const ENDPOINT: &str = "ingest";

/// Questions that a service answers.
const VERBS: [&str; 3] = ["PING", "INFO", "STATS"];

/// Numbers of the requests that wait for a reply.
#[derive(Debug)]
struct Counts {
    begun: Instant,
    taken: u64,
    answered: u64,
    errors: u64,
    last_error: String,
    /// Sums of the times, counted from `begun`, at which requests came and were answered.
    came: Duration,
    left: Duration,
}

/// Counts of the service, which its tasks share.
#[derive(Debug, Clone)]
pub(crate) struct Tally(Arc<Mutex<Counts>>);

impl Tally {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Counts {
            begun: Instant::now(),
            taken: 0,
            answered: 0,
            errors: 0,
            last_error: String::new(),
            came: Duration::ZERO,
            left: Duration::ZERO,
        })))
    }

    fn change(&self, change: impl FnOnce(&mut Counts, Duration)) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = counts.begun.elapsed();
        change(&mut counts, now);
    }

    /// Counts a request that waits for a reply.
    pub(crate) fn taken(&self) {
        self.change(|counts, now| {
            counts.taken += 1;
            counts.came += now;
        });
    }

    /// Counts a reply. `error`: the code and the text of an error.
    pub(crate) fn answered(&self, error: Option<(u16, &str)>) {
        self.change(|counts, now| {
            counts.answered += 1;
            counts.left += now;
            if let Some((code, text)) = error {
                counts.errors += 1;
                counts.last_error = format!("{code}:{text}");
            }
        });
    }

    /// Returns the numbers of the endpoint.
    fn told(&self) -> Value {
        let mut told = Value::Null;
        self.change(|counts, now| {
            // Requests in progress count with the time that they have taken up to now.
            let waiting = u32::try_from(counts.taken.saturating_sub(counts.answered)).unwrap_or(u32::MAX);
            let took = (counts.left + now * waiting).saturating_sub(counts.came);
            let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            told = json!({
                "num_requests": counts.answered,
                "num_errors": counts.errors,
                "last_error": counts.last_error,
                "processing_time": took,
                "average_processing_time": took.checked_div(counts.answered).unwrap_or(0),
            });
        });
        told
    }
}

/// The service's description of itself.
pub(crate) struct Card {
    id: String,
    started: Timestamp,
    subject: String,
    queue_group: String,
    tally: Tally,
}

impl Card {
    /// Creates the card of an instance. `subject`: that of the requests.
    pub(crate) fn new(subject: &str, queue_group: &str, tally: Tally) -> Self {
        let id = Uuid::now_v7().simple().to_string();
        let (subject, queue_group) = (subject.to_owned(), queue_group.to_owned());
        Self { id, started: Timestamp::now(), subject, queue_group, tally }
    }

    /// Returns the subjects on which a question comes: to all services, to those of this name, and to this instance.
    fn subjects(&self, verb: &str) -> [String; 3] {
        [format!("$SRV.{verb}"), format!("$SRV.{verb}.{NAME}"), format!("$SRV.{verb}.{NAME}.{}", self.id)]
    }

    /// Returns the answer to the question that came on a subject.
    fn answer(&self, subject: &str) -> Value {
        let verb = subject.split('.').nth(1).unwrap_or_default();
        let mut answer = json!({
            "type": format!("io.nats.micro.v1.{}_response", verb.to_ascii_lowercase()),
            "name": NAME,
            "id": self.id,
            "version": env!("CARGO_PKG_VERSION"),
            "metadata": {},
        });
        let mut endpoint = json!({ "name": ENDPOINT, "subject": self.subject, "queue_group": self.queue_group });
        match verb {
            "INFO" => {
                endpoint["metadata"] = json!({});
                answer["description"] = json!(DESCRIPTION);
                answer["endpoints"] = json!([endpoint]);
            }
            "STATS" => {
                if let (Some(endpoint), Value::Object(numbers)) = (endpoint.as_object_mut(), self.tally.told()) {
                    endpoint.extend(numbers);
                }
                answer["started"] = json!(self.started);
                answer["endpoints"] = json!([endpoint]);
            }
            _ => {}
        }
        answer
    }

    /// Subscribes to the questions.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) async fn listen(&self, client: &Client) -> Result<Vec<Subscriber>, String> {
        let mut questions = Vec::new();
        for subject in VERBS.iter().flat_map(|verb| self.subjects(verb)) {
            questions.push(client.subscribe(subject).await.map_err(|error| error.to_string())?);
        }
        Ok(questions)
    }

    /// Answers questions until `stop`.
    pub(crate) async fn serve(&self, client: &Client, questions: Vec<Subscriber>, stop: &CancellationToken) {
        let mut questions = select_all(questions);
        loop {
            let question = tokio::select! {
                question = questions.next() => question,
                () = stop.cancelled() => return,
            };
            let Some(question) = question else { return };
            let Some(reply) = question.reply.filter(|reply| may_be_answered(reply)) else { continue };
            let answer = self.answer(&question.subject).to_string();
            if let Err(error) = client.publish(reply, answer.into()).await {
                tracing::debug!(%error, "a question about the service cannot be answered");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_answers_have_the_form_of_nats_micro() {
        let tally = Tally::new();
        let card = Card::new("retry.>", "hostler-retry", tally.clone());
        let of = |verb: &str| card.answer(&card.subjects(verb)[2]);
        for verb in VERBS {
            let answer = card.answer(&format!("$SRV.{verb}"));
            assert_eq!(answer["type"], format!("io.nats.micro.v1.{}_response", verb.to_lowercase()));
            assert_eq!((&answer["name"], answer["id"].as_str()), (&json!("hostler-retry"), Some(&*card.id)));
            assert!(!answer["version"].as_str().unwrap().is_empty());
        }
        let endpoint = &of("INFO")["endpoints"][0];
        assert_eq!((&endpoint["name"], &endpoint["subject"]), (&json!("ingest"), &json!("retry.>")));
        assert_eq!(of("STATS")["endpoints"][0]["average_processing_time"], 0);
        (0..3).for_each(|_| tally.taken());
        tokio::time::advance(Duration::from_millis(2)).await;
        tally.answered(None);
        tally.answered(Some((503, "the store is full")));
        tokio::time::advance(Duration::from_millis(6)).await;
        let numbers = &of("STATS")["endpoints"][0];
        let expected = json!({
            "name": "ingest", "subject": "retry.>", "queue_group": "hostler-retry", "num_requests": 2, "num_errors": 1,
            "last_error": "503:the store is full", "processing_time": 12_000_000, "average_processing_time": 6_000_000,
        });
        assert_eq!(*numbers, expected);
    }
}
