//! Callbacks: the outbox has one for each completion of a tree.

use std::time::Duration;

use hostler_postgres::{Param, Type};

use crate::backoff::callback_delay;
use crate::store::{Store, StoreError};
use crate::types::Callback;

/// A callback that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueCallback {
    /// The id of the event: the same for each attempt.
    pub id: String,
    /// The root whose tree is complete.
    pub root_id: String,
    /// The receiver.
    pub callback: Callback,
    /// Attempts before this one.
    pub attempts: u32,
}

/// The end of an attempt to deliver a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The receiver accepted it: it is deleted.
    Delivered,
    /// It is tried again after a back-off, for 24 h in all; then it is kept as dead.
    Failed,
    /// The receiver will never accept it: it is kept as dead.
    Refused,
}

impl Store {
    /// Leases up to `max` callbacks that are due. One that is not settled within the lease is due again.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn claim_callbacks(&self, max: usize, lease: Duration) -> Result<Vec<DueCallback>, StoreError> {
        self.claim_callbacks_except(&[], max, lease).await
    }

    /// Leases up to `max` callbacks that are due, except those to some receivers, by [`Callback::receiver`].
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn claim_callbacks_except(
        &self,
        receivers: &[String],
        max: usize,
        lease: Duration,
    ) -> Result<Vec<DueCallback>, StoreError> {
        let sql = "UPDATE hostler_jobs.outbox o SET due = clock_timestamp() + make_interval(secs => $2), attempts = o.attempts + 1 \
            WHERE o.id = ANY (ARRAY(SELECT x.id FROM hostler_jobs.outbox x WHERE NOT x.dead AND x.due <= clock_timestamp() \
            AND coalesce(substring(lower(x.callback->>'url') FROM '^[a-z]*:/*([^/?#]*)'), '') <> ALL ($3) ORDER BY x.due LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING o.id, o.root_id, o.callback::text, o.attempts";
        let (max, lease) = (i64::try_from(max).unwrap_or(i64::MAX), lease.as_secs_f64());
        let params: [Param<'_>; 3] = [(&max, Type::INT8), (&lease, Type::FLOAT8), (&receivers, Type::TEXT_ARRAY)];
        let rows = self.call(sql, &params).await?;
        let callbacks = rows.iter().map(|row| {
            let callback = serde_json::from_str(row.get(2));
            Ok(DueCallback {
                id: row.get(0),
                root_id: row.get(1),
                callback: callback.map_err(|error| StoreError::Unexpected(error.to_string()))?,
                attempts: u32::try_from(row.get::<_, i32>(3)).unwrap_or(1).saturating_sub(1),
            })
        });
        callbacks.collect()
    }

    /// Ends an attempt to deliver a callback. One that is gone already changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn settle_callback(&self, id: &str, delivery: Delivery) -> Result<(), StoreError> {
        match delivery {
            Delivery::Delivered => {
                self.call("DELETE FROM hostler_jobs.outbox WHERE id = $1", &[(&id, Type::TEXT)]).await?;
            }
            Delivery::Refused => self.bury(id).await?,
            Delivery::Failed => {
                let sql = "SELECT attempts, extract(epoch FROM clock_timestamp() - created_at)::float8 \
                    FROM hostler_jobs.outbox WHERE id = $1 AND NOT dead";
                let rows = self.call(sql, &[(&id, Type::TEXT)]).await?;
                let Some(row) = rows.first() else { return Ok(()) };
                let attempts = u32::try_from(row.get::<_, i32>(0)).unwrap_or(1);
                let age = Duration::try_from_secs_f64(row.get::<_, f64>(1)).unwrap_or_default();
                match callback_delay(attempts, age, fastrand::f64()) {
                    Some(delay) => {
                        let sql = "UPDATE hostler_jobs.outbox SET due = clock_timestamp() + make_interval(secs => $2) WHERE id = $1";
                        let seconds = delay.as_secs_f64();
                        self.call(sql, &[(&id, Type::TEXT), (&seconds, Type::FLOAT8)]).await?;
                    }
                    None => self.bury(id).await?,
                }
            }
        }
        Ok(())
    }

    async fn bury(&self, id: &str) -> Result<(), StoreError> {
        self.call("UPDATE hostler_jobs.outbox SET dead = true WHERE id = $1", &[(&id, Type::TEXT)]).await?;
        Ok(())
    }
}
