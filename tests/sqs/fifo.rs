//! Order within a group, while some of its messages fail.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::settlements;
use crate::support::hostler::{PATIENCE, until};
use crate::support::servers::Kind;
use crate::support::sqs::Aws;

/// Each body begins with the attempt at which it is done. `PLAN` is how often that digit changes in a group.
const SEND: &str = "
groups, each = int(sys.argv[1]), int(sys.argv[2])
queue, places, entries = url(prefix + 'jobs.fifo'), {}, []
def flush():
    for sent in sqs.send_message_batch(QueueUrl=queue, Entries=entries)['Successful']:
        places[sent['MessageId']] = ids[sent['Id']]
    entries.clear()
for n in range(each):
    for group in range(groups):
        ids = ids if entries else {}
        done_at = (PLAN)
        ids[str(len(entries))] = [group, n, done_at]
        entries.append({'Id': str(len(entries)), 'MessageBody': f'{done_at} {group} {n}', 'MessageGroupId': f'g{group}',
                        'MessageDeduplicationId': f'{group}-{n}'})
        if len(entries) == 10:
            flush()
if entries:
    flush()
print(json.dumps(places))
";

/// Group, number in it, and the attempt at which it is done.
type Place = (usize, usize, u64);

/// Sends so many messages to so many groups and has them handled in 8 slots; `plan` is the attempt at which the n-th of a
/// group is done, in Python. Returns how many attempts failed.
fn in_order(kind: Kind, groups: usize, each: usize, plan: &str, keys: &str) -> usize {
    let config = format!(
        "
        [consumers.jobs]
        channel = 'jobs'
        ordered = true
        handler = 'guests/main-fails-at-first.wat'
        concurrency = 8
        lease = '6s'
        {keys}
        "
    );
    let world = Aws::new(kind, &config);
    let mut host = world.started();
    let places = world.python(&SEND.replace("PLAN", plan), &[&groups.to_string(), &each.to_string()]);
    let places: HashMap<String, Place> = serde_json::from_value(places).unwrap();
    assert_eq!(places.len(), groups * each);
    until("all are done", 2 * PATIENCE, || {
        (settlements(&host).iter().filter(|line| line["outcome"] == "ack").count() == places.len()).then_some(())
    });
    assert_eq!(host.stop(), 0);
    assert_eq!(world.counts("jobs.fifo"), [0, 0, 0]);
    assert_eq!(world.counts("jobs-dlq.fifo"), [0, 0, 0]);

    let mut by_group: BTreeMap<usize, Vec<(Place, Value)>> = BTreeMap::new();
    // What came together with a head that failed goes back as if it had not come.
    let untouched = |line: &Value| line["outcome"] == "retry" && line["duration_ms"] == 0.0;
    for line in settlements(&host).into_iter().filter(|line| !untouched(line)) {
        let place = places[line["message_id"].as_str().unwrap()];
        by_group.entry(place.0).or_default().push((place, line));
    }
    assert_eq!(by_group.len(), groups);
    let mut failures = 0;
    for lines in by_group.values() {
        let mut next = 0;
        for ((_, number, done_at), line) in lines {
            assert_eq!(*number, next, "nothing of a group comes before its head is done: {line}");
            let attempt = line["attempt"].as_u64().unwrap();
            match line["outcome"].as_str().unwrap() {
                "ack" => {
                    assert!(attempt >= *done_at, "{line}");
                    next += 1;
                }
                "failed" => {
                    assert!(attempt < *done_at, "{line}");
                    failures += 1;
                }
                other => panic!("{other}: {line}"),
            }
        }
        assert_eq!(next, each, "each once");
    }
    failures
}

#[test]
fn order_holds_while_every_tenth_message_fails_at_first_ministack() {
    let failures = in_order(Kind::Ministack, 20, 100, "2 if n % 10 == 9 else 1", "retry.requeue_delay = '0s'");
    assert!((150..=200).contains(&failures), "{failures} attempts failed");
}

#[test]
fn order_holds_while_every_tenth_message_fails_at_first_fauxqs() {
    let failures = in_order(Kind::Fauxqs, 20, 100, "2 if n % 10 == 9 else 1", "retry.requeue_delay = '0s'");
    assert!((150..=200).contains(&failures), "{failures} attempts failed");
}

/// It hands out a follower while its head waits for its delay: followers go back with the same.
#[test]
fn order_holds_while_every_tenth_message_fails_at_first_localstack() {
    let failures = in_order(Kind::LocalStack, 20, 100, "2 if n % 10 == 9 else 1", "retry.requeue_delay = '1s'");
    assert!((150..=200).contains(&failures), "{failures} attempts failed");
}

#[test]
fn a_group_waits_for_a_head_that_fails_twice() {
    let keys = "retry = { requeues = 2, requeue_delay = '1s', delays = 0 }";
    let failures = in_order(Kind::Ministack, 6, 20, "3 if n == 0 else 1", keys);
    assert_eq!(failures, 12);
}
