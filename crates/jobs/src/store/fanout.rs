//! The outbox of the fan-out, and notifications. Both are hints: what is lost or doubled changes nothing.

use std::time::Duration;

use hostler_postgres::{Param, Type};

use crate::ids::ItemRef;
use crate::store::status::count;
use crate::store::{Store, StoreError};

/// The channel of notifications.
pub(crate) const CHANNEL: &str = "hostler_jobs";

/// Notifies of the types that have items now. A payload is shorter than 8,000 bytes, so many types are written as `*`.
const NOTIFY: &str = "SELECT pg_notify('hostler_jobs', $1 || ' ' || CASE WHEN length(x.names) < 7900 THEN x.names ELSE '*' END) \
    FROM (SELECT string_agg(t.name, ' ') AS names FROM hostler_jobs.job_type t \
    WHERE EXISTS (SELECT FROM hostler_jobs.ready r WHERE r.type = t.id)) x WHERE x.names IS NOT NULL";

/// An entry of the outbox: an item that has become ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The entry's number.
    pub id: i64,
    /// The type of the item's job.
    pub kind: String,
    /// The item's id.
    pub item: String,
}

/// The outbox of the fan-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxState {
    /// Its entries, as many as it may have at most.
    pub entries: u64,
    /// Set while items that become ready are written. Otherwise, it is full.
    pub is_open: bool,
}

impl Store {
    /// Lets items that become ready be written into the outbox for `lease`, unless it has `most` entries.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn keep_outbox(&self, most: i32, lease: Duration) -> Result<OutboxState, StoreError> {
        let seconds = lease.as_secs_f64();
        let params: [Param<'_>; 2] = [(&most, Type::INT4), (&seconds, Type::FLOAT8)];
        let rows = self.call("SELECT rows, is_open FROM hostler_jobs.fanout_keep($1, $2)", &params).await?;
        let row = rows.first().ok_or_else(|| StoreError::Unexpected("the outbox has no state".to_owned()))?;
        Ok(OutboxState { entries: count(row, 0), is_open: row.get::<_, Option<bool>>(1).unwrap_or_default() })
    }

    /// Ends the outbox, unless another instance keeps it. Returns whether there is none.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn end_outbox(&self) -> Result<bool, StoreError> {
        let rows = self.call("SELECT hostler_jobs.fanout_end()", &[]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    /// Takes up to `max` entries of the outbox, the oldest first. Those that are not dropped within the lease are taken again.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn take_hints(&self, max: i32, lease: Duration) -> Result<Vec<Hint>, StoreError> {
        let seconds = lease.as_secs_f64();
        let params: [Param<'_>; 2] = [(&max, Type::INT4), (&seconds, Type::FLOAT8)];
        let sql = "SELECT id, kind, day, seq, item FROM hostler_jobs.fanout_take($1, $2)";
        let rows = self.call(sql, &params).await?;
        let hints = rows.iter().map(|row| {
            let place = ItemRef { day: row.get(2), seq: row.get(3) };
            let item = row.get::<_, Option<String>>(4).unwrap_or_else(|| place.to_string());
            Hint { id: row.get(0), kind: row.get(1), item }
        });
        Ok(hints.collect())
    }

    /// Drops entries of the outbox, which were published.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn drop_hints(&self, ids: &[i64]) -> Result<(), StoreError> {
        self.call("DELETE FROM hostler_jobs.fanout WHERE id = ANY ($1)", &[(&ids, Type::INT8_ARRAY)]).await?;
        Ok(())
    }

    /// Gives entries of the outbox back, which could not be published.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn return_hints(&self, ids: &[i64]) -> Result<(), StoreError> {
        let sql = "UPDATE hostler_jobs.fanout SET taken_until = '-infinity' WHERE id = ANY ($1)";
        self.call(sql, &[(&ids, Type::INT8_ARRAY)]).await?;
        Ok(())
    }

    /// Writes up to `most` items into the outbox again whose messages may be lost: those that are still ready after 1, 2, 4 … periods.
    /// Returns their number. One instance in each period searches; the others find none.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn search_lost_hints(&self, period: Duration, most: i32) -> Result<u64, StoreError> {
        let seconds = period.as_secs_f64();
        let params: [Param<'_>; 2] = [(&seconds, Type::FLOAT8), (&most, Type::INT4)];
        let rows = self.call("SELECT hostler_jobs.fanout_search($1, $2)::bigint", &params).await?;
        Ok(rows.first().map_or(0, |row| count(row, 0)))
    }

    /// Notifies all instances of the types that have ready items. Returns whether there are any.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub(crate) async fn notify_ready(&self, instance: &str) -> Result<bool, StoreError> {
        Ok(!self.call(NOTIFY, &[(&instance, Type::TEXT)]).await?.is_empty())
    }

    /// Notifies all instances of nothing, to find out whether notifications arrive.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub(crate) async fn notify_probe(&self, text: &str) -> Result<(), StoreError> {
        self.call("SELECT pg_notify('hostler_jobs', $1)", &[(&text, Type::TEXT)]).await?;
        Ok(())
    }
}
