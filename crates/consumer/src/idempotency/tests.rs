use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::super::trial::{self, SECOND};
use super::super::{Phase, Summary};
use super::*;
use hostler_handler::{Call, Handler, Outcome};
use hostler_queue::fake::{Ending, FakeBroker, FakeRecords};
use hostler_queue::{Begin, Begun, Broker, ChannelSpec, Hold, ORIGINAL_ID_ATTRIBUTE, Queue, QueueError, RecordId};
use hostler_types::OutboxError;
use hostler_types::message::{AttributeValue, Outgoing};

const TTL: Duration = Duration::from_secs(3_600);

/// Longest time of the clock under test that a wait may take.
const PATIENCE: Duration = Duration::from_secs(1_000);

/// A handler that does what the member `do` of the body says, each word at one attempt; the last one at all later ones. It sends a message
/// to `out` at each attempt.
#[derive(Default)]
struct Script {
    calls: AtomicUsize,
    /// Calls that were dropped before their end.
    stopped: AtomicUsize,
}

struct Guard<'a>(&'a AtomicUsize, bool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[async_trait]
impl Handler for Script {
    async fn handle(&self, call: &Call) -> Outcome {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let mut guard = Guard(&self.stopped, false);
        let body: serde_json::Value = serde_json::from_slice(&call.message.body).unwrap();
        let acts: Vec<&str> = body["do"].as_str().unwrap_or("ack").split(' ').collect();
        let outbox = call.outbox.as_deref().unwrap();
        let sent = outbox.push(&channel("out"), Outgoing { body: number.to_string().into(), ..Outgoing::default() });
        assert_eq!(sent.unwrap(), "pending-1");
        let outcome = match acts[number.min(acts.len() - 1)] {
            "ack" => Outcome::Ack,
            "reply" => Outcome::Reply(b"done".to_vec()),
            "wait" => {
                tokio::time::sleep(SECOND).await;
                Outcome::Ack
            }
            "fail" => Outcome::Failed("as told".into()),
            "trap" => Outcome::Trapped("as told".into()),
            "bulk" => Outcome::Reply(vec![0; usize::try_from(body["size"].as_u64().unwrap()).unwrap()]),
            "large" => match outbox.push(&channel("out"), Outgoing { body: vec![0; 900_000], ..Outgoing::default() }) {
                Err(OutboxError::Full(_)) => Outcome::Ack,
                other => Outcome::Failed(format!("{other:?}")),
            },
            "decide" => {
                call.decided.set(Outcome::Ack).unwrap();
                guard.1 = true;
                std::future::pending().await
            }
            _ => std::future::pending().await,
        };
        guard.1 = true;
        outcome
    }
}

fn channel(name: &str) -> hostler_types::channel::Channel {
    name.parse().unwrap()
}

/// A consumer of the queue `work`, whose handler sends to `out` and replies to `replies`.
struct Site {
    broker: FakeBroker,
    records: FakeRecords,
    script: Arc<Script>,
    phase: watch::Sender<Phase>,
    running: JoinHandle<Summary>,
    out: Arc<dyn Queue>,
    replies: Arc<dyn Queue>,
}

/// Settings of a [`Site`].
struct Setting {
    is_transactional: bool,
    runs_again: bool,
    processing_timeout: Duration,
}

const SEPARATE: Setting =
    Setting { is_transactional: false, runs_again: true, processing_timeout: Duration::from_secs(60) };
const BOTH: [Setting; 2] = [SEPARATE, Setting { is_transactional: true, ..SEPARATE }];

impl Site {
    async fn new(setting: Setting) -> Self {
        Self::with(setting, 16).await
    }

    async fn with(setting: Setting, concurrency: usize) -> Self {
        let broker = FakeBroker::default();
        let work = ChannelSpec { max_receives: Some(100), ..ChannelSpec::new(trial::work()) };
        let queue = broker.open(&work).await.unwrap();
        let open = async |name| broker.open(&ChannelSpec::new(channel(name))).await.unwrap();
        let (out, replies) = (open("out").await, open("replies").await);
        let records = broker.record_store();
        let producer = Producer::new(Arc::new(broker.clone()), None);
        let mut consumer = trial::consumer(queue);
        let script = Arc::new(Script::default());
        consumer.handler = script.clone();
        consumer.spec.concurrency = concurrency;
        consumer.spec.processing_timeout = setting.processing_timeout;
        consumer.replies =
            Some(Replies { producer: producer.clone(), channel: channel("replies"), from: "work".into() });
        consumer.idempotency = Some(Idempotency {
            key: KeySource::parse("$.id").unwrap(),
            scope: "work".into(),
            records: Arc::new(records.clone()),
            is_transactional: setting.is_transactional,
            ttl: TTL,
            runs_again: setting.runs_again,
            producer,
        });
        let phase = watch::Sender::new(Phase::Running);
        let running = tokio::spawn(consumer.run(phase.subscribe()));
        Self { broker, records, script, phase, running, out, replies }
    }

    async fn send(&self, body: &str) {
        self.send_with(Outgoing { body: body.into(), ..Outgoing::default() }).await;
    }

    async fn send_with(&self, message: Outgoing) {
        self.broker.send(&channel("work"), vec![message]).await.remove(0).unwrap();
    }

    /// Waits until this many settlements have taken effect, and returns them.
    async fn settled(&self, count: usize) -> Vec<Ending> {
        timeout(PATIENCE, self.broker.until_settled(count)).await.unwrap();
        self.broker.settled().into_iter().map(|logged| logged.what).collect()
    }

    fn calls(&self) -> usize {
        self.script.calls.load(Ordering::Relaxed)
    }

    async fn end(self) {
        self.phase.send_replace(Phase::Draining);
        timeout(PATIENCE, self.running).await.unwrap().unwrap();
    }
}

/// Takes all messages of a queue that are visible, and returns their bodies.
async fn bodies(queue: &Arc<dyn Queue>) -> Vec<String> {
    let request = hostler_queue::Receive { max: 10, wait: Duration::ZERO, lease: 60 * SECOND };
    let received = queue.receive(request, &tokio_util::sync::CancellationToken::new()).await.unwrap();
    received.iter().map(|delivery| String::from_utf8_lossy(&delivery.message.body).into_owned()).collect()
}

fn record(id: &str) -> RecordId {
    RecordId::new("work", &format!("\"{id}\""))
}

#[tokio::test(start_paused = true)]
async fn a_key_is_processed_once_and_answered_each_time() {
    for setting in BOTH {
        let site = Site::new(setting).await;
        site.send(r#"{"id":"a","do":"reply"}"#).await;
        assert_eq!(site.settled(1).await, [Ending::Ack]);
        site.send(r#"{"id":"a","do":"reply"}"#).await;
        assert_eq!(site.settled(2).await, [Ending::Ack, Ending::Ack]);
        assert_eq!(site.calls(), 1);
        assert_eq!(bodies(&site.out).await, ["0"], "what the handler sent goes out once");
        assert_eq!(bodies(&site.replies).await, ["done", "done"], "each message is answered");
        let record = site.records.state_of(record("a")).unwrap();
        assert!(record.is_done && record.unsent.is_none(), "{record:?}");
        assert_eq!(record.label, "work \"a\"");
        site.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_forgotten_after_its_time() {
    let site = Site::new(SEPARATE).await;
    site.send(r#"{"id":"a"}"#).await;
    site.settled(1).await;
    tokio::time::sleep(TTL).await;
    site.send(r#"{"id":"a"}"#).await;
    site.settled(2).await;
    assert_eq!(site.calls(), 2);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_failed_attempt_sent_is_dropped_and_the_next_one_runs() {
    for setting in BOTH {
        let site = Site::new(setting).await;
        site.send(r#"{"id":"a","do":"fail trap ack"}"#).await;
        assert_eq!(site.settled(3).await, [Ending::Release(SECOND), Ending::Release(SECOND), Ending::Ack]);
        assert_eq!(site.calls(), 3);
        assert_eq!(bodies(&site.out).await, ["2"]);
        site.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn another_body_and_no_key_are_dead_lettered() {
    let site = Site::new(SEPARATE).await;
    site.send(r#"{"id":"a"}"#).await;
    site.settled(1).await;
    site.send(r#"{"id":"a","x":1}"#).await;
    site.settled(2).await;
    site.send(r#"{"x":1}"#).await;
    let settled = site.settled(3).await;
    let [Ending::Ack, Ending::DeadLetter(other), Ending::DeadLetter(none)] = &settled[..] else {
        panic!("{settled:?}")
    };
    assert_eq!(other, "the key \"a\" was used for a message with another body");
    assert_eq!(none, "the message has no idempotency key: `$.id` is not in the body");
    assert_eq!(site.calls(), 1);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn without_its_store_no_handler_runs_and_no_attempt_counts() {
    let site = Site::new(SEPARATE).await;
    let down = QueueError::Unavailable("down".to_owned());
    // The first failure has begun the run. Each attempt asks the store to begin it, and then to end it.
    site.records.fail_after(1, &down);
    site.records.fail_next(25, &down);
    site.send(r#"{"id":"a"}"#).await;
    let settled = site.settled(14).await;
    let (last, others) = settled.split_last().unwrap();
    assert_eq!(*last, Ending::Ack);
    // The policy gives up after ten attempts.
    assert!(others.iter().all(|ending| matches!(ending, Ending::Release(_))), "{others:?}");
    assert_eq!(site.calls(), 1);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_holds_up_a_message_for_a_limited_time() {
    let site = Site::new(SEPARATE).await;
    site.records.hold(true);
    site.send(r#"{"id":"a"}"#).await;
    let settled = site.settled(1).await;
    assert!(matches!(settled[..], [Ending::Release(_)]), "{settled:?}");
    site.records.hold(false);
    assert_eq!(site.settled(2).await[1], Ending::Ack);
    assert_eq!(site.calls(), 1);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acked_or_sent_before_the_success_is_recorded() {
    let site = Site::new(SEPARATE).await;
    let begun = Instant::now();
    site.send(r#"{"id":"a","do":"wait"}"#).await;
    // The run has begun.
    tokio::time::sleep(SECOND / 2).await;
    let down = QueueError::Unavailable("down".to_owned());
    site.records.fail_next(3, &down);
    site.records.fail_after(1, &down);
    assert_eq!(site.settled(1).await, [Ending::Ack]);
    assert!(
        begun.elapsed() > SECOND * 3 / 2,
        "it was acked while its success could not be recorded: {:?}",
        begun.elapsed()
    );
    assert_eq!(bodies(&site.out).await, ["0"]);
    assert_eq!(site.calls(), 1);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_run_is_unknown() {
    let stops = Setting { processing_timeout: 5 * SECOND, ..SEPARATE };
    let site = Site::new(Setting { runs_again: false, ..stops }).await;
    site.send(r#"{"id":"a","do":"hang ack"}"#).await;
    let settled = site.settled(2).await;
    let [Ending::Release(_), Ending::DeadLetter(reason)] = &settled[..] else { panic!("{settled:?}") };
    assert_eq!(reason, "an earlier run of the key \"a\" ended without a result");
    assert_eq!(site.calls(), 1);
    // An operator requeues it.
    let original = (ORIGINAL_ID_ATTRIBUTE.to_owned(), AttributeValue::Text("1".to_owned()));
    let body = r#"{"id":"a","do":"hang ack"}"#.into();
    site.send_with(Outgoing { body, attributes: [original].into(), ..Outgoing::default() }).await;
    assert_eq!(site.settled(3).await[2], Ending::Ack);
    assert_eq!(site.calls(), 2);
    // That was one run, and not for good.
    let original = (ORIGINAL_ID_ATTRIBUTE.to_owned(), AttributeValue::Text("2".to_owned()));
    let body = r#"{"id":"b","do":"hang hang hang ack"}"#.into();
    site.send_with(Outgoing { body, attributes: [original].into(), ..Outgoing::default() }).await;
    let settled = site.settled(5).await;
    assert!(matches!(settled[3..], [Ending::Release(_), Ending::DeadLetter(_)]), "{settled:?}");
    assert_eq!(site.calls(), 3);
    site.end().await;

    let site = Site::new(stops).await;
    site.send(r#"{"id":"a","do":"hang ack"}"#).await;
    assert_eq!(site.settled(2).await[1], Ending::Ack);
    assert_eq!(site.calls(), 2);
    assert_eq!(bodies(&site.out).await, ["1"]);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_decision_before_the_stop_is_a_success() {
    for setting in BOTH {
        let site = Site::new(Setting { processing_timeout: 5 * SECOND, ..setting }).await;
        site.send(r#"{"id":"a","do":"decide"}"#).await;
        assert_eq!(site.settled(1).await, [Ending::Ack]);
        assert!(site.records.state_of(record("a")).unwrap().is_done);
        assert_eq!(bodies(&site.out).await, ["0"]);
        site.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_for_the_run_of_its_key() {
    let site = Site::new(SEPARATE).await;
    let hold = Hold { record: record("a"), token: 7 };
    let body = r#"{"id":"a"}"#;
    let begin = Begin {
        hold,
        label: "other host".to_owned(),
        body: hostler_types::digest::sha256(body.as_bytes()),
        lease: 30 * SECOND,
        ttl: TTL,
        takes_over: false,
    };
    assert_eq!(site.records.begin(begin).await, Ok(Begun::Started));
    site.send(body).await;
    let settled = site.settled(1).await;
    assert!(matches!(settled[..], [Ending::Release(delay)] if delay <= SECOND), "{settled:?}");
    assert_eq!(site.records.extend(&[hold], 60 * SECOND).await, [Ok(())]);
    let settled = site.settled(2).await;
    assert!(matches!(settled[1], Ending::Release(_)), "{settled:?}");
    assert_eq!(site.calls(), 0);
    let finish = hostler_queue::Finish { hold, ttl: TTL, reply: Some(b"theirs".to_vec()), unsent: None };
    assert_eq!(site.records.finish(vec![finish]).await, [Ok(())]);
    let before = site.broker.settled().len();
    assert_eq!(site.settled(before + 1).await.last(), Some(&Ending::Ack));
    assert_eq!(site.calls(), 0);
    assert_eq!(bodies(&site.replies).await, ["theirs"]);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_is_extended_with_its_message_and_stops_once_another_has_taken_over() {
    let site = Site::new(Setting { processing_timeout: 500 * SECOND, ..SEPARATE }).await;
    let body = r#"{"id":"a","do":"hang ack"}"#;
    site.send(body).await;
    tokio::time::sleep(100 * SECOND).await;
    let begin = |takes_over| Begin {
        hold: Hold { record: record("a"), token: 7 },
        label: "other host".to_owned(),
        body: hostler_types::digest::sha256(body.as_bytes()),
        lease: 1_000 * SECOND,
        ttl: TTL,
        takes_over,
    };
    assert!(matches!(site.records.begin(begin(true)).await, Ok(Begun::Busy(_))), "the lease of the run has lapsed");
    // The host stands still for longer than the lease; the message of the other host has the same key.
    let own = site.records.state_of(record("a")).unwrap().token;
    let lapse = [(Hold { record: record("a"), token: own }, hostler_queue::RunEnd::Lapse)];
    site.records.end(&lapse).await.unwrap();
    assert_eq!(site.records.begin(begin(true)).await, Ok(Begun::TakenOver));
    let stopped = async {
        while site.script.stopped.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(SECOND).await;
        }
    };
    timeout(100 * SECOND, stopped).await.expect("the handler runs on although another has its key");
    assert_eq!(site.calls(), 1);
    site.phase.send_replace(Phase::Deadline);
    timeout(PATIENCE, site.running).await.unwrap().unwrap();
}

/// Its slot is held, so that no other message fills the memory meanwhile.
#[tokio::test(start_paused = true)]
async fn a_success_with_much_to_send_holds_its_slot_until_it_is_settled() {
    for (size, calls) in [(100_000, 2), (300_000, 1)] {
        let site = Site::with(SEPARATE, 1).await;
        let first = format!(r#"{{"id":"a","do":"bulk","size":{size}}}"#);
        site.broker.hold_settles(true);
        site.send(&first).await;
        site.send(&first.replace("\"a\"", "\"b\"")).await;
        tokio::time::sleep(5 * SECOND).await;
        assert_eq!(site.calls(), calls, "{size}");
        site.broker.hold_settles(false);
        site.settled(2).await;
        site.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn messages_beyond_what_a_record_takes_are_refused() {
    let site = Site::new(SEPARATE).await;
    site.send(r#"{"id":"a","do":"large"}"#).await;
    assert_eq!(site.settled(1).await, [Ending::Ack]);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn messages_that_were_not_noted_as_sent_are_sent_again_by_a_duplicate() {
    let site = Site::new(SEPARATE).await;
    let hold = Hold { record: record("a"), token: 7 };
    let body = r#"{"id":"a"}"#;
    let begin = Begin {
        hold,
        label: String::new(),
        body: hostler_types::digest::sha256(body.as_bytes()),
        lease: SECOND,
        ttl: TTL,
        takes_over: false,
    };
    site.records.begin(begin).await.unwrap();
    let sends = vec![(channel("out"), Outgoing { body: b"late".to_vec(), ..Outgoing::default() })];
    let finish = hostler_queue::Finish { hold, ttl: TTL, reply: None, unsent: Some(unsent::write(&sends)) };
    site.records.finish(vec![finish]).await.remove(0).unwrap();
    site.send(body).await;
    assert_eq!(site.settled(1).await, [Ending::Ack]);
    assert_eq!(bodies(&site.out).await, ["late"]);
    assert_eq!(site.records.state_of(record("a")).unwrap().unsent, None);
    assert_eq!(site.calls(), 0);
    site.end().await;
}

/// The start of the run is under way when its call is stopped.
#[tokio::test(start_paused = true)]
async fn a_run_whose_call_was_stopped_before_it_began_is_ended() {
    let site = Site::new(SEPARATE).await;
    site.records.hold(true);
    site.send(r#"{"id":"a"}"#).await;
    tokio::time::sleep(SECOND).await;
    site.phase.send_replace(Phase::Deadline);
    assert!(matches!(site.settled(1).await[..], [Ending::Release(_)]));
    let Site { records, running, .. } = site;
    timeout(PATIENCE, running).await.unwrap().unwrap();
    records.hold(false);
    tokio::time::sleep(SECOND).await;
    assert_eq!(records.state_of(record("a")), None, "the key is not free");
}

/// The message was not processed, so it did not exceed the processing timeout, for which it would be dead-lettered.
#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_its_body_is_not_dead_lettered_by_its_hook() {
    let call = Call::new(
        Arc::new(Message::new("1", "")),
        "work".into(),
        1,
        hostler_handler::Bounds::new(SECOND),
        hostler_handler::Output::new(0),
    );
    assert_eq!(never_started(&call), None, "the call has no run");
    let site = Site::new(SEPARATE).await;
    let settings = Idempotency {
        key: KeySource::Id,
        scope: "work".into(),
        records: Arc::new(site.records.clone()),
        is_transactional: false,
        ttl: TTL,
        runs_again: true,
        producer: Producer::new(Arc::new(site.broker.clone()), None),
    };
    let run = Arc::new(Run::new(&call.message, &settings, None));
    let call = Call { outbox: Some(run.clone()), ..call };
    assert!(matches!(never_started(&call), Some(Outcome::HostLimit(hostler_handler::Limit::Records, _))));
    run.beginning(Hold { record: record("a"), token: 1 }, None);
    run.running();
    assert_eq!(never_started(&call), None);
    site.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_beyond_what_a_record_takes_is_a_failure() {
    for setting in BOTH {
        let site = Site::new(setting).await;
        site.send(r#"{"id":"a","do":"bulk","size":1048400}"#).await;
        assert_eq!(site.settled(1).await, [Ending::Release(SECOND)]);
        assert_eq!(bodies(&site.replies).await.len(), 0);
        site.phase.send_replace(Phase::Deadline);
    }
}

/// A handler does not start after the signal.
#[tokio::test(start_paused = true)]
async fn a_run_that_begins_during_a_drain_does_not_start_its_handler() {
    let site = Site::new(SEPARATE).await;
    site.records.hold(true);
    site.send(r#"{"id":"a"}"#).await;
    tokio::time::sleep(SECOND).await;
    site.phase.send_replace(Phase::Draining);
    tokio::time::sleep(SECOND).await;
    site.records.hold(false);
    assert_eq!(site.settled(1).await, [Ending::Release(Duration::ZERO)]);
    assert_eq!(site.calls(), 0);
    assert_eq!(site.records.state_of(record("a")), None, "the key is not free");
    timeout(PATIENCE, site.running).await.unwrap().unwrap();
}
