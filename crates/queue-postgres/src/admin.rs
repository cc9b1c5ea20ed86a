//! The operator's view: lists queues, counts their messages, and reads messages without receiving them.

use std::collections::BTreeMap;
use std::time::Duration;

use hostler_postgres::{Client, DatabaseError, Type};
use hostler_queue::{Depth, ManagedQueue};
use hostler_types::message::Message;

use super::rows::{MESSAGE, message, system_time};

/// Maximum number of messages per page.
const PAGE: i64 = 100;

/// Maximum number of bytes of a page with more than one message: 4 MiB. Bounds the memory of a look: the page is in memory twice for a
/// moment, as rows and as messages.
const PAGE_BYTES: i64 = 4 << 20;

/// Returns the names of all queues with the prefix, without it. Each has the exchange that feeds it, the first in alphabetical order.
pub(super) async fn channels(client: &Client, prefix: &str) -> Result<Vec<String>, DatabaseError> {
    let sql = "SELECT coalesce(substr(min(s.exchange), length($1) + 1) || '.', '') || substr(q.name, length($1) + 1)
               FROM hostler_queue.queue q
               LEFT JOIN hostler_queue.subscription s ON s.queue = q.id AND starts_with(s.exchange, $1)
               WHERE starts_with(q.name, $1) GROUP BY q.name ORDER BY q.name";
    let rows = client.query(sql, &[(&prefix, Type::TEXT)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Returns the names of all queues with the prefix, without it, alone and with each exchange that feeds them.
pub(super) async fn destinations(client: &Client, prefix: &str) -> Result<Vec<String>, DatabaseError> {
    let sql = "SELECT substr(name, length($1) + 1) FROM hostler_queue.queue WHERE starts_with(name, $1)
               UNION
               SELECT substr(s.exchange, length($1) + 1) || '.' || substr(q.name, length($1) + 1)
               FROM hostler_queue.subscription s JOIN hostler_queue.queue q ON q.id = s.queue
               WHERE starts_with(q.name, $1) AND starts_with(s.exchange, $1) ORDER BY 1";
    let rows = client.query(sql, &[(&prefix, Type::TEXT)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Columns of the counts of a queue `q`. As in SQS, a message that waits for earlier messages of its group counts as visible.
const COUNTS: &str = "
    count(e.seq) FILTER (WHERE e.visible_at IS NULL OR e.visible_at <= statement_timestamp()),
    count(e.seq) FILTER (WHERE e.visible_at > statement_timestamp() AND e.lease IS NULL),
    count(e.seq) FILTER (WHERE e.visible_at > statement_timestamp() AND e.lease IS NOT NULL)";

/// Returns the depths of queues, given the names of each queue and its dead-letter queue in the database.
pub(super) async fn depths(client: &Client, names: &[(String, String)]) -> Result<Vec<Depth>, DatabaseError> {
    let (queues, dead): (Vec<&str>, Vec<&str>) =
        names.iter().map(|(queue, dead)| (queue.as_str(), dead.as_str())).unzip();
    let sql = format!(
        "SELECT q.id IS NULL, k.visible, k.delayed, k.leased,
                (SELECT count(*) FROM hostler_queue.entry e JOIN hostler_queue.queue d ON d.id = e.queue WHERE d.name = n.dead),
                (SELECT (extract(epoch FROM statement_timestamp() - c.enqueued_at) * 1000)::bigint
                 FROM hostler_queue.entry e JOIN hostler_queue.content c ON c.seq = e.seq
                 WHERE e.queue = q.id ORDER BY e.seq LIMIT 1)
         FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS n (queue, dead, place)
         LEFT JOIN hostler_queue.queue q ON q.name = n.queue
         CROSS JOIN LATERAL (
             SELECT {COUNTS} FROM hostler_queue.entry e WHERE e.queue = q.id) AS k (visible, delayed, leased)
         ORDER BY n.place"
    );
    let rows = client.query(&sql, &[(&queues, Type::TEXT_ARRAY), (&dead, Type::TEXT_ARRAY)]).await?;
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    let depth = |row: &hostler_postgres::Row| Depth {
        missing: row.get(0),
        visible: count(row.get(1)),
        delayed: Some(count(row.get(2))),
        in_flight: Some(count(row.get(3))),
        dead_lettered: count(row.get(4)),
        oldest_age: row.get::<_, Option<i64>>(5).map(|age| Duration::from_millis(count(age))),
    };
    Ok(rows.iter().map(depth).collect())
}

/// Returns the queues with the prefix that have tags of hostler's, and their counts.
pub(super) async fn managed(client: &Client, prefix: &str) -> Result<Vec<ManagedQueue>, DatabaseError> {
    let sql = format!(
        "SELECT q.name, substr(q.name, length($1) + 1), q.tags::text, (extract(epoch FROM q.created_at) * 1000000)::bigint, {COUNTS}
         FROM hostler_queue.queue q LEFT JOIN hostler_queue.entry e ON e.queue = q.id
         WHERE starts_with(q.name, $1) GROUP BY q.id ORDER BY q.name"
    );
    let rows = client.query(&sql, &[(&prefix, Type::TEXT)]).await?;
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    let queue = |row: &hostler_postgres::Row| ManagedQueue {
        name: row.get(0),
        queue: row.get(1),
        tags: read_tags(row.get(2)),
        created: Some(system_time(row.get(3))),
        visible: count(row.get(4)),
        delayed: Some(count(row.get(5))),
        in_flight: Some(count(row.get(6))),
    };
    Ok(rows.iter().map(queue).filter(|queue| hostler_queue::tag::is_owned(&queue.tags)).collect())
}

/// Reads the tags of a queue. Passes over values that are not text, which hostler did not write.
pub(super) fn read_tags(json: &str) -> BTreeMap<String, String> {
    let tags: BTreeMap<String, serde_json::Value> = serde_json::from_str(json).unwrap_or_default();
    let text = |(name, value): (String, serde_json::Value)| Some((name, value.as_str()?.to_owned()));
    tags.into_iter().filter_map(text).collect()
}

/// A page of messages, oldest first, each with its number.
pub(super) type Page = Vec<(i64, Message)>;

/// Returns a page of messages after the number `after`. `None`: there is no such queue. Passes over messages that cannot be read.
pub(super) async fn page(
    client: &Client,
    queue: &str,
    after: i64,
) -> Result<Option<(Page, Option<i64>)>, DatabaseError> {
    // The sizes come first: they are known without the bodies, which lie elsewhere if they are long.
    let sql = format!(
        "WITH q AS MATERIALIZED (SELECT id FROM hostler_queue.queue WHERE name = $1),
         next AS MATERIALIZED (
             SELECT e.seq FROM hostler_queue.entry e WHERE e.queue = (SELECT id FROM q) AND e.seq > $2 ORDER BY e.seq LIMIT $3),
         sized AS (
             SELECT n.seq, row_number() OVER w AS n, sum((
                 SELECT octet_length(c.body) + coalesce(octet_length(c.attributes), 0)
                 FROM hostler_queue.content c WHERE c.seq = n.seq)) OVER w AS bytes
             FROM next n WINDOW w AS (ORDER BY n.seq))
         SELECT t.seq, {MESSAGE} FROM q
         LEFT JOIN (SELECT s.seq FROM sized s WHERE s.n = 1 OR s.bytes <= {PAGE_BYTES}) t ON true
         LEFT JOIN hostler_queue.content c ON c.seq = t.seq ORDER BY t.seq"
    );
    let rows = client.query(&sql, &[(&queue, Type::TEXT), (&after, Type::INT8), (&PAGE, Type::INT8)]).await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let last = rows.iter().filter_map(|row| row.get::<_, Option<i64>>(0)).max();
    let read = |row: &hostler_postgres::Row| Some((row.get::<_, Option<i64>>(0)?, message(row, 1).ok()?));
    Ok(Some((rows.iter().filter_map(read).collect(), last)))
}
