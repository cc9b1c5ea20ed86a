mod connections;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::mpsc::{self, Sender, UnboundedReceiver};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::scheduler::Expired;
use crate::settings::{Growth, Priority, Settings};
use hostler_queue::{Admin, Depth};
use hostler_queue_embedded::{EmbeddedBroker, Turned};

const PATIENCE: Duration = Duration::from_secs(30);

/// Records if the service works, and the number of refused messages.
#[derive(Clone, Default)]
struct Recorder {
    works: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
}

impl Observer for Recorder {
    fn stores(&mut self) {}
    fn delivers(&mut self, _: Duration) {}
    fn ended(&mut self, _: Ended<'_>) {}
    fn refuses(&mut self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
    fn works(&mut self, is_working: bool) {
        self.works.store(is_working, Ordering::Relaxed);
    }
    fn flying(&mut self, _: usize, _: Option<Duration>) {}
}

fn plan() -> Plan {
    let priority = |name: &str, weight| Priority { name: name.to_owned(), weight };
    let settings = Settings {
        retries: 3,
        ttl: None,
        delay: Duration::ZERO,
        backoff: Growth::Fixed,
        base: Duration::from_millis(10),
        max: Duration::from_secs(1),
        priority: 1,
    };
    let rules = Rules {
        weights: vec![2, 1],
        in_flight: 100,
        in_flight_per_subject: 10,
        expired: Expired::DeadLetter,
        silence: Backoff::new(Duration::from_millis(50), Duration::from_secs(1)),
        window: 1_000,
        window_bytes: 1 << 20,
        lane: 100,
    };
    Plan {
        targets: Targets::new("retry", vec![">".to_owned()]),
        defaults: Defaults { settings, priorities: vec![priority("high", 2), priority("normal", 1)] },
        rules,
        ack_timeout: Duration::from_secs(20),
        longest_wait: Duration::from_secs(3600),
        max_incoming: 1 << 20,
    }
}

/// A running engine.
struct Running {
    events: Sender<Event>,
    sent: UnboundedReceiver<Outgoing>,
    drain: CancellationToken,
    deadline: CancellationToken,
    task: JoinHandle<usize>,
    seen: Recorder,
}

async fn start(path: &Path, plan: Plan) -> Running {
    let broker = EmbeddedBroker::open(path).unwrap();
    let channels = ["retry-high", "retry"].map(|name| name.parse().unwrap());
    let store = broker.own(&channels, &"retry-dlq".parse().unwrap()).await.unwrap();
    let (outbox, sent) = mpsc::unbounded_channel();
    let (events, mut inbox) = mpsc::channel(1_000);
    let (drain, deadline) = (CancellationToken::new(), CancellationToken::new());
    let seen = Recorder::default();
    let mut engine = Engine::open(plan, store, outbox, seen.clone()).await.unwrap();
    let (drained, ended) = (drain.clone(), deadline.clone());
    events.send(Event::Connected(1)).await.unwrap();
    let task = tokio::spawn(async move { engine.run(&mut inbox, &drained, &ended).await });
    Running { events, sent, drain, deadline, task, seen }
}

impl Running {
    async fn send(&self, subject: &str, headers: &[(&str, &str)]) {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (reply, body) = (Some("inbox.1".to_owned()), Bytes::from("hello"));
        let incoming = Incoming { subject: subject.to_owned(), reply, headers, body, max_payload: 1 << 20 };
        self.events.send(Event::Incoming(incoming)).await.unwrap();
    }

    async fn next(&mut self) -> Outgoing {
        timeout(PATIENCE, self.sent.recv()).await.expect("nothing is sent").unwrap()
    }

    async fn stored(&mut self) -> String {
        match self.next().await {
            Outgoing::Stored { to, id } if to == "inbox.1" => id,
            other => panic!("{other:?}"),
        }
    }

    async fn refused(&mut self) -> (u16, String, Option<Duration>) {
        match self.next().await {
            Outgoing::Refused { code, reason, retry_after, .. } => (code, reason, retry_after),
            other => panic!("{other:?}"),
        }
    }

    async fn request(&mut self) -> (Token, u32, Arc<Content>) {
        match self.next().await {
            Outgoing::Request { token, attempt, content, .. } => (token, attempt, content),
            other => panic!("{other:?}"),
        }
    }

    async fn answer(&self, token: Token, answer: Answer) {
        self.events.send(Event::Reply(token, Reply::End(answer))).await.unwrap();
    }

    /// Waits until the service works, or does not.
    async fn until_works(&self, expected: bool) {
        let changed = async {
            while self.seen.works.load(Ordering::Relaxed) != expected {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, changed).await.expect("it does not change");
    }

    async fn end(self) -> usize {
        self.drain.cancel();
        self.events.send(Event::NoMoreIncoming).await.unwrap();
        timeout(PATIENCE, self.task).await.expect("it does not end").unwrap()
    }
}

async fn depth(path: &Path, channel: &str) -> Depth {
    let broker = EmbeddedBroker::open(path).unwrap();
    broker.depths(&[channel.parse().unwrap()]).await.unwrap().remove(0)
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    (folder, path)
}

#[tokio::test]
async fn a_message_is_stored_delivered_and_removed() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.webhooks.a", &[("X-Trace", "1"), ("Hostler-Priority", "high")]).await;
    let id = running.stored().await;
    assert_eq!(depth(&path, "retry-high").await.visible, 1, "it is in the store when its producer is told");
    let (token, attempt, content) = running.request().await;
    assert_eq!((attempt, &*content.id, &*content.body), (1, &*id, &b"hello"[..]));
    assert_eq!(content.headers[0], ("X-Trace".to_owned(), "1".to_owned()), "headers are kept");
    running.answer(token, Answer::NoAck("what?".to_owned())).await;
    let (token, attempt, _) = running.request().await;
    assert_eq!(attempt, 2);
    running.answer(token, Answer::Ack).await;
    assert_eq!(running.end().await, 0);
    let depth = depth(&path, "retry-high").await;
    assert_eq!((depth.visible, depth.delayed, depth.dead_lettered), (0, Some(0), 0));
}

#[tokio::test]
async fn a_message_is_not_acknowledged_if_the_commit_failed() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.a", &[("Hostler-Delay", "1h")]).await;
    running.stored().await;
    let aside = path.with_extension("aside");
    std::fs::rename(&path, &aside).unwrap();
    running.send("retry.a", &[]).await;
    let (code, reason, retry_after) = running.refused().await;
    assert_eq!((code, retry_after), (503, Some(Duration::from_secs(5))));
    assert!(reason.contains("was removed or replaced"), "{reason}");
    // Producers that come while it fails are told at once.
    running.send("retry.a", &[]).await;
    assert_eq!(running.refused().await.0, 503);
    std::fs::rename(&aside, &path).unwrap();
    let stored = async {
        loop {
            running.send("retry.a", &[("Hostler-Delay", "1h")]).await;
            if let Outgoing::Stored { .. } = running.next().await {
                break;
            }
        }
    };
    timeout(PATIENCE, stored).await.expect("it works again");
    running.end().await;
    assert_eq!(depth(&path, "retry").await.delayed, Some(2), "nothing of what was refused");
}

#[tokio::test]
async fn a_faulty_request_is_refused_and_not_stored() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.a", &[("Hostler-TTL", "soon")]).await;
    let (code, reason, retry_after) = running.refused().await;
    assert_eq!((code, retry_after), (400, None));
    assert!(reason.contains("Hostler-TTL is \"soon\""), "{reason}");
    running.end().await;
    let depth = depth(&path, "retry").await;
    assert_eq!((depth.visible, depth.delayed), (0, Some(0)));
}

#[tokio::test]
async fn more_than_fits_into_memory_is_refused() {
    let (_folder, path) = file();
    let mut running = start(&path, Plan { max_incoming: 10, ..plan() }).await;
    running.send("retry.a", &[]).await;
    assert_eq!(running.refused().await.0, 503);
    running.end().await;
}

#[tokio::test]
async fn what_is_in_flight_is_awaited_in_a_drain_and_nothing_else_begins() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.a", &[]).await;
    running.stored().await;
    let (token, ..) = running.request().await;
    running.drain.cancel();
    // A message that came before the end of the subscription is still stored.
    running.send("retry.a", &[]).await;
    running.stored().await;
    running.answer(token, Answer::Ack).await;
    assert!(!running.task.is_finished());
    assert_eq!(running.end().await, 0);
    assert_eq!(depth(&path, "retry").await.visible, 1);
}

#[tokio::test]
async fn what_is_not_acknowledged_stays_in_the_store() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.a", &[]).await;
    running.stored().await;
    running.request().await;
    running.deadline.cancel();
    assert_eq!(running.task.await.unwrap(), 1);
    let mut running = start(&path, plan()).await;
    let (token, attempt, _) = running.request().await;
    assert_eq!(attempt, 1);
    running.answer(token, Answer::Term("no".to_owned())).await;
    running.end().await;
    let depth = depth(&path, "retry").await;
    assert_eq!((depth.visible, depth.dead_lettered), (0, 1));
}

#[tokio::test]
async fn a_dead_letter_that_goes_back_is_delivered_again() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.webhooks.a", &[("X-Trace", "1")]).await;
    running.stored().await;
    let (token, ..) = running.request().await;
    running.answer(token, Answer::Term("not now".to_owned())).await;
    // As `hostler requeue` does it.
    let broker = EmbeddedBroker::open(&path).unwrap();
    let spec = hostler_queue::ChannelSpec::new("retry-dlq".parse().unwrap());
    let queue = hostler_queue::Broker::open(&broker, &spec).await.unwrap();
    let receive = hostler_queue::Receive { max: 1, wait: PATIENCE.min(Duration::from_secs(20)), lease: PATIENCE };
    let delivery = queue.receive(receive, &CancellationToken::new()).await.unwrap().remove(0);
    let message = hostler_types::message::Outgoing {
        body: delivery.message.body.to_vec(),
        attributes: delivery.message.attributes.clone(),
        routing_key: delivery.message.routing_key.clone(),
        ..Default::default()
    };
    hostler_queue::Broker::send(&broker, &"retry".parse().unwrap(), vec![message]).await.remove(0).unwrap();
    let (token, attempt, content) = running.request().await;
    assert_eq!((attempt, &content.headers[0].1[..]), (1, "1"));
    running.answer(token, Answer::Ack).await;
    running.end().await;
    assert_eq!(depth(&path, "retry").await.visible, 0);
}

#[tokio::test]
async fn without_room_messages_are_refused_and_deliveries_go_on() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.a", &[]).await;
    running.stored().await;
    let (token, ..) = running.request().await;
    running.events.send(Event::Full(Some("no room".to_owned()))).await.unwrap();
    running.send("retry.a", &[]).await;
    assert_eq!(running.refused().await, (503, "no room".to_owned(), Some(Duration::from_secs(5))));
    running.answer(token, Answer::NoAck("x".to_owned())).await;
    let (token, attempt, _) = running.request().await;
    assert_eq!(attempt, 2);
    running.answer(token, Answer::Ack).await;
    running.events.send(Event::Full(None)).await.unwrap();
    running.send("retry.b", &[("Hostler-Delay", "1h")]).await;
    running.stored().await;
    running.end().await;
}

#[tokio::test]
async fn nothing_is_delivered_while_the_store_fails() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    running.send("retry.a", &[]).await;
    running.stored().await;
    let (token, ..) = running.request().await;
    let aside = path.with_extension("aside");
    std::fs::rename(&path, &aside).unwrap();
    // Makes a turn fail.
    running.send("retry.b", &[]).await;
    assert_eq!(running.refused().await.0, 503);
    // Would be delivered again at once.
    running.answer(token, Answer::Unsent).await;
    running.send("retry.b", &[]).await;
    assert_eq!(running.refused().await.0, 503, "no request comes before");
    running.until_works(false).await;
    assert_eq!(running.seen.refused.load(Ordering::Relaxed), 2);
    std::fs::rename(&aside, &path).unwrap();
    running.request().await;
    running.deadline.cancel();
    running.task.await.unwrap();
}

#[tokio::test]
async fn a_wait_is_cut_to_the_longest_one() {
    let (_folder, path) = file();
    let mut running = start(&path, Plan { longest_wait: Duration::from_millis(50), ..plan() }).await;
    running.send("retry.a", &[]).await;
    running.stored().await;
    let (token, ..) = running.request().await;
    // In milliseconds instead of seconds.
    running.answer(token, Answer::Nak(Some(Duration::from_secs(30_000)))).await;
    let (_, attempt, _) = running.request().await;
    assert_eq!(attempt, 2);
    running.deadline.cancel();
    running.task.await.unwrap();
}

#[tokio::test]
async fn a_closure_of_another_store_is_kept() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    let until = {
        let broker = EmbeddedBroker::open(&path).unwrap();
        broker.close_subjects(vec![("a".to_owned(), Duration::from_secs(3600))]).await.unwrap()
    };
    running.events.send(Event::Closed(until)).await.unwrap();
    for subject in ["retry.a", "retry.b"] {
        running.send(subject, &[]).await;
        running.stored().await;
    }
    match running.next().await {
        Outgoing::Request { subject, .. } => assert_eq!(&*subject, "b"),
        other => panic!("{other:?}"),
    }
    running.deadline.cancel();
    running.task.await.unwrap();
}

#[tokio::test]
async fn an_operators_message_for_a_forbidden_subject_is_dead_lettered() {
    let (_folder, path) = file();
    let mut running = start(&path, plan()).await;
    let broker = EmbeddedBroker::open(&path).unwrap();
    let to = |subject: &str| hostler_types::message::Outgoing {
        body: b"x".to_vec(),
        routing_key: Some(subject.to_owned()),
        ..Default::default()
    };
    let messages = vec![to("$JS.API.STREAM.DELETE.ORDERS"), to("allowed")];
    for sent in hostler_queue::Broker::send(&broker, &"retry".parse().unwrap(), messages).await {
        sent.unwrap();
    }
    match running.next().await {
        Outgoing::Request { subject, token, .. } => {
            assert_eq!(&*subject, "allowed");
            running.answer(token, Answer::Ack).await;
        }
        other => panic!("{other:?}"),
    }
    running.end().await;
    assert_eq!(depth(&path, "retry").await.dead_lettered, 1);
}

#[tokio::test]
async fn while_the_store_hangs_producers_are_refused() {
    let (_folder, path) = file();
    let broker = EmbeddedBroker::open(&path).unwrap();
    let channels = ["retry-high", "retry"].map(|name| name.parse().unwrap());
    let store = broker.own(&channels, &"retry-dlq".parse().unwrap()).await.unwrap();
    let (outbox, mut sent) = mpsc::unbounded_channel();
    let seen = Recorder::default();
    let mut engine = Engine::open(plan(), store, outbox, seen.clone()).await.unwrap();
    let now = engine.store.now();
    engine.handle(Event::Connected(1), now);
    let send = |engine: &mut Engine<Recorder>, at| {
        let (reply, body) = (Some("inbox.1".to_owned()), Bytes::from("hello"));
        let incoming =
            Incoming { subject: "retry.a".to_owned(), reply, headers: Vec::new(), body, max_payload: 1 << 20 };
        engine.handle(Event::Incoming(incoming), at);
    };
    engine.turning = Some(Turning::that_hangs(now));
    send(&mut engine, now);
    assert!(sent.try_recv().is_err(), "the turn may still end");
    engine.turning = Some(Turning::that_hangs(now - HUNG - 1));
    engine.act();
    send(&mut engine, now);
    for _ in 0..2 {
        let refused = sent.try_recv().unwrap();
        assert!(matches!(refused, Outgoing::Refused { code: 503, .. }), "{refused:?}");
    }
    assert!(!seen.works.load(Ordering::Relaxed));
}

#[tokio::test]
async fn what_is_behind_is_read_without_waiting_for_an_event() {
    let (_folder, path) = file();
    let broker = EmbeddedBroker::open(&path).unwrap();
    let to_a = || hostler_types::message::Outgoing { routing_key: Some("a".to_owned()), ..Default::default() };
    let messages = std::iter::repeat_with(to_a).take(1_200).collect();
    for sent in hostler_queue::Broker::send(&broker, &"retry".parse().unwrap(), messages).await {
        sent.unwrap();
    }
    let channels = ["retry-high", "retry"].map(|name| name.parse().unwrap());
    let store = broker.own(&channels, &"retry-dlq".parse().unwrap()).await.unwrap();
    let (outbox, _sent) = mpsc::unbounded_channel();
    let rules = Rules { window: 10_000, window_bytes: 64 << 20, ..plan().rules };
    // Without a connection, so that nothing is delivered and no reply wakes the engine.
    let mut engine = Engine::open(Plan { rules, ..plan() }, store, outbox, Recorder::default()).await.unwrap();
    let mut turns = 0;
    while turns < 3 {
        let now = engine.act();
        if let Some(turning) = &mut engine.turning {
            let turned = turning.done.as_mut().await;
            let has_read = |turned: &Turned| turned.pages.iter().any(|page| !page.messages.is_empty());
            turns += usize::from(turned.as_ref().is_ok_and(has_read));
            engine.end_turn(turned);
        } else {
            let wakes_after = engine.wake_at(now) - now;
            assert!(wakes_after <= GATHER, "it sleeps for {wakes_after} ms after {turns} turns");
            tokio::time::sleep(Duration::from_millis(u64::try_from(wakes_after).unwrap())).await;
        }
    }
}
