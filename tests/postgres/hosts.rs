//! Several hosts on one database: they share messages, keep the order of groups, and one takes over from another that is killed.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{HEALTH_FILE, WORK, is_busy, is_empty, world};
use crate::faults::accounted;
use crate::support::hostler::{Host, PATIENCE, World, until};

/// Starts two hosts in one folder, each with a health file of its own.
pub(super) fn pair(world: &mut World) -> [Host; 2] {
    let first = world.started();
    world.set(HEALTH_FILE, "second.json".to_owned());
    let second = world.started();
    world.set(HEALTH_FILE, "health.json".to_owned());
    [first, second]
}

/// Returns the log lines of several hosts in the order of their times.
pub(super) fn merged(logs: [Vec<Value>; 2]) -> Vec<Value> {
    let mut lines: Vec<_> = logs.into_iter().flatten().filter(|line| line.get("outcome").is_some()).collect();
    lines.sort_by_key(|line| humantime::parse_rfc3339(line["timestamp"].as_str().unwrap()).unwrap());
    lines
}

fn settled(hosts: &[Host; 2]) -> usize {
    let of = |host: &Host| host.lines().iter().filter(|line| line.get("outcome").is_some()).count();
    hosts.iter().map(of).sum()
}

/// Waits until two hosts have settled so many messages in total.
pub(super) fn have_settled(hosts: &[Host; 2], count: usize) {
    until("messages are settled", PATIENCE, || (settled(hosts) >= count).then_some(()));
}

#[test]
fn two_hosts_share_the_messages_of_a_queue() {
    let mut world = world(WORK);
    let mut hosts = pair(&mut world);
    world.send("work", ["w20"; 100]);
    have_settled(&hosts, 100);
    for host in &mut hosts {
        assert_eq!(host.stop(), 0);
    }
    let logs = hosts.map(|host| host.lines());
    assert!(logs.iter().all(|lines| lines.iter().any(|line| line["outcome"] == "ack")), "both took part");
    let lines = merged(logs);
    assert_eq!(lines.len(), 100, "each was handled once");
    accounted(100, &lines);
}

/// A message whose attempts fail holds up its group, and no other.
#[test]
fn groups_keep_their_order_under_failures_and_on_two_hosts() {
    let mut world = world(&WORK.replace("concurrency = 4", "concurrency = 4\n    ordered = true"));
    world.provision();
    let (bodies, groups) = (["w5", "x1", "w6", "x2", "ack"], ["a", "b", "c", "d"]);
    let mut sent = Vec::new();
    for body in bodies {
        for group in groups {
            let said = world.output(&["send", "work", "--group", group, "--body", body]);
            assert_eq!(said.code, 0, "{said:?}");
            sent.push((group, said.stdout.split_whitespace().next().unwrap().to_owned()));
        }
    }
    let mut hosts = pair(&mut world);
    // Of the five messages of a group, two have three attempts.
    have_settled(&hosts, groups.len() * 9);
    for host in &mut hosts {
        assert_eq!(host.stop(), 0);
    }
    let lines = merged(hosts.map(|host| host.lines()));
    for group in groups {
        let ids = sent.iter().filter(|(of, _)| *of == group).map(|(_, id)| id.as_str());
        let place = |line: &Value| ids.clone().position(|id| line["message_id"] == id);
        let places: Vec<_> = lines.iter().filter_map(place).collect();
        assert_eq!(places, [0, 1, 1, 1, 2, 3, 3, 3, 4], "group {group}");
    }
}

#[test]
fn a_host_that_is_killed_loses_nothing_and_the_other_takes_over() {
    let mut world = world(&WORK.replace("'20s'", "'2s'"));
    world.provision();
    world.send("work", ["w30"; 300]);
    let [first, mut second] = pair(&mut world);
    first.settled(20);
    let mut logs = first.kill();
    is_empty(&world);
    for _ in 0..2 {
        world.send("work", ["w30"; 50]);
        let next = world.started();
        next.settled(5);
        logs.extend(next.kill());
    }
    is_empty(&world);
    assert_eq!(second.stop(), 0);
    let lines = merged([logs, second.lines()]);
    let told: BTreeSet<_> = lines.iter().map(|line| line["message_id"].to_string()).collect();
    // Each of the killed hosts may have settled four messages without having told of them.
    assert!(told.len() + 3 * 4 >= 400, "{} of 400", told.len());
    assert_eq!(world.row("work")["dead_lettered"], 0);
    accounted(told.len(), &lines);
}

/// The message of the killed host comes again when its lease ends, as its second attempt.
#[test]
fn a_message_of_a_killed_host_comes_again_after_its_lease() {
    let world = world(&WORK.replace("'20s'", "'3s'"));
    let host = world.started();
    world.send("work", ["w1500"]);
    is_busy(&host, &world, 1);
    host.kill();
    assert_eq!(world.depth("work").in_flight, 1);
    let mut next = world.started();
    let line = next.settled(1).remove(0);
    assert_eq!((&line["outcome"], &line["attempt"]), (&Value::from("ack"), &Value::from(2)));
    assert_eq!(next.stop(), 0);
}
