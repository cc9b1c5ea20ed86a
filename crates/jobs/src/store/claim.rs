//! Claiming, assigning, heartbeats, release.

use std::collections::BTreeMap;
use std::time::Duration;

use hostler_postgres::{Param, Row, Type};

use crate::ids::{AssignmentRef, ItemRef};
use crate::json::RawJson;
use crate::limits::{self, MAX_ASSIGNMENTS, MAX_CLAIM};
use crate::store::undelivered::Undelivered;
use crate::store::{Store, StoreError};
use crate::types::{Assigned, FailureRow, ItemRow, ItemState, Progress};

/// Claims, and reads the items in the same round trip. Beyond the budget of bytes, they are without payload and failures. A row of
/// nulls: items of deleted jobs were dropped, and none was given.
const CLAIM: &str = "SELECT i.seq, i.token, i.day, i.id, i.job_id, i.root_id, i.type, \
    CASE WHEN i.before < $5 THEN i.payload END, CASE WHEN i.before < $5 THEN i.metadata END, i.dedupe_key, i.serialize_key, \
    i.priority, CASE WHEN i.before < $5 THEN i.failures END, i.created_at \
    FROM (SELECT i.*, coalesce(sum(octet_length(i.payload) + coalesce(octet_length(i.metadata), 0) \
    + coalesce(octet_length(i.failures), 0)) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::bigint AS before \
    FROM (SELECT array_agg(c.seq ORDER BY c.n), array_agg(c.token ORDER BY c.n) \
    FROM hostler_jobs.claim($1, $2, $3, $4) WITH ORDINALITY c (seq, token, n)) g (seqs, tokens) \
    LEFT JOIN LATERAL hostler_jobs.assigned_items(g.seqs, g.tokens) i ON true WHERE g.seqs IS NOT NULL) i";

/// Maximum size of the items of a claim, in bytes, which the last one may exceed. Further ones go back.
const BUDGET: i64 = 16 << 20;

/// The transactions in which one claim drops items of deleted jobs, 1,000 each.
const DROPS: u32 = 500;

/// The attempts to assign an item that is changing places.
const MOVES: u32 = 20;

impl Store {
    /// Assigns up to `max` available items of the types to a worker, those with the lowest priorities first.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if there are no types, or a limit is broken; [`StoreError::Database`] if none could be assigned.
    pub async fn claim(&self, types: &[String], worker: &str, max: usize) -> Result<Vec<Assigned>, StoreError> {
        limits::key("worker_id", worker)?;
        if types.is_empty() || types.len() > 100 {
            return Err(StoreError::invalid("types", "has to have 1 to 100 types"));
        }
        if max == 0 || max > MAX_CLAIM {
            return Err(StoreError::invalid("max", format!("has to be from 1 to {MAX_CLAIM}")));
        }
        for kind in types {
            limits::kind("types", kind)?;
        }
        let claim = Undelivered::new(self, worker);
        let mut given = Vec::new();
        // Each time another type comes first, so that none starves.
        let first = fastrand::usize(..types.len());
        for kind in types.iter().cycle().skip(first).take(types.len()) {
            match self.claim_type(kind, worker, max - given.len(), claim.salt).await {
                Ok(more) => given.extend(more),
                Err(error) => {
                    claim.failed(&error, &given);
                    // What was assigned before has to reach the worker.
                    return if given.is_empty() { Err(error) } else { Ok(given) };
                }
            }
            if given.len() >= max {
                break;
            }
        }
        claim.delivered();
        Ok(given)
    }

    async fn claim_type(&self, kind: &str, worker: &str, max: usize, salt: i64) -> Result<Vec<Assigned>, StoreError> {
        let Some(number) = self.type_id(kind).await? else { return Ok(Vec::new()) };
        let mut given = Vec::new();
        // Some of the rows that a call looks at may be of deleted jobs, so it may give fewer than there are.
        for _ in 0..DROPS {
            let wanted = i32::try_from(max - given.len()).unwrap_or(i32::MAX);
            let params: [Param<'_>; 5] = [
                (&number, Type::INT4),
                (&worker, Type::TEXT),
                (&wanted, Type::INT4),
                (&salt, Type::INT8),
                (&BUDGET, Type::INT8),
            ];
            let rows = self.call(CLAIM, &params).await?;
            if rows.first().is_some_and(|row| row.get::<_, Option<i64>>(0).is_none()) {
                continue;
            }
            let mut whole = self.within_budget(&rows).await?;
            let is_over = whole.is_empty() || whole.len() < rows.len();
            given.append(&mut whole);
            if is_over || given.len() >= max {
                break;
            }
        }
        Ok(given)
    }

    /// Reads the items of a claim, and gives those back that are beyond its budget of bytes.
    async fn within_budget(&self, rows: &[Row]) -> Result<Vec<Assigned>, StoreError> {
        let (whole, beyond): (Vec<&Row>, Vec<&Row>) =
            rows.iter().partition(|row| row.get::<_, Option<&str>>(7).is_some());
        if !beyond.is_empty() {
            let ids: Vec<String> = beyond.iter().map(|row| place(row).to_string()).collect();
            self.release(&ids).await?;
        }
        whole.into_iter().map(|row| self.assigned(row)).collect()
    }

    /// Assigns an item to a worker.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Conflict`] with the reason `assigned`, `done`, `retry_at` or `serialize_key`.
    pub async fn assign(&self, item: &str, worker: &str) -> Result<Assigned, StoreError> {
        limits::key("worker_id", worker)?;
        let no_item = || StoreError::NotFound { what: "item", id: item.to_owned() };
        let place = self.item_ref(item).await?.ok_or_else(no_item)?;
        let claim = Undelivered::new(self, worker);
        match self.assign_place(place, worker, claim.salt).await {
            Ok(Ok(assigned)) => {
                claim.delivered();
                Ok(assigned)
            }
            Ok(Err("missing")) => {
                claim.delivered();
                Err(no_item())
            }
            Ok(Err(reason)) => {
                claim.delivered();
                Err(StoreError::Conflict { reason, job_id: None })
            }
            // Dropping the claim gives the item back: it may have been assigned before the error.
            Err(error) => Err(error),
        }
    }

    /// Assigns an item, or returns the reason against it.
    async fn assign_place(
        &self,
        place: ItemRef,
        worker: &str,
        salt: i64,
    ) -> Result<Result<Assigned, &'static str>, StoreError> {
        for _ in 0..MOVES {
            let params: [Param<'_>; 4] =
                [(&place.day, Type::INT4), (&place.seq, Type::INT8), (&worker, Type::TEXT), (&salt, Type::INT8)];
            let rows = self.call("SELECT outcome, token FROM hostler_jobs.assign($1, $2, $3, $4)", &params).await?;
            let outcome = rows.first().map_or("missing", |row| row.get::<_, &str>(0));
            return Ok(Err(match (outcome, rows.first()) {
                ("given", Some(row)) => return self.assigned_item(place.seq, row.get(1)).await.map(Ok),
                ("moving", _) => continue,
                ("done", _) => "done",
                ("assigned", _) => "assigned",
                ("retry_at", _) => "retry_at",
                ("serialize_key", _) => "serialize_key",
                _ => "missing",
            }));
        }
        Ok(Err("assigned"))
    }

    async fn assigned_item(&self, seq: i64, token: i64) -> Result<Assigned, StoreError> {
        let (seqs, tokens) = (vec![seq], vec![token]);
        let params: [Param<'_>; 2] = [(&seqs, Type::INT8_ARRAY), (&tokens, Type::INT8_ARRAY)];
        let rows = self.call("SELECT * FROM hostler_jobs.assigned_items($1, $2)", &params).await?;
        let row = rows.first().ok_or(StoreError::Gone)?;
        self.assigned(row)
    }

    /// Finds an item by its id.
    pub(crate) async fn item_ref(&self, id: &str) -> Result<Option<ItemRef>, StoreError> {
        if let Some(place) = ItemRef::parse(id) {
            return Ok(Some(place));
        }
        if limits::key("id", id).is_err() {
            return Ok(None);
        }
        let sql = "SELECT day, seq FROM hostler_jobs.item_id WHERE id = $1";
        let rows = self.call(sql, &[(&id, Type::TEXT)]).await?;
        Ok(rows.first().map(|row| ItemRef { day: row.get(0), seq: row.get(1) }))
    }

    /// Extends assignments by the database's clock. Returns those that have ended.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if there are more than 10,000; [`StoreError::Database`].
    pub async fn heartbeat(&self, assignments: &[String]) -> Result<Vec<String>, StoreError> {
        self.heartbeat_with(assignments, &BTreeMap::new()).await
    }

    /// Extends assignments by the database's clock, and notes the progress of some of them. Returns those that have ended.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if there are more than 10,000, or a progress breaks a limit; [`StoreError::Database`].
    pub async fn heartbeat_with(
        &self,
        assignments: &[String],
        progress: &BTreeMap<String, Progress>,
    ) -> Result<Vec<String>, StoreError> {
        for (id, told) in progress {
            limits::progress(&format!("progress.{id}"), told)?;
        }
        let places = self.places(assignments)?;
        let told: BTreeMap<AssignmentRef, &Progress> =
            progress.iter().filter_map(|(id, told)| Some((AssignmentRef::parse(id)?, told))).collect();
        let fractions: Vec<Option<f64>> = places.iter().map(|place| Some(told.get(place)?.fraction)).collect();
        let notes: Vec<Option<&str>> = places.iter().map(|place| Some(told.get(place)?.text.as_str())).collect();
        let sql = "SELECT seq, token FROM hostler_jobs.heartbeat($1, $2, $3, $4)";
        let more: [Param<'_>; 2] = [(&fractions, Type::FLOAT8_ARRAY), (&notes, Type::TEXT_ARRAY)];
        self.ended_of(assignments, &places, sql, &more).await
    }

    /// Gives items back without a failure. Returns the assignments that had ended.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if there are more than 10,000; [`StoreError::Database`].
    pub async fn release(&self, assignments: &[String]) -> Result<Vec<String>, StoreError> {
        self.release_after(assignments, Duration::ZERO).await
    }

    /// Gives items back without a failure, to be claimed after a delay. Returns the assignments that had ended.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if there are more than 10,000, or the delay is longer than a year; [`StoreError::Database`].
    pub async fn release_after(&self, assignments: &[String], delay: Duration) -> Result<Vec<String>, StoreError> {
        let seconds = delay.as_secs_f64();
        limits::delay("delay_seconds", Some(seconds))?;
        let places = self.places(assignments)?;
        let sql = "SELECT seq, token FROM hostler_jobs.release($1, $2, $3)";
        self.ended_of(assignments, &places, sql, &[(&seconds, Type::FLOAT8)]).await
    }

    /// Reads the ids of assignments. Those that cannot be ids are left out.
    fn places(&self, assignments: &[String]) -> Result<Vec<AssignmentRef>, StoreError> {
        if assignments.len() > MAX_ASSIGNMENTS {
            return Err(StoreError::invalid("assignment_ids", format!("has {MAX_ASSIGNMENTS} entries at most")));
        }
        let mut places: Vec<AssignmentRef> = assignments.iter().filter_map(|id| AssignmentRef::parse(id)).collect();
        // Sorted, so that two calls lock rows in the same order.
        places.sort_unstable_by_key(|place| (place.item.seq, place.token));
        places.dedup();
        Ok(places)
    }

    /// Calls a function on assignments, which returns the numbers of those that are alive. Returns the others.
    async fn ended_of(
        &self,
        assignments: &[String],
        places: &[AssignmentRef],
        sql: &str,
        more: &[Param<'_>],
    ) -> Result<Vec<String>, StoreError> {
        let seqs: Vec<i64> = places.iter().map(|place| place.item.seq).collect();
        let tokens: Vec<i64> = places.iter().map(|place| place.token).collect();
        let mut params: Vec<Param<'_>> = vec![(&seqs, Type::INT8_ARRAY), (&tokens, Type::INT8_ARRAY)];
        params.extend(more.iter().cloned());
        let rows = self.call(sql, &params).await?;
        let alive: std::collections::HashSet<(i64, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let is_alive =
            |id: &String| AssignmentRef::parse(id).is_some_and(|place| alive.contains(&(place.item.seq, place.token)));
        Ok(assignments.iter().filter(|id| !is_alive(id)).cloned().collect())
    }

    fn assigned(&self, row: &Row) -> Result<Assigned, StoreError> {
        let place = place(row);
        let item = place.item;
        let failures: Option<String> = row.get(12);
        Ok(Assigned {
            assignment_id: place.to_string(),
            heartbeat_seconds: self.settings.heartbeat.as_secs().max(1),
            item: ItemRow {
                id: row.get::<_, Option<String>>(3).unwrap_or_else(|| item.to_string()),
                job_id: row.get(4),
                root_id: row.get(5),
                kind: row.get(6),
                payload: stored(row.get(7))?,
                state: ItemState::Assigned,
                result: RawJson::null(),
                failures: failures.map_or(Ok(Vec::new()), |text| stored_failures(&text))?,
                retry_at: None,
                dedupe_key: row.get(9),
                serialize_key: row.get(10),
                priority: row.get(11),
                metadata: row.get::<_, Option<String>>(8).map_or_else(|| Ok(RawJson::object()), stored)?,
                created_at: row.get(13),
                progress: None,
            },
        })
    }
}

/// Reads the place of an assignment.
fn place(row: &Row) -> AssignmentRef {
    AssignmentRef { item: ItemRef { day: row.get(2), seq: row.get(0) }, token: row.get(1) }
}

/// Reads JSON of the database.
pub(crate) fn stored(text: String) -> Result<RawJson, StoreError> {
    RawJson::parse(text).map_err(|error| StoreError::Unexpected(error.to_string()))
}

/// Reads the failures of an item.
pub(crate) fn stored_failures(text: &str) -> Result<Vec<FailureRow>, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Unexpected(error.to_string()))
}
