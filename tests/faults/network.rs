//! Faults of the network between hostler, its queues and its bucket, and of the servers behind it.

use std::fs;
use std::time::Duration;

use super::{WORK, accounted, drained, is, is_empty};
use crate::support::hostler::{Host, PATIENCE, World, until};
use crate::support::mounts::Mounts;
use crate::support::proxy::{Line, Proxy};
use crate::support::python::python;
use crate::support::servers::{Kind, Server, unique};
use crate::support::sqs::Aws;

/// A host that reaches its queues through a proxy, which everybody else passes by.
fn behind_a_proxy(keys: &str) -> (Aws, Proxy, Host) {
    let world = Aws::new(Kind::Fauxqs, &format!("{WORK}{keys}"));
    let proxy = Proxy::before(&world.server.endpoint());
    let mut command = world.command(&["run"]);
    command.env("HOSTLER_QUEUE__SQS__ENDPOINT_URL", proxy.endpoint());
    let host = Host::start(command);
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    (world, proxy, host)
}

/// Messages before the fault, while it lasts and after it; all are accounted for. The host is unhealthy meanwhile.
fn survived(line: Line) {
    let (world, proxy, mut host) = behind_a_proxy("");
    is(&world, "healthy");
    world.send("work", vec!["w200"; 100]);
    host.settled(20);
    proxy.set(line);
    world.send("work", vec!["ack"; 50]);
    let reasons = is(&world, "unhealthy");
    assert!(reasons.contains("no poll has completed"), "{reasons}");
    proxy.set(Line::Good);
    is_empty(&world);
    is(&world, "healthy");
    world.send("work", ["ack"]);
    is_empty(&world);
    accounted(151, &drained(&mut host));
}

#[test]
fn answers_that_take_long_cost_time_and_nothing_else() {
    let (world, proxy, mut host) = behind_a_proxy("");
    proxy.set(Line::Late(Duration::from_millis(300)));
    world.send("work", vec!["ack"; 300]);
    until("all are done", PATIENCE, || {
        assert_eq!(world.verdict()["status"], "healthy");
        (world.counts("work") == [0, 0, 0]).then_some(())
    });
    let lines = drained(&mut host);
    accounted(300, &lines);
    let again = lines.iter().filter(|line| line["attempt"].as_u64() > Some(1)).count();
    assert_eq!(again, 0, "leases outlast the wait for answers");
}

#[test]
fn connections_that_are_reset_at_once() {
    survived(Line::Reset(0));
}

#[test]
fn connections_that_are_reset_in_the_middle_of_an_answer() {
    survived(Line::Reset(150));
}

#[test]
fn a_blackhole_that_lets_everything_through_in_the_end() {
    survived(Line::Held);
}

#[test]
fn a_blackhole_that_kills_its_connections_in_silence() {
    survived(Line::Swallowed);
}

#[test]
fn connections_that_are_accepted_and_never_answered() {
    survived(Line::HalfOpen);
}

#[test]
fn a_storm_of_503() {
    survived(Line::Answer(503, "ServiceUnavailable"));
}

#[test]
fn a_storm_of_500() {
    survived(Line::Answer(500, "InternalError"));
}

#[test]
fn a_storm_of_429() {
    survived(Line::Answer(429, "TooManyRequestsException"));
}

#[test]
fn credentials_that_have_expired() {
    survived(Line::Answer(403, "ExpiredTokenException"));
}

/// The head of a config whose queues are where AWS's own variables say.
const ELSEWHERE: &str = "
    host.health_file = 'health.json'
    queue.driver = 'sqs'
    queue.sqs.provision = 'auto'
";

/// A world whose queues are on this server, which is its own.
fn on(server: &Server) -> World {
    World::with(ELSEWHERE, server.env(), WORK)
}

#[test]
fn a_server_that_is_started_again_with_what_it_had() {
    let state = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let server = Server::start_at(Kind::Ministack, free, Some(state.path()));
    let world = on(&server);
    let mut host = world.started();
    is(&world, "healthy");
    world.send("work", vec!["w200"; 100]);
    host.settled(20);
    let address = server.address();
    server.stop();
    let reasons = is(&world, "unhealthy");
    assert!(reasons.contains("no poll has completed"), "{reasons}");
    let _server = Server::start_at(Kind::Ministack, address, Some(state.path()));
    is_empty(&world);
    is(&world, "healthy");
    accounted(100, &drained(&mut host));
}

#[test]
fn a_server_that_has_lost_what_it_had() {
    let server = Server::start(Kind::Fauxqs);
    let world = on(&server);
    let mut host = world.started();
    world.send("work", vec!["w200"; 100]);
    host.settled(20);
    let address = server.address();
    drop(server);
    let _server = Server::start_at(Kind::Fauxqs, address, None);
    is(&world, "unhealthy");
    host.wait_for(PATIENCE, |line| line["error"].as_str().is_some_and(|error| error.contains("NonExistentQueue")));
    assert_eq!(world.output(&["provision"]).code, 0);
    is(&world, "healthy");
    let before = host.lines().iter().filter(|line| line.get("outcome").is_some()).count();
    world.send("work", vec!["ack"; 50]);
    let lines = host.settled(before + 50);
    assert!(lines[before..].iter().all(|line| line["outcome"] == "ack" && line["attempt"] == 1), "{lines:?}");
    is_empty(&world);
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_name_that_does_not_resolve_for_a_while() {
    let world = Aws::new(Kind::Fauxqs, WORK);
    let proxy = Proxy::before(&world.server.endpoint());
    // A resolver that looks into a file of the test's, and asks nobody who answers.
    fs::write(world.path("hosts"), "").unwrap();
    fs::write(world.path("resolv.conf"), "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n").unwrap();
    fs::write(world.path("nsswitch.conf"), "hosts: files dns\n").unwrap();
    let script = "for name in hosts resolv.conf nsswitch.conf; do mount --bind $name /etc/$name; done";
    let Some(mounts) = Mounts::new(&world, script) else { return };
    let start = || {
        let mut command = mounts.hostler(&world, &["run"]);
        let endpoint = format!("http://queues.test:{}", proxy.port());
        Host::start({
            command.env("HOSTLER_QUEUE__SQS__ENDPOINT_URL", endpoint);
            command
        })
    };
    let mut refused = start();
    assert_eq!(refused.wait_exit(PATIENCE), 69);
    refused.lines().iter().find(|line| line["message"].as_str().is_some_and(|text| text.contains("dns"))).unwrap();

    fs::write(world.path("hosts"), "127.0.0.1 queues.test\n").unwrap();
    let mut host = start();
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    world.send("work", vec!["w200"; 100]);
    host.settled(20);
    fs::write(world.path("hosts"), "").unwrap();
    // What is connected would stay so.
    proxy.cut();
    proxy.restore();
    world.send("work", vec!["ack"; 50]);
    is(&world, "unhealthy");
    fs::write(world.path("hosts"), "127.0.0.1 queues.test\n").unwrap();
    is_empty(&world);
    is(&world, "healthy");
    accounted(150, &drained(&mut host));
}

/// Messages whose bodies are in a bucket that is behind a bad line, and queues behind a good one. None is lost, every body
/// is removed with its message, and the consumer counts as healthy: it polls, and its handlers end.
fn bodies_survived(line: Line) {
    let server = Server::shared(Kind::Fauxqs);
    let name = unique("bodies");
    let keys = "on_processing_timeout = 'retry'";
    let work = WORK.replace("healthcheck_timeout = '4s'", "healthcheck_timeout = '30s'");
    let config =
        format!("queue.sqs.prefix = '{name}-'\npayload = {{ bucket = '{name}', threshold = '1KiB' }}\n{work}{keys}");
    let world = World::with(ELSEWHERE, server.env(), &config);
    let create = "s3.create_bucket(Bucket=sys.argv[1], CreateBucketConfiguration={'LocationConstraint': 'eu-west-1'})";
    python(server, create, &[&name]);
    let proxy = Proxy::before(&server.endpoint());
    let mut command = world.command(&["run"]);
    command.env("AWS_ENDPOINT_URL_S3", proxy.endpoint());
    let mut host = Host::start(command);
    let body = format!("ack {}", "x".repeat(4_000));
    world.send("work", vec![&body; 20]);
    host.settled(20);
    proxy.set(line);
    world.send("work", vec![&body; 20]);
    host.wait_for(PATIENCE, |line| line["disposition"] == "release");
    assert_eq!(world.verdict()["status"], "healthy");
    proxy.set(Line::Good);
    is_empty(&world);
    accounted(40, &drained(&mut host));
    let keys = "print(len(s3.list_objects_v2(Bucket=sys.argv[1]).get('Contents', [])))";
    assert_eq!(python(server, keys, &[&name]).trim(), "0", "bodies go with their messages");
}

#[test]
fn a_bucket_behind_resets() {
    bodies_survived(Line::Reset(1_000));
}

#[test]
fn a_bucket_behind_a_blackhole() {
    bodies_survived(Line::Swallowed);
}

#[test]
fn a_bucket_in_a_storm_of_503() {
    bodies_survived(Line::Answer(503, "SlowDown"));
}
