//! `kill -9`, of a host and of a sender: no message vanishes, and the queue works on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::process::Stdio;
use std::time::Instant;

use futures_core::Stream;
use lapin::ConnectionProperties;
use lapin::options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use rusqlite::Connection;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::nats::{self, wire::Wire};
use crate::rabbitmq;
use crate::support::hostler::{Depth, PATIENCE, World, until};
use crate::support::nats::{Nats, Version};
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::{Kind, unique};
use crate::support::sqs::Aws;

/// A consumer whose handler leaves a file named as the body for each message, and refuses those that begin with `d`.
const MARKS: &str = "
    [consumers.jobs]
    channel = 'jobs'
    handler = 'guests/run-mark.wat'
    concurrency = 16
    lease = '2s'
    retry = { requeues = 100, requeue_delay = '50ms' }
    allow.dirs = [{ host = 'marks', guest = '/marks', mode = 'rw' }]
";

/// Number of messages that a host has in hand at most: its slots.
const IN_HAND: usize = 16;

/// Number of times that a host is killed while it works. `HOSTLER_TEST_KILLS` overrides it.
fn kills() -> usize {
    std::env::var("HOSTLER_TEST_KILLS").map_or(50, |kills| kills.parse().unwrap())
}

/// Number of messages: more than the hosts finish between all kills.
fn sent() -> usize {
    kills() * 400
}

fn marks(world: &World) -> BTreeSet<String> {
    let files = fs::read_dir(world.path("marks")).into_iter().flatten();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

fn body(number: usize) -> String {
    if number.is_multiple_of(100) { format!("d{number}") } else { number.to_string() }
}

/// Content of a queue: bodies by the ids of their messages.
type Lying = BTreeMap<String, String>;

/// Looks at what lies in a queue, given its name, and leaves it there.
type Look<'a> = &'a dyn Fn(&str) -> Lying;

/// Facts that are certain once a host has said that it settled a message.
#[derive(Clone, Copy, PartialEq)]
enum Certain {
    /// Nothing: the service confirms no ack, so one that a host has sent may be lost with it.
    Nothing,
    /// A message that was acked is in its queue no more.
    Acks,
    /// A message leaves its queue at the moment in which it enters the dead-letter queue, too.
    Moves,
}

/// Follows messages through many kills.
struct Ledger<'a> {
    world: &'a World,
    look: Look<'a>,
    certain: Certain,
    sent: Lying,
    /// The ids of what the hosts have said that they acked.
    acked: BTreeSet<String>,
}

impl<'a> Ledger<'a> {
    /// Sends the messages.
    fn open(world: &'a World, look: Look<'a>, certain: Certain) -> Self {
        world.send("jobs", (0..sent()).map(body));
        let sent = look("jobs");
        assert_eq!(sent.len(), self::sent());
        Self { world, look, certain, sent, acked: BTreeSet::new() }
    }

    /// Takes in what a host has said.
    fn hear(&mut self, lines: &[Value]) {
        let acked = lines.iter().filter(|line| line["disposition"] == "ack");
        self.acked.extend(acked.map(|line| line["message_id"].as_str().unwrap().to_owned()));
    }

    /// Acked + dead-lettered + still queued = sent: what is in no queue was handled, what a host has acked is in none, or
    /// was in hand when the host was killed, and what is in the dead-letter queue was refused. How many are still queued.
    fn balance(&mut self) -> usize {
        let (left, dead, done) = ((self.look)("jobs"), (self.look)("jobs-dlq"), marks(self.world));
        let copies = dead.len();
        let dead: BTreeSet<String> = dead.into_values().collect();
        assert!(dead.iter().all(|body| body.starts_with('d')));
        let mut again = 0;
        for (id, body) in &self.sent {
            let (is_left, is_dead) = (left.contains_key(id), dead.contains(body));
            assert!(is_left || is_dead || done.contains(body), "{body} has vanished");
            again += usize::from(is_left && self.acked.remove(id));
            assert!(!(is_left && is_dead && self.certain == Certain::Moves), "{body} is twice there");
        }
        let most = if self.certain == Certain::Nothing { IN_HAND } else { 0 };
        assert!(again <= most, "{again} were acked, and are still there");
        if self.certain == Certain::Moves {
            assert_eq!(copies, dead.len(), "each has one copy");
        }
        left.len()
    }
}

/// Kills hosts in the middle of their messages, and as they start.
fn killed_many_times(world: &World, look: Look<'_>, certain: Certain) {
    let mut ledger = Ledger::open(world, look, certain);
    let mut left = sent();
    for round in 0..kills() {
        let host = world.start();
        match round % 10 {
            9 => drop(host.wait_for(PATIENCE, |_| true)),
            _ => drop(host.settled(150 + round * 67 % 200)),
        }
        ledger.hear(&host.kill());
        left = ledger.balance();
        assert!(left > 0, "killed with work to do, in round {round}");
    }
    let mut host = world.start();
    host.settled(left);
    until("the queue is empty", PATIENCE, || {
        let depth = world.depth("jobs");
        (depth == Depth { dead_lettered: depth.dead_lettered, ..Depth::default() }).then_some(())
    });
    assert_eq!(host.stop(), 0);
    ledger.hear(&host.lines());
    assert_eq!(ledger.balance(), 0);
    let (refused, done): (BTreeSet<_>, _) = (0..sent()).map(body).partition(|body| body.starts_with('d'));
    assert!(marks(world) == done, "every message that can be done is done");
    assert!(look("jobs-dlq").into_values().collect::<BTreeSet<_>>() == refused);
}

#[test]
fn hosts_killed_fifty_times_lose_no_message_embedded() {
    let world = World::new(MARKS);
    let look = |queue: &str| {
        let db = Connection::open(world.path("queue.db")).unwrap();
        let lying = "SELECT id, CAST(body AS TEXT) FROM entry JOIN content USING (seq)
                     WHERE queue = (SELECT id FROM queue WHERE name = ?1)";
        let mut lying = db.prepare(lying).unwrap();
        let rows = lying.query_map([queue], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    };
    killed_many_times(&world, &look, Certain::Moves);
}

/// Messages of a queue, by an endpoint of this server that is not part of SQS.
fn inspected(world: &Aws, queue: &str) -> Lying {
    let mut stream = TcpStream::connect(world.server.address()).unwrap();
    write!(stream, "GET /_fauxqs/queues/{}{queue} HTTP/1.0\r\n\r\n", world.prefix).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{head}");
    let queue: Value = serde_json::from_str(body).unwrap();
    let all = ["ready", "delayed", "inflight"].map(|state| queue["messages"][state].as_array().unwrap());
    let text = |message: &Value, field: &str| message[field].as_str().unwrap().to_owned();
    let message = |message: &Value| message.get("message").unwrap_or(message).clone();
    all.into_iter().flatten().map(message).map(|one| (text(&one, "messageId"), text(&one, "body"))).collect()
}

#[test]
fn hosts_killed_fifty_times_lose_no_message_sqs() {
    let world = Aws::new(Kind::Fauxqs, MARKS);
    killed_many_times(&world, &|queue| inspected(&world, queue), Certain::Acks);
}

/// Messages of a queue, by a plain client that takes them all and gives them back as its channel ends.
async fn taken(client: &lapin::Connection, queue: &str) -> Lying {
    let (passive, none) = (QueueDeclareOptions::durable().passive(), FieldTable::default);
    let channel = client.create_channel().await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    let count = loop {
        let found = channel.queue_declare(queue.into(), passive, none()).await.unwrap();
        // The server has taken back what a killed host had once it lists the host no more.
        if found.consumer_count() == 0 {
            break found.message_count() as usize;
        }
        assert!(Instant::now() < deadline, "the server still has a consumer");
    };
    channel.basic_qos(u16::MAX, BasicQosOptions::default()).await.unwrap();
    let mut consumer =
        channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), none()).await.unwrap();
    let mut lying = Lying::new();
    for _ in 0..count {
        let delivery = poll_fn(|cx| Pin::new(&mut consumer).poll_next(cx));
        let delivery = timeout(PATIENCE, delivery).await.expect("a message that was counted").unwrap().unwrap();
        let id = delivery.properties.message_id().as_ref().unwrap().as_str().to_owned();
        lying.insert(id, String::from_utf8(delivery.data).unwrap());
    }
    channel.close(200, "".into()).await.unwrap();
    lying
}

#[test]
fn hosts_killed_fifty_times_lose_no_message_rabbitmq() {
    let server = RabbitMq::shared();
    let mut world = rabbitmq::world(server, MARKS);
    let prefix = format!("{}-", unique("kills"));
    world.set("HOSTLER_QUEUE__RABBITMQ__PREFIX", prefix.clone());
    world.provision();
    let (runtime, url) = (Runtime::new().unwrap(), server.url());
    let client = runtime.block_on(lapin::Connection::connect(&url, ConnectionProperties::default())).unwrap();
    let look = |queue: &str| runtime.block_on(taken(&client, &format!("{prefix}{queue}")));
    killed_many_times(&world, &look, Certain::Nothing);
    runtime.block_on(client.close(200, "".into())).unwrap();
}

#[test]
fn hosts_killed_fifty_times_lose_no_message_nats() {
    let server = Nats::shared(Version::Newest);
    let mut world = nats::world(server, MARKS);
    let prefix = format!("{}-", unique("kills"));
    world.set("HOSTLER_QUEUE__NATS__PREFIX", prefix.clone());
    world.provision();
    let url = server.url();
    let id = |headers: &str| {
        let value = |name| headers.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        value("Hostler-Id: ").or_else(|| value("Nats-Msg-Id: ")).unwrap()
    };
    let look = |queue: &str| {
        let stored = Wire::to(&url).stored(&format!("{prefix}{queue}"));
        stored.into_iter().map(|stored| (id(&stored.headers), stored.body)).collect()
    };
    killed_many_times(&world, &look, Certain::Acks);
}

#[test]
fn a_killed_sender_leaves_a_whole_beginning() {
    let world = World::new(MARKS);
    let mut sender = world.command(&["send", "jobs", "--lines", "-"]);
    let mut sender = sender.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = sender.stdin.take().unwrap();
    let feeding = std::thread::spawn(move || (1..).take_while(|n| writeln!(input, "{n}").is_ok()).count());
    until("some are sent", PATIENCE, || (world.depth("jobs").visible >= 2_000).then_some(()));
    sender.kill().unwrap();
    sender.wait().unwrap();
    feeding.join().unwrap();

    let kept = world.depth("jobs").visible;
    world.send("jobs", ["after"]);
    let mut host = world.start();
    let lines = host.settled(kept as usize + 1);
    assert_eq!(host.stop(), 0);
    assert!(lines.iter().all(|line| line["outcome"] == "ack" && line["attempt"] == 1));
    let beginning: BTreeSet<_> = (1..=kept).map(|n| n.to_string()).chain(["after".to_owned()]).collect();
    assert!(marks(&world) == beginning, "the first {kept} messages, whole, and what was sent after");
    assert_eq!(world.depth("jobs"), Depth::default());
}
