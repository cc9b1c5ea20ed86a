//! Tests of batches: the event loop on the fake queue, under a paused clock.

use std::sync::Mutex;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;
use crate::trial::{SECOND, consumer, work};
use crate::{Cancellation, Consumer, Requests, Spec, Summary};
use hostler_config::OnTrap;
use hostler_handler::{BatchCall, Call, Handler, Outcome, handle_alone};
use hostler_queue::fake::{Ending, FakeBroker};
use hostler_queue::{Broker, ChannelSpec, LeaseError};
use hostler_types::message::Outgoing;

/// A call of the handler: the bodies of its messages, and the time since the start of the test in seconds.
type Seen = (Vec<String>, u64);

/// Handler that does what the bodies say, one after another: `ack`, `retry`, `done` (early, before another answer in the
/// list), `trap`, `hang`, `work SECONDS`, `until-lost`, `short` (the list of answers then lacks one).
struct Script {
    begin: Instant,
    seen: Mutex<Vec<Seen>>,
}

fn body(call: &Call) -> String {
    String::from_utf8(call.message.body.to_vec()).unwrap()
}

#[async_trait]
impl Handler for Script {
    async fn handle(&self, call: &Call) -> Outcome {
        handle_alone(self, call).await
    }

    async fn handle_batch(&self, batch: &Arc<BatchCall>) -> BatchEnd {
        let bodies: Vec<_> = batch.calls.iter().map(|call| body(call)).collect();
        self.seen.lock().unwrap().push((bodies.clone(), self.begin.elapsed().as_secs()));
        let (mut answers, mut is_short) = (Vec::new(), false);
        for (index, body) in bodies.iter().enumerate() {
            let (verb, rest) = body.split_once(' ').unwrap_or((body, ""));
            match verb {
                "trap" => return BatchEnd::Trapped("poison".into()),
                "hang" => std::future::pending().await,
                "work" => sleep(rest.parse::<u32>().unwrap() * SECOND).await,
                "short" => is_short = true,
                "done" => assert!(batch.answer(index, Outcome::Ack)),
                "until-lost" => {
                    while !batch.is_lost(index) {
                        sleep(SECOND).await;
                    }
                    assert!(!batch.answer(index, Outcome::Ack));
                }
                _ => {}
            }
            answers.push(if matches!(verb, "retry" | "done") { Outcome::Retry(None) } else { Outcome::Ack });
        }
        if is_short {
            answers.pop();
        }
        BatchEnd::Answers(answers)
    }
}

/// A running consumer with batches.
struct Stage {
    broker: FakeBroker,
    script: Arc<Script>,
    phase: watch::Sender<Phase>,
    pause: watch::Sender<bool>,
    requests: Requests,
    running: JoinHandle<Summary>,
}

const BATCH: config::Batch =
    config::Batch { max: 10, wait: Duration::from_secs(2), bytes: 1 << 20, on_trap: OnTrap::Singly };

impl Stage {
    async fn start(batch: config::Batch, bodies: &[&str]) -> Self {
        Self::with(batch, |spec| spec, bodies.iter().map(|body| (*body, None)).collect()).await
    }

    async fn with(
        batch: config::Batch,
        change: impl FnOnce(Spec) -> Spec,
        messages: Vec<(&str, Option<&str>)>,
    ) -> Self {
        let ordered = messages.iter().any(|(_, group)| group.is_some());
        Self::on(ordered, batch, |spec| change(Spec { ordered, ..spec }), messages).await
    }

    /// `ordered`: true if the queue holds back the messages of a group of which one is in flight.
    async fn on(
        ordered: bool,
        batch: config::Batch,
        change: impl FnOnce(Spec) -> Spec,
        messages: Vec<(&str, Option<&str>)>,
    ) -> Self {
        let broker = FakeBroker::default();
        let channel = ChannelSpec { ordered, max_receives: Some(5), ..ChannelSpec::new(work()) };
        let queue = broker.open(&channel).await.unwrap();
        let outgoing = messages.into_iter().map(|(body, group)| Outgoing {
            body: body.into(),
            group: group.map(str::to_owned),
            ..Outgoing::default()
        });
        for sent in broker.send(&work(), outgoing.collect()).await {
            sent.unwrap();
        }
        let script = Arc::new(Script { begin: Instant::now(), seen: Mutex::default() });
        let consumer = consumer(queue);
        let ((phase, watched), (pause, paused)) = (watch::channel(Phase::Running), watch::channel(false));
        let requests = Requests::default();
        let mut spec = change(Spec { batch: Some(batch), concurrency: 2, ..consumer.spec });
        // What is released comes again only after the end of the test.
        spec.policy.retry.requeue_delay = 3600 * SECOND;
        let handler = Arc::clone(&script) as Arc<dyn Handler>;
        let consumer = Consumer { spec, handler, pause: paused, requests: requests.clone(), ..consumer };
        let running = tokio::spawn(consumer.run(watched));
        Self { broker, script, phase, pause, requests, running }
    }

    /// Waits until this many settlements have taken effect, ends the consumer, and returns its summary.
    async fn end_after(self, settled: usize) -> (Stages, Summary) {
        timeout(3600 * SECOND, self.broker.until_settled(settled)).await.expect("not settled");
        self.phase.send_replace(Phase::Draining);
        let summary = timeout(3600 * SECOND, self.running).await.expect("not ended").unwrap();
        (Stages { broker: self.broker, script: self.script }, summary)
    }
}

/// The rest of a stage after its end.
struct Stages {
    broker: FakeBroker,
    script: Arc<Script>,
}

impl Stages {
    fn seen(&self) -> Vec<Seen> {
        self.script.seen.lock().unwrap().clone()
    }

    /// Returns the number of settlements of each kind: acks, releases, dead letters. All are of first attempts.
    fn first_endings(&self) -> (usize, usize, usize) {
        let settled = self.broker.settled();
        assert!(settled.iter().all(|one| one.attempt == 1), "{settled:?}");
        let count = |is: fn(&Ending) -> bool| settled.iter().filter(|one| is(&one.what)).count();
        (
            count(|what| matches!(what, Ending::Ack)),
            count(|what| matches!(what, Ending::Release(_))),
            count(|what| matches!(what, Ending::DeadLetter(_))),
        )
    }
}

/// Returns the answer to a request once the loop has taken it.
async fn answered<T>(answer: std::sync::mpsc::Receiver<T>) -> T {
    sleep(Duration::from_millis(1)).await;
    answer.try_recv().expect("no answer")
}

fn bodies(list: &[&str]) -> Vec<String> {
    list.iter().map(|body| (*body).to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_full_batch_starts_at_once_and_the_rest_after_the_wait() {
    let batch = config::Batch { max: 3, ..BATCH };
    let (ended, summary) = Stage::start(batch, &["ack"; 8]).await.end_after(8).await;
    let seen: Vec<_> = ended.seen().into_iter().map(|(bodies, at)| (bodies.len(), at)).collect();
    assert_eq!(seen, [(3, 0), (3, 0), (2, 2)]);
    assert_eq!((ended.first_endings(), summary.processed, summary.failed), ((8, 0, 0), 8, 0));
}

#[tokio::test(start_paused = true)]
async fn leases_are_kept_while_a_batch_gathers() {
    let batch = config::Batch { wait: 60 * SECOND, ..BATCH };
    let (ended, _) = Stage::start(batch, &["ack"; 2]).await.end_after(2).await;
    assert_eq!(ended.seen(), [(bodies(&["ack"; 2]), 60)]);
    assert_eq!(ended.first_endings(), (2, 0, 0));
    assert!(ended.broker.extended().len() >= 6, "every ten seconds: {:?}", ended.broker.extended());
}

#[tokio::test(start_paused = true)]
async fn a_batch_takes_one_slot_and_has_no_more_bytes_than_it_may() {
    let batch = config::Batch { max: 10, bytes: 20, ..BATCH };
    let stage = Stage::with(batch, |spec| Spec { concurrency: 1, ..spec }, vec![("work 9", None); 8]).await;
    let (ended, _) = stage.end_after(8).await;
    let seen: Vec<_> = ended.seen().into_iter().map(|(bodies, at)| (bodies.len(), at)).collect();
    assert_eq!(seen[..2], [(3, 0), (3, 27)], "three of six bytes each, one batch after another");
    assert_eq!(ended.first_endings(), (8, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn after_a_trap_the_rest_runs_singly_and_only_the_poison_fails() {
    let (ended, summary) = Stage::start(BATCH, &["ack", "done", "trap", "work 5", "retry"]).await.end_after(5).await;
    let seen: Vec<_> = ended.seen().into_iter().collect();
    let [whole, singles @ ..] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(*whole, (bodies(&["ack", "done", "trap", "work 5", "retry"]), 2));
    let expected = ["ack", "trap", "work 5", "retry"].map(|body| bodies(&[body]));
    assert_eq!(singles.iter().map(|single| single.0.clone()).collect::<Vec<_>>()[..4], expected);
    assert_eq!((singles[2].1, singles[3].1), (2, 7), "one after another");
    // The message that was done is settled once, by its early answer.
    assert_eq!((ended.first_endings(), summary.failed), ((3, 2, 0), 1));
}

#[tokio::test(start_paused = true)]
async fn with_fail_a_trap_fails_what_has_no_answer() {
    let batch = config::Batch { on_trap: OnTrap::Fail, ..BATCH };
    let (ended, summary) = Stage::start(batch, &["done", "ack", "trap", "ack"]).await.end_after(4).await;
    assert_eq!(ended.seen().len(), 1);
    assert_eq!((ended.first_endings(), summary.failed), ((1, 3, 0), 3));
}

#[tokio::test(start_paused = true)]
async fn another_number_of_answers_fails_what_is_not_settled() {
    let (ended, summary) = Stage::start(BATCH, &["done", "short", "ack"]).await.end_after(3).await;
    assert_eq!((ended.seen().len(), ended.first_endings(), summary.failed), (1, (1, 2, 0), 2));
}

#[tokio::test(start_paused = true)]
async fn after_a_timeout_only_the_message_that_hangs_times_out() {
    let (ended, _) = Stage::start(BATCH, &["ack", "hang", "ack"]).await.end_after(3).await;
    let times: Vec<_> = ended.seen().into_iter().map(|(bodies, at)| (bodies.len(), at)).collect();
    assert_eq!(times[..4], [(3, 2), (1, 62), (1, 62), (1, 122)]);
    assert_eq!(ended.first_endings(), (2, 1, 0));
    let batch = config::Batch { on_trap: OnTrap::Fail, ..BATCH };
    let (ended, summary) = Stage::start(batch, &["ack", "hang", "done"]).await.end_after(3).await;
    assert_eq!((ended.seen().len(), ended.first_endings(), summary.failed), (1, (0, 3, 0), 3));
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_told_and_the_others_are_settled() {
    let stage = Stage::start(BATCH, &["until-lost", "ack"]).await;
    sleep(5 * SECOND).await;
    let lost = stage.broker.id_of(b"until-lost");
    stage.broker.fail_message(&lost, 1, &LeaseError::Lost("as told".into()));
    timeout(600 * SECOND, stage.broker.until_settled(1)).await.expect("not settled");
    let settled = stage.broker.settled();
    assert!(settled[0].id != lost && settled[0].what == Ending::Ack, "{settled:?}");
    stage.phase.send_replace(Phase::Deadline);
    timeout(600 * SECOND, stage.running).await.expect("not ended").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_has_lost_all_its_leases_is_stopped() {
    let stage = Stage::start(BATCH, &["done", "hang"]).await;
    sleep(5 * SECOND).await;
    let lost = stage.broker.id_of(b"hang");
    stage.broker.fail_message(&lost, 1, &LeaseError::Lost("as told".into()));
    sleep(20 * SECOND).await;
    // If the guest still ran, the consumer could not end.
    stage.phase.send_replace(Phase::Draining);
    timeout(20 * SECOND, stage.running).await.expect("not ended").unwrap();
    assert_eq!(stage.broker.settled().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_drain_gives_back_what_was_gathered() {
    let stage = Stage::start(config::Batch { wait: 60 * SECOND, ..BATCH }, &["ack"; 3]).await;
    sleep(5 * SECOND).await;
    let (ended, summary) = stage.end_after(0).await;
    assert_eq!((ended.seen().len(), ended.first_endings(), summary), (0, (0, 3, 0), Summary::default()));
}

#[tokio::test(start_paused = true)]
async fn a_pause_gives_back_what_was_gathered_and_lets_a_batch_finish() {
    let stage = Stage::start(config::Batch { max: 2, ..BATCH }, &["work 9", "work 9", "ack"]).await;
    sleep(SECOND).await;
    stage.pause.send_replace(true);
    sleep(30 * SECOND).await;
    let (ended, _) = stage.end_after(3).await;
    assert_eq!((ended.seen().len(), ended.first_endings()), (1, (2, 1, 0)));
}

#[tokio::test(start_paused = true)]
async fn at_the_drain_deadline_a_batch_is_stopped_and_released() {
    let stage = Stage::start(BATCH, &["done", "hang", "ack"]).await;
    sleep(5 * SECOND).await;
    stage.phase.send_replace(Phase::Draining);
    sleep(5 * SECOND).await;
    stage.phase.send_replace(Phase::Deadline);
    let summary = timeout(20 * SECOND, stage.running).await.expect("not ended").unwrap();
    let ended = Stages { broker: stage.broker, script: stage.script };
    assert_eq!((ended.seen().len(), ended.first_endings(), summary.abandoned), (1, (1, 2, 0), 2));
}

#[tokio::test(start_paused = true)]
async fn a_drain_gives_back_messages_that_wait_for_their_single_runs() {
    let stage = Stage::start(BATCH, &["work 5", "trap", "ack"]).await;
    // The batch starts after two seconds, traps after seven, and the first single run ends after twelve.
    sleep(9 * SECOND).await;
    stage.phase.send_replace(Phase::Draining);
    let (ended, summary) = stage.end_after(3).await;
    assert_eq!((ended.seen().len(), ended.first_endings(), summary.failed), (2, (1, 2, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_traps_in_a_drain_gives_its_messages_back() {
    let stage = Stage::start(BATCH, &["work 5", "trap", "ack"]).await;
    sleep(5 * SECOND).await;
    let (ended, summary) = stage.end_after(0).await;
    assert_eq!((ended.seen().len(), ended.first_endings(), summary.failed), (1, (0, 3, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn a_batch_has_one_message_of_a_group_and_the_next_follows_its_ack() {
    let names: Vec<_> = (1..=4).flat_map(|n| ["a", "b", "c"].map(|group| (format!("ack {group}{n}"), group))).collect();
    let messages = names.iter().map(|(body, group)| (&**body, Some(*group))).collect();
    let batch = config::Batch { wait: Duration::ZERO, ..BATCH };
    let (ended, _) = Stage::with(batch, |spec| spec, messages).await.end_after(12).await;
    let seen: Vec<_> = ended.seen().into_iter().map(|seen| seen.0).collect();
    for bodies in &seen {
        let mut groups: Vec<_> = bodies.iter().map(|body| &body[..5]).collect();
        groups.dedup();
        assert_eq!(groups.len(), bodies.len(), "{seen:?}");
    }
    let of_group =
        |group: &str| seen.concat().into_iter().filter(|body| body[4..].starts_with(group)).collect::<Vec<_>>();
    for group in ["a", "b", "c"] {
        assert_eq!(of_group(group), (1..=4).map(|n| format!("ack {group}{n}")).collect::<Vec<_>>(), "{seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_message_fails_and_the_others_of_its_batch_run_singly() {
    let batch = config::Batch { on_trap: OnTrap::Fail, ..BATCH };
    let stage = Stage::start(batch, &["ack", "hang", "done"]).await;
    sleep(5 * SECOND).await;
    let list = answered(stage.requests.list()).await;
    let hangs = stage.broker.id_of(b"hang");
    let delivery = list.iter().find(|one| one.message_id == hangs).expect("not in flight").delivery;
    let cancelled = answered(stage.requests.cancel(delivery, Instant::now() + SECOND)).await;
    assert_eq!(cancelled, Cancellation::Stopping);
    let (ended, _) = stage.end_after(3).await;
    assert_eq!(ended.seen().iter().map(|seen| seen.0.len()).collect::<Vec<_>>(), [3, 1, 1]);
    assert_eq!(ended.first_endings(), (2, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_batch_does_not_wait_once_no_other_message_can_come() {
    let batch = config::Batch { max: 2, wait: 60 * SECOND, ..BATCH };
    // As SQS does, the queue hands out several messages of a group at once.
    let change = |spec| Spec { ordered: true, concurrency: 1, ..spec };
    let stage = Stage::on(false, batch, change, vec![("ack", Some("a")); 4]).await;
    let (ended, _) = stage.end_after(4).await;
    let times: Vec<_> = ended.seen().into_iter().map(|(_, at)| at).collect();
    assert_eq!(times, [0, 0, 0, 60], "only the last could still have been joined by others");
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_all_its_bytes_does_not_wait() {
    let batch = config::Batch { bytes: 6, wait: 60 * SECOND, ..BATCH };
    let stage = Stage::start(batch, &["ack", "ack"]).await;
    let (stages, _) = stage.end_after(2).await;
    assert_eq!(stages.seen(), [(vec!["ack".to_owned(); 2], 0)]);
}

#[test]
fn a_body_outside_the_queue_counts_with_the_size_that_its_producer_reports() {
    let claim = hostler_types::message::Claim { bucket: "b".into(), key: "k".into(), size: Some(7) };
    let message = Message { claim: Some(claim.into()), ..Message::new("1", "four") };
    assert_eq!(size(&message), 11);
}
