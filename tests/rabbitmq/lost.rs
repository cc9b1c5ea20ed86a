//! A lost connection: its handlers are stopped as soon as the host sees the loss, and nothing is lost. If the server has fallen
//! silent, they are stopped before another host gets their messages.

use std::time::{Duration, SystemTime};

use serde_json::Value;
use tokio::runtime::Runtime;

use super::driver::{HEARTBEAT, Network};
use super::{WORK, is_busy, world};
use crate::support::hostler::{Host, PATIENCE, World, announce, until};
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::unique;

/// Two hosts on one queue. The first has two handlers at work, each for longer than the test takes. The second is idle, and acks
/// at once what it receives.
struct Pair {
    world: World,
    first: Host,
    second: Host,
}

impl Pair {
    /// `url`: address at which the first host reaches the server.
    fn start(server: &RabbitMq, url: String) -> Self {
        let work = WORK.replace("'30s'", "'120s'").replace("'60s'", "'150s'");
        let mut world = world(server, &work);
        world.set("HOSTLER_QUEUE__RABBITMQ__HEARTBEAT", format!("{}s", HEARTBEAT.as_secs()));
        world.provision();
        world.send("work", ["w90000"; 2]);
        world.set(URL, url);
        let first = world.started();
        is_busy(&first, &world, 2);
        world.set(URL, server.url());
        world.set(HEALTH_FILE, "second.json".to_owned());
        world.config(&work.replace("run-word", "main-echoes"));
        let second = world.started();
        world.set(HEALTH_FILE, "health.json".to_owned());
        Self { world, first, second }
    }

    /// Waits until the second host is done with the messages. Announces the times of both hosts after a loss.
    fn order(&self, loss: &str, lost_at: SystemTime) -> Times {
        let (stopped, done) = (self.stopped(), self.second.settled(2));
        assert!(done.iter().all(|line| line["outcome"] == "ack" && line["attempt"] == 2), "{done:?}");
        let ran = |line: &Value| Duration::from_secs_f64(line["duration_ms"].as_f64().unwrap() / 1_000.0);
        let times = Times {
            stopped: stopped.iter().map(at).max().unwrap(),
            begun: done.iter().map(|line| at(line) - ran(line)).min().unwrap(),
            done: done.iter().map(at).min().unwrap(),
        };
        let after = |at: SystemTime| match at.duration_since(lost_at) {
            Ok(after) => format!("{:.1} ms", after.as_secs_f64() * 1_000.0),
            Err(before) => format!("-{:.1} ms", before.duration().as_secs_f64() * 1_000.0),
        };
        announce(&format!(
            "{loss}: handlers stopped after {}; the other host began after {} and was done after {}",
            after(times.stopped),
            after(times.begun),
            after(times.done)
        ));
        times
    }

    /// Waits until both handlers of the first host have been stopped, because their leases were lost.
    fn stopped(&self) -> Vec<Value> {
        let stopped = self.first.settled(2);
        let is_lost = |line: &Value| line["outcome"] == "lease-lost" && line["disposition"] == "none";
        assert!(stopped.iter().all(is_lost), "{stopped:?}");
        stopped
    }

    /// Returns the time at which the first host saw the loss.
    fn seen(&self, why: &str) -> SystemTime {
        let seen = self.first.wait_for(PATIENCE, |line| line["message"] == "RabbitMQ stopped sending messages");
        assert!(seen["error"].as_str().is_some_and(|error| error.contains(why)), "{seen}");
        at(&seen)
    }

    /// Both hosts work on, and nothing is left.
    fn works_on(mut self) {
        self.world.send("work", ["ack"; 3]);
        let settled = || [&self.first, &self.second].map(|host| host.settled(2).len()).iter().sum::<usize>();
        until("they are done", PATIENCE, || (settled() == 2 + 2 + 3).then_some(()));
        until("the first is healthy", PATIENCE, || (self.world.verdict()["status"] == "healthy").then_some(()));
        assert_eq!((self.first.stop(), self.second.stop()), (0, 0));
        let depth = self.world.depth("work");
        assert_eq!((depth.visible, depth.dead_lettered), (0, 0));
    }
}

const URL: &str = "HOSTLER_QUEUE__RABBITMQ__URL";
const HEALTH_FILE: &str = "HOSTLER_HOST__HEALTH_FILE";

/// Times of a loss, as the hosts logged them.
struct Times {
    /// The last handler of the first host had stopped.
    stopped: SystemTime,
    /// The first handler of the second host began.
    begun: SystemTime,
    /// The second host was done with the first message.
    done: SystemTime,
}

fn at(line: &Value) -> SystemTime {
    humantime::parse_rfc3339(line["timestamp"].as_str().unwrap()).unwrap()
}

/// Time in which a handler is stopped once the loss is seen, even on a busy machine. Without a sign of the loss, a handler runs on
/// until the next extension of its lease fails, a third of the lease later at most.
const STOP: Duration = Duration::from_secs(5);

/// The server closes the connections of one host, and has its messages again at once. So another host may be done with them before
/// the first one has read of the loss.
#[test]
fn a_lost_connection_stops_its_handlers_and_loses_nothing() {
    let server = RabbitMq::shared();
    let user = unique("cut");
    server.ctl(&["add_user", &user, "secret"]);
    server.ctl(&["set_permissions", &user, ".*", ".*", ".*"]);
    let pair = Pair::start(server, server.url().replace("guest:guest", &format!("{user}:secret")));
    server.ctl(&["close_all_user_connections", &user, "a test"]);
    let seen = pair.seen("");
    let times = pair.order("connection closed by the server", seen);
    assert!(times.stopped < seen + STOP, "stopped {:?} after the loss", times.stopped.duration_since(seen));
    pair.works_on();
}

/// The server does nothing until the handlers are stopped.
#[test]
fn a_frozen_server_stops_the_handlers_within_an_interval_of_heartbeats() {
    let server = RabbitMq::start();
    let pair = Pair::start(&server, server.url());
    let frozen_at = SystemTime::now();
    server.freeze();
    pair.stopped();
    pair.seen(&silence());
    server.thaw();
    let times = pair.order("server frozen", frozen_at);
    assert!(times.stopped < times.begun, "a handler ran on while another host had its message");
    pair.works_on();
}

/// The server takes back what a silent host has after two intervals of heartbeats.
#[test]
fn a_silent_network_stops_the_handlers_before_the_server_delivers_again() {
    let server = RabbitMq::shared();
    let runtime = Runtime::new().unwrap();
    let network = runtime.block_on(Network::before(server));
    let url = format!("amqp://guest:guest@127.0.0.1:{}", network.port);
    let mut pair = Pair::start(server, url);
    let silent_at = SystemTime::now();
    network.silent.send_replace(true);
    pair.seen(&silence());
    let times = pair.order("network silent", silent_at);
    assert!(times.stopped < times.begun, "a handler ran on while another host had its message");
    assert_eq!(pair.second.stop(), 0);
    assert_eq!(pair.world.depth("work").visible, 0);
}

/// Returns the reason that the host logs if the server is silent. It has the time after which the host gives up.
fn silence() -> String {
    format!("no sign of life for {HEARTBEAT:?}")
}
