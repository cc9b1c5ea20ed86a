//! Tests of the store of records, each on a file of its own. The times are those of a clock that the tests set.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use hostler_queue::{Broker, ChannelSpec, Receive, Settlement};
use hostler_types::message::Outgoing;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{Clock, EmbeddedBroker, Options};

pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const TTL: Duration = Duration::from_secs(3600);

/// Clocks that stand still between the steps of a test.
#[derive(Debug, Default)]
struct Hand {
    monotonic: Mutex<Duration>,
    wall: Mutex<Duration>,
    boot: u8,
}

impl Hand {
    /// Returns the clocks of a machine in its `boot`th run.
    fn new(boot: u8) -> Arc<Self> {
        let wall = Mutex::new(Duration::from_secs(1_800_000_000));
        Arc::new(Self { monotonic: Mutex::new(Duration::from_secs(100)), wall, boot })
    }

    fn advance(&self, by: Duration) {
        *self.monotonic.lock().unwrap() += by;
        *self.wall.lock().unwrap() += by;
    }
}

impl Clock for Hand {
    fn monotonic(&self) -> Duration {
        *self.monotonic.lock().unwrap()
    }

    fn wall(&self) -> SystemTime {
        UNIX_EPOCH + *self.wall.lock().unwrap()
    }

    fn origin(&self) -> Option<String> {
        Some(self.boot.to_string())
    }
}

struct Host {
    _folder: TempDir,
    path: PathBuf,
    clock: Arc<Hand>,
    broker: EmbeddedBroker,
    records: Arc<dyn Records>,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.db");
        let clock = Hand::new(1);
        let broker = open(&path, &clock);
        let records = broker.records().unwrap();
        Self { _folder: folder, path, clock, broker, records }
    }

    fn meddler(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    fn count(&self) -> i64 {
        self.meddler().query_row("SELECT count(*) FROM record", [], |row| row.get(0)).unwrap()
    }
}

fn open(path: &Path, clock: &Arc<Hand>) -> EmbeddedBroker {
    let options = Options { clock: Arc::clone(clock) as Arc<dyn Clock>, ..Options::default() };
    EmbeddedBroker::open_with(path, options).unwrap()
}

pub(crate) fn hold(key: &str, token: i64) -> Hold {
    Hold { record: RecordId::new("orders", key), token }
}

pub(crate) fn begin(key: &str, token: i64) -> Begin {
    let label = format!("orders {key}");
    Begin { hold: hold(key, token), label, body: [7; 32], lease: LEASE, ttl: TTL, takes_over: true }
}

pub(crate) fn finish(key: &str, token: i64) -> Finish {
    Finish { hold: hold(key, token), ttl: TTL, reply: Some(b"reply".to_vec()), unsent: Some(b"unsent".to_vec()) }
}

pub(crate) fn done(key: &str, token: i64, unsent: Option<&[u8]>) -> Begun {
    Begun::Done(Done { hold: hold(key, token), reply: Some(b"reply".to_vec()), unsent: unsent.map(<[u8]>::to_vec) })
}

fn is_lost(results: &[Result<(), LeaseError>]) -> bool {
    !results.is_empty() && results.iter().all(|result| matches!(result, Err(LeaseError::Lost(_))))
}

#[tokio::test]
async fn a_record_is_held_by_one_run_at_a_time() {
    let Host { clock, records, path, _folder, .. } = Host::new();
    assert_eq!(records.begin(begin("1", 1)).await, Ok(Begun::Started));
    clock.advance(LEASE / 2);
    assert_eq!(records.begin(begin("1", 2)).await, Ok(Begun::Busy(LEASE / 2)));
    assert_eq!(records.begin(begin("1", 1)).await, Ok(Begun::Started), "a repeated call");
    assert_eq!(records.begin(begin("1", 2)).await, Ok(Begun::Busy(LEASE)), "the repeated call began anew");
    assert_eq!(records.begin(Begin { body: [8; 32], ..begin("1", 2) }).await, Ok(Begun::OtherBody));
    let extended = records.extend(&[hold("1", 2), hold("1", 1), hold("2", 1)], LEASE * 2).await;
    assert!(is_lost(&extended[..1]) && extended[1].is_ok() && is_lost(&extended[2..]), "{extended:?}");
    clock.advance(LEASE * 2 - Duration::from_millis(1));
    assert_eq!(records.begin(begin("1", 2)).await, Ok(Begun::Busy(Duration::from_millis(1))));
    clock.advance(Duration::from_millis(1));
    assert_eq!(records.begin(Begin { takes_over: false, ..begin("1", 2) }).await, Ok(Begun::Unknown));
    assert_eq!(records.begin(Begin { body: [8; 32], ..begin("1", 2) }).await, Ok(Begun::OtherBody));
    assert_eq!(records.extend(&[hold("1", 1)], LEASE).await, [Ok(())], "nobody has taken over");
    clock.advance(LEASE);
    assert_eq!(records.begin(begin("1", 2)).await, Ok(Begun::TakenOver));

    assert!(is_lost(&records.extend(&[hold("1", 1)], LEASE).await));
    assert!(is_lost(&records.finish(vec![finish("1", 1)]).await));
    records.sent(&[hold("1", 1)]).await.unwrap();
    records.end(&[(hold("1", 1), RunEnd::Forget), (hold("1", 1), RunEnd::Lapse)]).await.unwrap();
    let other_host = open(&path, &clock).records().unwrap();
    assert_eq!(other_host.begin(begin("1", 3)).await, Ok(Begun::Busy(LEASE)));
    assert_eq!(records.finish(vec![finish("1", 2)]).await, [Ok(())]);
}

#[tokio::test]
async fn a_record_that_is_done_stays_so_for_its_ttl() {
    let host = Host::new();
    let Host { clock, records, .. } = &host;
    records.begin(begin("1", 1)).await.unwrap();
    clock.advance(LEASE * 2);
    assert_eq!(records.finish(vec![finish("1", 1)]).await, [Ok(())], "the lease has ended, but nobody has taken over");
    assert_eq!(records.begin(begin("1", 2)).await, Ok(done("1", 1, Some(b"unsent"))));
    records.sent(&[hold("1", 2), hold("2", 1)]).await.unwrap();
    assert_eq!(records.begin(begin("1", 1)).await, Ok(done("1", 1, Some(b"unsent"))), "sent by another token");
    records.sent(&[hold("1", 1)]).await.unwrap();
    clock.advance(TTL - Duration::from_millis(1));
    assert_eq!(records.finish(vec![finish("1", 1)]).await, [Ok(())], "a repeated call");
    assert!(is_lost(&records.finish(vec![finish("1", 2)]).await));
    assert!(is_lost(&records.extend(&[hold("1", 1), hold("1", 2)], LEASE).await));
    records.end(&[(hold("1", 1), RunEnd::Forget), (hold("1", 1), RunEnd::Lapse)]).await.unwrap();
    assert_eq!(records.begin(begin("1", 2)).await, Ok(done("1", 1, None)), "the repeated call changed nothing");
    assert_eq!(records.begin(Begin { body: [8; 32], ..begin("1", 2) }).await, Ok(Begun::OtherBody));
    clock.advance(Duration::from_millis(1));
    assert!(is_lost(&records.finish(vec![finish("1", 1)]).await), "the record has expired");
    assert_eq!(records.begin(Begin { takes_over: false, ..begin("1", 2) }).await, Ok(Begun::Started));
}

#[tokio::test]
async fn no_step_of_the_wall_clock_undoes_a_record() {
    let Host { _folder, path, clock, broker, records } = Host::new();
    records.begin(begin("1", 1)).await.unwrap();
    records.finish(vec![finish("1", 1)]).await.remove(0).unwrap();
    records.begin(begin("2", 1)).await.unwrap();
    for step in [Duration::ZERO, TTL * 10] {
        *clock.wall.lock().unwrap() = Duration::from_secs(1_800_000_000 - 36_000) + step;
        for host in [&open(&path, &clock), &broker] {
            let records = host.records().unwrap();
            assert_eq!(records.begin(begin("1", 2)).await, Ok(done("1", 1, Some(b"unsent"))), "{step:?}");
            assert_eq!(records.begin(begin("2", 2)).await, Ok(Begun::Busy(LEASE)), "{step:?}");
        }
    }
    drop((broker, records));
    // The next boot sets the queue's clock anew.
    let clock = Hand::new(2);
    *clock.wall.lock().unwrap() -= TTL;
    let records = open(&path, &clock).records().unwrap();
    assert_eq!(records.begin(begin("1", 2)).await, Ok(done("1", 1, Some(b"unsent"))));
    assert!(matches!(records.begin(begin("2", 2)).await, Ok(Begun::Busy(rest)) if rest >= TTL));
}

#[tokio::test]
async fn a_run_ends_without_a_success() {
    let host = Host::new();
    let Host { clock, records, .. } = &host;
    records.begin(begin("1", 1)).await.unwrap();
    records.end(&[(hold("1", 1), RunEnd::Lapse)]).await.unwrap();
    assert_eq!(records.begin(Begin { takes_over: false, ..begin("1", 2) }).await, Ok(Begun::Unknown));
    assert_eq!(records.begin(begin("1", 2)).await, Ok(Begun::TakenOver));
    records.end(&[(hold("2", 2), RunEnd::Forget), (hold("1", 2), RunEnd::Forget)]).await.unwrap();
    assert_eq!((host.count(), records.begin(begin("1", 3)).await), (0, Ok(Begun::Started)));
    // A run that is extended outlives the ttl that it began with, and an end of time does not overflow.
    assert_eq!(records.extend(&[hold("1", 3)], TTL * 2).await, [Ok(())]);
    clock.advance(TTL);
    assert_eq!(records.begin(begin("1", 4)).await, Ok(Begun::Busy(TTL)));
    let endless = Begin { ttl: Duration::MAX, lease: Duration::MAX, ..begin("3", 1) };
    assert_eq!(records.begin(endless).await, Ok(Begun::Started));
    assert!(matches!(records.begin(begin("3", 2)).await, Ok(Begun::Busy(_))));
    let long = Begin { label: "é".repeat(MAX_LABEL), ..begin("4", 1) };
    assert_eq!(records.begin(long).await, Ok(Begun::Started));
    let label: String = host.meddler().query_row("SELECT max(label) FROM record", [], |row| row.get(0)).unwrap();
    assert_eq!(label.len(), MAX_LABEL);
}

#[tokio::test]
async fn each_entry_of_a_batch_has_its_own_result() {
    let host = Host::new();
    let records = &host.records;
    for key in ["1", "2", "3", "4"] {
        records.begin(begin(key, 1)).await.unwrap();
    }
    host.meddler().execute("UPDATE record SET state = 7 WHERE id = ?1", [hold("3", 1).record.as_bytes()]).unwrap();
    let large = Finish { reply: Some(vec![0; MAX_MESSAGE]), unsent: Some(vec![0]), ..finish("2", 1) };
    let fits = Finish { reply: Some(vec![0; MAX_MESSAGE]), unsent: None, ..finish("4", 1) };
    let results = records.finish(vec![finish("1", 2), large, finish("1", 1), finish("3", 1), fits]).await;
    let kinds: Vec<_> = results.iter().map(|result| result.as_ref().map_err(LeaseError::kind).err()).collect();
    assert_eq!(kinds, [Some("lease-lost"), Some("invalid"), None, Some("invalid"), None], "{results:?}");
    let extended = records.extend(&[hold("3", 1), hold("2", 1)], LEASE).await;
    assert!(matches!(&extended[0], Err(LeaseError::Unfit(text)) if text.contains("`state` is 7")), "{extended:?}");
    assert_eq!(extended[1], Ok(()));
    assert_eq!(records.begin(begin("1", 2)).await, Ok(done("1", 1, Some(b"unsent"))));
}

#[tokio::test]
async fn of_many_runs_that_race_one_starts() {
    let host = Host::new();
    let other = open(&host.path, &host.clock).records().unwrap();
    for key in ["1", "2", "3"] {
        let runs = (0..32).map(|token| {
            let records = Arc::clone(if token % 2 == 0 { &host.records } else { &other });
            tokio::spawn(async move { records.begin(begin(key, token)).await.unwrap() })
        });
        let mut started = 0;
        for run in runs.collect::<Vec<_>>() {
            match run.await.unwrap() {
                Begun::Started => started += 1,
                begun => assert_eq!(begun, Begun::Busy(LEASE)),
            }
        }
        assert_eq!(started, 1);
    }
}

#[tokio::test]
async fn expired_records_count_as_absent_and_are_removed_a_few_at_a_time() {
    let host = Host::new();
    let Host { clock, records, .. } = &host;
    for key in 0..10 {
        records.begin(begin(&key.to_string(), 1)).await.unwrap();
        records.finish(vec![finish(&key.to_string(), 1)]).await.remove(0).unwrap();
    }
    assert_eq!(host.count(), 10);
    clock.advance(TTL);
    // The record that expired last is not removed yet.
    assert_eq!(records.begin(begin("9", 2)).await, Ok(Begun::Started));
    assert_eq!(host.count(), 6);
    let sql = "SELECT count(*) FROM record WHERE token = 2 AND reply IS NULL AND unsent IS NULL";
    let is_empty: bool = host.meddler().query_row(sql, [], |row| row.get(0)).unwrap();
    assert!(is_empty, "the new run has no reply");
    assert_eq!(records.begin(begin("8", 2)).await, Ok(Begun::Started));
    assert_eq!(host.count(), 2);
    assert_eq!(records.begin(begin("new", 1)).await, Ok(Begun::Started));
    assert_eq!(host.count(), 3, "those that have just begun");
    clock.advance(TTL);
    assert!(is_lost(&records.extend(&[hold("new", 1)], LEASE).await), "a run that was not extended");
    assert!(is_lost(&records.finish(vec![finish("new", 1)]).await));
    records.begin(begin("new", 1)).await.unwrap();
    assert_eq!(host.count(), 1);
    // A damaged time is not taken for one that has passed.
    host.meddler().execute("UPDATE record SET expires_at = -5 WHERE token = 1", []).unwrap();
    records.begin(begin("newer", 1)).await.unwrap();
    assert_eq!(host.count(), 2);
}

/// Checks the setting of SQLite after each call: FULL (2) flushes each commit to the disk, and NORMAL (1) does not.
#[tokio::test]
async fn the_start_and_the_success_of_a_run_are_durable() {
    let host = Host::new();
    let records = &host.records;
    let level = async || {
        let level = |db: &Session<'_>| db.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0));
        host.broker.writer.call(Need::Read, level).await.unwrap()
    };
    records.begin(begin("1", 1)).await.unwrap();
    assert_eq!(level().await, 2);
    records.extend(&[hold("1", 1)], LEASE).await.remove(0).unwrap();
    assert_eq!(level().await, 1);
    records.finish(vec![finish("1", 1)]).await.remove(0).unwrap();
    assert_eq!(level().await, 2);
    records.sent(&[hold("1", 1)]).await.unwrap();
    assert_eq!(level().await, 1);
    records.begin(begin("2", 1)).await.unwrap();
    records.end(&[(hold("2", 1), RunEnd::Forget)]).await.unwrap();
    assert_eq!(level().await, 1);
}

#[tokio::test]
async fn a_file_of_records_alone_outlives_its_broker_and_a_reopen() {
    let Host { _folder, path, clock, broker, records } = Host::new();
    drop(broker);
    records.prepare().await.unwrap();
    records.prepare().await.unwrap();
    records.inspect().await.unwrap();
    assert_eq!(records.planned_changes().await, Ok(Vec::new()));
    records.begin(begin("1", 1)).await.unwrap();
    records.finish(vec![finish("1", 1)]).await.remove(0).unwrap();
    records.begin(begin("2", 1)).await.unwrap();
    drop(records);
    let broker = open(&path, &clock);
    let records = broker.records().unwrap();
    assert_eq!(records.begin(begin("1", 2)).await, Ok(done("1", 1, Some(b"unsent"))));
    assert_eq!(records.begin(begin("2", 2)).await, Ok(Begun::Busy(LEASE)));
    assert_eq!(records.finish(vec![finish("2", 1)]).await, [Ok(())], "the run goes on after a restart of the store");
    broker.close().await;
    let closed = records.begin(begin("3", 1)).await;
    assert!(matches!(closed, Err(QueueError::Unavailable(_))), "{closed:?}");
}

fn objects(path: &Path) -> Vec<String> {
    let db = Connection::open(path).unwrap();
    let mut query = db.prepare("SELECT name FROM sqlite_schema ORDER BY name").unwrap();
    query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn layout(path: &Path) -> i32 {
    Connection::open(path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn a_file_without_records_stays_as_it_is() {
    let host = Host::new();
    let records = &host.records;
    let before = objects(&host.path);
    assert!(!before.contains(&"record".to_owned()), "{before:?}");
    let queue = host.broker.open(&ChannelSpec::new("jobs".parse().unwrap())).await.unwrap();
    host.broker.send(&"jobs".parse().unwrap(), vec![Outgoing::default()]).await.remove(0).unwrap();
    let request = Receive { max: 1, wait: Duration::ZERO, lease: LEASE };
    let delivery = queue.receive(request, &CancellationToken::new()).await.unwrap().remove(0);
    queue.settle(vec![Settlement::Ack(delivery.receipt)]).await.remove(0).unwrap();
    // Without the table, no record exists.
    records.inspect().await.unwrap();
    assert!(is_lost(&records.extend(&[hold("1", 1)], LEASE).await));
    assert!(is_lost(&records.finish(vec![finish("1", 1)]).await));
    records.sent(&[hold("1", 1)]).await.unwrap();
    records.end(&[(hold("1", 1), RunEnd::Forget), (hold("1", 1), RunEnd::Lapse)]).await.unwrap();
    assert_eq!(objects(&host.path), before);
    // An older hostler refuses files of another layout.
    records.begin(begin("1", 1)).await.unwrap();
    let mut after = objects(&host.path);
    assert_eq!(after.len(), before.len() + 3, "the table and two indexes");
    after.retain(|name| before.contains(name));
    assert_eq!((after, layout(&host.path)), (before, 1));
}

#[tokio::test]
async fn a_look_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let looking = EmbeddedBroker::open_to_look(&path).unwrap().records().unwrap();
    looking.inspect().await.unwrap();
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "there is no file");

    let host = Host::new();
    let looking = EmbeddedBroker::open_to_look(&host.path).unwrap().records().unwrap();
    let before = objects(&host.path);
    assert!(matches!(looking.prepare().await, Err(QueueError::Refused(_))));
    let refused = looking.begin(begin("1", 1)).await;
    assert!(matches!(refused, Err(QueueError::Refused(_))), "{refused:?}");
    assert_eq!(objects(&host.path), before);
    host.records.prepare().await.unwrap();
    looking.inspect().await.unwrap();
    let refused = looking.begin(begin("1", 1)).await;
    assert!(matches!(refused, Err(QueueError::Refused(_))), "{refused:?}");
    assert_eq!((objects(&host.path).len(), host.count()), (before.len() + 3, 0));
    host.meddler().execute_batch("ALTER TABLE record RENAME COLUMN unsent TO other").unwrap();
    let damaged = host.records.inspect().await;
    assert!(matches!(&damaged, Err(QueueError::Refused(text)) if text.contains("unsent")), "{damaged:?}");
}

#[tokio::test]
async fn a_damaged_row_is_named_and_holds_up_no_other_key() {
    let host = Host::new();
    let meddler = host.meddler();
    // A table without checks of types accepts any damage.
    meddler
        .execute_batch(
            "CREATE TABLE record (id BLOB PRIMARY KEY, label TEXT, body BLOB, token INTEGER, state INTEGER,
             leased_until INTEGER, expires_at INTEGER, reply BLOB, unsent BLOB)",
        )
        .unwrap();
    let damages = [
        ("body", "'text'"),
        ("body", "NULL"),
        ("body", "x'00'"),
        ("token", "'text'"),
        ("token", "NULL"),
        ("state", "2"),
        ("state", "-1"),
        ("state", "NULL"),
        ("leased_until", "-1"),
        ("leased_until", "9223372036854775807"),
        ("leased_until", "x'00'"),
        ("expires_at", "-1"),
        ("expires_at", "NULL"),
        ("expires_at", "'text'"),
        ("reply", "'text'"),
        ("reply", "1.5"),
        ("unsent", "CAST(x'ff' AS TEXT)"),
    ];
    for (place, (column, value)) in damages.into_iter().enumerate() {
        let key = place.to_string();
        host.records.begin(begin(&key, 1)).await.unwrap();
        let sql = format!("UPDATE record SET {column} = {value} WHERE id = ?1");
        assert_eq!(meddler.execute(&sql, [hold(&key, 1).record.as_bytes()]).unwrap(), 1);
        let names = |text: &str| text.contains(&format!("its column `{column}` ")) && text.contains("delete its row");
        let (begun, other) =
            tokio::join!(host.records.begin(begin(&key, 2)), host.records.begin(begin(&format!("good {key}"), 1)));
        assert!(matches!(&begun, Err(QueueError::Refused(text)) if names(text)), "{column} {value}: {begun:?}");
        assert_eq!(other, Ok(Begun::Started), "{column} {value}");
        let (mine, good) = (hold(&key, 2), hold(&format!("good {key}"), 1));
        let extended = host.records.extend(&[mine, good], LEASE).await;
        assert!(matches!(&extended[0], Err(LeaseError::Unfit(text)) if names(text)), "{extended:?}");
        assert_eq!(extended[1], Ok(()));
        let finished = host.records.finish(vec![finish(&key, 2), finish(&format!("good {key}"), 1)]).await;
        assert!(matches!(&finished[0], Err(LeaseError::Unfit(text)) if names(text)), "{finished:?}");
        assert_eq!(finished[1], Ok(()));
        host.records.end(&[(mine, RunEnd::Lapse), (mine, RunEnd::Forget)]).await.unwrap();
        host.records.sent(&[mine]).await.unwrap();
    }
    assert_eq!(host.count(), 2 * i64::try_from(damages.len()).unwrap(), "no damaged row is removed");
}

#[tokio::test]
async fn the_index_of_expired_records_is_created_anew() {
    let host = Host::new();
    host.records.prepare().await.unwrap();
    for damage in ["DROP INDEX record_expiry", "DROP INDEX record_expiry; CREATE INDEX record_expiry ON record (label)"]
    {
        host.meddler().execute_batch(damage).unwrap();
        assert_eq!(host.records.begin(begin(damage, 1)).await, Ok(Begun::Started), "{damage}");
        host.meddler().execute_batch(damage).unwrap();
        drop(open(&host.path, &host.clock));
        let sql: String = host
            .meddler()
            .query_row("SELECT sql FROM sqlite_schema WHERE name = 'record_expiry'", [], |row| row.get(0))
            .unwrap();
        assert_eq!(sql, "CREATE INDEX record_expiry ON record (expires_at)", "{damage}");
    }
}
