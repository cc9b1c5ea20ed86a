//! A host on a cluster of three nodes, with a member of each queue on each.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::{WORK, on};
use crate::support::hostler::{Host, PATIENCE, announce, until};
use crate::support::rabbitmq::Cluster;

/// Number of messages. Of twenty, one is dead-lettered at once, and one after three attempts.
const MESSAGES: usize = 4000;

/// Longest time without an ack that passes, in seconds. `HOSTLER_PAUSE` sets it (`tests/proofs.sh cluster`). Without it, any
/// passes: the election of a leader takes as long as the machine is busy.
fn bound() -> Option<Duration> {
    std::env::var("HOSTLER_PAUSE").ok().map(|seconds| Duration::from_secs(seconds.parse().unwrap()))
}

/// Messages that were settled in this way, by their ids.
fn settled(lines: &[Value], disposition: &str) -> BTreeSet<String> {
    let lines = lines.iter().filter(|line| line["disposition"] == disposition);
    lines.map(|line| line["message_id"].to_string()).collect()
}

/// Longest time between two acks.
fn longest_pause(lines: &[Value]) -> Duration {
    let acks = lines.iter().filter(|line| line["disposition"] == "ack");
    let times: Vec<SystemTime> =
        acks.map(|line| humantime::parse_rfc3339(line["timestamp"].as_str().unwrap()).unwrap()).collect();
    times.windows(2).map(|pair| pair[1].duration_since(pair[0]).unwrap_or_default()).max().unwrap()
}

fn acks(host: &Host) -> usize {
    host.lines().iter().filter(|line| line["disposition"] == "ack").count()
}

/// Kills the node that leads all queues, and to which the host is connected, while the host drains a backlog.
#[test]
fn a_cluster_loses_its_leader_and_no_message() {
    let mut cluster = Cluster::start();
    let world = on(cluster.url(), &WORK.replace("concurrency = 4", "concurrency = 16"));
    world.provision();
    let body = |n: usize| match n % 20 {
        0 => format!("x65 {n}"),
        1 => format!("x1 {n}"),
        _ => format!("w10 {n}"),
    };
    world.send("work", (0..MESSAGES).map(body));
    let leaders = cluster.nodes[1].ctl(&["-q", "list_queues", "name", "leader"]);
    let leader = leaders.lines().find_map(|line| line.split_once("-work\t")).unwrap().1;
    assert_eq!(leader.trim(), cluster.nodes[0].node(), "{leaders}");

    let mut host = world.started();
    until("some are acked", PATIENCE, || (acks(&host) > MESSAGES / 8).then_some(()));
    cluster.nodes[0].kill();
    let acked_before = acks(&host);
    host.wait_for(PATIENCE, |line| line["message"] == "connected to RabbitMQ again" && line["role"] == "consuming");
    until("all are settled", PATIENCE * 4, || {
        let lines = host.lines();
        (settled(&lines, "ack").len() + settled(&lines, "dead-letter").len() == MESSAGES).then_some(())
    });
    assert!(
        acked_before < MESSAGES * 9 / 10,
        "the node was killed after {acked_before} acks, so nothing was left to lose"
    );
    let pause = longest_pause(&host.lines());
    announce(&format!("cluster: leader killed after {acked_before} acks; longest time without an ack: {pause:.1?}"));
    assert!(bound().is_none_or(|bound| pause < bound), "{pause:?}");

    // A copy whose confirm was lost is sent again.
    until("the queue is empty", PATIENCE, || (world.depth("work").visible == 0).then_some(()));
    assert!(world.depth("work").dead_lettered >= MESSAGES as u64 / 10, "{:?}", world.depth("work"));
    assert_eq!(world.verdict()["status"], "healthy");
    assert_eq!(host.stop(), 0);
}
