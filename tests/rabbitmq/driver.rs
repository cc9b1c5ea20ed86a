//! The driver when connections end and hosts take turns, beyond the conformance suite.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{
    Action, Admin, Broker, ChannelSpec, Delivery, LeaseError, Link, Provisioner, Queue, QueueError, Receive, Settlement,
};
use hostler_queue_rabbitmq::{Options, RabbitBroker};
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::unique;

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Time after which the driver gives up a publish that the server does not confirm.
pub(super) const PUBLISHING: Duration = Duration::from_secs(10);

/// Interval of heartbeats for tests of silence. Half of it, which a server has to answer, is enough for one on a busy machine.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(4);

pub(super) fn jobs() -> Channel {
    "jobs".parse().unwrap()
}

pub(super) fn spec(ordered: bool) -> ChannelSpec {
    // Most messages of an ordered queue stay on the server.
    let window = if ordered { 1 } else { 64 };
    ChannelSpec { ordered, window, max_receives: Some(100), ..ChannelSpec::new(jobs()) }
}

/// Returns the shared server, and a prefix that begins with `name` and that no other test has.
pub(super) async fn shared(name: &str) -> (&'static RabbitMq, String) {
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    (server, format!("{}-", unique(name)))
}

pub(super) async fn broker(server: &RabbitMq, prefix: &str) -> RabbitBroker {
    connect(server.url(), prefix).await
}

pub(super) async fn connect(url: String, prefix: &str) -> RabbitBroker {
    RabbitBroker::connect(options(url, prefix)).await.unwrap()
}

pub(super) fn options(url: String, prefix: &str) -> Options {
    Options {
        url,
        prefix: prefix.to_owned(),
        ladder_prefix: Some("shared-".to_owned()),
        create_missing: true,
        channels: vec![jobs()],
        ..Options::default()
    }
}

pub(super) async fn send(broker: &RabbitBroker, count: usize, group: Option<&str>) {
    let message =
        |n: usize| Outgoing { body: n.to_string().into(), group: group.map(str::to_owned), ..Outgoing::default() };
    for sent in broker.send(&jobs(), (0..count).map(message).collect()).await {
        sent.unwrap();
    }
}

pub(super) async fn receive(queue: &Arc<dyn Queue>, max: usize, wait: Duration) -> Result<Vec<Delivery>, QueueError> {
    let request = Receive { max, wait, lease: Duration::from_secs(60) };
    queue.receive(request, &CancellationToken::new()).await
}

/// The next message, which must come. Errors meanwhile are those of a connection that is not yet back.
pub(super) async fn next(queue: &Arc<dyn Queue>) -> Delivery {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(Some(delivery)) = receive(queue, 1, Duration::from_secs(2)).await.map(|mut received| received.pop()) {
            return delivery;
        }
        assert!(Instant::now() < deadline, "no message came");
    }
}

pub(super) fn body(delivery: &Delivery) -> usize {
    std::str::from_utf8(&delivery.message.body).unwrap().parse().unwrap()
}

pub(super) async fn ack(queue: &Arc<dyn Queue>, delivery: Delivery) {
    queue.settle(vec![Settlement::Ack(delivery.receipt)]).await.remove(0).unwrap();
}

#[tokio::test]
async fn a_lost_connection_takes_leases_back_and_its_receipts_settle_nothing() {
    let server = tokio::task::spawn_blocking(RabbitMq::start).await.unwrap();
    let broker = broker(&server, "cut-").await;
    let queue = broker.open(&spec(false)).await.unwrap();
    send(&broker, 3, None).await;
    let (first, second) = (next(&queue).await, next(&queue).await);
    let leases = [first.receipt.lease(), second.receipt.lease()];
    let server = tokio::task::spawn_blocking(move || {
        server.cut();
        server
    });
    // The server's tool may take a while. The leases themselves would last longer.
    let taken = timeout(2 * PATIENCE, queue.taken_back()).await.unwrap();
    let server = server.await.unwrap();
    assert!(taken.len() == 2 && taken.iter().all(|lease| leases.contains(lease)), "{taken:?}");

    let mut attempts = Vec::new();
    for _ in 0..3 {
        let again = next(&queue).await;
        attempts.push((body(&again), again.attempt));
        ack(&queue, again).await;
    }
    attempts.sort_unstable();
    assert_eq!(attempts, [(0, 2), (1, 2), (2, 1)], "what was only sent ahead has had no attempt");
    let late = queue.settle(vec![Settlement::Ack(first.receipt)]).await.remove(0).unwrap_err();
    assert!(matches!(late.error, LeaseError::Lost(_)), "{:?}", late.error);
    let mut link = broker.link();
    timeout(PATIENCE, link.wait_for(|link| *link == Link::Up)).await.unwrap().unwrap();
    send(&broker, 1, None).await;
    ack(&queue, next(&queue).await).await;
    drop(server);
}

/// A network to the server that can fall silent, while both ends consider their connections open.
pub(super) struct Network {
    pub(super) port: u16,
    pub(super) silent: watch::Sender<bool>,
}

impl Network {
    pub(super) async fn before(server: &RabbitMq) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, target) = (listener.local_addr().unwrap().port(), server.port());
        let (silent, heard) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, mut heard) = (TcpStream::connect(("127.0.0.1", target)).await.unwrap(), heard.clone());
                tokio::spawn(async move {
                    let (mut client, mut server) = (client, server);
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = async { heard.wait_for(|silent| *silent).await.map(drop) } => std::future::pending().await,
                    }
                });
            }
        });
        Self { port, silent }
    }
}

/// The server takes back what a silent client has after two intervals of heartbeats. The client must give up before.
#[tokio::test]
async fn a_silent_server_loses_its_leases_within_an_interval_of_heartbeats() {
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let network = Network::before(server).await;
    let prefix = format!("{}-", unique("silent"));
    let url = format!("amqp://guest:guest@127.0.0.1:{}?heartbeat={}", network.port, HEARTBEAT.as_secs());
    // The interval that counts is the one that client and server agree on.
    let options = Options { heartbeat: 30 * HEARTBEAT, ..options(url, &prefix) };
    let through = RabbitBroker::connect(options).await.unwrap();
    let queue = through.open(&spec(false)).await.unwrap();
    send(&through, 1, None).await;
    let delivery = next(&queue).await;
    tokio::time::sleep(2 * HEARTBEAT).await;
    assert!(timeout(Duration::from_millis(1), queue.taken_back()).await.is_err(), "while the server answers");
    let other = broker(server, &prefix).await.open(&spec(false)).await.unwrap();
    network.silent.send_replace(true);
    let silent_at = Instant::now();
    let again = tokio::spawn(async move { (next(&other).await.attempt, Instant::now()) });
    let taken = timeout(PATIENCE, queue.taken_back()).await.unwrap();
    let taken_at = Instant::now();
    assert_eq!(taken, [delivery.receipt.lease()]);
    let (attempt, again_at) = again.await.unwrap();
    assert!(attempt == 2 && taken_at < again_at, "{:?} {:?}", taken_at - silent_at, again_at - silent_at);
}

/// One host has half of a group, and ends, by a rest or by its death; the other goes on where it was.
#[tokio::test]
async fn the_order_of_a_group_survives_a_change_of_hosts() {
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    for dies in [false, true] {
        let prefix = format!("{}-", unique("turn"));
        let (one, other) = (broker(server, &prefix).await, broker(server, &prefix).await);
        let first = one.open(&spec(true)).await.unwrap();
        let second = other.open(&spec(true)).await.unwrap();
        send(&one, 30, Some("g")).await;
        for n in 0..5 {
            let delivery = next(&first).await;
            assert_eq!(body(&delivery), n);
            ack(&first, delivery).await;
        }
        let in_hand = next(&first).await;
        assert_eq!(body(&in_hand), 5);
        assert_eq!(receive(&second, 10, Duration::from_secs(2)).await.unwrap().len(), 0, "it is not its turn");
        if dies {
            drop((first, one, in_hand));
        } else {
            first.rest().await;
            assert_eq!(receive(&second, 10, Duration::from_secs(2)).await.unwrap().len(), 0, "one is still in hand");
            ack(&first, in_hand).await;
        }
        for n in if dies { 5 } else { 6 }..30 {
            let delivery = next(&second).await;
            assert_eq!(body(&delivery), n, "{dies}");
            ack(&second, delivery).await;
        }
    }
}

#[tokio::test]
async fn what_was_sent_ahead_goes_back_at_a_rest() {
    let (server, prefix) = shared("rest").await;
    let (one, other) = (broker(server, &prefix).await, broker(server, &prefix).await);
    let first = one.open(&spec(false)).await.unwrap();
    let second = other.open(&spec(false)).await.unwrap();
    send(&one, 10, None).await;
    let in_hand = next(&first).await;
    assert_eq!(receive(&second, 10, Duration::ZERO).await.unwrap().len(), 0, "all are sent ahead to the other");
    first.rest().await;
    let mut taken = Vec::new();
    while taken.len() < 9 {
        taken.push(next(&second).await);
    }
    ack(&first, in_hand).await;
    queue_back(&second, taken).await;
    second.rest().await;
    for _ in 0..9 {
        let delivery = next(&first).await;
        ack(&first, delivery).await;
    }
    assert_eq!(one.depths(&[jobs()]).await.unwrap()[0].total(), 0);
}

pub(super) async fn queue_back(queue: &Arc<dyn Queue>, taken: Vec<Delivery>) {
    let back = taken.into_iter().map(|delivery| Settlement::GiveBack(delivery.receipt, Duration::ZERO)).collect();
    assert!(queue.settle(back).await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_queue_in_another_form_is_found_with_the_way_out() {
    let (server, prefix) = shared("drift").await;
    let broker = broker(server, &prefix).await;
    broker.open(&spec(false)).await.unwrap();
    assert_eq!(broker.inspect(&spec(false)).await.unwrap(), []);
    assert_eq!(broker.plan(&[spec(false)]).await.unwrap(), []);
    let findings = broker.inspect(&spec(true)).await.unwrap();
    assert!(findings.iter().any(|finding| finding.fatal && finding.cure.contains("delete_queue")), "{findings:?}");
    let plan = broker.plan(&[spec(true)]).await.unwrap();
    assert!(plan.iter().all(|change| change.action == Action::Leave) && !plan.is_empty(), "{plan:?}");
    assert!(matches!(broker.open(&spec(true)).await.map(drop), Err(QueueError::Refused(_))));
}

pub(super) async fn ctl(server: &Arc<RabbitMq>, args: &'static [&'static str]) {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || server.ctl(args)).await.unwrap();
}

/// Sends a message. Returns the error.
pub(super) async fn send_once(broker: &RabbitBroker) -> Option<String> {
    let jobs = jobs();
    let sending = broker.send(&jobs, vec![Outgoing { body: "7".into(), ..Outgoing::default() }]);
    timeout(PATIENCE, sending).await.unwrap().remove(0).err().map(|error| error.to_string())
}

/// Sends a message until it is taken.
pub(super) async fn send_in_the_end(broker: &RabbitBroker) {
    let deadline = Instant::now() + 2 * PATIENCE;
    while let Some(error) = send_once(broker).await {
        assert!(Instant::now() < deadline, "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_away_comes_back_and_has_everything() {
    let server = Arc::new(tokio::task::spawn_blocking(RabbitMq::start).await.unwrap());
    let broker = broker(&server, "away-").await;
    let queue = broker.open(&spec(false)).await.unwrap();
    send(&broker, 5, None).await;
    let in_hand = next(&queue).await;
    ctl(&server, &["stop_app"]).await;
    assert_eq!(timeout(PATIENCE, queue.taken_back()).await.unwrap(), [in_hand.receipt.lease()]);
    let error = receive(&queue, 1, Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(error, QueueError::Unavailable(_)), "{error:?}");
    assert!(matches!(*broker.link().borrow(), Link::Down { .. }));
    ctl(&server, &["start_app"]).await;
    send_in_the_end(&broker).await;
    let mut bodies = Vec::new();
    for _ in 0..6 {
        let delivery = next(&queue).await;
        bodies.push(body(&delivery));
        ack(&queue, delivery).await;
    }
    bodies.sort_unstable();
    assert_eq!(bodies, [0, 1, 2, 3, 4, 7]);
}

/// A memory alarm blocks what publishes, and nothing else.
#[tokio::test]
async fn a_blocked_server_still_delivers_and_takes_messages_again_later() {
    let server = Arc::new(tokio::task::spawn_blocking(RabbitMq::start).await.unwrap());
    let broker = broker(&server, "full-").await;
    let queue = broker.open(&spec(false)).await.unwrap();
    send(&broker, 3, None).await;
    ctl(&server, &["set_vm_memory_high_watermark", "absolute", "1MB"]).await;
    let error = send_once(&broker).await;
    assert!(error.as_ref().is_some_and(|error| error.contains("accepts no messages")), "{error:?}");
    assert!(matches!(*broker.link().borrow(), Link::Blocked(_)));
    let tried_at = Instant::now();
    for _ in 0..5 {
        let error = send_once(&broker).await;
        assert!(error.as_ref().is_some_and(|error| error.contains("accepts no messages")), "{error:?}");
    }
    assert!(tried_at.elapsed() < PUBLISHING, "nothing to wait for: {:?}", tried_at.elapsed());
    let depths = timeout(PATIENCE, broker.depths(&[jobs()])).await.unwrap().unwrap();
    assert_eq!(depths[0].visible, 3, "counted while it accepts no messages");
    for _ in 0..3 {
        ack(&queue, next(&queue).await).await;
    }
    ctl(&server, &["set_vm_memory_high_watermark", "0.6"]).await;
    send_in_the_end(&broker).await;
    let mut came = 0;
    while let Some(delivery) = receive(&queue, 1, Duration::from_secs(1)).await.unwrap().pop() {
        assert_eq!(body(&delivery), 7);
        ack(&queue, delivery).await;
        came += 1;
    }
    assert!((1..=2).contains(&came), "the one on its way when the server blocked, and the last: {came}");
    assert_eq!(*broker.link().borrow(), Link::Up);
}

#[tokio::test]
async fn a_queue_that_is_deleted_under_its_consumer_is_named_and_may_come_again() {
    let server = Arc::new(tokio::task::spawn_blocking(RabbitMq::start).await.unwrap());
    let broker = broker(&server, "gone-").await;
    let queue = broker.open(&spec(false)).await.unwrap();
    send(&broker, 1, None).await;
    let in_hand = next(&queue).await;
    ctl(&server, &["delete_queue", "gone-jobs"]).await;
    assert_eq!(timeout(PATIENCE, queue.taken_back()).await.unwrap(), [in_hand.receipt.lease()]);
    let error = receive(&queue, 1, Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(&error, QueueError::Refused(text) if text.contains("gone-jobs")), "{error:?}");
    assert!(broker.depths(&[jobs()]).await.unwrap()[0].missing);
    broker.open(&spec(false)).await.unwrap();
    send(&broker, 1, None).await;
    ack(&queue, next(&queue).await).await;
}

#[tokio::test]
async fn the_management_api_lists_queues_and_counts_what_is_in_flight() {
    let (server, prefix) = shared("listed").await;
    let options = Options { management_url: Some(server.management_url()), ..options(server.url(), &prefix) };
    let broker = RabbitBroker::connect(options).await.unwrap();
    let spec = ChannelSpec { max_receives: Some(5), ..ChannelSpec::new("shop.jobs".parse().unwrap()) };
    let queue = broker.open(&spec).await.unwrap();
    broker.send(&"elsewhere".parse().unwrap(), vec![Outgoing::default()]).await.remove(0).unwrap();
    send(&broker, 3, None).await;
    let _in_hand = next(&queue).await;
    let listed = broker.channels().await.unwrap().into_iter().map(|channel| channel.to_string());
    assert_eq!(listed.collect::<Vec<_>>(), ["elsewhere", "jobs", "jobs-dlq"]);
    let elsewhere = "elsewhere".parse().unwrap();
    assert_eq!(broker.exchanges_feeding(std::slice::from_ref(&elsewhere)).await.unwrap(), Some(Vec::new()));
    assert_eq!(broker.exchanges_feeding(&[elsewhere, jobs()]).await.unwrap(), Some(vec!["shop".to_owned()]));
    let deadline = Instant::now() + PATIENCE;
    // The server counts every few seconds. What it has sent ahead is visible.
    while broker.depths(&[jobs()]).await.unwrap()[0].in_flight != Some(1) {
        assert!(Instant::now() < deadline, "{:?}", broker.depths(&[jobs()]).await);
    }
}

/// The permissions that the book names for a consumer's user are enough.
#[tokio::test]
async fn a_user_with_the_permissions_of_the_book_can_do_all_that_a_consumer_does() {
    let server = Arc::new(tokio::task::spawn_blocking(RabbitMq::start).await.unwrap());
    let as_user = |url| Options { ladder_prefix: None, ..options(url, "p-") };
    let admin = RabbitBroker::connect(as_user(server.url())).await.unwrap();
    let spec =
        |ordered| ChannelSpec { ordered, max_receives: Some(5), ..ChannelSpec::new("shop.jobs".parse().unwrap()) };
    admin.open(&spec(false)).await.unwrap();
    ctl(&server, &["add_user", "worker", "secret"]).await;
    let book = include_str!("../../book/src/rabbitmq.md");
    let pattern = |right: &str| {
        let row = book.lines().find(|line| line.starts_with(&format!("| {right} |"))).unwrap();
        row.split('`').nth(1).unwrap().replace("\\|", "|").replace("<prefix>", "p-")
    };
    let patterns = ["configure", "write", "read"].map(pattern);
    let set = Arc::clone(&server);
    tokio::task::spawn_blocking(move || {
        let [configure, write, read] = &patterns;
        set.ctl(&["set_permissions", "worker", configure, write, read])
    })
    .await
    .unwrap();

    let url = server.url().replace("guest:guest", "worker:secret");
    let worker = RabbitBroker::connect(Options { create_missing: false, ..as_user(url) }).await.unwrap();
    let queue = worker.open(&spec(false)).await.unwrap();
    for channel in ["jobs", "shop"] {
        let delayed = Outgoing { delay: Duration::from_secs(1), ..Outgoing::default() };
        for sent in worker.send(&channel.parse().unwrap(), vec![Outgoing::default(), delayed]).await {
            sent.unwrap();
        }
    }
    for n in 0..4 {
        let Delivery { receipt, message, .. } = next(&queue).await;
        let settlement = match n {
            0 => Settlement::Release(receipt, Duration::from_secs(1)),
            1 => Settlement::DeadLetter { receipt, message, reason: "why".to_owned() },
            _ => Settlement::Ack(receipt),
        };
        queue.settle(vec![settlement]).await.remove(0).unwrap();
    }
    ack(&queue, next(&queue).await).await;
    assert_eq!(worker.depths(&[jobs()]).await.unwrap()[0].dead_lettered, 1);
}
