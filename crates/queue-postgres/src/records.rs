//! Idempotency records, in a table of the database. All times are by the database's clock.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hostler_postgres::{Client, DatabaseError, Param, Row, RowError, Transaction, Type};
use hostler_queue::{Begin, Begun, Change, Done, Finish, Hold, LeaseError, QueueError, RecordId, Records, RunEnd};
use hostler_types::digest::{hex, sha256};

use super::additions::{self, OF_RECORDS};
use super::faults::{RECORDS, to_lease_error};
use super::options::MAX_MESSAGE;
use super::schema::{self, State};
use super::service::Service;

/// Number of bytes of replies and unsent messages after which a statement takes no further record.
const MOST_BYTES: usize = 32 << 20;

/// Maximum number of attempts to start a run, of which each was beaten by a run of the same key.
const MOST_TRIES: usize = 20;

/// Longest time for which a lease or a record lasts: 100 years.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Name of the first column of a record `r` that hostler did not write. Null: the row is sound.
const FAULT: &str = "CASE WHEN r.body IS NULL OR octet_length(r.body) <> 32 THEN 'body'
          WHEN r.token IS NULL THEN 'token' WHEN r.done IS NULL THEN 'done'
          WHEN r.leased_until IS NULL OR NOT isfinite(r.leased_until) THEN 'leased_until'
          WHEN r.expires_at IS NULL OR NOT isfinite(r.expires_at) THEN 'expires_at' END";

/// The records of a database. The queues of the database need not exist.
pub(super) struct PostgresRecords(Arc<Service>);

impl PostgresRecords {
    pub(super) fn new(service: Arc<Service>) -> Self {
        Self(service)
    }

    async fn client(&self) -> Result<Client, QueueError> {
        self.0.run(self.0.database.client()).await
    }

    /// Executes a statement that changes records in one batch. Returns the records.
    async fn change(&self, sql: &str, params: &[Param<'_>]) -> Result<HashMap<Key, Held>, QueueError> {
        let client = self.client().await?;
        self.0.run(change(Session::Client(&client), sql, params)).await
    }
}

/// A connection, or a transaction of it.
#[derive(Clone, Copy)]
pub(super) enum Session<'a> {
    /// Each statement is a transaction.
    Client(&'a Client),
    /// The statements are a part of a transaction.
    Transaction(&'a Transaction<'a>),
}

/// Id of a record in the table, and the token of a run.
type Key = ([u8; 32], i64);

/// State of a record as a run finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    /// Set if the token of the run is that of the record.
    own: bool,
    done: bool,
    /// Text about a column that hostler did not write.
    fault: Option<String>,
}

/// Returns the id of a record in the table. Installations with different prefixes have different records.
fn stored(service: &Service, record: &RecordId) -> [u8; 32] {
    let prefix = service.options.prefix.as_bytes();
    if prefix.is_empty() {
        return *record.as_bytes();
    }
    // The id has a fixed length, so the prefix needs no end.
    sha256(&[record.as_bytes(), prefix].concat())
}

fn key(service: &Service, hold: &Hold) -> Key {
    (stored(service, &hold.record), hold.token)
}

/// Returns a time in milliseconds for a statement.
fn millis(time: Duration) -> f64 {
    time.min(LONGEST).as_secs_f64() * 1000.0
}

fn damage(id: &[u8], column: &str) -> String {
    format!("the row of {RECORDS} with the id \\x{} is damaged in its column `{column}`: delete the row", hex(id))
}

/// Returns the error of a run whose record belongs to another run, or is gone.
fn lost() -> LeaseError {
    LeaseError::Lost("the idempotency record was taken over by another run, or has expired".to_owned())
}

/// Returns the beginning of a statement for a batch: `n` has the columns of the arrays, and `held` the records, locked in the order of
/// their ids.
fn batch(arrays: &str, columns: &str) -> String {
    format!(
        "WITH n AS MATERIALIZED (SELECT * FROM unnest({arrays}) AS u ({columns})),
         held AS MATERIALIZED (
             SELECT n.id, n.token, r.token = n.token AS own, r.done, {FAULT} AS fault
             FROM n JOIN hostler_queue.record r ON r.id = n.id
             WHERE (r.expires_at > statement_timestamp()) IS NOT FALSE ORDER BY r.id FOR UPDATE OF r)"
    )
}

/// End of a statement for a batch. Returns the records.
const HELD: &str = "SELECT id, token, own, done, fault FROM held";

async fn change(session: Session<'_>, sql: &str, params: &[Param<'_>]) -> Result<HashMap<Key, Held>, DatabaseError> {
    let rows = match session {
        Session::Client(client) => client.query(sql, params).await?,
        Session::Transaction(tx) => tx.query(sql, params).await?,
    };
    Ok(rows.iter().filter_map(read_held).collect())
}

/// Reads the columns of [`HELD`].
fn read_held(row: &Row) -> Option<(Key, Held)> {
    let id: [u8; 32] = row.try_get::<_, Vec<u8>>(0).ok()?.try_into().ok()?;
    let flag = |column: usize| row.try_get::<_, Option<bool>>(column).ok().flatten().unwrap_or(false);
    let column: Option<&str> = row.try_get(4).ok()?;
    let fault = column.map(|column| damage(&id, column));
    Some(((id, row.try_get(1).ok()?), Held { own: flag(2), done: flag(3), fault }))
}

/// Returns the result of a change that a run makes to its record. `may_be_done`: the change succeeds if the run has finished.
fn result(held: Option<&Held>, may_be_done: bool) -> Result<(), LeaseError> {
    match held {
        Some(Held { fault: Some(text), .. }) => Err(LeaseError::Unfit(text.clone())),
        Some(held) if held.own && (may_be_done || !held.done) => Ok(()),
        _ => Err(lost()),
    }
}

/// Returns the error of the first damaged record.
fn first_fault(all: &HashMap<Key, Held>) -> Result<(), QueueError> {
    match all.values().find_map(|held| held.fault.clone()) {
        Some(text) => Err(QueueError::Refused(text)),
        None => Ok(()),
    }
}

/// Columns of keys, in an order that all statements share. Each key occurs once.
fn columns<'k>(keys: impl Iterator<Item = &'k Key>) -> (Vec<&'k [u8]>, Vec<i64>) {
    let unique: BTreeMap<&Key, ()> = keys.map(|key| (key, ())).collect();
    unique.into_keys().map(|(id, token)| (&id[..], *token)).unzip()
}

/// Records successes. Of two with the same hold, the first counts.
///
/// # Errors
/// The caller has to roll the transaction back: a batch that is too large for one statement takes several.
pub(super) async fn finish(
    service: &Service,
    session: Session<'_>,
    all: &[&Finish],
) -> Result<Vec<Result<(), LeaseError>>, DatabaseError> {
    let sql = format!(
        "{}, changed AS (
             UPDATE hostler_queue.record r
             SET done = true, reply = n.reply, unsent = n.unsent,
                 expires_at = statement_timestamp() + n.ttl * interval '1 millisecond'
             FROM held h JOIN n ON n.id = h.id AND n.token = h.token
             WHERE r.id = h.id AND h.own AND NOT h.done AND h.fault IS NULL)
         {HELD}",
        batch("$1::bytea[], $2::bigint[], $3::float8[], $4::bytea[], $5::bytea[]", "id, token, ttl, reply, unsent")
    );
    let mut unique: BTreeMap<Key, &Finish> = BTreeMap::new();
    for finish in all {
        unique.entry(key(service, &finish.hold)).or_insert(finish);
    }
    let mut found = HashMap::new();
    for chunk in chunks(&unique.into_iter().collect::<Vec<_>>()) {
        let (ids, tokens) = columns(chunk.iter().map(|(key, _)| key));
        let ttls: Vec<f64> = chunk.iter().map(|(_, finish)| millis(finish.ttl)).collect();
        let replies: Vec<Option<&[u8]>> = chunk.iter().map(|(_, finish)| finish.reply.as_deref()).collect();
        let unsent: Vec<Option<&[u8]>> = chunk.iter().map(|(_, finish)| finish.unsent.as_deref()).collect();
        let params = [
            (&ids as _, Type::BYTEA_ARRAY),
            (&tokens as _, Type::INT8_ARRAY),
            (&ttls as _, Type::FLOAT8_ARRAY),
            (&replies as _, Type::BYTEA_ARRAY),
            (&unsent as _, Type::BYTEA_ARRAY),
        ];
        found.extend(change(session, &sql, &params).await?);
    }
    Ok(all.iter().map(|finish| result(found.get(&key(service, &finish.hold)), true)).collect())
}

/// Splits successes so that no statement has too many bytes.
fn chunks<'c, 'f>(mut all: &'c [(Key, &'f Finish)]) -> Vec<&'c [(Key, &'f Finish)]> {
    let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
    let mut chunks = Vec::new();
    while !all.is_empty() {
        let mut bytes = 0;
        let fits = all.iter().take_while(|(_, finish)| {
            let more = length(&finish.reply) + length(&finish.unsent);
            let fits = bytes == 0 || bytes + more <= MOST_BYTES;
            bytes += more;
            fits
        });
        let (chunk, rest) = all.split_at(fits.count().max(1));
        chunks.push(chunk);
        all = rest;
    }
    chunks
}

/// Statement that starts a run. It locks the record, and decides by its latest version. If there was none, it inserts one, unless
/// another statement comes first. It holds a lock when it waits for none, so the removal of expired records skips locked ones.
fn start_sql() -> String {
    let after = |millis: &str| format!("statement_timestamp() + {millis} * interval '1 millisecond'");
    let (leased_until, expires_at) = (after("$5"), after("$6"));
    format!(
        "WITH old AS MATERIALIZED (
             SELECT r.expires_at <= statement_timestamp() AS expired, {FAULT} AS fault, r.body = $3 AS same_body,
                    r.token = $4 AS own, r.token, r.done, r.reply, r.unsent,
                    CASE WHEN isfinite(r.leased_until) THEN
                        ceil(extract(epoch FROM r.leased_until - statement_timestamp()) * 1000)::bigint END AS remaining
             FROM hostler_queue.record r WHERE r.id = $1 FOR UPDATE),
         verdict AS MATERIALIZED (
             SELECT CASE WHEN expired THEN 'started' WHEN fault IS NOT NULL THEN 'damaged' WHEN NOT same_body THEN 'other body'
                         WHEN done THEN 'done' WHEN own THEN 'started' WHEN remaining > 0 THEN 'busy'
                         WHEN $7 THEN 'taken over' ELSE 'unknown' END AS verdict, *
             FROM old),
         changed AS (
             UPDATE hostler_queue.record r
             SET label = $2, body = $3, token = $4, done = false, leased_until = {leased_until}, expires_at = {expires_at},
                 reply = NULL, unsent = NULL
             FROM verdict v WHERE r.id = $1 AND v.verdict IN ('started', 'taken over') RETURNING 1),
         made AS (
             INSERT INTO hostler_queue.record (id, label, body, token, done, leased_until, expires_at)
             SELECT $1, $2, $3, $4, false, {leased_until}, {expires_at} WHERE NOT EXISTS (SELECT FROM old)
             ON CONFLICT (id) DO NOTHING RETURNING 1),
         removed AS (
             DELETE FROM hostler_queue.record WHERE ctid = ANY(ARRAY(
                 SELECT o.ctid FROM hostler_queue.record o
                 WHERE o.expires_at <= statement_timestamp() AND o.id <> $1
                       AND (SELECT count(*) FROM changed) + (SELECT count(*) FROM made) >= 0
                 ORDER BY o.expires_at LIMIT 4 FOR UPDATE SKIP LOCKED)))
         SELECT v.verdict, v.fault, v.remaining, v.token,
                CASE WHEN v.verdict = 'done' THEN v.reply END, CASE WHEN v.verdict = 'done' THEN v.unsent END,
                (SELECT count(*) FROM changed) + (SELECT count(*) FROM made)
         FROM (SELECT) AS one LEFT JOIN verdict v ON true"
    )
}

/// Starts a run. `None`: another statement has inserted or removed the record meanwhile, and nothing was changed.
async fn start(client: &Client, id: &[u8; 32], begin: &Begin) -> Result<Option<Begun>, Failed> {
    // PostgreSQL stores no NUL characters in text.
    let label = begin.label.replace('\0', "\u{fffd}");
    let (lease, ttl) = (millis(begin.lease), millis(begin.ttl.max(begin.lease)));
    let (id, body) = (&id[..], &begin.body[..]);
    let params = [
        (&id as _, Type::BYTEA),
        (&label as _, Type::TEXT),
        (&body as _, Type::BYTEA),
        (&begin.hold.token as _, Type::INT8),
        (&lease as _, Type::FLOAT8),
        (&ttl as _, Type::FLOAT8),
        (&begin.takes_over as _, Type::BOOL),
    ];
    let rows = client.query(&start_sql(), &params).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let wrong = |column: &str| Failed::Damaged(damage(id, column));
    let verdict: Option<&str> = row.try_get(0).map_err(|_| wrong("done"))?;
    let is_changed = row.try_get::<_, i64>(6).is_ok_and(|count| count > 0);
    Ok(match verdict {
        None | Some("started") => is_changed.then_some(Begun::Started),
        Some("taken over") => is_changed.then_some(Begun::TakenOver),
        Some("busy") => {
            let remaining: i64 = row.try_get(2).map_err(|_| wrong("leased_until"))?;
            Some(Begun::Busy(Duration::from_millis(u64::try_from(remaining).unwrap_or(0))))
        }
        Some("done") => {
            let bytes = |at: usize, column: &str| row.try_get(at).map_err(|_: RowError| wrong(column));
            let token = row.try_get(3).map_err(|_| wrong("token"))?;
            let hold = Hold { token, ..begin.hold };
            Some(Begun::Done(Done { hold, reply: bytes(4, "reply")?, unsent: bytes(5, "unsent")? }))
        }
        Some("other body") => Some(Begun::OtherBody),
        Some("unknown") => Some(Begun::Unknown),
        Some(_) => return Err(wrong(row.try_get(1).unwrap_or("done"))),
    })
}

/// The reason why a run was not started.
enum Failed {
    Damaged(String),
    Database(DatabaseError),
}

impl From<DatabaseError> for Failed {
    fn from(error: DatabaseError) -> Self {
        Self::Database(error)
    }
}

/// Returns `true` for a deadlock or a conflict with another transaction: the server has changed nothing.
fn is_conflict(error: &DatabaseError) -> bool {
    matches!(error.code(), Some("40001" | "40P01"))
}

#[async_trait]
impl Records for PostgresRecords {
    fn max_size(&self) -> usize {
        MAX_MESSAGE
    }

    async fn prepare(&self) -> Result<(), QueueError> {
        additions::prepare(&self.0, OF_RECORDS).await
    }

    async fn inspect(&self) -> Result<(), QueueError> {
        additions::inspect(&self.0, OF_RECORDS).await
    }

    /// The change to the schema is the same that a plan for the queues of the database names.
    async fn planned_changes(&self) -> Result<Vec<Change>, QueueError> {
        match schema::state(&self.0.database).await? {
            State::Current => additions::missing(&self.0, OF_RECORDS).await,
            state => Ok(Vec::from_iter(schema::planned(state))),
        }
    }

    async fn make_changes(&self) -> Result<Vec<Change>, QueueError> {
        let planned = self.planned_changes().await?;
        additions::restore(&self.0, OF_RECORDS).await?;
        Ok(planned)
    }

    async fn begin(&self, begin: Begin) -> Result<Begun, QueueError> {
        let id = stored(&self.0, &begin.hold.record);
        let client = self.client().await?;
        for _ in 0..MOST_TRIES {
            match start(&client, &id, &begin).await {
                Ok(Some(begun)) => return Ok(begun),
                Ok(None) => {}
                Err(Failed::Database(error)) if is_conflict(&error) => {}
                Err(Failed::Database(error)) => return self.0.run(async { Err(error) }).await,
                Err(Failed::Damaged(text)) => return Err(QueueError::Refused(text)),
            }
        }
        Err(QueueError::Unavailable("other runs change the idempotency record all the time".to_owned()))
    }

    async fn extend(&self, holds: &[Hold], by: Duration) -> Vec<Result<(), LeaseError>> {
        if holds.is_empty() {
            return Vec::new();
        }
        let sql = format!(
            "{}, changed AS (
                 UPDATE hostler_queue.record r
                 SET leased_until = statement_timestamp() + $3 * interval '1 millisecond',
                     expires_at = greatest(r.expires_at, statement_timestamp() + $3 * interval '1 millisecond')
                 FROM held h WHERE r.id = h.id AND h.own AND NOT h.done AND h.fault IS NULL)
             {HELD}",
            batch("$1::bytea[], $2::bigint[]", "id, token")
        );
        let keys: Vec<Key> = holds.iter().map(|hold| key(&self.0, hold)).collect();
        let (ids, tokens) = columns(keys.iter());
        let by = millis(by);
        let params = [(&ids as _, Type::BYTEA_ARRAY), (&tokens as _, Type::INT8_ARRAY), (&by as _, Type::FLOAT8)];
        match self.change(&sql, &params).await {
            Ok(found) => keys.iter().map(|key| result(found.get(key), false)).collect(),
            Err(error) => keys.iter().map(|_| Err(to_lease_error(&error))).collect(),
        }
    }

    async fn finish(&self, batch: Vec<Finish>) -> Vec<Result<(), LeaseError>> {
        let all: Vec<&Finish> = batch.iter().collect();
        let finished = async {
            let mut client = self.client().await?;
            self.0.run(finish_alone(&self.0, &mut client, &all)).await
        };
        match finished.await {
            Ok(results) => results,
            Err(error) => all.iter().map(|_| Err(to_lease_error(&error))).collect(),
        }
    }

    async fn sent(&self, holds: &[Hold]) -> Result<(), QueueError> {
        if holds.is_empty() {
            return Ok(());
        }
        let sql = format!(
            "{}, changed AS (
                 UPDATE hostler_queue.record r SET unsent = NULL
                 FROM held h WHERE r.id = h.id AND h.own AND h.done AND h.fault IS NULL AND r.unsent IS NOT NULL)
             {HELD}",
            batch("$1::bytea[], $2::bigint[]", "id, token")
        );
        let keys: Vec<Key> = holds.iter().map(|hold| key(&self.0, hold)).collect();
        let (ids, tokens) = columns(keys.iter());
        first_fault(&self.change(&sql, &[(&ids, Type::BYTEA_ARRAY), (&tokens, Type::INT8_ARRAY)]).await?)
    }

    async fn end(&self, ends: &[(Hold, RunEnd)]) -> Result<(), QueueError> {
        if ends.is_empty() {
            return Ok(());
        }
        let sql = format!(
            "{}, own AS MATERIALIZED (
                 SELECT h.id, n.forgets FROM held h JOIN n ON n.id = h.id AND n.token = h.token
                 WHERE h.own AND NOT h.done AND h.fault IS NULL),
             gone AS (DELETE FROM hostler_queue.record r USING own o WHERE r.id = o.id AND o.forgets),
             lapsed AS (
                 UPDATE hostler_queue.record r SET leased_until = least(r.leased_until, statement_timestamp())
                 FROM own o WHERE r.id = o.id AND NOT o.forgets)
             {HELD}",
            batch("$1::bytea[], $2::bigint[], $3::bool[]", "id, token, forgets")
        );
        // The handler's word counts more than its absence.
        let mut unique: BTreeMap<Key, bool> = BTreeMap::new();
        for (hold, end) in ends {
            *unique.entry(key(&self.0, hold)).or_default() |= *end == RunEnd::Forget;
        }
        let (ids, tokens) = columns(unique.keys());
        let forgets: Vec<bool> = unique.values().copied().collect();
        let params =
            [(&ids as _, Type::BYTEA_ARRAY), (&tokens as _, Type::INT8_ARRAY), (&forgets as _, Type::BOOL_ARRAY)];
        first_fault(&self.change(&sql, &params).await?)
    }
}

/// Records successes in a transaction of their own.
async fn finish_alone(
    service: &Service,
    client: &mut Client,
    all: &[&Finish],
) -> Result<Vec<Result<(), LeaseError>>, DatabaseError> {
    let bytes = |finish: &&Finish| [&finish.reply, &finish.unsent].into_iter().flatten().map(Vec::len).sum::<usize>();
    if all.iter().map(bytes).sum::<usize>() <= MOST_BYTES {
        // One statement is a transaction.
        return finish(service, Session::Client(client), all).await;
    }
    let tx = client.transaction().await?;
    let results = finish(service, Session::Transaction(&tx), all).await?;
    tx.commit().await?;
    Ok(results)
}
