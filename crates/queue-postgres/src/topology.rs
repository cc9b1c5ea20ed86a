//! Queues, and the exchanges that send messages to queues. Names are those in the database, with the prefix.

use std::collections::BTreeMap;
use std::time::Duration;

use hostler_postgres::{DatabaseError, Row, Transaction, Type};
use hostler_queue::{DEFAULT_GROUP, tag};
use hostler_types::channel::Filter;

use super::rows::{read_filter, write_filter};

/// Maximum duration of a statement that changes all messages of a queue.
const PATIENCE: Duration = Duration::from_secs(120);

/// A queue to which messages are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) id: i32,
    pub(super) name: String,
    pub(super) ordered: bool,
}

/// A channel's resources, as its consumer wants them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) queue: String,
    /// Name of the dead-letter queue. `None`: there is none.
    pub(super) dead_letters: Option<String>,
    /// Exchange, and the filter of the subscription to it.
    pub(super) exchange: Option<(String, Filter)>,
    pub(super) ordered: bool,
    pub(super) tags: BTreeMap<String, String>,
}

impl Wanted {
    /// Returns the names of the queues, the dead-letter queue first.
    pub(super) fn queues(&self) -> impl Iterator<Item = &str> {
        self.dead_letters.iter().map(String::as_str).chain([self.queue.as_str()])
    }

    /// Returns the tags of the queues as JSON.
    pub(super) fn tags_json(&self) -> String {
        let mut tags = self.tags.clone();
        tags.insert(tag::MANAGED.to_owned(), "true".to_owned());
        serde_json::to_string(&tags).unwrap_or_default()
    }
}

fn target(row: &Row) -> Target {
    Target { id: row.get(0), name: row.get(1), ordered: row.get(2) }
}

/// Finds a queue. The queue is neither removed nor made ordered or unordered before the transaction ends.
pub(super) async fn find(tx: &Transaction<'_>, name: &str) -> Result<Option<Target>, DatabaseError> {
    let sql = "SELECT id, name, ordered FROM hostler_queue.queue WHERE name = $1 FOR SHARE";
    Ok(tx.query(sql, &[(&name, Type::TEXT)]).await?.first().map(target))
}

/// Returns the queues that are subscribed to an exchange, with their filters. They are neither removed nor made ordered or unordered
/// before the transaction ends.
pub(super) async fn subscribed(tx: &Transaction<'_>, exchange: &str) -> Result<Vec<(Target, Filter)>, DatabaseError> {
    let sql = "SELECT q.id, q.name, q.ordered, s.filter::text FROM hostler_queue.subscription s
               JOIN hostler_queue.queue q ON q.id = s.queue WHERE s.exchange = $1 ORDER BY q.id FOR SHARE OF q";
    let rows = tx.query(sql, &[(&exchange, Type::TEXT)]).await?;
    Ok(rows.iter().map(|row| (target(row), read_filter(row.get(3)))).collect())
}

/// Returns `true` if an exchange was made that has no subscription yet.
pub(super) async fn is_exchange(tx: &Transaction<'_>, name: &str) -> Result<bool, DatabaseError> {
    let sql = "SELECT 1 FROM hostler_queue.exchange WHERE name = $1";
    Ok(!tx.query(sql, &[(&name, Type::TEXT)]).await?.is_empty())
}

/// Creates an exchange, unless it exists.
pub(super) async fn make_exchange(tx: &Transaction<'_>, name: &str) -> Result<(), DatabaseError> {
    let sql = "INSERT INTO hostler_queue.exchange (name) VALUES ($1) ON CONFLICT DO NOTHING";
    tx.execute(sql, &[(&name, Type::TEXT)]).await.map(drop)
}

/// Creates a queue, unless it exists. A queue that exists uses up no number.
pub(super) async fn make_queue(
    tx: &Transaction<'_>,
    name: &str,
    ordered: bool,
    tags: &str,
) -> Result<(), DatabaseError> {
    let sql = "INSERT INTO hostler_queue.queue (name, ordered, tags) SELECT $1, $2, $3::text::jsonb
               WHERE NOT EXISTS (SELECT 1 FROM hostler_queue.queue WHERE name = $1) ON CONFLICT DO NOTHING";
    tx.execute(sql, &[(&name, Type::TEXT), (&ordered, Type::BOOL), (&tags, Type::TEXT)]).await.map(drop)
}

/// Subscribes a queue to an exchange. Leaves the filter of a subscription that exists.
pub(super) async fn subscribe(
    tx: &Transaction<'_>,
    exchange: &str,
    queue: &str,
    filter: &Filter,
) -> Result<(), DatabaseError> {
    let sql = "INSERT INTO hostler_queue.subscription (exchange, queue, filter)
               SELECT $1, id, $3::text::jsonb FROM hostler_queue.queue WHERE name = $2 ON CONFLICT DO NOTHING";
    let filter = write_filter(filter);
    tx.execute(sql, &[(&exchange, Type::TEXT), (&queue, Type::TEXT), (&filter, Type::TEXT)]).await.map(drop)
}

/// Creates what is missing, and changes nothing else.
pub(super) async fn declare(tx: &Transaction<'_>, wanted: &Wanted) -> Result<(), DatabaseError> {
    let tags = wanted.tags_json();
    for name in wanted.queues() {
        make_queue(tx, name, wanted.ordered, &tags).await?;
    }
    if let Some((exchange, filter)) = &wanted.exchange {
        subscribe(tx, exchange, &wanted.queue, filter).await?;
    }
    Ok(())
}

/// Creates what is missing, and changes what differs. Tags that others have set stay.
pub(super) async fn establish(tx: &Transaction<'_>, wanted: &Wanted) -> Result<(), DatabaseError> {
    declare(tx, wanted).await?;
    let tags = wanted.tags_json();
    for name in wanted.queues() {
        let sql = "UPDATE hostler_queue.queue SET tags = tags || $2::text::jsonb WHERE name = $1 AND NOT tags @> $2::text::jsonb";
        tx.execute(sql, &[(&name, Type::TEXT), (&tags, Type::TEXT)]).await?;
        let sql = "UPDATE hostler_queue.queue SET ordered = $2 WHERE name = $1 AND ordered <> $2 RETURNING id";
        let changed = tx.query(sql, &[(&name, Type::TEXT), (&wanted.ordered, Type::BOOL)]).await?;
        if let Some(row) = changed.first() {
            reorder(tx, row.get(0), wanted.ordered).await?;
        }
    }
    if let Some((exchange, filter)) = &wanted.exchange {
        let sql = "UPDATE hostler_queue.subscription s SET filter = $3::text::jsonb FROM hostler_queue.queue q
                   WHERE s.exchange = $1 AND q.name = $2 AND q.id = s.queue AND s.filter <> $3::text::jsonb";
        let filter = write_filter(filter);
        tx.execute(sql, &[(exchange, Type::TEXT), (&wanted.queue, Type::TEXT), (&filter, Type::TEXT)]).await?;
    }
    Ok(())
}

/// Makes the messages of a queue ordered or unordered. The row of the queue is locked, so nobody sends meanwhile.
async fn reorder(tx: &Transaction<'_>, queue: i32, ordered: bool) -> Result<(), DatabaseError> {
    if !ordered {
        let sql = "UPDATE hostler_queue.entry SET grp = NULL, visible_at = coalesce(visible_at, due_at)
                   WHERE queue = $1 AND grp IS NOT NULL";
        return tx.execute_within(PATIENCE, sql, &[(&queue, Type::INT4)]).await.map(drop);
    }
    let sql = "UPDATE hostler_queue.entry e SET grp = coalesce(c.grp, $2) FROM hostler_queue.content c
               WHERE e.queue = $1 AND c.seq = e.seq";
    tx.execute_within(PATIENCE, sql, &[(&queue, Type::INT4), (&DEFAULT_GROUP, Type::TEXT)]).await?;
    let sql = "UPDATE hostler_queue.entry e SET visible_at = NULL, lease = NULL
               FROM (SELECT seq, row_number() OVER (PARTITION BY grp ORDER BY seq) AS place
                     FROM hostler_queue.entry WHERE queue = $1) AS p
               WHERE e.queue = $1 AND e.seq = p.seq AND p.place > 1";
    tx.execute_within(PATIENCE, sql, &[(&queue, Type::INT4)]).await.map(drop)
}

/// Locks groups, in an order that all share, until the transaction ends: nothing else comes into them or leaves them. The snapshot of
/// the next statement sees what others did before.
pub(super) async fn lock_groups(tx: &Transaction<'_>, groups: &[(i32, String)]) -> Result<(), DatabaseError> {
    if groups.is_empty() {
        return Ok(());
    }
    let (queues, names) = split(groups);
    let sql = "SELECT pg_advisory_xact_lock(key) FROM (
                   SELECT DISTINCT hashtextextended('hostler_queue' || name, queue) AS key
                   FROM unnest($1::int[], $2::text[]) AS g (queue, name) ORDER BY 1) AS keys";
    tx.query(sql, &[(&queues, Type::INT4_ARRAY), (&names, Type::TEXT_ARRAY)]).await.map(drop)
}

/// Makes the first message of each group visible. The groups are locked, and this transaction has removed the visible message of each, so
/// nothing else of them is visible: a search for it would read all that wait.
pub(super) async fn promote(tx: &Transaction<'_>, groups: &[(i32, String)]) -> Result<(), DatabaseError> {
    if groups.is_empty() {
        return Ok(());
    }
    let (queues, names) = split(groups);
    let sql = "UPDATE hostler_queue.entry e SET visible_at = greatest(e.due_at, statement_timestamp())
               FROM (SELECT g.queue, (SELECT min(o.seq) FROM hostler_queue.entry o
                                      WHERE o.queue = g.queue AND o.grp = g.name) AS seq
                     FROM (SELECT DISTINCT * FROM unnest($1::int[], $2::text[]) AS g (queue, name)) AS g) AS head
               WHERE e.queue = head.queue AND e.seq = head.seq AND e.visible_at IS NULL";
    tx.execute(sql, &[(&queues, Type::INT4_ARRAY), (&names, Type::TEXT_ARRAY)]).await.map(drop)
}

fn split(groups: &[(i32, String)]) -> (Vec<i32>, Vec<&str>) {
    groups.iter().map(|(queue, name)| (*queue, name.as_str())).unzip()
}
