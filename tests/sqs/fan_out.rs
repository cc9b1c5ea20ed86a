//! One exchange and its queues: each gets what its filter says, and an ordered one in order.

use std::collections::BTreeMap;
use std::thread;

use serde_json::Value;

use super::settlements;
use crate::support::hostler::{Host, PATIENCE};
use crate::support::servers::Kind;
use crate::support::sqs::Aws;

/// Returns true if a routing key passes.
type Filter = fn(&str) -> bool;

const KEYS: [&str; 5] = ["MOBILE.APPLE", "MOBILE.SAMSUNG", "MOBILE.APPLE.OLD", "DESKTOP.APPLE", "MOBIL"];

/// A consumer of the exchange `sales` whose handler tells its body; further keys follow.
fn consumer(name: &str, keys: &str) -> String {
    format!(
        "
        [consumers.{name}]
        channel = 'sales.{name}'
        handler = 'guests/run-word.wat'
        lease = '3s'
        {keys}
        "
    )
}

/// The bodies that the handler of a consumer told, in the order of their settlements.
fn told(host: &Host, consumer: &str) -> Vec<String> {
    let lines = host.lines();
    let bodies: BTreeMap<&str, &str> = lines
        .iter()
        .filter(|line| line["target"] == "hostler::guest")
        .map(|line| (line["message_id"].as_str().unwrap(), line["message"].as_str().unwrap()))
        .collect();
    let settled = settlements(host);
    let own = settled.iter().filter(|line| line["consumer"] == consumer);
    own.map(|line| bodies[line["message_id"].as_str().unwrap()].to_owned()).collect()
}

/// Sends rounds of messages to `sales`, each of them `each` messages per key and group: groups side by side.
fn send_rounds(world: &Aws, groups: usize, rounds: usize, each: usize) {
    thread::scope(|scope| {
        for group in 0..groups {
            scope.spawn(move || {
                for (n, key) in (0..rounds).flat_map(|_| KEYS).enumerate() {
                    let lines: String = (0..each).map(|m| format!("e {group} {:05} {key}\n", n * each + m)).collect();
                    let group = format!("g{group}");
                    let args = ["send", "sales", "--lines", "-", "--group", &group, "--routing-key", key];
                    let said = world.output_with(&args, lines);
                    assert_eq!(said.code, 0, "{said:?}");
                }
            });
        }
    });
}

/// Everything that [`send_rounds`] sent to one group and whose key fits, in order.
fn expected(group: usize, rounds: usize, each: usize, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let all = (0..rounds).flat_map(|_| KEYS).enumerate();
    let lines = all.flat_map(|(n, key)| (0..each).map(move |m| (key, format!("e {group} {:05} {key}", n * each + m))));
    lines.filter(|(key, _)| fits(key)).map(|(_, line)| line).collect()
}

#[test]
fn each_queue_gets_what_its_filter_says_in_the_order_of_its_group() {
    const GROUPS: usize = 3;
    let ordered = |name: &str, filter: &str| consumer(name, &format!("ordered = true\n{filter}"));
    let world = Aws::new(
        Kind::LocalStack,
        &[
            ordered("all", ""),
            ordered("mobile", "filter = { type = 'prefix', values = ['MOBILE.'] }"),
            ordered("apple", "filter = { type = 'exact', values = ['MOBILE.APPLE'] }"),
        ]
        .concat(),
    );
    let mut host = world.started();
    let (rounds, each) = (2, 10);
    send_rounds(&world, GROUPS, rounds, each);
    let filters: [(&str, Filter); 3] =
        [("all", |_| true), ("mobile", |key| key.starts_with("MOBILE.")), ("apple", |key| key == "MOBILE.APPLE")];
    let count = |fits: Filter| GROUPS * rounds * each * KEYS.iter().filter(|key| fits(key)).count();
    let lines = host.settled(filters.iter().map(|(_, fits)| count(*fits)).sum());
    assert!(lines.iter().all(|line| line["outcome"] == "ack" && line["attempt"] == 1));
    assert_eq!(host.stop(), 0);
    for (consumer, fits) in filters {
        let told = told(&host, consumer);
        assert_eq!(told.len(), count(fits), "{consumer}");
        for group in 0..GROUPS {
            let own: Vec<_> = told.iter().filter(|body| body.starts_with(&format!("e {group} "))).cloned().collect();
            assert_eq!(own, expected(group, rounds, each, fits), "{consumer}, group {group}");
        }
        assert_eq!(world.counts(&format!("{consumer}.fifo")), [0, 0, 0]);
    }
}

#[test]
fn an_exchange_without_order_has_filters_too() {
    let world = Aws::new(
        Kind::LocalStack,
        &[
            consumer("rest", "filter = { type = 'exclude', values = ['MOBILE.APPLE', 'MOBIL'] }"),
            consumer("either", "filter = { type = 'exact', values = ['MOBILE.APPLE', 'DESKTOP.APPLE'] }"),
        ]
        .concat(),
    );
    let mut host = world.started();
    for key in KEYS {
        let said = world.output(&["send", "sales", "--body", &format!("e {key}"), "--routing-key", key]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    host.settled(5);
    assert_eq!(host.stop(), 0);
    let sorted = |consumer: &str| {
        let mut told = told(&host, consumer);
        told.sort();
        told
    };
    assert_eq!(sorted("rest"), ["e DESKTOP.APPLE", "e MOBILE.APPLE.OLD", "e MOBILE.SAMSUNG"]);
    assert_eq!(sorted("either"), ["e DESKTOP.APPLE", "e MOBILE.APPLE"]);
}

#[test]
fn what_boto3_publishes_is_filtered_as_well() {
    const PUBLISH: &str = "
topics = [topic['TopicArn'] for topic in sns.list_topics()['Topics']]
[topic] = [topic for topic in topics if topic.endswith(prefix + 'sales')]
for key in ['MOBILE.APPLE', 'DESKTOP.APPLE']:
    sns.publish(TopicArn=topic, Message='e ' + key, MessageAttributes={
        'routing-key': {'DataType': 'String', 'StringValue': key}, 'a': {'DataType': 'Number', 'StringValue': '1'}})
sns.publish(TopicArn=topic, Message='e without a key')
";
    let filter = "filter = { type = 'prefix', values = ['MOBILE.'] }";
    let world = Aws::new(Kind::LocalStack, &[consumer("mobile", filter), consumer("all", "")].concat());
    let host = world.started();
    world.python(PUBLISH, &[]);
    host.settled(4);
    assert_eq!(told(&host, "mobile"), ["e MOBILE.APPLE"]);
    let lines: Vec<Value> = settlements(&host);
    assert!(lines.iter().all(|line| line["outcome"] == "ack"), "{lines:?}");
    host.wait_for(PATIENCE, |line| line["message"] == "e without a key");
}
