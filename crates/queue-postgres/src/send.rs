//! Adds messages to queues, and records their deduplication keys.

use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;
use std::time::Duration;

use hostler_postgres::{DatabaseError, Transaction, Type};
use hostler_queue::{DEFAULT_GROUP, QueueError, Sent};
use hostler_types::channel::{Channel, Filter};
use hostler_types::message::{Invalid, Outgoing};
use tokio::time::Instant;
use uuid::Uuid;

use super::faults::{no_queue, to_queue_error};
use super::options::MAX_MESSAGE;
use super::rows::{millis, write_attributes};
use super::service::Service;
use super::topology::{self, Target, find, subscribed};
use super::wake::CHANNEL;

/// Number of bytes of bodies after which a statement takes no further message.
const MOST_BYTES: usize = 32 << 20;

/// Time between two removals of old deduplication keys by this process.
const SWEEP: Duration = Duration::from_secs(30);

/// Maximum number of old deduplication keys that one send removes.
const MOST_SWEPT: u64 = 10_000;

/// Destination of messages to a channel: the queues, with their filters.
struct Route {
    /// Space of the deduplication keys.
    scope: String,
    targets: Vec<(Target, Filter)>,
}

/// A message for a queue.
struct Copy<'a> {
    target: &'a Target,
    message: &'a Outgoing,
    id: &'a str,
}

impl Copy<'_> {
    /// Returns the group in an ordered queue.
    fn group(&self) -> Option<&str> {
        self.target.ordered.then(|| self.message.group.as_deref().unwrap_or(DEFAULT_GROUP))
    }
}

/// Sends messages to a channel in one transaction. If sending fails, no message of the batch is sent.
pub(super) async fn send(service: &Service, channel: &Channel, batch: &[Outgoing]) -> Result<Vec<Sent>, QueueError> {
    let mut client = service.run(service.database.client()).await?;
    let tx = service.run(client.transaction()).await?;
    let written = send_in(service, &tx, channel, batch).await?;
    service.run(tx.commit()).await?;
    Ok(written.committed(service))
}

/// Messages that a transaction has written, and that nobody can receive before its commit.
pub(super) struct Written {
    sent: Vec<Sent>,
    /// Names of the queues.
    queues: Vec<String>,
}

impl Written {
    /// Wakes the receives of this process. Called after the commit.
    pub(super) fn committed(self, service: &Service) -> Vec<Sent> {
        for queue in &self.queues {
            service.wakes.ring(queue);
        }
        self.sent
    }
}

/// Writes messages to a channel as a part of a transaction. If this fails, the transaction can only be rolled back.
pub(super) async fn send_in(
    service: &Service,
    tx: &Transaction<'_>,
    channel: &Channel,
    batch: &[Outgoing],
) -> Result<Written, QueueError> {
    let messages: Vec<_> = batch.iter().map(|message| (channel, message)).collect();
    let written = write(service, tx, &messages).await;
    service.note(written.as_ref().err().and_then(WriteError::of_the_database));
    written.map_err(|error| match error {
        WriteError::NoQueue(name) => no_queue(&name),
        WriteError::Database(error) => to_queue_error(&error),
    })
}

/// The reason why messages were not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WriteError {
    /// The queue or the exchange of this name is missing, and is not to be created.
    NoQueue(String),
    /// The database failed.
    Database(DatabaseError),
}

impl WriteError {
    /// Returns the error of the database.
    pub(super) fn of_the_database(&self) -> Option<&DatabaseError> {
        match self {
            Self::NoQueue(_) => None,
            Self::Database(error) => Some(error),
        }
    }
}

impl From<DatabaseError> for WriteError {
    fn from(error: DatabaseError) -> Self {
        Self::Database(error)
    }
}

/// Checks a message. PostgreSQL stores no NUL characters in text.
pub(super) fn check(message: &Outgoing) -> Result<(), Invalid> {
    message.validate(MAX_MESSAGE)?;
    let texts =
        [("group", &message.group), ("routing key", &message.routing_key), ("deduplication key", &message.dedupe)];
    match texts.iter().find(|(_, text)| text.as_ref().is_some_and(|text| text.contains('\0'))) {
        Some((name, _)) => {
            Err(Invalid::Unsupported(format!("the {name} has a NUL character, which PostgreSQL cannot store")))
        }
        None => Ok(()),
    }
}

/// Writes messages to channels, in their order, as a part of a transaction. If this fails, the transaction can only be rolled back.
pub(super) async fn write(
    service: &Service,
    tx: &Transaction<'_>,
    messages: &[(&Channel, &Outgoing)],
) -> Result<Written, WriteError> {
    let ids: Vec<String> = messages.iter().map(|_| Uuid::now_v7().to_string()).collect();
    let mut routes: HashMap<&Channel, (Route, HashMap<String, String>)> = HashMap::new();
    for (channel, _) in messages {
        if routes.contains_key(channel) {
            continue;
        }
        let Some(route) = route(service, tx, channel).await? else {
            return Err(WriteError::NoQueue(service.full(channel.exchange().unwrap_or(channel.queue()))));
        };
        let own = messages.iter().zip(&ids).filter(|((to, _), _)| to == channel);
        let first = known_keys(service, tx, &route.scope, own.map(|((_, message), id)| (*message, id))).await?;
        routes.insert(channel, (route, first));
    }
    let mut copies = Vec::new();
    let mut sent = Vec::new();
    for ((channel, message), id) in messages.iter().zip(&ids) {
        let Some((route, first)) = routes.get(channel) else { continue };
        let original = message.dedupe.as_ref().and_then(|key| first.get(key));
        if let Some(original) = original.filter(|original| *original != id) {
            sent.push(Sent { id: original.clone(), queues: Some(0) });
            continue;
        }
        let passing = route.targets.iter().filter(|(_, filter)| filter.passes(message.routing_key.as_deref()));
        let before = copies.len();
        copies.extend(passing.map(|(target, _)| Copy { target, message, id }));
        sent.push(Sent { id: id.clone(), queues: Some(copies.len() - before) });
    }
    let mut groups: Vec<_> =
        copies.iter().filter_map(|copy| Some((copy.target.id, copy.group()?.to_owned()))).collect();
    groups.sort_unstable();
    groups.dedup();
    topology::lock_groups(tx, &groups).await?;
    for copies in chunks(&copies) {
        insert(tx, copies).await?;
    }
    notify(service, tx, &copies).await?;
    let targets = routes.into_values().flat_map(|(route, _)| route.targets);
    Ok(Written { sent, queues: targets.map(|(target, _)| target.name).collect() })
}

/// Splits copies so that no statement has too many bytes.
fn chunks<'c, 'a>(mut copies: &'c [Copy<'a>]) -> Vec<&'c [Copy<'a>]> {
    let mut all = Vec::new();
    while !copies.is_empty() {
        let mut bytes = 0;
        let fits = copies.iter().take_while(|copy| {
            let fits = bytes == 0 || bytes + copy.message.body.len() <= MOST_BYTES;
            bytes += copy.message.body.len();
            fits
        });
        let (chunk, rest) = copies.split_at(fits.count().max(1));
        all.push(chunk);
        copies = rest;
    }
    all
}

/// Inserts copies, in their order. Their groups are locked.
async fn insert(tx: &Transaction<'_>, copies: &[Copy<'_>]) -> Result<(), DatabaseError> {
    let queues: Vec<i32> = copies.iter().map(|copy| copy.target.id).collect();
    let ids: Vec<&str> = copies.iter().map(|copy| copy.id).collect();
    let shown: Vec<Option<&str>> = copies.iter().map(|copy| copy.message.group.as_deref().or(copy.group())).collect();
    let groups: Vec<Option<&str>> = copies.iter().map(Copy::group).collect();
    let keys: Vec<Option<&str>> = copies.iter().map(|copy| copy.message.routing_key.as_deref()).collect();
    let attributes: Vec<Option<String>> =
        copies.iter().map(|copy| write_attributes(&copy.message.attributes)).collect();
    let bodies: Vec<&[u8]> = copies.iter().map(|copy| copy.message.body.as_slice()).collect();
    let delays: Vec<f64> = copies.iter().map(|copy| millis(copy.message.delay)).collect();
    let sql = "WITH n AS MATERIALIZED (
                   SELECT nextval('hostler_queue.seq') AS seq, o.* FROM (
                       SELECT * FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::float8[])
                           WITH ORDINALITY AS u (queue, id, shown, grp, routing_key, attributes, body, delay, place) ORDER BY place) AS o),
               written AS (
                   INSERT INTO hostler_queue.content (seq, id, grp, routing_key, attributes, enqueued_at, body)
                   SELECT seq, id, shown, routing_key, attributes, statement_timestamp(), body FROM n)
               INSERT INTO hostler_queue.entry (queue, seq, grp, due_at, visible_at)
               SELECT queue, seq, grp, due_at, CASE WHEN is_blocked THEN NULL ELSE due_at END FROM (
                   SELECT queue, seq, grp, statement_timestamp() + delay * interval '1 millisecond' AS due_at,
                          grp IS NOT NULL AND (
                              row_number() OVER (PARTITION BY queue, grp ORDER BY seq) > 1
                              OR EXISTS (SELECT 1 FROM hostler_queue.entry e WHERE e.queue = n.queue AND e.grp = n.grp)) AS is_blocked
                   FROM n) AS placed";
    let params = [
        (&queues as _, Type::INT4_ARRAY),
        (&ids as _, Type::TEXT_ARRAY),
        (&shown as _, Type::TEXT_ARRAY),
        (&groups as _, Type::TEXT_ARRAY),
        (&keys as _, Type::TEXT_ARRAY),
        (&attributes as _, Type::TEXT_ARRAY),
        (&bodies as _, Type::BYTEA_ARRAY),
        (&delays as _, Type::FLOAT8_ARRAY),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// Notifies the receives of other processes, unless this process did so just now.
async fn notify(service: &Service, tx: &Transaction<'_>, copies: &[Copy<'_>]) -> Result<(), DatabaseError> {
    let mut names: Vec<&str> = copies.iter().map(|copy| copy.target.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let now = Instant::now();
    names.retain(|name| service.wakes.should_notify(name, now));
    if names.is_empty() {
        return Ok(());
    }
    let sql = "SELECT pg_notify($1, name) FROM unnest($2::text[]) AS name";
    tx.execute(sql, &[(&CHANNEL, Type::TEXT), (&names, Type::TEXT_ARRAY)]).await.map(drop)
}

/// Records the deduplication keys of messages to a channel. Returns, for each key, the id of the first message that had it.
async fn known_keys(
    service: &Service,
    tx: &Transaction<'_>,
    scope: &str,
    batch: impl Iterator<Item = (&Outgoing, &String)>,
) -> Result<HashMap<String, String>, DatabaseError> {
    // Sorted, so that two batches wait for each other in the same order.
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    for (message, id) in batch {
        if let Some(key) = &message.dedupe {
            first.entry(key).or_insert(id);
        }
    }
    if first.is_empty() {
        return Ok(HashMap::new());
    }
    let window = millis(service.options.dedupe_window);
    if is_time_to_sweep(service) {
        let sql = format!(
            "DELETE FROM hostler_queue.dedupe WHERE ctid = ANY(ARRAY(
                 SELECT ctid FROM hostler_queue.dedupe WHERE sent_at <= statement_timestamp() - $1 * interval '1 millisecond'
                 LIMIT {MOST_SWEPT} FOR UPDATE SKIP LOCKED))"
        );
        if tx.execute(&sql, &[(&window, Type::FLOAT8)]).await? >= MOST_SWEPT {
            // More are left: the next send goes on.
            *service.swept.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
    let (keys, new): (Vec<&str>, Vec<&str>) = first.into_iter().unzip();
    let hashes = "sha256(convert_to(key, 'UTF8'))";
    let sql = format!(
        "INSERT INTO hostler_queue.dedupe AS d (scope, hash, id, sent_at)
         SELECT $1, {hashes}, id, statement_timestamp() FROM unnest($2::text[], $3::text[]) AS n (key, id)
         ON CONFLICT (scope, hash) DO UPDATE SET id = excluded.id, sent_at = excluded.sent_at
         WHERE d.sent_at <= statement_timestamp() - $4 * interval '1 millisecond'"
    );
    let params = [
        (&scope as _, Type::TEXT),
        (&keys as _, Type::TEXT_ARRAY),
        (&new as _, Type::TEXT_ARRAY),
        (&window as _, Type::FLOAT8),
    ];
    tx.execute(&sql, &params).await?;
    let sql = format!(
        "SELECT n.key, d.id FROM unnest($2::text[]) AS n (key)
         JOIN hostler_queue.dedupe d ON d.scope = $1 AND d.hash = {hashes}"
    );
    let rows = tx.query(&sql, &[(&scope, Type::TEXT), (&keys, Type::TEXT_ARRAY)]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

fn is_time_to_sweep(service: &Service) -> bool {
    let mut swept = service.swept.lock().unwrap_or_else(PoisonError::into_inner);
    let is_time = swept.is_none_or(|last| last.elapsed() >= SWEEP);
    if is_time {
        *swept = Some(Instant::now());
    }
    is_time
}

/// Returns the destination of messages to a channel. `None`: it is missing, and is not to be created.
async fn route(service: &Service, tx: &Transaction<'_>, channel: &Channel) -> Result<Option<Route>, DatabaseError> {
    let queue = service.full(channel.queue());
    let scope = |kind: &str, name: &str| format!("{kind} {name}");
    let alone = |target: Target| vec![(target, Filter::All)];
    let Some(exchange) = channel.exchange().map(|exchange| service.full(exchange)) else {
        if let Some(target) = find(tx, &queue).await? {
            return Ok(Some(Route { scope: scope("queue", &queue), targets: alone(target) }));
        }
        let targets = subscribed(tx, &queue).await?;
        if !targets.is_empty() || topology::is_exchange(tx, &queue).await? {
            return Ok(Some(Route { scope: scope("exchange", &queue), targets }));
        }
        if !service.options.create_missing {
            return Ok(None);
        }
        topology::make_queue(tx, &queue, false, &managed()).await?;
        let target = find(tx, &queue).await?;
        return Ok(target.map(|target| Route { scope: scope("queue", &queue), targets: alone(target) }));
    };
    let mut targets = subscribed(tx, &exchange).await?;
    if service.options.create_missing && !targets.iter().any(|(target, _)| target.name == queue) {
        // Without the queue, messages that are sent before the first start of its consumer would be lost.
        topology::make_queue(tx, &queue, false, &managed()).await?;
        topology::subscribe(tx, &exchange, &queue, &Filter::All).await?;
        targets = subscribed(tx, &exchange).await?;
    }
    let is_there = !targets.is_empty() || topology::is_exchange(tx, &exchange).await?;
    Ok(is_there.then(|| Route { scope: scope("exchange", &exchange), targets }))
}

/// Returns the tags of a queue that a sender makes.
fn managed() -> String {
    format!("{{\"{}\": \"true\"}}", hostler_queue::tag::MANAGED)
}

#[cfg(test)]
mod tests {
    use hostler_postgres::Database;

    use super::*;
    use crate::Options;

    #[tokio::test]
    async fn a_commit_wakes_the_receives_of_its_queues() {
        let options = Options::default();
        let settings =
            hostler_postgres::Options { application: "test", connections: 1, deadline: Duration::from_secs(1) };
        let service = Service::new(Database::new(&options.url, settings).unwrap(), options);
        let bell = service.wakes.bell("jobs");
        let mut waiting = std::pin::pin!(bell.notified());
        waiting.as_mut().enable();
        let sent = vec![Sent { id: "1".to_owned(), queues: Some(1) }];
        let written = Written { sent: sent.clone(), queues: vec!["other".to_owned(), "jobs".to_owned()] };
        assert_eq!(written.committed(&service), sent);
        tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap();
    }
}
