//! Reasons for a consumer to take no messages, and its status meanwhile: the rate limit, pauses, the breaker.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use hostler_config::{Breaker, Rate, Share};
use hostler_consumer::{Consumer, Phase, Requests, Spec, StatusHandle};
use hostler_handler::Pools;
use hostler_health::process::ProcessInfo;
use hostler_health::{BreakerState, Reason, Report, SCHEMA, StartPeriod, State, Timestamp, verdict};
use hostler_queue::fake::{Ending, FakeBroker, LIMITS};
use hostler_queue::{
    Broker, ChannelSpec, Delivery, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError, Receipt, Receive,
    Settlement, Unsettled,
};
use hostler_types::message::{Attributes, Message, Outgoing};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{PATIENCE, SECOND, Script, Stage, spec, work};

#[tokio::test(start_paused = true)]
async fn the_rate_limit_holds() {
    let spec = Spec { rate_limit: Some(Rate { permits: 10, per: SECOND }), ..spec() };
    let stage = Stage::start(spec, vec!["ack"; 100]).await;
    let begin = Instant::now();
    stage.until_settled(100).await;
    let took = begin.elapsed().as_secs_f64();
    assert!((9.5..=10.5).contains(&took), "{took} s for 100 at 10/s, from the first on");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_counts_as_polling_while_its_rate_limit_holds_it_back() {
    let spec = Spec { rate_limit: Some(Rate { permits: 2, per: 3600 * SECOND }), ..spec() };
    let stage = Stage::start(spec, ["ack", "ack"]).await;
    let begin = Instant::now();
    let unpolled = || Instant::now() - stage.status.get().polled_at(Instant::now()).unwrap();
    for count in 1..=2 {
        while stage.runs().len() < count {
            sleep(SECOND).await;
            assert!(unpolled() < 2 * SECOND, "{:?} after {:?}", unpolled(), begin.elapsed());
        }
        assert!(
            begin.elapsed() >= count as u32 * 1799 * SECOND,
            "{:?}: a restart brings nothing more",
            begin.elapsed()
        );
    }
    // The next token comes, and from then on it is a receive that is waited for.
    stage.broker.fail_receives(1000, &QueueError::Unavailable("down".into()));
    sleep(1800 * SECOND).await;
    let since = unpolled();
    sleep(100 * SECOND).await;
    assert!(unpolled() >= since + 99 * SECOND, "a queue that is down is no rate limit");
}

/// Counts how often a future is polled.
async fn counting<F: Future>(future: F, polls: &AtomicUsize) -> F::Output {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        polls.fetch_add(1, Ordering::SeqCst);
        future.as_mut().poll(context)
    })
    .await
}

/// A consumer of an ordered queue of its own, which nothing is sent to but what it has.
fn consumer_of(queue: Arc<dyn Queue>, spec: Spec) -> (Consumer, watch::Sender<bool>) {
    let (pause, paused) = watch::channel(false);
    let consumer = Consumer {
        spec,
        queue,
        handler: Arc::new(Script::default()),
        replies: None,
        idempotency: None,
        guests: Pools::new(Handle::current(), None),
        status: StatusHandle::new(Arc::default(), Arc::default()),
        metrics: None,
        traces: None,
        pause: paused,
        requests: Requests::default(),
        exit: CancellationToken::new(),
    };
    (consumer, pause)
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_does_not_wake_an_idle_consumer() {
    for (permits, per) in [(1, SECOND), (10, SECOND), (1000, SECOND), (7, 60 * SECOND), (10, 3600 * SECOND)] {
        let spec = Spec { rate_limit: Some(Rate { permits, per }), ..spec() };
        let (phase, watched) = watch::channel(Phase::Running);
        let (consumer, _pause) = consumer_of(Arc::new(Several::default()), spec);
        let polls = Arc::new(AtomicUsize::default());
        let counted = Arc::clone(&polls);
        let running = tokio::spawn(async move { counting(consumer.run(watched), &counted).await });
        sleep(600 * SECOND).await;
        let polls = polls.load(Ordering::SeqCst);
        // Thirty receives of 20 s each, which begin, end, and wait for a token.
        assert!(polls <= 150, "{permits} per {per:?}: polled {polls} times in 600 s");
        phase.send_replace(Phase::Draining);
        timeout(PATIENCE, running).await.expect("not ended").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_receive_or_a_settle_call_costs_no_slot() {
    let queue = Arc::new(Several::default());
    queue.messages.lock().unwrap().extend([("ack", "a"), ("ack 2", "b"), ("ack 3", "c")]);
    queue.panics.store(3, Ordering::SeqCst);
    let (phase, watched) = watch::channel(Phase::Running);
    let spec = Spec { ordered: true, concurrency: 1, ..spec() };
    let (consumer, _pause) = consumer_of(queue.clone(), spec);
    let running = tokio::spawn(consumer.run(watched));
    let settled = async {
        while queue.settled.lock().unwrap().len() < 2 {
            queue.changed.notified().await;
        }
    };
    timeout(PATIENCE, settled).await.expect("a slot is gone");
    phase.send_replace(Phase::Draining);
    timeout(PATIENCE, running).await.expect("not ended").unwrap();
}

#[tokio::test(start_paused = true)]
async fn settlements_that_always_fail_show_and_rest_ever_longer() {
    let stage = Stage::start(spec(), ["ack"]).await;
    stage.broker.fail_settles(100_000, &LeaseError::Retry("down".into()));
    sleep(29 * SECOND).await;
    let calls = stage.broker.calls().settle;
    assert!((6..=18).contains(&calls), "{calls} calls in a lease of 30 s");
    sleep(111 * SECOND).await;
    let failing = stage.status.get().failures.longest(Instant::now(), SECOND).expect("nothing fails");
    assert!(failing.last - failing.since > 100 * SECOND, "{failing:?}");
    assert!(!settles(&stage.status));
}

/// Returns false if the health check says that settlements fail. It must find nothing else.
fn settles(status: &StatusHandle) -> bool {
    let now = Instant::now();
    let wall = |at: Instant| Timestamp::now().minus(now - at);
    let report = status.get().report("work", 90 * SECOND, 25 * SECOND, now, wall);
    let report = Report {
        schema: SCHEMA,
        pid: std::process::id(),
        pid_namespace: None,
        started_at: Timestamp::now(),
        written_at: Timestamp::now(),
        consumers: vec![report],
        others: Vec::new(),
        queue_link: None,
    };
    let start_period = StartPeriod { limit: SECOND, pid1_started_at: None };
    let judged =
        verdict(Ok(&report), Some(ProcessInfo { started_at: None, since_boot: None }), Timestamp::now(), start_period);
    assert!(matches!(judged.reasons[..], [] | [Reason::NotSettling { .. }]), "{judged:?}");
    judged.reasons.is_empty()
}

/// A queue on which some things may not be done.
struct Denying {
    queue: Arc<dyn Queue>,
    denies: fn(&Settlement) -> Option<LeaseError>,
    denies_extensions: bool,
}

fn denial() -> LeaseError {
    LeaseError::Refused("AccessDenied".into())
}

#[async_trait]
impl Queue for Denying {
    fn limits(&self) -> Limits {
        self.queue.limits()
    }

    fn is_ordered(&self) -> bool {
        self.queue.is_ordered()
    }

    fn origin(&self) -> Origin {
        self.queue.origin()
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        self.queue.receive(request, stop).await
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        match self.denies_extensions {
            true => vec![Err(denial()); leases.len()],
            false => self.queue.extend(leases, by).await,
        }
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        let mut results = Vec::new();
        for settlement in batch {
            match (self.denies)(&settlement) {
                Some(error) => results.push(Err(Unsettled { settlement, error })),
                None => results.extend(self.queue.settle(vec![settlement]).await),
            }
        }
        results
    }

    async fn rest(&self) {
        self.queue.rest().await;
    }

    async fn taken_back(&self) -> Vec<LeaseHandle> {
        self.queue.taken_back().await
    }
}

/// Runs a consumer of a queue that denies something, and hands a message out so often; what it shows after each of these times.
async fn settles_at<const N: usize>(bodies: &[&str], denying: Denying, receives: u32, times: [u32; N]) -> [bool; N] {
    let broker = FakeBroker::default();
    let queue = broker.open(&ChannelSpec { max_receives: Some(receives), ..ChannelSpec::new(work()) }).await.unwrap();
    let outgoing = bodies.iter().map(|body| Outgoing { body: (*body).into(), ..Outgoing::default() });
    broker.send(&work(), outgoing.collect()).await;
    let (_phase, watched) = watch::channel(Phase::Running);
    let mut spec = spec();
    spec.policy.retry.requeues = receives;
    let (consumer, _pause) = consumer_of(Arc::new(Denying { queue, ..denying }), spec);
    let status = consumer.status.clone();
    let running = tokio::spawn(consumer.run(watched));
    let begin = Instant::now();
    let mut shown = [true; N];
    for (shown, time) in shown.iter_mut().zip(times) {
        tokio::time::sleep_until(begin + time * SECOND).await;
        *shown = settles(&status);
    }
    running.abort();
    shown
}

fn no_queue() -> Arc<dyn Queue> {
    Arc::new(Several::default())
}

#[tokio::test(start_paused = true)]
async fn a_release_that_works_does_not_hide_that_removals_fail() {
    let removals =
        |settlement: &Settlement| matches!(settlement, Settlement::Ack(_) | Settlement::DeadLetter { .. }).then(denial);
    let denying = Denying { queue: no_queue(), denies: removals, denies_extensions: false };
    assert_eq!(settles_at(&["ack", "delay 5", "delay 7"], denying, 1000, [80, 130]).await, [true, false]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_cannot_be_copied_says_nothing_of_the_queue() {
    fn copies(settlement: &Settlement, refusal: LeaseError) -> Option<LeaseError> {
        matches!(settlement, Settlement::DeadLetter { .. }).then_some(refusal)
    }
    // Its copy is refused every 90 s.
    let denies: fn(&Settlement) -> _ = |settlement| copies(settlement, denial());
    let denying = Denying { queue: no_queue(), denies, denies_extensions: false };
    assert_eq!(settles_at(&["hang"], denying, 1000, [250]).await, [false]);
    let denies: fn(&Settlement) -> _ = |settlement| copies(settlement, LeaseError::Unfit("too large".into()));
    let denying = Denying { queue: no_queue(), denies, denies_extensions: false };
    assert_eq!(settles_at(&["hang"], denying, 1000, [250]).await, [true]);
}

#[tokio::test(start_paused = true)]
async fn leases_that_all_end_because_heartbeats_fail_show_until_nothing_is_left_that_could_fail() {
    let denying = Denying { queue: no_queue(), denies: |_| None, denies_extensions: true };
    // It is received five times in 150 s. The last lease ends then, and a message could come again until 140 s later.
    assert_eq!(settles_at(&["work 50"], denying, 5, [100, 160, 280, 300]).await, [true, false, false, true]);
}

/// Waits for a status that satisfies `shown`, and returns it.
async fn until_shown(stage: &Stage, shown: impl Fn(State, bool, Option<BreakerState>) -> bool) {
    let wait = async {
        loop {
            let status = stage.status.get();
            if shown(status.state, status.paused, status.breaker) {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect("not shown");
}

async fn send(stage: &Stage, body: &str) {
    let sent = stage.broker.send(&work(), vec![Outgoing { body: body.into(), ..Outgoing::default() }]).await;
    assert!(sent.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn a_paused_consumer_finishes_what_runs_and_takes_nothing_until_it_is_resumed() {
    let stage = Stage::start(spec(), ["work 10"]).await;
    stage.until_started(1).await;
    stage.pause.send_replace(true);
    until_shown(&stage, |state, paused, _| state == State::Processing && paused).await;
    send(&stage, "ack").await;
    stage.until_settled(1).await;
    until_shown(&stage, |state, _, _| state == State::Idle).await;
    let calls = stage.broker.calls().receive;
    sleep(300 * SECOND).await;
    assert_eq!((stage.bodies(), stage.broker.calls().receive), (vec!["work 10".to_owned()], calls));
    stage.pause.send_replace(false);
    until_shown(&stage, |_, paused, _| !paused).await;
    let status = stage.status.get();
    assert!(status.polled_at(Instant::now()).is_some_and(|at| at.elapsed() < SECOND), "{status:?}");
    stage.until_settled(2).await;
    assert_eq!((stage.endings(), stage.bodies().len()), (vec![Ending::Ack, Ending::Ack], 2));
}

#[tokio::test(start_paused = true)]
async fn a_paused_consumer_of_an_ordered_queue_starts_nothing_and_drains_as_any_other() {
    let spec = Spec { ordered: true, ..spec() };
    let stage = Stage::with(spec, Script::default(), [("work 5", Some("a"))]).await;
    stage.until_started(1).await;
    stage.pause.send_replace(true);
    until_shown(&stage, |_, paused, _| paused).await;
    stage.until_settled(1).await;
    let second = Outgoing { body: b"ack".to_vec(), group: Some("a".to_owned()), ..Outgoing::default() };
    stage.broker.send(&work(), vec![second]).await;
    sleep(100 * SECOND).await;
    assert_eq!(stage.runs().len(), 1);
    assert_eq!(stage.drained().await.processed, 1, "a paused consumer drains as any other");
}

#[tokio::test(start_paused = true)]
async fn too_much_that_fails_opens_the_breaker_and_one_message_closes_it() {
    let failures = Share::new(0.5).unwrap();
    let breaker = Some(Breaker { failures, over: 60 * SECOND, min: 4, pause: 30 * SECOND });
    let begin = Instant::now();
    let stage = Stage::start(Spec { concurrency: 1, breaker, ..spec() }, vec!["fail-once"; 5]).await;
    until_shown(&stage, |_, _, breaker| breaker == Some(BreakerState::Open)).await;
    let calls = stage.broker.calls().receive;
    sleep(29 * SECOND).await;
    assert_eq!((stage.runs().len(), stage.broker.calls().receive), (4, calls));
    assert_eq!(stage.status.get().state, State::Idle);
    // The fifth is the probe, and fails; the next one comes a second time, and does not.
    stage.until_settled(10).await;
    let runs: Vec<_> = stage.runs().iter().map(|run| ((run.started_at - begin).as_secs(), run.attempt)).collect();
    let first = [(0, 1), (0, 1), (0, 1), (0, 1), (30, 1)];
    assert_eq!((&runs[..5], &runs[5..]), (&first[..], &[(90, 2); 5][..]));
    assert_eq!(stage.status.get().breaker, None);
}

/// An ordered queue that hands out several of a group at once, as SQS does, and keeps in mind what was settled.
#[derive(Default)]
struct Several {
    /// Number of calls, alternately receives and settlements, that panic before one works.
    panics: AtomicUsize,
    messages: Mutex<VecDeque<(&'static str, &'static str)>>,
    /// The time that an extension takes.
    extending: Duration,
    settled: Mutex<Vec<(String, String)>>,
    changed: Notify,
}

impl Several {
    /// Panics if that is what is left to do at one of these counts.
    fn panic_at(&self, counts: &[usize]) {
        let left = self.panics.load(Ordering::SeqCst);
        if counts.contains(&left) {
            self.panics.store(left - 1, Ordering::SeqCst);
            panic!("as told");
        }
    }
}

#[async_trait]
impl Queue for Several {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn origin(&self) -> Origin {
        Origin::default()
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        self.panic_at(&[3, 2]);
        let taken: Vec<_> = {
            let mut messages = self.messages.lock().unwrap();
            let count = request.max.min(messages.len());
            messages.drain(..count).collect()
        };
        if taken.is_empty() {
            let _ = timeout(request.wait, stop.cancelled()).await;
        }
        let delivery = |(body, group): (&str, &str)| Delivery {
            message: Arc::new(Message {
                id: body.to_owned(),
                body: body.to_owned().into(),
                attributes: Attributes::new(),
                enqueued_at: SystemTime::now(),
                group: Some(group.to_owned()),
                routing_key: None,
                claim: None,
                trace: None,
            }),
            receipt: Receipt::new(body),
            attempt: 1,
            leased_at: Instant::now(),
            not_before: None,
            job: None,
        };
        Ok(taken.into_iter().map(delivery).collect())
    }

    async fn extend(&self, leases: &[LeaseHandle], _: Duration) -> Vec<Result<(), LeaseError>> {
        sleep(self.extending).await;
        vec![Ok(()); leases.len()]
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        self.panic_at(&[1]);
        let name = |one: &Settlement| match one {
            Settlement::Release(_, delay) | Settlement::GiveBack(_, delay) if *delay > Duration::ZERO => {
                format!("{} {}", one.name(), delay.as_secs())
            }
            one => one.name().to_owned(),
        };
        let told = batch.iter().map(|one| (one.receipt().as_str().to_owned(), name(one)));
        self.settled.lock().unwrap().extend(told);
        self.changed.notify_one();
        batch.iter().map(|_| Ok(())).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_opens_sends_nothing_back_before_the_failure_that_opened_it() {
    let breaker = Some(Breaker { failures: Share::new(0.4).unwrap(), over: 60 * SECOND, min: 1, pause: 30 * SECOND });
    let queue = Arc::new(Several::default());
    queue.messages.lock().unwrap().extend([("ack", "x"), ("fail", "a"), ("ack 2", "a"), ("ack 3", "a")]);
    let (phase, watched) = watch::channel(Phase::Running);
    let (consumer, _pause) = consumer_of(queue.clone(), Spec { ordered: true, breaker, ..spec() });
    let running = tokio::spawn(consumer.run(watched));
    let settled = async {
        while queue.settled.lock().unwrap().len() < 3 {
            queue.changed.notified().await;
        }
    };
    timeout(PATIENCE, settled).await.expect("not settled");
    let settled = queue.settled.lock().unwrap()[..3].to_vec();
    let ids: Vec<_> = settled.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["ack", "fail", "ack 2"], "the follower goes back after its head: {settled:?}");
    phase.send_replace(Phase::Draining);
    timeout(PATIENCE, running).await.expect("not ended").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drain_sends_followers_back_after_their_head_and_no_sooner() {
    let queue = Arc::new(Several { extending: 5 * SECOND, ..Several::default() });
    queue.messages.lock().unwrap().extend([("fail-after 11", "a"), ("ack 2", "a")]);
    let (phase, watched) = watch::channel(Phase::Running);
    let (consumer, _pause) = consumer_of(queue.clone(), Spec { ordered: true, ..spec() });
    let running = tokio::spawn(consumer.run(watched));
    // The head has failed, and waits for the heartbeat that began after 10 s.
    sleep(12 * SECOND).await;
    phase.send_replace(Phase::Draining);
    timeout(PATIENCE, running).await.expect("not ended").unwrap();
    let settled = queue.settled.lock().unwrap().clone();
    let told: Vec<_> = settled.iter().map(|(id, how)| (id.as_str(), how.as_str())).collect();
    assert_eq!(told, [("fail-after 11", "release 5"), ("ack 2", "release 5")]);
}
