//! Tests of acks that commit a success and messages, each on a file of its own.

use std::path::PathBuf;

use hostler_queue::{
    Admin, Begun, Broker, ChannelSpec, Delivery, Finish, Queue, Receipt, Receive, Records, Report, Settlement,
};
use hostler_types::channel::Channel;
use hostler_types::message::{AttributeValue, Attributes, Message, Outgoing, TRACEPARENT, TraceContext};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::EmbeddedBroker;
use crate::records::tests::{LEASE, begin, done, finish};
use crate::writer::Need;

struct Host {
    _folder: TempDir,
    path: PathBuf,
    broker: EmbeddedBroker,
    queue: Arc<dyn Queue>,
    records: Arc<dyn Records>,
}

fn channel(name: &str) -> Channel {
    name.parse().unwrap()
}

fn message(body: &str) -> Outgoing {
    Outgoing { body: body.into(), ..Outgoing::default() }
}

/// Returns messages to these channels.
fn messages(bodies: &[(&str, &str)]) -> Vec<(Channel, Outgoing)> {
    bodies.iter().map(|(name, body)| (channel(name), message(body))).collect()
}

fn handle(delivery: &Delivery) -> Receipt {
    Receipt::new(delivery.receipt.as_str())
}

fn ack(receipt: Receipt, finish: Option<Finish>, messages: Vec<(Channel, Outgoing)>) -> Settlement {
    Settlement::Ack(receipt.with_report(Report::Commit(Arc::new(Commit { finish, messages }))))
}

impl Host {
    async fn new() -> Self {
        Self::with(false).await
    }

    async fn with(ordered: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.db");
        let broker = EmbeddedBroker::open(&path).unwrap();
        let spec = ChannelSpec { ordered, max_receives: Some(9), ..ChannelSpec::new(channel("jobs")) };
        let queue = broker.open(&spec).await.unwrap();
        let records = broker.records().unwrap();
        Self { _folder: folder, path, broker, queue, records }
    }

    async fn receive(&self, max: usize, lease: Duration) -> Vec<Delivery> {
        let request = Receive { max, wait: Duration::ZERO, lease };
        self.queue.receive(request, &CancellationToken::new()).await.unwrap()
    }

    /// Sends so many messages to the queue, and receives them.
    async fn deliver(&self, count: usize) -> Vec<Delivery> {
        let sent = self.broker.send(&channel("jobs"), vec![message("in"); count]).await;
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
        self.receive(count, LEASE).await
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), LeaseError>> {
        self.queue.settle(batch).await.into_iter().map(|one| one.map_err(|unsettled| unsettled.error)).collect()
    }

    /// Returns the messages of a channel's queue.
    async fn stored(&self, name: &str) -> Vec<Message> {
        let mut stored = Vec::new();
        let mut note = |message: &Message| {
            stored.push(message.clone());
            std::ops::ControlFlow::Continue(())
        };
        // Without a queue, there are no messages.
        let _ = self.broker.peek(&channel(name), &mut note).await;
        stored
    }

    async fn bodies(&self, name: &str) -> Vec<String> {
        let bodies = self.stored(name).await;
        bodies.iter().map(|message| String::from_utf8_lossy(&message.body).into_owned()).collect()
    }

    fn meddle(&self, sql: &str) {
        Connection::open(&self.path).unwrap().execute_batch(sql).unwrap();
    }

    /// Returns `true` if the key was processed. Otherwise starts its run with the token 1 again.
    async fn is_done(&self, key: &str) -> bool {
        matches!(self.records.begin(begin(key, 1)).await.unwrap(), Begun::Done(_))
    }
}

fn kinds(results: &[Result<(), LeaseError>]) -> Vec<&'static str> {
    results.iter().map(|result| result.as_ref().map_or_else(LeaseError::kind, |()| "ok")).collect()
}

#[tokio::test]
async fn an_ack_commits_the_success_and_the_messages_in_order() {
    for ordered in [false, true] {
        let host = Host::with(ordered).await;
        host.records.begin(begin("1", 1)).await.unwrap();
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let attributes = Attributes::from([(TRACEPARENT.to_owned(), AttributeValue::Text(trace.to_owned()))]);
        let context = TraceContext::of(&attributes).map(Arc::new);
        let mut outgoing = messages(&[("one", "1"), ("two", "2"), ("one", "3"), ("one", "4"), ("fan.out", "5")]);
        outgoing[1].1.trace = context;
        let mut delivered = host.deliver(2).await.into_iter();
        let first = delivered.next().unwrap();
        assert_eq!(delivered.next().is_some(), !ordered, "the second one waits for the first one of its group");
        assert_eq!(host.settle(vec![ack(handle(&first), Some(finish("1", 1)), outgoing.clone())]).await, [Ok(())]);
        let expected = [("jobs", vec!["in"]), ("one", vec!["1", "3", "4"]), ("two", vec!["2"]), ("out", vec!["5"])];
        for (name, bodies) in &expected {
            assert_eq!(host.bodies(name).await, *bodies, "{name}");
        }
        let traces = host.stored("two").await;
        assert_eq!(traces[0].attributes.get(TRACEPARENT), Some(&AttributeValue::Text(trace.to_owned())));
        assert_eq!(host.records.begin(begin("1", 2)).await, Ok(done("1", 1, Some(b"unsent"))));
        assert_eq!(host.receive(9, LEASE).await.len(), usize::from(ordered), "the next one of the group");

        // An ack that is repeated after a lost answer sends nothing again.
        let again = host.settle(vec![ack(first.receipt, Some(finish("1", 1)), outgoing)]).await;
        assert_eq!(kinds(&again), ["lease-lost"]);
        assert_eq!(host.bodies("one").await.len(), 3);
    }
}

#[tokio::test]
async fn a_success_that_is_recorded_already_or_before_does_not_hinder_the_ack() {
    let host = Host::new().await;
    let mut delivered = host.deliver(2).await.into_iter();
    let mut next = || delivered.next().unwrap().receipt;
    host.records.begin(begin("1", 1)).await.unwrap();
    host.records.finish(vec![finish("1", 1)]).await.remove(0).unwrap();
    let acks = vec![
        ack(next(), Some(finish("1", 1)), messages(&[("out", "1")])),
        ack(next(), None, messages(&[("out", "2")])),
    ];
    assert_eq!(host.settle(acks).await, [Ok(()), Ok(())]);
    assert_eq!((host.bodies("jobs").await.len(), host.bodies("out").await.len()), (0, 2));
}

#[tokio::test]
async fn an_ack_that_cannot_commit_changes_nothing_and_fails_alone() {
    let host = Host::new().await;
    for key in ["held", "taken", "damaged", "good", "filter", "size", "late", "rule"] {
        host.records.begin(begin(key, 1)).await.unwrap();
    }
    host.meddle(
        "UPDATE record SET state = 5 WHERE label = 'orders damaged';
         UPDATE record SET token = 2 WHERE label = 'orders taken';
         INSERT INTO queue (id, name, ordered) VALUES (99, 'damaged', 0);
         INSERT INTO subscription (exchange, queue, filter) VALUES ('fan', 99, 'nonsense');
         CREATE TRIGGER rule BEFORE INSERT ON content WHEN NEW.body = CAST('rule' AS BLOB)
         BEGIN SELECT RAISE(ABORT, 'against the rule'); END;",
    );
    let delivered = host.deliver(12).await;
    let mut receipts = delivered.iter().map(handle);
    let mut next = || receipts.next().unwrap();
    let to = |body: &str| messages(&[("out", "before"), ("out", body)]);
    let large = vec![(channel("out"), message("before")), (channel("out"), message(&"x".repeat(MAX_MESSAGE + 1)))];
    let too_large = Finish { reply: Some(vec![0; MAX_MESSAGE + 1]), ..finish("size", 1) };
    let gone = next();
    assert_eq!(host.settle(vec![Settlement::Ack(Receipt::new(gone.as_str()))]).await, [Ok(())]);
    let reason = "bad".to_owned();
    let message = Arc::clone(&delivered[1].message);
    let batch = vec![
        ack(gone, Some(finish("late", 1)), to("late")),
        Settlement::DeadLetter { receipt: next(), message, reason },
        ack(next(), Some(finish("taken", 1)), to("taken")),
        ack(next(), Some(finish("no record", 1)), to("no record")),
        ack(next(), Some(finish("damaged", 1)), to("damaged")),
        ack(next(), Some(finish("held", 1)), large),
        ack(next(), Some(too_large), to("size")),
        ack(next(), Some(finish("rule", 1)), to("rule")),
        ack(next(), Some(finish("filter", 1)), messages(&[("out", "before"), ("fan", "filter")])),
        ack(next(), Some(finish("good", 1)), to("good")),
        Settlement::Ack(next()),
        Settlement::Release(next(), Duration::ZERO),
        ack(Receipt::new("no receipt"), None, to("no receipt")),
    ];
    let settled = host.settle(batch).await;
    let (lost, unfit, ok) = ("lease-lost", "invalid", "ok");
    let expected = [lost, ok, lost, lost, unfit, unfit, unfit, unfit, unfit, ok, ok, ok, lost];
    assert_eq!(kinds(&settled), expected, "{settled:?}");
    let text = |place: usize| settled[place].as_ref().unwrap_err().to_string();
    assert!(text(4).contains("`state` is 5"), "{}", text(4));
    assert!(text(7).contains("against the rule"), "{}", text(7));
    assert!(text(8).contains("`filter` is not"), "{}", text(8));
    assert_eq!(host.bodies("out").await, ["before", "good"]);
    assert!(host.is_done("good").await);
    for key in ["held", "filter", "size", "late", "rule"] {
        assert!(!host.is_done(key).await, "{key}");
    }
    // Of twelve, four have left. Those that failed are still leased, and can be settled otherwise.
    assert_eq!((host.bodies("jobs").await.len(), host.bodies("jobs-dlq").await.len()), (8, 1));
    assert_eq!(host.receive(9, LEASE).await.len(), 1, "the released one");
    assert_eq!(host.settle(vec![Settlement::Ack(handle(&delivered[7]))]).await, [Ok(())]);
}

#[tokio::test]
async fn a_transaction_that_is_lost_as_a_whole_is_to_be_repeated() {
    let host = Host::new().await;
    for key in ["1", "2"] {
        host.records.begin(begin(key, 1)).await.unwrap();
    }
    let damages = [
        (
            "CREATE TRIGGER rule BEFORE INSERT ON content BEGIN SELECT RAISE(ROLLBACK, 'against the rule'); END",
            "DROP TRIGGER rule",
            "against the rule",
        ),
        ("ALTER TABLE dedupe RENAME TO away", "ALTER TABLE away RENAME TO dedupe", "no such table"),
    ];
    let delivered = host.deliver(3).await;
    let batch = || {
        let keys = ["1", "2"].into_iter().zip(&delivered);
        let acks = keys.map(|(key, it)| ack(handle(it), Some(finish(key, 1)), messages(&[("out", key)])));
        std::iter::once(Settlement::Ack(handle(&delivered[2]))).chain(acks).collect()
    };
    for (damage, cure, text) in damages {
        host.meddle(damage);
        let settled = host.settle(batch()).await;
        assert_eq!(kinds(&settled), ["unavailable"; 3], "{damage}: {settled:?}");
        assert!(
            settled.iter().all(|one| one.as_ref().is_err_and(|error| error.to_string().contains(text))),
            "{settled:?}"
        );
        host.meddle(cure);
        assert_eq!((host.bodies("jobs").await.len(), host.bodies("out").await.len()), (3, 0), "{damage}");
        assert!(!host.is_done("1").await && !host.is_done("2").await, "{damage}");
    }
    host.meddle("DROP INDEX entry_group; DROP INDEX dedupe_age");
    assert_eq!(host.settle(batch()).await, [Ok(()), Ok(()), Ok(())]);
    assert!(host.is_done("1").await && host.is_done("2").await);
    assert_eq!((host.bodies("jobs").await.len(), host.bodies("out").await), (0, vec!["1".to_owned(), "2".to_owned()]));
}

#[tokio::test]
async fn an_ack_after_the_end_of_its_lease_is_lost() {
    let host = Host::new().await;
    host.records.begin(begin("1", 1)).await.unwrap();
    host.broker.send(&channel("jobs"), vec![message("in")]).await.remove(0).unwrap();
    let late = host.receive(1, Duration::ZERO).await.remove(0);
    let settled = host.settle(vec![ack(late.receipt, Some(finish("1", 1)), messages(&[("out", "1")]))]).await;
    assert_eq!(kinds(&settled), ["lease-lost"]);
    assert_eq!(
        (host.is_done("1").await, host.bodies("out").await.len(), host.bodies("jobs").await.len()),
        (false, 0, 1)
    );
}

#[tokio::test]
async fn a_deduplication_key_of_an_ack_that_failed_is_free() {
    let host = Host::new().await;
    host.records.begin(begin("1", 1)).await.unwrap();
    let delivered = host.deliver(1).await.remove(0);
    let keyed = |body: &str| (channel("out"), Outgoing { dedupe: Some("key".to_owned()), ..message(body) });
    host.meddle(
        "CREATE TRIGGER rule BEFORE INSERT ON content WHEN NEW.body = CAST('rule' AS BLOB)
         BEGIN SELECT RAISE(ABORT, 'against the rule'); END",
    );
    let rule = vec![keyed("1"), (channel("out"), message("rule"))];
    assert_eq!(kinds(&host.settle(vec![ack(handle(&delivered), Some(finish("1", 1)), rule)]).await), ["invalid"]);
    let good = vec![keyed("2"), keyed("3")];
    assert_eq!(host.settle(vec![ack(delivered.receipt, Some(finish("1", 1)), good)]).await, [Ok(())]);
    assert_eq!(host.bodies("out").await, ["2"], "the third one is a duplicate");
}

#[tokio::test]
async fn a_waiting_receive_gets_the_message_of_an_ack() {
    let host = Host::new().await;
    let target = host.broker.open(&ChannelSpec::new(channel("out"))).await.unwrap();
    let receive = tokio::spawn(async move {
        let request = Receive { max: 1, wait: Duration::from_secs(20), lease: LEASE };
        target.receive(request, &CancellationToken::new()).await.unwrap()
    });
    let delivered = host.deliver(1).await.remove(0);
    host.settle(vec![ack(delivered.receipt, None, messages(&[("out", "1")]))]).await.remove(0).unwrap();
    let received = tokio::time::timeout(Duration::from_secs(10), receive).await.unwrap().unwrap();
    assert_eq!(received[0].message.body.to_vec(), b"1");
}

/// Checks the setting of SQLite after each settlement: FULL (2) flushes each commit to the disk, and NORMAL (1) does not.
#[tokio::test]
async fn only_acks_with_a_commit_are_durable() {
    let host = Host::new().await;
    let mut delivered = host.deliver(3).await.into_iter();
    let mut next = || delivered.next().unwrap().receipt;
    let level = async || {
        let level = |db: &Session<'_>| db.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0));
        host.broker.writer.call(Need::Read, level).await.unwrap()
    };
    let batches = [
        (vec![Settlement::Ack(next())], 1),
        (vec![ack(next(), None, Vec::new())], 2),
        (vec![Settlement::Ack(next())], 1),
    ];
    for (batch, expected) in batches {
        assert_eq!(host.settle(batch).await, [Ok(())]);
        assert_eq!(level().await, expected);
    }
}

#[tokio::test]
async fn the_check_of_a_message_is_that_of_a_send() {
    let host = Host::new().await;
    let name = AttributeValue::Text(String::new());
    let cases = [
        message("good"),
        message(&"x".repeat(MAX_MESSAGE)),
        message(&"x".repeat(MAX_MESSAGE + 1)),
        Outgoing { attributes: Attributes::from([("a b".to_owned(), name)]), ..message("attribute") },
        Outgoing { delay: Duration::from_secs(14 * 86_400), ..message("delay") },
    ];
    let mut refused = 0;
    for case in cases {
        let checked = host.broker.check(&channel("out"), &case);
        refused += usize::from(checked.is_err());
        let sent = host.broker.send(&channel("out"), vec![case]).await.remove(0);
        assert_eq!(checked.map_err(Into::into), sent.map(drop));
    }
    assert_eq!(refused, 3);
}

/// Measures cycles of a send, a receive, a begin and an ack with a commit, by 64 tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures; run it alone, with --ignored --nocapture"]
async fn cycles_per_second() {
    for (live, count) in [(0, 20_000_usize), (1_000_000, 20_000)] {
        let host = Arc::new(Host::new().await);
        host.records.prepare().await.unwrap();
        host.meddle(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {live})
             INSERT INTO record (id, label, body, token, state, leased_until, expires_at)
             SELECT randomblob(32), 'orders ' || i, zeroblob(32), i, 1, 1800000000000, 4000000000000 + i FROM n WHERE {live} > 0",
        ));
        for _ in 0..count / 500 {
            host.broker.send(&channel("jobs"), vec![message(&"x".repeat(200)); 500]).await;
        }
        let started = std::time::Instant::now();
        let tasks: Vec<_> = (0..64_i64)
            .map(|task| {
                let host = Arc::clone(&host);
                tokio::spawn(async move {
                    let mut done = 0;
                    let mut begun = Duration::ZERO;
                    while let Some(delivery) = host.receive(1, LEASE).await.pop() {
                        let (key, from) = (format!("{task} {done}"), std::time::Instant::now());
                        assert_eq!(host.records.begin(begin(&key, task)).await, Ok(Begun::Started));
                        begun += from.elapsed();
                        let finish = Finish { reply: None, unsent: None, ..finish(&key, task) };
                        let batch = vec![ack(delivery.receipt, Some(finish), messages(&[("out", "out")]))];
                        assert_eq!(host.settle(batch).await, [Ok(())]);
                        done += 1;
                    }
                    (done, begun)
                })
            })
            .collect();
        let (mut done, mut begun) = (0, Duration::ZERO);
        for task in tasks {
            let (own, time) = task.await.unwrap();
            done += own;
            begun += time;
        }
        let took = started.elapsed();
        println!(
            "{live} live records: {done} cycles in {took:?}: {:.0} a second; a begin took {:?}",
            f64::from(done) / took.as_secs_f64(),
            begun / u32::try_from(done).unwrap()
        );
    }
}
