//! Finds stranded messages: messages that would never become visible.
//!
//! All entries of a group except one are blocked. When the unblocked entry is removed, the driver finds the next entry
//! by the name of the group. If a damaged row has lost the name, the driver does not find the next entry. While receive
//! calls wait, the worker therefore searches for stranded messages regularly, one page at a time, and makes them
//! visible. A message that cannot be read is then set aside like any other damaged message.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use rusqlite::{Connection, params};

use super::clock::{Job, Session};
use super::rows::{due_after, latest_due};
use super::topology::is_ordered;

/// Maximum number of messages of either kind to examine in one search. A search takes a few milliseconds.
const PAGE: i64 = 500;

/// Key of an entry within its queue.
type Place = (i64, i64);

/// A position before every entry.
const START: Place = (i64::MIN, i64::MIN);

/// Progress of the searches, by queue.
#[derive(Debug, Default)]
pub(super) struct Stranded(HashMap<i64, Progress>);

/// Progress of the search in one queue.
#[derive(Debug)]
struct Progress {
    /// Position of the last examined entry. `None`: the next search starts with the first entry.
    after: Option<Place>,
    /// Time of the next search, by the monotonic clock.
    next: Duration,
    /// Number of changes of the file before the search began. `None`: a part of the search failed, so it must be repeated.
    changes: Option<u64>,
}

impl Stranded {
    /// Returns `true` if a queue must be searched now: at most once per `interval`, and only if the file was changed
    /// since the last search began or that search did not examine all entries. `changes` is the number of changes of the
    /// file up to now.
    pub(super) fn is_due(&mut self, queue: i64, now: Duration, interval: Duration, changes: u64) -> bool {
        let Some(progress) = self.0.get_mut(&queue) else {
            self.0.insert(queue, Progress { after: None, next: now + interval, changes: Some(changes) });
            return true;
        };
        let is_due = now >= progress.next && (progress.after.is_some() || progress.changes != Some(changes));
        if is_due {
            progress.next = now + interval;
            // A search of several pages is not over with its last page if the file was changed after its first one.
            if progress.after.is_none() {
                progress.changes = Some(changes);
            }
        }
        is_due
    }

    /// Repeats the search in a queue after its last page, even if the file is not changed until then, because a page could
    /// not be read or its stranded messages could not be made due. The remaining pages come first, so that one message that
    /// cannot be changed does not hide the messages after it.
    pub(super) fn repeat(&mut self, queue: i64) {
        if let Some(progress) = self.0.get_mut(&queue) {
            progress.changes = None;
        }
    }

    /// Searches a queue for stranded messages, and returns their positions. Examines one page of the messages without a
    /// time. If the queue is ordered, these are the blocked messages: only those without a group are stranded, and one
    /// message of each group in which every entry is blocked.
    pub(super) fn look(&mut self, db: &Session<'_>, queue: i64) -> rusqlite::Result<Vec<Place>> {
        let is_ordered = is_ordered(db, queue)?;
        let mut found = never_due(db, queue)?;
        let reached = self.0.get_mut(&queue).and_then(|progress| progress.after.take());
        let after = reached.unwrap_or(START);
        let mut page = db.prepare_cached(
            "SELECT enqueued_at, seq, group_name FROM entry INDEXED BY entry_visible
             WHERE queue = ?1 AND visible_at IS NULL AND (enqueued_at, seq) > (?2, ?3)
             ORDER BY enqueued_at, seq LIMIT ?4",
        )?;
        let mut rows = page.query(params![queue, after.0, after.1, PAGE])?;
        let (mut groups, mut count) = (HashSet::new(), 0);
        while let Some(row) = rows.next()? {
            let place: Place = (row.get(0)?, row.get(1)?);
            count += 1;
            if count == PAGE
                && let Some(progress) = self.0.get_mut(&queue)
            {
                progress.after = Some(place);
            }
            // The stored bytes may not be valid text.
            let group = row.get_ref(2)?.as_bytes_or_null().unwrap_or_default().map(<[u8]>::to_vec);
            let is_stranded = match group {
                Some(group) if is_ordered => groups.insert(group) && !has_head(db, queue, place)?,
                _ => true,
            };
            if is_stranded {
                found.push(place);
            }
        }
        Ok(found)
    }
}

/// Returns the positions of messages that never become due, because their time is later than any that a driver stores.
fn never_due(db: &Session<'_>, queue: i64) -> rusqlite::Result<Vec<Place>> {
    db.prepare_cached(
        "SELECT enqueued_at, seq FROM entry INDEXED BY entry_visible WHERE queue = ?1 AND visible_at > ?2 LIMIT ?3",
    )?
    .query_map([queue, latest_due(db.now()), PAGE], |row| Ok((row.get(0)?, row.get(1)?)))?
    .collect()
}

/// Returns `true` if the group of an entry has an entry that is visible, leased or delayed. The blocked entries of the
/// group wait for that entry.
fn has_head(db: &Connection, queue: i64, (enqueued_at, seq): Place) -> rusqlite::Result<bool> {
    db.prepare_cached(
        "SELECT 1 FROM entry INDEXED BY entry_group WHERE queue = ?1 AND visible_at IS NOT NULL AND group_name = (
             SELECT group_name FROM entry WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3
         ) LIMIT 1",
    )?
    .exists([queue, enqueued_at, seq])
}

/// Statement that makes entries due. Its parameters are the key of a found entry (`?1` to `?3`), the current time (`?4`),
/// the latest valid time (`?5`), the end of a lease that starts now (`?6`), and whether the queue is ordered (`?7`).
macro_rules! free {
    ($condition:literal) => {
        concat!(
            "UPDATE entry SET visible_at = CASE
                 WHEN lease IS NOT NULL THEN ?6 WHEN due_at > ?5 THEN ?4 ELSE max(due_at, ?4) END ",
            $condition
        )
    };
}

/// Makes a found entry due that waits for no group.
const FREE_ONE: &str = free!(
    "WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3
     AND visible_at IS NULL AND (group_name IS NULL OR NOT ?7)"
);

/// In an ordered queue, makes the first entry of a found entry's group due, unless another entry of the group is visible,
/// leased or delayed.
const FREE_FIRST_OF_GROUP: &str = free!(
    "WHERE ?7 AND (queue, enqueued_at, seq) = (
         SELECT queue, enqueued_at, seq FROM entry INDEXED BY entry_group
         WHERE queue = ?1 AND group_name = (
             SELECT group_name FROM entry WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3
         ) ORDER BY lease IS NULL, seq LIMIT 1
     ) AND NOT EXISTS (
         SELECT 1 FROM entry AS head INDEXED BY entry_group
         WHERE head.queue = ?1 AND head.group_name = entry.group_name AND head.visible_at IS NOT NULL
     )"
);

/// A job that makes the found messages visible. Skips a message that is no longer stranded.
pub(super) struct Free {
    queue: i64,
    found: Vec<Place>,
    /// Length of the leases in this queue.
    lease: Duration,
    freed: usize,
}

impl Free {
    pub(super) fn new(queue: i64, found: Vec<Place>, lease: Duration) -> Self {
        Self { queue, found, lease, freed: 0 }
    }

    /// Logs the number of messages that were made due. Returns `true` if the number is not zero. Must be called after the
    /// transaction was committed.
    pub(super) fn tell(&self, channel: &str) -> bool {
        let count = self.freed;
        if count > 0 {
            tracing::warn!(
                channel,
                count,
                "damaged rows would have held back messages for ever; they are due again, leased ones at the end of \
                 a new lease"
            );
        }
        count > 0
    }
}

impl Job for Free {
    /// Clears the invalid times of the found entries, and then makes these entries due. For an entry of a group, makes the
    /// first entry of the group due instead, unless another entry of the group is visible, leased or delayed. An entry whose
    /// delay is readable keeps its delay.
    ///
    /// An entry with a lease may still be processed, so it becomes due only after the length of a lease, and before the
    /// other entries of its group. A heartbeat may extend that time.
    fn run(&mut self, db: &Session<'_>) -> rusqlite::Result<()> {
        let now = db.now();
        let (latest, lease_end) = (latest_due(now), due_after(now, self.lease));
        let is_ordered = is_ordered(db, self.queue)?;
        self.freed = 0;
        for (enqueued_at, seq) in &self.found {
            db.prepare_cached(
                "UPDATE entry SET visible_at = NULL
                 WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3 AND visible_at > ?4",
            )?
            .execute(params![self.queue, enqueued_at, seq, latest])?;
            let key = params![self.queue, enqueued_at, seq, now, latest, lease_end, is_ordered];
            self.freed += db.prepare_cached(FREE_ONE)?.execute(key)?;
            self.freed += db.prepare_cached(FREE_FIRST_OF_GROUP)?.execute(key)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::Arc;

    use hostler_queue::{Admin, Broker, ChannelSpec, Queue, Receive, Settlement};
    use hostler_types::message::{AttributeValue, MAX_DELAY, Message, Outgoing};
    use tokio_util::sync::CancellationToken;

    use super::super::EmbeddedBroker;
    use super::*;

    /// Sends these bodies to an ordered queue in one group. For each pair in `damage`, sets the group of the message
    /// with that body to the given SQL value. Returns the broker, and the queue as a consumer opens it.
    async fn damaged(
        folder: &std::path::Path,
        bodies: &[&str],
        damage: &[(&str, &str)],
    ) -> (EmbeddedBroker, Arc<dyn Queue>) {
        let path = folder.join("queue.db");
        let broker = EmbeddedBroker::open(&path).unwrap();
        let channel = "jobs".parse().unwrap();
        let spec = ChannelSpec { max_receives: Some(9), ordered: true, ..ChannelSpec::new(channel) };
        let queue = broker.open(&spec).await.unwrap();
        let message = |body: &&str| Outgoing {
            body: (*body).into(),
            group: Some("g".to_owned()),
            attributes: [("tenant".to_owned(), AttributeValue::Text("acme".to_owned()))].into(),
            ..Outgoing::default()
        };
        broker.send(&"jobs".parse().unwrap(), bodies.iter().map(message).collect()).await;
        let meddler = Connection::open(&path).unwrap();
        for (body, value) in damage {
            let sql = format!(
                "UPDATE entry SET group_name = {value} WHERE seq = (SELECT seq FROM content WHERE body = CAST(?1 AS BLOB))"
            );
            assert_eq!(meddler.execute(&sql, [body]).unwrap(), 1);
        }
        (broker, queue)
    }

    /// Receives and acks messages until a receive call returns no messages. Returns the received messages.
    async fn drained(queue: &Arc<dyn Queue>) -> Vec<String> {
        let (mut seen, stop) = (Vec::new(), CancellationToken::new());
        loop {
            let request = Receive { max: 10, wait: Duration::from_millis(1500), lease: Duration::from_secs(30) };
            let received = queue.receive(request, &stop).await.unwrap();
            if received.is_empty() {
                return seen;
            }
            seen.extend(received.iter().map(|one| String::from_utf8_lossy(&one.message.body).into_owned()));
            let acks = received.into_iter().map(|one| Settlement::Ack(one.receipt)).collect();
            assert!(queue.settle(acks).await.iter().all(Result::is_ok));
        }
    }

    #[test]
    fn a_queue_is_searched_again_once_the_file_was_changed_or_the_search_failed() {
        let second = Duration::from_secs(1);
        let mut stranded = Stranded::default();
        let mut is_due = |at: u32, changes| stranded.is_due(1, second * at, second, changes);
        assert!(is_due(0, 5));
        assert!(!is_due(1, 5), "nothing was changed");
        assert!(is_due(2, 6));
        assert!(!is_due(2, 7), "too soon");
        assert!(is_due(3, 7));
        stranded.repeat(1);
        assert!(!stranded.is_due(1, second * 3, second, 7), "too soon");
        assert!(stranded.is_due(1, second * 4, second, 7), "it failed");
        assert!(!stranded.is_due(1, second * 5, second, 7), "nothing was changed");
    }

    #[test]
    fn a_search_that_failed_goes_on_with_the_next_page() {
        let second = Duration::from_secs(1);
        let mut stranded = Stranded::default();
        assert!(stranded.is_due(1, Duration::ZERO, second, 5));
        // The first page was read, and its messages could not be made due.
        stranded.0.get_mut(&1).unwrap().after = Some((3, 500));
        stranded.repeat(1);
        assert_eq!(stranded.0[&1].after, Some((3, 500)));
        assert!(stranded.is_due(1, second, second, 5));
        // The second page was the last.
        stranded.0.get_mut(&1).unwrap().after = None;
        assert!(stranded.is_due(1, second * 2, second, 5), "from the first page again");
        assert!(!stranded.is_due(1, second * 3, second, 5));
    }

    #[tokio::test]
    async fn what_waits_in_a_group_that_its_row_does_not_name_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let damage = [("2", "CAST(x'ff67' AS TEXT)"), ("3", "NULL"), ("5", "NULL")];
        let (broker, queue) = damaged(folder.path(), &["1", "2", "3", "4", "5"], &damage).await;
        assert_eq!(drained(&queue).await, ["1", "4"]);
        let depth = &broker.depths(&["jobs".parse().unwrap()]).await.unwrap()[0];
        assert_eq!((depth.visible, depth.in_flight, depth.dead_lettered), (0, Some(0), 3));
        let mut tenants = 0;
        let mut each = |message: &Message| {
            tenants += usize::from(message.attributes.contains_key("tenant"));
            ControlFlow::Continue(())
        };
        assert!(broker.peek(&"jobs-dlq".parse().unwrap(), &mut each).await.unwrap());
        assert_eq!(tenants, 3, "attributes that can be read are kept");
    }

    #[tokio::test]
    async fn what_waits_in_a_group_of_its_own_by_damage_is_received() {
        let folder = tempfile::tempdir().unwrap();
        let (_broker, queue) = damaged(folder.path(), &["1", "2", "3"], &[("2", "'f'")]).await;
        let mut seen = drained(&queue).await;
        seen.sort();
        assert_eq!(seen, ["1", "2", "3"]);
    }

    #[tokio::test]
    async fn a_head_without_a_group_is_set_aside_and_its_followers_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let (broker, queue) = damaged(folder.path(), &["1", "2", "3"], &[("1", "NULL")]).await;
        assert_eq!(drained(&queue).await, ["2", "3"]);
        let dead_lettered = broker.depths(&["jobs".parse().unwrap()]).await.unwrap()[0].dead_lettered;
        assert_eq!(dead_lettered, 1);
    }

    /// No statement but that of the search uses the index then.
    #[tokio::test]
    async fn a_group_without_a_head_is_found_without_its_index() {
        let folder = tempfile::tempdir().unwrap();
        let (_broker, queue) = damaged(folder.path(), &["1", "2", "3"], &[]).await;
        let meddler = Connection::open(folder.path().join("queue.db")).unwrap();
        meddler.execute_batch("UPDATE entry SET visible_at = NULL; DROP INDEX entry_group;").unwrap();
        assert_eq!(drained(&queue).await, ["1", "2", "3"]);
    }

    /// Checks that damage in the middle of a group does not hide later messages of the group. Opens the queue as
    /// `requeue` does.
    #[tokio::test]
    async fn a_stored_queue_is_read_to_its_end_past_damage_in_the_middle_of_a_group() {
        let folder = tempfile::tempdir().unwrap();
        let damage = [("2", "NULL"), ("4", "CAST(x'ff67' AS TEXT)")];
        let (broker, _) = damaged(folder.path(), &["1", "2", "3", "4", "5", "6"], &damage).await;
        let meddler = Connection::open(folder.path().join("queue.db")).unwrap();
        let torn = "UPDATE content SET attributes = '{torn' WHERE body = CAST('5' AS BLOB)";
        assert_eq!(meddler.execute(torn, []).unwrap(), 1);
        let stored = broker.open_stored(&"jobs".parse().unwrap()).await.unwrap();
        assert_eq!(drained(&stored).await, ["1", "3", "6"]);
        let depth = &broker.depths(&["jobs".parse().unwrap()]).await.unwrap()[0];
        assert_eq!((depth.visible, depth.in_flight, depth.dead_lettered), (0, Some(0), 3));
    }

    /// Leases the first message, then gives later messages of its group a time that never comes.
    #[tokio::test]
    async fn a_blocked_message_with_an_invalid_time_does_not_overtake_its_group() {
        let folder = tempfile::tempdir().unwrap();
        let (_broker, queue) = damaged(folder.path(), &["1", "2", "3", "4"], &[]).await;
        let request = Receive { max: 10, wait: Duration::ZERO, lease: Duration::from_secs(30) };
        let first = queue.receive(request, &CancellationToken::new()).await.unwrap().pop().unwrap();
        let meddler = Connection::open(folder.path().join("queue.db")).unwrap();
        let damage = "UPDATE entry SET visible_at = 9223372036854775807 WHERE seq > 2";
        assert_eq!(meddler.execute(damage, []).unwrap(), 2);
        assert!(drained(&queue).await.is_empty(), "the first message is still leased");
        assert!(queue.settle(vec![Settlement::Ack(first.receipt)]).await.iter().all(Result::is_ok));
        assert_eq!(drained(&queue).await, ["2", "3", "4"]);
    }

    const LOST_TIMES: [&str; 3] = ["NULL", "9223372036854775807", "253402300800000"];

    #[tokio::test]
    async fn a_message_without_a_valid_time_is_received() {
        for (ordered, time) in [false, true].into_iter().flat_map(|ordered| LOST_TIMES.map(|time| (ordered, time))) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("queue.db");
            let broker = EmbeddedBroker::open(&path).unwrap();
            let spec = ChannelSpec { ordered, ..ChannelSpec::new("jobs".parse().unwrap()) };
            let queue = broker.open(&spec).await.unwrap();
            let message = |body: &str| Outgoing { body: body.into(), ..Outgoing::default() };
            broker.send(&spec.channel, ["1", "2"].map(message).into()).await;
            let meddler = Connection::open(&path).unwrap();
            for column in ["visible_at", "due_at"] {
                if (column, time) != ("due_at", "NULL") {
                    let damage = format!("UPDATE entry SET {column} = {time} WHERE seq = 1");
                    assert_eq!(meddler.execute(&damage, []).unwrap(), 1);
                }
            }
            let mut seen = Vec::new();
            while seen.len() < 2 {
                let request = Receive { max: 10, wait: Duration::from_secs(20), lease: Duration::from_secs(30) };
                let received = queue.receive(request, &CancellationToken::new()).await.unwrap();
                assert!(!received.is_empty(), "{ordered}, {time}: only {seen:?}");
                seen.extend(received.iter().map(|one| one.message.body.clone()));
                let acks = received.into_iter().map(|one| Settlement::Ack(one.receipt)).collect();
                assert!(queue.settle(acks).await.iter().all(Result::is_ok));
            }
        }
    }

    #[tokio::test]
    async fn a_leased_message_without_a_valid_time_stays_leased() {
        for (ordered, time) in [(false, "NULL"), (false, LOST_TIMES[1]), (true, "NULL"), (true, LOST_TIMES[1])] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("queue.db");
            let broker = EmbeddedBroker::open(&path).unwrap();
            let spec = ChannelSpec { ordered, ..ChannelSpec::new("jobs".parse().unwrap()) };
            let queue = broker.open(&spec).await.unwrap();
            broker.send(&spec.channel, vec![Outgoing::default()]).await;
            let request = Receive { max: 1, wait: Duration::ZERO, lease: Duration::from_secs(30) };
            let first = queue.receive(request, &CancellationToken::new()).await.unwrap().pop().unwrap();
            broker.send(&spec.channel, vec![Outgoing::default()]).await;
            let meddler = Connection::open(&path).unwrap();
            assert_eq!(meddler.execute(&format!("UPDATE entry SET visible_at = {time} WHERE seq = 1"), []).unwrap(), 1);
            // The second message gets a number before the first one's, as a message has that was requeued.
            let requeued = "UPDATE content SET seq = 0 WHERE seq = 2; UPDATE entry SET seq = 0 WHERE seq = 2;";
            meddler.execute_batch(requeued).unwrap();
            let seen = drained(&queue).await.len();
            assert_eq!(seen, usize::from(!ordered), "{ordered}, {time}: the first message is still processed");
            assert!(queue.settle(vec![Settlement::Ack(first.receipt)]).await.iter().all(Result::is_ok));
            let next = queue.receive(request, &CancellationToken::new()).await.unwrap();
            assert_eq!(next.len(), usize::from(ordered), "{ordered}, {time}");
        }
    }

    #[tokio::test]
    async fn a_delay_is_kept_even_if_the_time_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.db");
        let broker = EmbeddedBroker::open(&path).unwrap();
        let spec = ChannelSpec::new("jobs".parse().unwrap());
        let queue = broker.open(&spec).await.unwrap();
        let delayed = Outgoing { delay: MAX_DELAY, ..Outgoing::default() };
        broker.send(&spec.channel, vec![delayed.clone(), delayed]).await;
        let meddler = Connection::open(&path).unwrap();
        let times = || {
            let mut query = meddler.prepare("SELECT visible_at FROM entry ORDER BY seq").unwrap();
            query.query_map([], |row| row.get(0)).unwrap().collect::<rusqlite::Result<Vec<i64>>>().unwrap()
        };
        let before = times();
        meddler.execute("UPDATE entry SET visible_at = NULL WHERE seq = 1", []).unwrap();
        assert!(drained(&queue).await.is_empty());
        assert_eq!(times(), before, "the longest delay that can be sent is not taken for damage");
    }
}
