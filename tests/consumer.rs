//! The whole consumer on the fake queue, under a paused clock: poll schedule, leases, policy, settler, FIFO gate, drain.

mod asked_again;
mod cancel;
mod held_back;
mod not_due;
mod pushed;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hostler_config::{OnProcessingTimeout, Retry};
use hostler_consumer::{Consumer, Phase, Policy, Requests, Spec, StatusHandle, Summary};
use hostler_handler::{Call, Handler, Outcome, Pools};
use hostler_health::State;
use hostler_queue::fake::{Ending, FakeBroker};
use hostler_queue::{Admin, Broker, ChannelSpec, LeaseError};
use hostler_queue_telemetry::{Producer, Replies};
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

const SECOND: Duration = Duration::from_secs(1);
/// Maximum wait for an event, by the paused clock.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Does what the body says: `ack`, `work SECONDS`, `fail`, `fail-after SECONDS`, `fail-once`, `hang`, `panic`, `reply TEXT`,
/// `delay SECONDS`.
#[derive(Default)]
struct Script {
    runs: Mutex<Vec<Run>>,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
    timeout_decision: Option<Outcome>,
    /// The time that the processing-timeout hook takes.
    hook_takes: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    body: String,
    attempt: u32,
    started_at: Instant,
}

struct AtOnce<'a>(&'a AtomicUsize);

impl Drop for AtOnce<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Handler for Script {
    async fn handle(&self, call: &Call) -> Outcome {
        let _running = AtOnce(&self.at_once);
        let now = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        let body = String::from_utf8(call.message.body.to_vec()).unwrap();
        self.runs.lock().unwrap().push(Run { body: body.clone(), attempt: call.attempt, started_at: Instant::now() });
        let (verb, rest) = body.split_once(' ').unwrap_or((&body, ""));
        match verb {
            "ack" => Outcome::Ack,
            "work" => {
                sleep(Duration::from_secs(rest.parse().unwrap())).await;
                Outcome::Ack
            }
            "fail-once" if call.attempt > 1 => Outcome::Ack,
            "fail" | "fail-once" => Outcome::Failed("as told".into()),
            "fail-after" => {
                sleep(Duration::from_secs(rest.parse().unwrap())).await;
                Outcome::Failed("as told".into())
            }
            "hang" => std::future::pending().await,
            "panic" => panic!("as told"),
            "reply" => Outcome::Reply(rest.into()),
            "delay" => Outcome::Delay(Duration::from_secs(rest.parse().unwrap())),
            _ => panic!("{body}"),
        }
    }

    fn decides_timeouts(&self) -> bool {
        true
    }

    async fn processing_timeout(&self, _: &Call, _: Duration) -> Option<Outcome> {
        sleep(self.hook_takes).await;
        self.timeout_decision.clone()
    }
}

/// A running consumer of the channel `work`, its queue and its handler.
struct Stage {
    broker: FakeBroker,
    script: Arc<Script>,
    phase: watch::Sender<Phase>,
    pause: watch::Sender<bool>,
    requests: Requests,
    status: StatusHandle,
    exit: CancellationToken,
    running: JoinHandle<Summary>,
}

fn spec() -> Spec {
    let retry =
        Retry { requeues: 1, requeue_delay: 5 * SECOND, delays: 1, delay: 60 * SECOND, max_delay: 900 * SECOND };
    Spec {
        name: "test".into(),
        channel: "work".into(),
        ordered: false,
        batch: None,
        concurrency: 16,
        lease: 30 * SECOND,
        processing_timeout: 60 * SECOND,
        delay_tolerance: 120 * SECOND,
        longest_poll: 20 * SECOND,
        rate_limit: None,
        policy: Policy { retry, on_processing_timeout: OnProcessingTimeout::DeadLetter, dead_letter: true },
        breaker: None,
        output: 1024,
    }
}

fn work() -> Channel {
    "work".parse().unwrap()
}

impl Stage {
    async fn start(spec: Spec, bodies: impl IntoIterator<Item = &str>) -> Self {
        Self::with(spec, Script::default(), bodies.into_iter().map(|body| (body, None))).await
    }

    async fn with<'a>(
        spec: Spec,
        script: Script,
        messages: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Self {
        let broker = FakeBroker::default();
        let channel = ChannelSpec { ordered: spec.ordered, max_receives: Some(5), ..ChannelSpec::new(work()) };
        let queue = broker.open(&channel).await.unwrap();
        let script = Arc::new(script);
        let status = StatusHandle::new(Arc::default(), Arc::new(Notify::new()));
        let exit = CancellationToken::new();
        let (phase, watched) = watch::channel(Phase::Running);
        let (pause, paused) = watch::channel(false);
        let requests = Requests::default();
        let consumer = Consumer {
            spec,
            queue,
            handler: script.clone(),
            replies: Some(Replies {
                producer: Producer::new(Arc::new(broker.clone()), None),
                channel: "replies".parse().unwrap(),
                from: "work".into(),
            }),
            idempotency: None,
            guests: Pools::new(Handle::current(), None),
            status: status.clone(),
            metrics: None,
            traces: None,
            pause: paused,
            requests: requests.clone(),
            exit: exit.clone(),
        };
        let messages = messages.into_iter().map(|(body, group)| Outgoing {
            body: body.into(),
            group: group.map(str::to_owned),
            ..Outgoing::default()
        });
        for sent in broker.send(&work(), messages.collect()).await {
            sent.unwrap();
        }
        Self { broker, script, phase, pause, requests, status, exit, running: tokio::spawn(consumer.run(watched)) }
    }

    fn runs(&self) -> Vec<Run> {
        self.script.runs.lock().unwrap().clone()
    }

    /// The bodies in the order in which they ran.
    fn bodies(&self) -> Vec<String> {
        self.runs().into_iter().map(|run| run.body).collect()
    }

    fn endings(&self) -> Vec<Ending> {
        self.broker.settled().into_iter().map(|settled| settled.what).collect()
    }

    async fn until_started(&self, count: usize) {
        let started = async {
            while self.runs().len() < count {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, started).await.expect("not started");
    }

    async fn until_settled(&self, count: usize) {
        timeout(PATIENCE, self.broker.until_settled(count)).await.expect("not settled");
    }

    /// Waits for its end, and returns what it did.
    async fn ended(self) -> Summary {
        timeout(PATIENCE, self.running).await.expect("not ended").unwrap()
    }

    async fn drained(self) -> Summary {
        self.phase.send_replace(Phase::Draining);
        self.ended().await
    }
}

#[tokio::test(start_paused = true)]
async fn at_saturation_a_message_costs_a_quarter_of_a_call() {
    let spec = Spec { concurrency: 20, ..spec() };
    let stage = Stage::start(spec, vec!["work 1"; 1000]).await;
    stage.until_settled(1000).await;
    let calls = stage.broker.calls();
    assert!(stage.endings().iter().all(|ending| *ending == Ending::Ack));
    let total = calls.receive + calls.extend + calls.settle;
    assert!(total <= 250, "{calls:?}");
    assert_eq!(stage.script.most_at_once.load(Ordering::SeqCst), 20, "all slots and no more");
    assert_eq!(stage.drained().await.processed, 1000);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_carry_a_message_far_beyond_its_lease_and_stop_before_it_is_settled() {
    let spec = Spec { processing_timeout: 400 * SECOND, ..spec() };
    let stage = Stage::start(spec, ["work 300"]).await;
    stage.until_settled(1).await;
    assert_eq!(stage.runs().len(), 1);
    let extended = stage.broker.extended();
    assert!((29..=31).contains(&extended.len()), "{} heartbeats", extended.len());
    sleep(120 * SECOND).await;
    assert_eq!(stage.broker.extended().len(), extended.len(), "none follows");
    let settled_at = stage.broker.settled()[0].at;
    assert!(extended.iter().all(|extension| extension.at <= settled_at));
}

#[tokio::test(start_paused = true)]
async fn throttled_heartbeats_are_tried_again_within_the_lease() {
    let stage = Stage::start(spec(), ["work 50"]).await;
    stage.broker.fail_extends(5, &LeaseError::Retry("throttled".into()));
    stage.until_settled(1).await;
    assert_eq!((stage.runs().len(), stage.endings()), (1, vec![Ending::Ack]));
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_cancels_the_handler_and_settles_nothing() {
    let stage = Stage::start(spec(), ["hang"]).await;
    stage.until_started(1).await;
    let started_at = stage.runs()[0].started_at;
    stage.broker.fail_extends(1, &LeaseError::Lost("taken".into()));
    stage.until_started(2).await;
    assert_eq!(stage.script.most_at_once.load(Ordering::SeqCst), 1, "the first run ended before the second began");
    assert!(stage.runs()[1].started_at - started_at >= 29 * SECOND);
    assert_eq!(stage.endings(), []);
    assert_eq!(stage.runs()[1].attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_extended_is_lost_at_its_deadline_by_our_own_clock() {
    let stage = Stage::start(spec(), ["work 45"]).await;
    stage.broker.fail_extends(100, &LeaseError::Retry("unreachable".into()));
    stage.until_started(2).await;
    let between = stage.runs()[1].started_at - stage.runs()[0].started_at;
    assert!((29..=31).contains(&between.as_secs()), "{between:?}");
    assert_eq!(stage.script.most_at_once.load(Ordering::SeqCst), 1);
    assert_eq!(stage.endings(), []);
}

#[tokio::test(start_paused = true)]
async fn failures_escalate_and_end_in_the_dead_letter_queue() {
    let stage = Stage::start(spec(), ["fail"]).await;
    stage.until_settled(3).await;
    let endings = stage.endings();
    assert_eq!(endings[0], Ending::Release(5 * SECOND));
    assert!(matches!(endings[1], Ending::Release(delay) if delay <= 60 * SECOND));
    assert_eq!(endings[2], Ending::DeadLetter("as told (gave up after 3 attempts)".into()));
    assert_eq!(stage.runs().iter().map(|run| run.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    let summary = stage.drained().await;
    assert_eq!((summary.processed, summary.failed), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_processing_timeout_stops_the_handler_and_dead_letters() {
    let stage = Stage::start(spec(), ["hang"]).await;
    stage.until_settled(1).await;
    let took = stage.broker.settled()[0].at - stage.runs()[0].started_at;
    assert!(took >= 60 * SECOND && took < 61 * SECOND, "{took:?}");
    assert_eq!(stage.endings(), [Ending::DeadLetter("processing timeout after 60.000 s".into())]);
    assert_eq!(stage.script.at_once.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn the_timeout_hook_decides() {
    let script = Script { timeout_decision: Some(Outcome::Delay(7 * SECOND)), ..Script::default() };
    let stage = Stage::with(spec(), script, [("hang", None)]).await;
    stage.until_settled(1).await;
    assert_eq!(stage.endings(), [Ending::Release(7 * SECOND)]);
}

#[tokio::test(start_paused = true)]
async fn the_timeout_hook_replies_as_a_handler_does() {
    let script = Script { timeout_decision: Some(Outcome::Reply(b"too late".to_vec())), ..Script::default() };
    let stage = Stage::with(spec(), script, [("hang", None)]).await;
    stage.until_settled(1).await;
    assert_eq!(stage.endings(), [Ending::Ack]);
    assert_eq!(stage.broker.depths(&["replies".parse().unwrap()]).await.unwrap()[0].visible, 1);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_that_the_hook_decided_does_not_exit() {
    let mut spec = spec();
    spec.policy.on_processing_timeout = OnProcessingTimeout::Exit;
    let script = Script { timeout_decision: Some(Outcome::Ack), ..Script::default() };
    let stage = Stage::with(spec, script, [("hang", None), ("ack", None)]).await;
    stage.until_settled(2).await;
    assert_eq!(stage.endings(), [Ending::Ack, Ending::Ack]);
    let exit = stage.exit.clone();
    stage.drained().await;
    assert!(!exit.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_timeout_with_exit_asks_the_host_to_exit() {
    let mut spec = spec();
    spec.policy.on_processing_timeout = OnProcessingTimeout::Exit;
    let stage = Stage::start(spec, ["hang"]).await;
    timeout(PATIENCE, stage.exit.cancelled()).await.expect("no exit");
    assert_eq!(stage.endings(), [Ending::Release(5 * SECOND)], "settled first");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_fails_its_message_and_nothing_else() {
    let stage = Stage::start(spec(), ["panic", "ack"]).await;
    stage.until_settled(2).await;
    let endings = stage.endings();
    assert!(endings.contains(&Ending::Ack) && endings.contains(&Ending::Release(5 * SECOND)), "{endings:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reply_is_sent_before_the_ack_and_its_failure_is_the_message_s() {
    let too_large = format!("reply {}", "x".repeat(1024 * 1024 - "reply ".len()));
    let stage = Stage::start(spec(), ["reply hello", too_large.as_str()]).await;
    stage.until_settled(2).await;
    let depth = stage.broker.depths(&["replies".parse().unwrap()]).await.unwrap();
    assert_eq!(depth[0].visible, 1);
    let endings = stage.endings();
    assert!(endings.contains(&Ending::Ack) && endings.contains(&Ending::Release(5 * SECOND)), "{endings:?}");
}

#[tokio::test(start_paused = true)]
async fn order_holds_within_a_group_across_a_failure_and_groups_run_side_by_side() {
    let spec = Spec { ordered: true, ..spec() };
    let messages = [("fail-once", Some("a")), ("work 1", Some("a")), ("work 2", Some("b")), ("ack", Some("b"))];
    let stage = Stage::with(spec, Script::default(), messages).await;
    stage.until_settled(5).await;
    let (mut a, mut b) = (stage.bodies(), stage.bodies());
    a.retain(|body| ["fail-once", "work 1"].contains(&body.as_str()));
    b.retain(|body| ["work 2", "ack"].contains(&body.as_str()));
    assert_eq!(a, ["fail-once", "fail-once", "work 1"]);
    assert_eq!(b, ["work 2", "ack"]);
    let runs = stage.runs();
    let started = |body: &str| runs.iter().find(|run| run.body == body).unwrap().started_at;
    assert!(started("ack") < started("work 1"), "b does not wait for a's release");
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_fails_for_the_moment_is_tried_again() {
    let stage = Stage::start(spec(), ["ack"]).await;
    stage.broker.fail_settles(3, &LeaseError::Retry("throttled".into()));
    stage.until_settled(1).await;
    assert_eq!((stage.runs().len(), stage.endings()), (1, vec![Ending::Ack]));
}

#[tokio::test(start_paused = true)]
async fn a_settlement_whose_lease_is_lost_is_given_up() {
    let stage = Stage::start(spec(), ["ack"]).await;
    stage.broker.fail_settles(1, &LeaseError::Lost("taken".into()));
    stage.until_started(2).await;
    assert_eq!(stage.runs()[1].attempt, 2, "it comes again when its lease has passed");
}

#[tokio::test(start_paused = true)]
async fn an_idle_consumer_drains_in_the_middle_of_its_long_poll() {
    let stage = Stage::start(spec(), []).await;
    sleep(SECOND).await;
    let begin = Instant::now();
    assert_eq!(stage.drained().await, Summary::default());
    assert!(begin.elapsed() < SECOND, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn draining_takes_nothing_more_and_lets_what_runs_finish() {
    let spec = Spec { concurrency: 2, ..spec() };
    let stage = Stage::start(spec, ["work 10", "work 10", "ack", "ack"]).await;
    stage.until_started(2).await;
    let (broker, begin) = (stage.broker.clone(), Instant::now());
    let summary = stage.drained().await;
    assert_eq!((summary.processed, summary.abandoned), (2, 0));
    assert!(begin.elapsed() < 11 * SECOND, "the long poll does not hold it up");
    let depth = broker.depths(&[work()]).await.unwrap()[0];
    assert_eq!((depth.visible, depth.in_flight), (2, Some(0)));
}

#[tokio::test(start_paused = true)]
async fn the_drain_deadline_stops_and_releases() {
    let stage = Stage::start(spec(), ["hang", "work 1"]).await;
    stage.until_started(2).await;
    stage.phase.send_replace(Phase::Draining);
    stage.until_settled(1).await;
    assert_eq!(stage.status.get().state, State::Exiting);
    stage.phase.send_replace(Phase::Deadline);
    let (broker, script) = (stage.broker.clone(), Arc::clone(&stage.script));
    let summary = stage.ended().await;
    assert_eq!((summary.processed, summary.abandoned), (2, 1));
    let endings: Vec<_> = broker.settled().into_iter().map(|settled| settled.what).collect();
    assert_eq!(endings, [Ending::Ack, Ending::Release(Duration::ZERO)]);
    assert_eq!(script.at_once.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn only_what_failed_counts_as_failed() {
    let stage = Stage::start(spec(), ["delay 5", "reply x", "ack", "fail-once"]).await;
    stage.until_settled(7).await;
    let status = stage.status.get();
    assert_eq!(
        (status.processed, status.failed),
        (7, 2),
        "the failure, and what was delayed until it was dead-lettered"
    );
}

#[tokio::test(start_paused = true)]
async fn the_status_tells_what_it_does() {
    let stage = Stage::start(spec(), []).await;
    sleep(SECOND).await;
    assert_eq!(stage.status.get().state, State::Listening);
    sleep(30 * SECOND).await;
    assert_eq!(stage.status.get().state, State::Idle, "a poll came back empty");
    stage.broker.send(&work(), vec![Outgoing { body: "work 5".into(), ..Outgoing::default() }]).await;
    stage.until_started(1).await;
    let status = stage.status.get();
    assert_eq!((status.state, status.in_flight), (State::Processing, 1));
    assert_eq!(status.oldest_started_at, Some(stage.runs()[0].started_at));
    stage.until_settled(1).await;
    sleep(SECOND).await;
    let status = stage.status.get();
    assert_eq!((status.state, status.in_flight, status.processed), (State::Listening, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_full_consumer_polls_again_as_soon_as_it_can_and_counts_as_polling() {
    let spec = Spec { concurrency: 1, processing_timeout: 300 * SECOND, ..spec() };
    let stage = Stage::start(spec, ["work 200"]).await;
    stage.until_settled(1).await;
    sleep(SECOND).await;
    let since = stage.status.get().polled_at(Instant::now()).unwrap().elapsed();
    assert!(since < 5 * SECOND, "{since:?}: being full is no reason to look stuck");
}
