//! Extends leases, and settles messages.

use std::time::Duration;

use hostler_postgres::{Client, DatabaseError, Transaction, Type};
use hostler_queue::{DEFAULT_GROUP, LeaseError, QueueError, dead_letter_attributes};
use hostler_types::message::MAX_ATTRIBUTES;

use super::faults::{no_queue, to_lease_error};
use super::rows::{millis, read_attributes, write_attributes};
use super::service::Service;
use super::ticket::{Ticket, lost};
use super::topology::{self, find, lock_groups, promote};

/// Condition that a lease has not ended. The sum keeps the planner from the index on `visible_at`, in which it would read all messages that
/// become visible later for each that is settled.
const IN_FUTURE: &str = "e.visible_at + interval '0' > statement_timestamp()";

/// A new time at which a leased message becomes visible.
#[derive(Debug, Clone, Copy)]
pub(super) struct Show {
    pub(super) ticket: Ticket,
    pub(super) after: Duration,
    /// Set if the lease goes on. Otherwise the message is released.
    pub(super) keep: bool,
    /// Set if the attempt does not count.
    pub(super) uncount: bool,
}

/// Name of a queue and its dead-letter queue.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// Name of the queue in the database.
    pub(super) queue: String,
    /// Name of the channel, which is written into dead letters.
    pub(super) channel: String,
    /// Name of the dead-letter queue in the database, and the number of times that a message may be received before it moves there.
    pub(super) dead_letters: Option<(String, u32)>,
    /// Set if the queue was ordered when it was opened.
    pub(super) ordered: bool,
}

/// Sets times of leased messages. Returns those whose lease was valid.
pub(super) async fn show(client: &Client, all: &[Show]) -> Result<Vec<Ticket>, DatabaseError> {
    let mut all = all.to_vec();
    // Two statements lock rows in the same order.
    all.sort_unstable_by_key(|show| (show.ticket.queue, show.ticket.seq));
    let (queues, seqs, leases) = columns(all.iter().map(|show| show.ticket));
    let after: Vec<f64> = all.iter().map(|show| millis(show.after)).collect();
    let keep: Vec<bool> = all.iter().map(|show| show.keep).collect();
    let uncount: Vec<i32> = all.iter().map(|show| i32::from(show.uncount)).collect();
    let sql = format!(
        "UPDATE hostler_queue.entry e
               SET visible_at = statement_timestamp() + n.after * interval '1 millisecond',
                   lease = CASE WHEN n.keep THEN e.lease END, attempts = greatest(e.attempts - n.uncount, 0)
               FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::float8[], $5::bool[], $6::int[])
                   AS n (queue, seq, lease, after, keep, uncount)
               WHERE e.queue = n.queue AND e.seq = n.seq AND e.lease = n.lease AND {IN_FUTURE}
               RETURNING n.queue, n.seq, n.lease"
    );
    let params = [
        (&queues as _, Type::INT4_ARRAY),
        (&seqs as _, Type::INT8_ARRAY),
        (&leases as _, Type::INT8_ARRAY),
        (&after as _, Type::FLOAT8_ARRAY),
        (&keep as _, Type::BOOL_ARRAY),
        (&uncount as _, Type::INT4_ARRAY),
    ];
    let rows = client.query(&sql, &params).await?;
    Ok(rows.iter().map(|row| Ticket { queue: row.get(0), seq: row.get(1), lease: row.get(2) }).collect())
}

/// Statement that removes leased messages and returns their tickets and groups. `condition`: a further condition on `e`.
fn removal(condition: &str) -> String {
    format!(
        "WITH gone AS (
             DELETE FROM hostler_queue.entry e USING unnest($1::int[], $2::bigint[], $3::bigint[]) AS n (queue, seq, lease)
             WHERE e.queue = n.queue AND e.seq = n.seq AND e.lease = n.lease AND {IN_FUTURE} {condition}
             RETURNING e.queue, e.seq, e.lease, e.grp),
         forgotten AS (DELETE FROM hostler_queue.content c USING gone WHERE c.seq = gone.seq)
         SELECT queue, seq, lease, grp FROM gone"
    )
}

/// Removes leased messages. Returns those whose lease was valid.
pub(super) async fn ack(client: &mut Client, ordered: bool, all: &[Ticket]) -> Result<Vec<Ticket>, DatabaseError> {
    let mut all = all.to_vec();
    all.sort_unstable_by_key(|ticket| (ticket.queue, ticket.seq));
    let mut done = Vec::new();
    if !ordered {
        let (queues, seqs, leases) = columns(all.iter().copied());
        let params =
            [(&queues as _, Type::INT4_ARRAY), (&seqs as _, Type::INT8_ARRAY), (&leases as _, Type::INT8_ARRAY)];
        let rows = client.query(&removal("AND e.grp IS NULL"), &params).await?;
        done.extend(rows.iter().map(|row| Ticket { queue: row.get(0), seq: row.get(1), lease: row.get(2) }));
        all.retain(|ticket| !done.contains(ticket));
    }
    if all.is_empty() {
        return Ok(done);
    }
    // The rest have groups, in which the next message becomes visible, or their leases are lost.
    let tx = client.transaction().await?;
    let rest = remove(&tx, all).await?;
    tx.commit().await?;
    done.extend(rest);
    Ok(done)
}

/// Removes leased messages as a part of a transaction. The next messages of their groups become visible. Returns those whose lease was
/// valid.
pub(super) async fn remove(tx: &Transaction<'_>, mut all: Vec<Ticket>) -> Result<Vec<Ticket>, DatabaseError> {
    all.sort_unstable_by_key(|ticket| (ticket.queue, ticket.seq));
    let (queues, seqs, leases) = columns(all.iter().copied());
    let params = [(&queues as _, Type::INT4_ARRAY), (&seqs as _, Type::INT8_ARRAY), (&leases as _, Type::INT8_ARRAY)];
    let rows = tx.query(&removal(""), &params).await?;
    let groups: Vec<(i32, String)> =
        rows.iter().filter_map(|row| Some((row.get(0), row.get::<_, Option<String>>(3)?))).collect();
    lock_groups(tx, &groups).await?;
    promote(tx, &groups).await?;
    Ok(rows.iter().map(|row| Ticket { queue: row.get(0), seq: row.get(1), lease: row.get(2) }).collect())
}

/// Moves a leased message to the dead-letter queue. `attempts`: number of attempts to write into the copy. `None`: that of the row.
pub(super) async fn dead_letter(
    service: &Service,
    client: &mut Client,
    source: &Source,
    ticket: Ticket,
    reason: &str,
    attempts: Option<u32>,
) -> Result<(), LeaseError> {
    let Some((name, _)) = &source.dead_letters else {
        return Err(LeaseError::Refused("the queue has no dead-letter queue".to_owned()));
    };
    let moved = async {
        let tx = client.transaction().await?;
        if service.options.create_missing {
            topology::make_queue(&tx, name, source.ordered, "{}").await?;
        }
        let moved = bury(&tx, source, name, ticket, reason, attempts).await?;
        if moved == Moved::Done {
            tx.commit().await?;
        }
        Ok(moved)
    };
    match service.run(moved).await {
        Ok(Moved::Done) => {
            service.wakes.ring(name);
            service.wakes.ring(&source.queue);
            Ok(())
        }
        Ok(Moved::Lost) => Err(lost()),
        Ok(Moved::NoQueue) => Err(to_lease_error(&no_queue(name))),
        Err(QueueError::Refused(text)) => Err(LeaseError::Unfit(text)),
        Err(error) => Err(to_lease_error(&error)),
    }
}

/// The result of moving a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    Done,
    /// The lease is lost.
    Lost,
    /// There is no dead-letter queue.
    NoQueue,
}

async fn bury(
    tx: &Transaction<'_>,
    source: &Source,
    name: &str,
    ticket: Ticket,
    reason: &str,
    attempts: Option<u32>,
) -> Result<Moved, DatabaseError> {
    let Ticket { queue, seq, lease } = ticket;
    let Some(target) = find(tx, name).await? else { return Ok(Moved::NoQueue) };
    let sql = format!(
        "SELECT e.attempts, e.grp, c.grp, c.attributes FROM hostler_queue.entry e
               JOIN hostler_queue.content c ON c.seq = e.seq
               WHERE e.queue = $1 AND e.seq = $2 AND e.lease = $3 AND {IN_FUTURE} FOR UPDATE OF e"
    );
    let rows = tx.query(&sql, &[(&queue, Type::INT4), (&seq, Type::INT8), (&lease, Type::INT8)]).await?;
    let Some(row) = rows.first() else { return Ok(Moved::Lost) };
    let (own, shown): (Option<String>, Option<String>) = (row.get(1), row.get(2));
    let attempts = attempts.or_else(|| u32::try_from(row.get::<_, i32>(0)).ok());
    // Attributes that cannot be read are lost; the body is not.
    let original = read_attributes(row.get(3)).unwrap_or_default();
    let attributes = dead_letter_attributes(&original, reason, &source.channel, attempts, MAX_ATTRIBUTES);

    let left: Vec<_> = own.map(|group| (queue, group)).into_iter().collect();
    let new = target.ordered.then(|| shown.unwrap_or_else(|| DEFAULT_GROUP.to_owned()));
    let mut groups = left.clone();
    groups.extend(new.iter().map(|group| (target.id, group.clone())));
    lock_groups(tx, &groups).await?;
    let sql = "UPDATE hostler_queue.entry e
               SET queue = $3, grp = $4, lease = NULL, attempts = 0, due_at = statement_timestamp(),
                   visible_at = CASE WHEN NOT EXISTS (
                       SELECT 1 FROM hostler_queue.entry o WHERE o.queue = $3 AND o.grp = $4) THEN statement_timestamp() END
               WHERE e.queue = $1 AND e.seq = $2";
    let params =
        [(&queue as _, Type::INT4), (&seq as _, Type::INT8), (&target.id as _, Type::INT4), (&new as _, Type::TEXT)];
    tx.execute(sql, &params).await?;
    let written = write_attributes(&attributes);
    let sql = "UPDATE hostler_queue.content SET attributes = $2 WHERE seq = $1";
    tx.execute(sql, &[(&seq, Type::INT8), (&written, Type::TEXT)]).await?;
    promote(tx, &left).await?;
    Ok(Moved::Done)
}

fn columns(tickets: impl Iterator<Item = Ticket>) -> (Vec<i32>, Vec<i64>, Vec<i64>) {
    let (mut queues, mut seqs, mut leases) = (Vec::new(), Vec::new(), Vec::new());
    for ticket in tickets {
        queues.push(ticket.queue);
        seqs.push(ticket.seq);
        leases.push(ticket.lease);
    }
    (queues, seqs, leases)
}
