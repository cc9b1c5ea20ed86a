//! Answers requests that `hostler inflight` and `hostler cancel` send to this host. Takes the requests from their folder, and
//! asks the consumers.
//!
//! Runs on the health thread, because the control thread must not wait for files. A consumer answers as soon as its event loop
//! wakes, which takes microseconds unless the control thread hangs.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use hostler_consumer::{Cancellation, InFlight, Requests as Consumer};
use hostler_health::{Answer, CancelResult, MessageReport, Question, Report, Requests};

/// Minimum interval between two checks for requests.
const LOOKING: Duration = Duration::from_millis(500);

/// Maximum time to wait for the answers of consumers during one check for requests. The health thread does not write the health
/// file during this wait. No report is delayed by the wait, because answers take this long only if the control thread hangs, and
/// a control thread that hangs creates no reports.
const PATIENCE: Duration = Duration::from_secs(1);

/// Takes requests from their folder, and answers them.
pub(super) struct RequestDesk {
    requests: Requests,
    consumers: Vec<(String, Consumer)>,
    looked_at: Option<Instant>,
    is_failing: bool,
}

/// A consumer, and the messages that it has in flight.
struct Listed<'a> {
    name: &'a str,
    consumer: &'a Consumer,
    messages: Vec<InFlight>,
}

impl RequestDesk {
    pub(super) fn new(health_file: &Path, consumers: Vec<(String, Consumer)>) -> Self {
        Self { requests: Requests::beside(health_file), consumers, looked_at: None, is_failing: false }
    }

    /// Answers the requests that are addressed to this host. `own` is the last report of this host, which identifies the host.
    pub(super) fn look(&mut self, own: &Report) {
        if self.looked_at.is_some_and(|at| at.elapsed() < LOOKING) {
            return;
        }
        self.looked_at = Some(Instant::now());
        let until = Instant::now() + PATIENCE;
        let answered = self.requests.take(own).and_then(|taken| {
            let mut answered = Ok(());
            // The request files are gone, so an answer that cannot be written must not stop the other requests.
            for taken in taken {
                let answer = self.answer(&taken.question, until);
                answered = answered.and(taken.answer(&answer));
            }
            answered
        });
        if let (Err(error), false) = (&answered, self.is_failing) {
            tracing::warn!(%error, "cannot answer `hostler inflight` and `hostler cancel`");
        }
        self.is_failing = answered.is_err();
    }

    fn answer(&self, question: &Question, until: Instant) -> Answer {
        let answer = match question {
            Question::List => self.list(None, until).map(|listed| in_flight(&listed)),
            Question::Cancel { message_id, consumer } => self
                .list(consumer.as_deref(), until)
                .and_then(|listed| cancel(&with_message(listed, message_id), until)),
        };
        answer.unwrap_or_else(Answer::Stuck)
    }

    /// Returns the messages in flight of each consumer. If `only` is set, returns those of the consumer with this name
    /// only. The error is the name of a consumer that did not answer before `until`.
    fn list(&self, only: Option<&str>, until: Instant) -> Result<Vec<Listed<'_>>, String> {
        let meant = self.consumers.iter().filter(|(name, _)| only.is_none_or(|only| name == only));
        // Asks all consumers before waiting for the first answer.
        let asked: Vec<_> = meant.map(|(name, consumer)| (name, consumer, consumer.list())).collect();
        let listed = asked.into_iter().map(|(name, consumer, answer)| {
            let messages = wait(&answer, until).map_err(|Stuck| name.clone())?.unwrap_or_default();
            Ok(Listed { name, consumer, messages })
        });
        listed.collect()
    }
}

/// Error for a consumer that did not answer in time.
struct Stuck;

/// Waits for an answer until `until`. `None`: the consumer has not started yet, or has ended.
fn wait<T>(answer: &Receiver<T>, until: Instant) -> Result<Option<T>, Stuck> {
    match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(answer) => Ok(Some(answer)),
        Err(RecvTimeoutError::Disconnected) => Ok(None),
        Err(RecvTimeoutError::Timeout) => Err(Stuck),
    }
}

/// Returns an answer with the messages in flight, grouped by consumer. The oldest message of a consumer comes first.
fn in_flight(listed: &[Listed<'_>]) -> Answer {
    let mut reports = Vec::new();
    for Listed { name, messages, .. } in listed {
        let mut messages: Vec<_> = messages.iter().collect();
        messages.sort_by_key(|message| std::cmp::Reverse(message.age));
        reports.extend(messages.into_iter().map(|message| report(name, message)));
    }
    Answer::InFlight(reports)
}

fn report(consumer: &str, message: &InFlight) -> MessageReport {
    let seconds = |time: Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
    MessageReport {
        consumer: consumer.to_owned(),
        message_id: message.message_id.clone(),
        attempt: message.attempt,
        state: message.stage.name().to_owned(),
        age_seconds: seconds(message.age),
        time_left_seconds: seconds(message.time_left),
        lease_left_seconds: seconds(message.lease_left),
    }
}

/// Returns the consumers that have this message in flight, each with its deliveries of the message. A queue may have delivered
/// the message to the same consumer twice.
fn with_message<'a>(mut listed: Vec<Listed<'a>>, message_id: &str) -> Vec<Listed<'a>> {
    for one in &mut listed {
        one.messages.retain(|message| message.message_id == message_id);
    }
    listed.retain(|one| !one.messages.is_empty());
    listed
}

/// Cancels the message if exactly one consumer has it in flight. The error is the name of the consumer if it did not answer
/// before `until`.
fn cancel(found: &[Listed<'_>], until: Instant) -> Result<Answer, String> {
    let [Listed { name, consumer, messages }] = found else {
        let names: Vec<_> = found.iter().map(|one| one.name.to_owned()).collect();
        return Ok(if names.is_empty() { Answer::NotInFlight } else { Answer::Several(names) });
    };
    let mut answer = Answer::NotInFlight;
    for InFlight { delivery, attempt, .. } in messages {
        let cancelled = wait(&consumer.cancel(*delivery, until.into()), until).map_err(|Stuck| (*name).to_owned())?;
        let result = match cancelled {
            Some(Cancellation::Stopping) => CancelResult::Stopping,
            Some(Cancellation::AlreadyStopping) => CancelResult::AlreadyStopping,
            Some(Cancellation::Deciding) => CancelResult::Deciding,
            Some(Cancellation::Ended) | None => continue,
        };
        let is_told = matches!(answer, Answer::Cancelled { result: CancelResult::Stopping, .. });
        if !is_told {
            answer = Answer::Cancelled { consumer: (*name).to_owned(), attempt: *attempt, result };
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_consumer::Stage;

    fn listed<'a>(name: &'a str, consumer: &'a Consumer, ids: &[&str]) -> Listed<'a> {
        let messages = ids.iter().zip(1..).map(|(id, delivery)| InFlight {
            delivery,
            message_id: (*id).to_owned(),
            attempt: 1,
            stage: Stage::Running,
            age: Duration::from_secs(delivery),
            time_left: Duration::from_millis(1_500),
            lease_left: Duration::ZERO,
        });
        Listed { name, consumer, messages: messages.collect() }
    }

    #[test]
    fn the_oldest_messages_come_first_by_consumer() {
        let consumer = Consumer::default();
        let Answer::InFlight(reports) =
            in_flight(&[listed("b", &consumer, &["1", "2"]), listed("a", &consumer, &["3"])])
        else {
            panic!("another answer");
        };
        let shown: Vec<_> = reports.iter().map(|one| (&*one.consumer, &*one.message_id, one.age_seconds)).collect();
        assert_eq!(shown, [("b", "2", 2.0), ("b", "1", 1.0), ("a", "3", 1.0)]);
        assert_eq!((reports[0].time_left_seconds, &*reports[0].state), (1.5, "running"));
    }

    #[test]
    fn a_message_of_several_consumers_is_not_cancelled() {
        let consumer = Consumer::default();
        let found =
            |id| with_message(vec![listed("a", &consumer, &["1", "2"]), listed("b", &consumer, &["2", "2"])], id);
        let answer = |id| cancel(&found(id), Instant::now()).unwrap();
        assert_eq!(answer("2"), Answer::Several(vec!["a".into(), "b".into()]));
        assert_eq!(answer("3"), Answer::NotInFlight);
        assert_eq!(answer("1"), Answer::NotInFlight, "its consumer ended meanwhile");
    }

    #[test]
    fn consumers_that_have_not_begun_have_nothing_in_flight() {
        let folder = tempfile::tempdir().unwrap();
        let consumers = vec![("a".to_owned(), Consumer::default())];
        let desk = RequestDesk::new(&folder.path().join("health.json"), consumers);
        let until = Instant::now() + PATIENCE;
        assert_eq!(desk.answer(&Question::List, until), Answer::InFlight(Vec::new()));
        let cancel = Question::Cancel { message_id: "1".into(), consumer: None };
        assert_eq!(desk.answer(&cancel, until), Answer::NotInFlight);
    }

    #[test]
    fn every_request_is_answered_although_the_answer_to_one_cannot_be_written() {
        for (blocked, other) in [("1-1", "1-2"), ("1-2", "1-1")] {
            let folder = tempfile::tempdir().unwrap();
            let mut desk = RequestDesk::new(&folder.path().join("health.json"), Vec::new());
            let own = hostler_health::Clock::start().report(|_| Vec::new());
            let requests = desk.requests.folder().to_owned();
            std::fs::create_dir(&requests).unwrap();
            let request = serde_json::json!({
                "pid": own.pid, "pid_namespace": own.pid_namespace, "started_at": own.started_at, "question": Question::List,
            });
            for name in ["1-1", "1-2"] {
                std::fs::write(requests.join(format!("{name}.request")), request.to_string()).unwrap();
            }
            std::fs::write(requests.join(format!("{blocked}.answer.draft")), "").unwrap();
            desk.look(&own);
            assert!(requests.join(format!("{other}.answer")).exists() && desk.is_failing, "{other}");
        }
    }
}
