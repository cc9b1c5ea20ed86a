//! Leases on SQS: kept through long work, over with their host, and lost with the network.

use std::thread;
use std::time::Instant;

use super::{WORK, settlements};
use crate::support::hostler::{Host, PATIENCE, SECOND, World, until};
use crate::support::proxy::Proxy;
use crate::support::servers::{Kind, Server};
use crate::support::sqs::Aws;

/// Waits until a message is being handled.
fn in_flight(world: &World) {
    until("a message is in flight", PATIENCE, || (world.depth("work").in_flight == 1).then_some(()));
}

fn work_of_ten_leases(kind: Kind) {
    let world = Aws::new(kind, &format!("{WORK}lease = '2s'"));
    let mut hosts = [world.started(), world.started()];
    world.send("work", ["w20000"]);
    in_flight(&world);
    // One has it; the other one would have it as soon as a heartbeat failed.
    until("one has done it", PATIENCE, || hosts.iter().any(|host| !settlements(host).is_empty()).then_some(()));
    assert_eq!(world.counts("work"), [0, 0, 0]);
    assert_eq!(hosts.each_mut().map(Host::stop), [0, 0]);
    let lines: Vec<_> = hosts.iter().flat_map(settlements).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0]["outcome"] == "ack" && lines[0]["attempt"] == 1, "{lines:?}");
    assert!(lines[0]["duration_ms"].as_f64().unwrap() >= 20_000.0, "{lines:?}");
}

#[test]
fn work_of_ten_leases_is_delivered_once() {
    // Both do little but wait.
    thread::scope(|scope| {
        for kind in [Kind::LocalStack, Kind::Fauxqs] {
            scope.spawn(move || work_of_ten_leases(kind));
        }
    });
}

#[test]
fn a_message_outlives_its_host() {
    let world = Aws::new(Kind::LocalStack, &format!("{WORK}lease = '3s'"));
    let host = world.started();
    world.send("work", ["w2000"]);
    in_flight(&world);
    host.kill();
    let next = world.started();
    let line = next.settled(1).remove(0);
    assert!(line["outcome"] == "ack" && line["attempt"] == 2, "{line}");
    until("it is gone", PATIENCE, || (world.counts("work") == [0, 0, 0]).then_some(()));
}

#[test]
fn a_handler_whose_lease_cannot_be_kept_is_cancelled_and_settles_nothing() {
    const TAKE: &str = "
[one] = receive(url(prefix + 'work'), wait=20)
sqs.delete_message(QueueUrl=url(prefix + 'work'), ReceiptHandle=one['ReceiptHandle'])
print(json.dumps([one['MessageId'], one['Attributes']['ApproximateReceiveCount']]))
";
    let proxy = Proxy::before(&Server::shared(Kind::Fauxqs).endpoint());
    let world = Aws::through(&proxy.endpoint(), Kind::Fauxqs, &format!("{WORK}lease = '4s'"));
    let host = world.started();
    world.send("work", ["w50000"]);
    in_flight(&world);
    let cut = Instant::now();
    proxy.cut();
    let line = host.settled(1).remove(0);
    assert!(cut.elapsed() <= 5 * SECOND, "its handler ran for {:?} after the cut", cut.elapsed());
    assert!(line["outcome"] == "lease-lost" && line["disposition"] == "none", "{line}");
    let taken = world.python(TAKE, &[]);
    assert_eq!((&taken[0], &taken[1]), (&line["message_id"], &"2".into()));

    proxy.restore();
    world.send("work", ["ack"]);
    let lines = host.settled(2);
    assert!(lines[1]["outcome"] == "ack" && lines[1]["message_id"] != line["message_id"], "{lines:?}");
    assert_eq!(world.counts("work"), [0, 0, 0]);
}
