//! Takes messages that are visible under a lease.

use std::sync::Arc;
use std::time::Duration;

use hostler_postgres::{Client, DatabaseError, Row, Type};
use hostler_queue::{Delivery, Receive};
use tokio::time::Instant;

use super::rows::{MESSAGE, message, millis};
use super::ticket::Ticket;

/// Maximum number of bytes of messages in an answer with more than one message: 32 MiB. Bounds the memory of a receive, and lets its answer
/// arrive within the deadline on a slow network.
const MOST_BYTES: i64 = 32 << 20;

/// The answer of one claim.
#[derive(Debug)]
pub(super) enum Claimed {
    /// No queue has the name.
    NoQueue,
    /// No message is visible. The next one becomes visible after this time, if one is known.
    Nothing(Option<Duration>),
    /// Messages, and those that cannot be read: their tickets and the reasons.
    Some(Vec<Delivery>, Vec<(Ticket, String)>),
}

/// Takes up to `max` messages of a queue in one statement. Each statement finds the queue by its name, so that a queue that was deleted
/// and made again is found.
pub(super) async fn claim(client: &Client, queue: &str, request: Receive) -> Result<Claimed, DatabaseError> {
    let sql = format!(
        "WITH q AS MATERIALIZED (SELECT id FROM hostler_queue.queue WHERE name = $1),
         free AS MATERIALIZED (
             SELECT ctid AS place, visible_at, seq FROM hostler_queue.entry
             WHERE queue = (SELECT id FROM q) AND visible_at <= statement_timestamp()
             ORDER BY visible_at, seq LIMIT $2 FOR UPDATE SKIP LOCKED),
         summed AS (
             SELECT place, row_number() OVER w AS n, sum((
                 SELECT octet_length(c.body) + coalesce(octet_length(c.attributes), 0)
                 FROM hostler_queue.content c WHERE c.seq = free.seq)) OVER w AS bytes
             FROM free WINDOW w AS (ORDER BY visible_at, seq)),
         taken AS (
             UPDATE hostler_queue.entry
             SET visible_at = statement_timestamp() + $3 * interval '1 millisecond', lease = $4, attempts = attempts + 1
             WHERE ctid = ANY(ARRAY(SELECT place FROM summed WHERE n = 1 OR bytes <= {MOST_BYTES}))
             RETURNING seq, attempts)
         SELECT q.id, t.seq, t.attempts,
                CASE WHEN t.seq IS NULL THEN (
                    SELECT ceil(extract(epoch FROM min(e.visible_at) - statement_timestamp()) * 1000)::bigint
                    FROM hostler_queue.entry e WHERE e.queue = q.id AND e.visible_at IS NOT NULL) END,
                {MESSAGE}
         FROM q LEFT JOIN taken t ON true LEFT JOIN hostler_queue.content c ON c.seq = t.seq ORDER BY t.seq"
    );
    let lease = i64::from_ne_bytes(fastrand::u64(..).to_ne_bytes());
    let max = i64::try_from(request.max).unwrap_or(i64::MAX);
    let until = millis(request.lease);
    let params =
        [(&queue as _, Type::TEXT), (&max as _, Type::INT8), (&until as _, Type::FLOAT8), (&lease as _, Type::INT8)];
    // The lease begins when the server executes the statement, which is later.
    let leased_at = Instant::now();
    let rows = client.query(&sql, &params).await?;
    Ok(read(&rows, lease, leased_at))
}

fn read(rows: &[Row], lease: i64, leased_at: Instant) -> Claimed {
    let Some(first) = rows.first() else { return Claimed::NoQueue };
    if first.get::<_, Option<i64>>(1).is_none() {
        let due: Option<i64> = first.get(3);
        return Claimed::Nothing(due.map(|due| Duration::from_millis(u64::try_from(due).unwrap_or(0))));
    }
    let (mut deliveries, mut unreadable) = (Vec::new(), Vec::new());
    for row in rows {
        let ticket = Ticket { queue: row.get(0), seq: row.get(1), lease };
        match message(row, 4) {
            Ok(message) => deliveries.push(Delivery {
                message: Arc::new(message),
                receipt: ticket.receipt(),
                attempt: u32::try_from(row.get::<_, i32>(2)).unwrap_or(1),
                leased_at,
                not_before: None,
                job: None,
            }),
            Err(reason) => unreadable.push((ticket, reason)),
        }
    }
    Claimed::Some(deliveries, unreadable)
}
