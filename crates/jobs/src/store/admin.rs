//! Deletion, retry, sweeps, counts.

use std::time::Duration;

use hostler_postgres::{Param, Type};

use crate::ids::{AssignmentRef, ItemRef};
use crate::store::create::{check_id, no_job};
use crate::store::ending::{Ending, Kind};
use crate::store::settle::Settlement;
use crate::store::status::count;
use crate::store::{Store, StoreError};

/// The items that a sweep takes in one transaction.
const BATCH: i32 = 1_000;

/// The rows of each table that are deleted, or the items that are retried, in one transaction.
const LONG_BATCH: i32 = 10_000;

/// The time for which answers under idempotency keys are kept, in seconds.
const KEEP_ANSWERS: f64 = 24.0 * 3600.0;

/// The error of an assignment that ended by missed heartbeats, as JSON.
const NO_HEARTBEAT: &str = "\"no heartbeat\"";

/// Counts for metrics. None of them counts finished items, so that their cost does not grow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Items that are neither succeeded nor failed, by type.
    pub pending: Vec<(String, u64)>,
    /// Items that can be claimed now, by type; 10,000 at most each.
    pub ready: Vec<(String, u64)>,
    /// Items that wait for the time of their next attempt, by type; 10,000 at most in all.
    pub later: Vec<(String, u64)>,
    /// Items that a worker has, by type.
    pub assigned: Vec<(String, u64)>,
    /// Items behind an older one of their serialize key in this database, among the first 10,000 items with keys.
    pub waiting: u64,
    /// Trees that are not complete.
    pub open_trees: u64,
    /// Jobs that are not complete.
    pub open_jobs: u64,
    /// Callbacks that are to be delivered.
    pub callbacks: u64,
    /// Callbacks that were given up.
    pub dead_callbacks: u64,
    /// The time for which the first item in line of any type has been ready, in seconds.
    pub oldest_ready_seconds: f64,
}

impl Store {
    /// Deletes a job and the tree below it. The assignments of its items are stale at once.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Database`].
    pub async fn delete(&self, job: &str) -> Result<(), StoreError> {
        check_id(job)?;
        let rows = self.call("SELECT hostler_jobs.delete_job($1)", &[(&job, Type::TEXT)]).await?;
        if !rows.first().is_some_and(|row| row.get(0)) {
            return Err(no_job(job));
        }
        // The job is gone. A sweep deletes what is left.
        if let Err(error) = self.clear().await {
            tracing::debug!(%error, "rows of a deleted job not cleared");
        }
        Ok(())
    }

    /// Makes the failed items of a job pending again, with all their attempts anew, and opens the job and its tree. The tree's callback
    /// is due again at its next completion. Many items take several transactions, between which the job is not complete. Returns the
    /// number of items.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Database`].
    pub async fn retry(&self, job: &str) -> Result<u64, StoreError> {
        check_id(job)?;
        let (mut all, mut after) = (0, 0_i64);
        loop {
            let params: [Param<'_>; 3] = [(&job, Type::TEXT), (&after, Type::INT8), (&LONG_BATCH, Type::INT4)];
            let rows = self.call("SELECT retried, last FROM hostler_jobs.retry_job($1, $2, $3)", &params).await?;
            let row = rows.first().ok_or_else(|| no_job(job))?;
            let retried = row.get::<_, Option<i64>>(0).ok_or_else(|| no_job(job))?;
            all += u64::try_from(retried).unwrap_or_default();
            if retried < i64::from(LONG_BATCH) {
                return Ok(all);
            }
            after = row.get(1);
        }
    }

    /// Deletes the rows of deleted jobs.
    async fn clear(&self) -> Result<(), StoreError> {
        while self.number("SELECT hostler_jobs.clear_remains($1)", &[(&LONG_BATCH, Type::INT4)]).await? > 0 {}
        Ok(())
    }

    /// Folds counters, and completes what is complete. Returns the number of jobs looked at: 0 also if another process folds for
    /// long.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn fold(&self) -> Result<u64, StoreError> {
        let some = self.call("SELECT EXISTS (SELECT FROM hostler_jobs.delta)", &[]).await?;
        if !some.first().is_some_and(|row| row.get(0)) {
            return Ok(0);
        }
        self.number("SELECT hostler_jobs.fold(NULL, true)", &[]).await
    }

    /// Makes the items ready whose time has come. Returns their number.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn promote(&self) -> Result<u64, StoreError> {
        let mut all = 0;
        loop {
            let some = self.number("SELECT hostler_jobs.promote($1)", &[(&BATCH, Type::INT4)]).await?;
            all += some;
            if some < u64::from(BATCH.unsigned_abs()) {
                return Ok(all);
            }
        }
    }

    /// Ends assignments that missed three heartbeats, by a failure. Returns their number.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn expire(&self) -> Result<u64, StoreError> {
        let age = self.settings.heartbeat * 3;
        let seconds = age.as_secs_f64();
        let orphans = "DELETE FROM hostler_jobs.assignment a WHERE a.beat_at < clock_timestamp() - make_interval(secs => $1) \
            AND NOT EXISTS (SELECT FROM hostler_jobs.job j WHERE j.num = a.job)";
        self.call(orphans, &[(&seconds, Type::FLOAT8)]).await?;
        let mut all = 0;
        loop {
            let sql = "SELECT day, seq, token FROM hostler_jobs.assignment \
                WHERE beat_at < clock_timestamp() - make_interval(secs => $1) LIMIT $2";
            let batch = i64::from(BATCH);
            let rows = self.call(sql, &[(&seconds, Type::FLOAT8), (&batch, Type::INT8)]).await?;
            let places = rows
                .iter()
                .map(|row| AssignmentRef { item: ItemRef { day: row.get(0), seq: row.get(1) }, token: row.get(2) });
            let endings: Vec<Ending<'_>> =
                places.map(|place| Ending::new(place, Kind::Expired, NO_HEARTBEAT)).collect();
            let ended = self.end(&endings, Some(age)).await?;
            let expired = ended.iter().filter(|settlement| matches!(settlement, Settlement::Ok { .. })).count();
            all += u64::try_from(expired).unwrap_or_default();
            if rows.len() < usize::try_from(BATCH).unwrap_or(usize::MAX) || expired == 0 {
                return Ok(all);
            }
        }
    }

    /// Deletes trees that have been complete for longer than the retention, old answers under idempotency keys, and the partitions of
    /// days without jobs. Returns the number of trees.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn reap(&self) -> Result<u64, StoreError> {
        // None of them keeps the others from being done.
        let reaped = self.reap_trees().await;
        let cleared = self.clear().await;
        let forgotten = self.forget_answers().await;
        let keys = self.drop_keys().await;
        let dropped = self.drop_partitions().await;
        cleared.and(forgotten).and(keys).and(dropped)?;
        reaped
    }

    /// Wakes what is stuck: jobs that have nothing pending and are open, keys whose first item is not in line. Finds nothing in a sound
    /// database. Returns the number of items.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn unstick(&self) -> Result<u64, StoreError> {
        let jobs = self.number("SELECT hostler_jobs.wake_jobs($1)", &[(&LONG_BATCH, Type::INT4)]).await?;
        // Among several databases, an item may wait for its key to be granted, which is looked after elsewhere.
        let (mut items, mut after) = (0, (!self.is_one_of_several).then(String::new));
        while let Some(key) = after {
            let params: [Param<'_>; 2] = [(&key, Type::TEXT), (&BATCH, Type::INT4)];
            let rows = self.call("SELECT last, woken FROM hostler_jobs.wake_keys($1, $2)", &params).await?;
            after = rows.first().and_then(|row| row.get(0));
            items += rows.first().map_or(0, |row| u64::try_from(row.get::<_, i32>(1)).unwrap_or_default());
        }
        if jobs + items > 0 {
            tracing::warn!(jobs, items, "woke jobs and items that were stuck");
        }
        Ok(items)
    }

    async fn reap_trees(&self) -> Result<u64, StoreError> {
        let seconds = self.settings.retention.as_secs_f64();
        let mut all = 0;
        while self.number("SELECT hostler_jobs.reap($1)", &[(&seconds, Type::FLOAT8)]).await? > 0 {
            all += 1;
        }
        Ok(all)
    }

    async fn forget_answers(&self) -> Result<(), StoreError> {
        let answers = "WITH gone AS (DELETE FROM hostler_jobs.idempotency WHERE key = ANY (ARRAY(SELECT i.key FROM \
            hostler_jobs.idempotency i WHERE i.at < now() - make_interval(secs => $1) ORDER BY i.at LIMIT $2)) RETURNING key) \
            SELECT count(*)::int FROM gone";
        let batch = i64::from(LONG_BATCH);
        while self.number(answers, &[(&KEEP_ANSWERS, Type::FLOAT8), (&batch, Type::INT8)]).await? > 0 {}
        Ok(())
    }

    async fn drop_keys(&self) -> Result<(), StoreError> {
        while self.number("SELECT hostler_jobs.drop_keys($1)", &[(&LONG_BATCH, Type::INT4)]).await? > 0 {}
        Ok(())
    }

    async fn drop_partitions(&self) -> Result<(), StoreError> {
        match self.number("SELECT hostler_jobs.drop_partitions()", &[]).await {
            // Somebody reads the tables: the next sweep tries again.
            Err(error) if error.is_retryable() => tracing::debug!(%error, "partitions not dropped"),
            dropped => drop(dropped?),
        }
        Ok(())
    }

    /// Counts for metrics.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn counts(&self) -> Result<Counts, StoreError> {
        // One pass over the jobs that are not complete. The totals are in each row; a row without a name has them if there is no job.
        const OPEN: &str = "WITH open AS MATERIALIZED (SELECT j.root, j.type, count(*) AS jobs, \
            sum(j.added - j.ok - j.failed) AS pending FROM hostler_jobs.job j WHERE NOT j.complete GROUP BY j.root, j.type), \
            total AS (SELECT coalesce(sum(r.jobs), 0)::bigint AS jobs, count(*) AS trees \
            FROM (SELECT sum(o.jobs) AS jobs FROM open o GROUP BY o.root) r) \
            SELECT k.name, k.pending, total.jobs, total.trees FROM total LEFT JOIN \
            (SELECT t.name, greatest(sum(o.pending), 0)::bigint AS pending FROM open o \
            JOIN hostler_jobs.job_type t ON t.id = o.type GROUP BY t.name) k ON true ORDER BY k.name";
        const READY: &str = "SELECT t.name, r.n FROM hostler_jobs.job_type t CROSS JOIN LATERAL (SELECT count(*) AS n FROM \
            (SELECT FROM hostler_jobs.ready r WHERE r.type = t.id LIMIT 10000) x) r WHERE r.n > 0 ORDER BY t.name";
        const LATER: &str = "SELECT t.name, count(*) FROM (SELECT type FROM hostler_jobs.later LIMIT 10000) l \
            JOIN hostler_jobs.job_type t ON t.id = l.type GROUP BY t.name ORDER BY t.name";
        const ASSIGNED: &str = "SELECT t.name, a.n FROM (SELECT type, count(*) AS n FROM hostler_jobs.assignment GROUP BY type) a \
            JOIN hostler_jobs.job_type t ON t.id = a.type ORDER BY t.name";
        const OTHERS: &str = "SELECT (SELECT count(*) - count(DISTINCT w.key) FROM \
            (SELECT w.key FROM hostler_jobs.waiting w ORDER BY w.key, w.seq LIMIT 10000) w), \
            (SELECT count(*) FROM hostler_jobs.outbox WHERE NOT dead), (SELECT count(*) FROM hostler_jobs.outbox WHERE dead), \
            coalesce((SELECT extract(epoch FROM clock_timestamp() - min(r.at)) FROM hostler_jobs.job_type t CROSS JOIN LATERAL \
            (SELECT r.at FROM hostler_jobs.ready r WHERE r.type = t.id ORDER BY r.type, r.priority, r.seq LIMIT 1) r), 0)::float8";
        let mut counts = Counts {
            ready: self.by_type(READY).await?,
            later: self.by_type(LATER).await?,
            assigned: self.by_type(ASSIGNED).await?,
            ..Counts::default()
        };
        if let Some(row) = self.call(OTHERS, &[]).await?.first() {
            counts.waiting = count(row, 0);
            counts.callbacks = count(row, 1);
            counts.dead_callbacks = count(row, 2);
            counts.oldest_ready_seconds = row.get(3);
        }
        for row in self.call(OPEN, &[]).await? {
            (counts.open_jobs, counts.open_trees) = (count(&row, 2), count(&row, 3));
            if let Some(name) = row.get(0) {
                counts.pending.push((name, count(&row, 1)));
            }
        }
        Ok(counts)
    }

    async fn by_type(&self, sql: &str) -> Result<Vec<(String, u64)>, StoreError> {
        let rows = self.call(sql, &[]).await?;
        Ok(rows.iter().map(|row| (row.get(0), count(row, 1))).collect())
    }

    async fn number(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, StoreError> {
        let rows = self.call(sql, params).await?;
        Ok(rows.first().map_or(0, |row| u64::try_from(row.get::<_, i32>(0)).unwrap_or_default()))
    }

    /// A secret for the signatures of callbacks, the same for all servers of the database. Made when first asked for.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn callback_secret(&self) -> Result<String, StoreError> {
        let sql = "WITH made AS (INSERT INTO hostler_jobs.setting (name, value) \
            VALUES ('callback_secret', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '')) \
            ON CONFLICT DO NOTHING RETURNING value) \
            SELECT value FROM made UNION ALL SELECT value FROM hostler_jobs.setting WHERE name = 'callback_secret' LIMIT 1";
        // The first attempt may lose against another server, whose secret it does not see yet.
        for _ in 0..2 {
            if let Some(row) = self.call(sql, &[]).await?.first() {
                return Ok(row.get(0));
            }
        }
        Err(StoreError::Unexpected("the callback secret is gone".to_owned()))
    }

    /// The secret for the signatures of callbacks, if there is one.
    pub(crate) async fn known_callback_secret(&self) -> Result<Option<String>, StoreError> {
        let sql = "SELECT value FROM hostler_jobs.setting WHERE name = 'callback_secret'";
        Ok(self.call(sql, &[]).await?.first().map(|row| row.get(0)))
    }

    /// The longest time between two sweeps for missed heartbeats.
    pub(crate) fn expiry_period(&self) -> Duration {
        self.settings.heartbeat.min(Duration::from_secs(60))
    }
}
