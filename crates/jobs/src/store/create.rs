//! Creating trees, adding items, sealing.

use hostler_postgres::{DatabaseError, Param, Row, Type};
use uuid::Uuid;

use crate::applets;
use crate::ids::ItemRef;
use crate::limits;
use crate::store::call::{Answer, IdempotencyKey};
use crate::store::{Store, StoreError};
use crate::types::{Created, CreatedJob, NewItem, NewJob};

const CREATE: &str = "SELECT day, seqs, fresh FROM hostler_jobs.create_tree($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
    $12, $13, $14, $15, $16, $17, $18)";
const ADD: &str = "SELECT day, seqs, fresh FROM hostler_jobs.add_items($1, $2, $3, $4, $5, $6, $7)";
/// Returns null for an open job with a feed.
const SEAL: &str = "SELECT CASE WHEN NOT EXISTS (SELECT FROM hostler_jobs.job \
    WHERE id = $1 AND feed IS NOT NULL AND NOT sealed) THEN hostler_jobs.seal_job($1) END";

impl Store {
    /// Creates a tree of jobs with its items. A tree that was created before under the same idempotency key is returned again.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if it breaks a limit or names an unknown applet; [`StoreError::Conflict`] with the reason `dedupe_key` or
    /// `id` if a key or an id is taken.
    pub async fn create(&self, job: NewJob, idempotency: Option<IdempotencyKey>) -> Result<Created, StoreError> {
        let flat = limits::flatten(&job)?;
        applets::known(&job, |name| self.applets.as_ref().is_some_and(|applets| applets.knows(name)))?;
        let kinds: Vec<&str> = flat.iter().map(|(job, _)| job.kind.as_str()).collect();
        let types = self.type_ids(&kinds).await?;
        let tree = TreeRows::new(&flat, types);
        let params = tree.params();
        let Some(key) = idempotency else {
            let rows = self.call(CREATE, &params).await.map_err(taken)?;
            let ids = self.item_ids(&tree.items.ids, &rows).await?;
            return Ok(tree.created(&flat, ids));
        };
        // Items that were known keep the ids of the first ones, so ids are not found out in the transaction.
        let answer = |rows: &[Row]| {
            let created = tree.created(&flat, own_ids(&tree.items.ids, rows));
            serde_json::to_string(&created).map_err(|error| StoreError::Unexpected(error.to_string()))
        };
        match self.call_once(&key, CREATE, &params, answer).await.map_err(taken)? {
            Answer::Known(text) => {
                serde_json::from_str(&text).map_err(|error| StoreError::Unexpected(error.to_string()))
            }
            Answer::New(rows) => Ok(tree.created(&flat, own_ids(&tree.items.ids, &rows))),
        }
    }

    /// Adds items to a job. Returns their ids, in order; that of the first item for one whose dedupe key is known.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Conflict`] with the reason `sealed` or `id`; [`StoreError::Invalid`].
    pub async fn add_items(
        &self,
        job: &str,
        items: Vec<NewItem>,
        idempotency: Option<IdempotencyKey>,
    ) -> Result<Vec<String>, StoreError> {
        limits::items(&items)?;
        check_id(job)?;
        let rows = ItemRows::new(items.iter());
        let mut params: Vec<Param<'_>> = vec![(&job, Type::TEXT)];
        params.extend(rows.params());
        let missing = |error| missing(taken(error), job);
        let Some(key) = idempotency else {
            let answer = self.call(ADD, &params).await.map_err(missing)?;
            return self.item_ids(&rows.ids, &answer).await;
        };
        let answer = |answer: &[Row]| {
            serde_json::to_string(&own_ids(&rows.ids, answer))
                .map_err(|error| StoreError::Unexpected(error.to_string()))
        };
        match self.call_once(&key, ADD, &params, answer).await.map_err(missing)? {
            Answer::Known(text) => {
                serde_json::from_str(&text).map_err(|error| StoreError::Unexpected(error.to_string()))
            }
            Answer::New(answer) => Ok(own_ids(&rows.ids, &answer)),
        }
    }

    /// Seals a job: no items can be added. Sealing again changes nothing.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Conflict`] with the reason `feed` if the job is open and has a feed.
    pub async fn seal(&self, job: &str) -> Result<(), StoreError> {
        check_id(job)?;
        let rows = self.call(SEAL, &[(&job, Type::TEXT)]).await?;
        match rows.first().and_then(|row| row.get(0)) {
            Some(true) => Ok(()),
            Some(false) => Err(no_job(job)),
            None => Err(StoreError::Conflict { reason: "feed", job_id: None }),
        }
    }

    /// The ids of items that were added, in order.
    async fn item_ids(&self, given: &[Option<&str>], rows: &[Row]) -> Result<Vec<String>, StoreError> {
        let mut ids = own_ids(given, rows);
        let Some(row) = rows.first() else { return Ok(ids) };
        let day: i32 = row.get(0);
        let (seqs, fresh) = (numbers(row, 1), numbers(row, 2));
        let known: Vec<i64> = seqs.iter().zip(&fresh).filter(|(seq, own)| seq != own).map(|(seq, _)| *seq).collect();
        if known.is_empty() {
            return Ok(ids);
        }
        let sql = "SELECT seq, id FROM hostler_jobs.item WHERE day = $1 AND seq = ANY ($2) AND id IS NOT NULL";
        let rows = self.call(sql, &[(&day, Type::INT4), (&known, Type::INT8_ARRAY)]).await?;
        let named: std::collections::HashMap<i64, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        for ((id, seq), own) in ids.iter_mut().zip(&seqs).zip(&fresh) {
            if seq != own {
                *id = named.get(seq).cloned().unwrap_or_else(|| ItemRef { day, seq: *seq }.to_string());
            }
        }
        Ok(ids)
    }
}

/// The ids of items: those that clients chose, and those of the rows.
fn own_ids(given: &[Option<&str>], rows: &[Row]) -> Vec<String> {
    let Some(row) = rows.first() else { return Vec::new() };
    let day: i32 = row.get(0);
    let (seqs, fresh) = (numbers(row, 1), numbers(row, 2));
    let ids = given.iter().zip(seqs).zip(fresh);
    ids.map(|((id, seq), own)| match id {
        Some(id) if seq == own => (*id).to_owned(),
        _ => ItemRef { day, seq }.to_string(),
    })
    .collect()
}

fn numbers(row: &Row, column: usize) -> Vec<i64> {
    row.get::<_, Option<Vec<i64>>>(column).unwrap_or_default()
}

/// The columns of a tree's jobs, and of all their items.
struct TreeRows<'t> {
    ids: Vec<String>,
    types: Vec<i32>,
    parents: Vec<i32>,
    max_failures: Vec<i32>,
    final_stages: Vec<bool>,
    sealed: Vec<bool>,
    feeds: Vec<bool>,
    dedupes: Vec<Option<&'t str>>,
    metas: Vec<&'t str>,
    callback: Option<String>,
    /// The feeds, as in the request.
    rules: Vec<Option<String>>,
    item_jobs: Vec<i32>,
    items: ItemRows<'t>,
}

impl<'t> TreeRows<'t> {
    fn new(flat: &[(&'t NewJob, Option<usize>)], types: Vec<i32>) -> TreeRows<'t> {
        let jobs = || flat.iter().map(|(job, _)| *job);
        let position = |number: usize| i32::try_from(number + 1).unwrap_or(i32::MAX);
        let item_jobs = jobs().enumerate().flat_map(|(number, job)| job.items.iter().map(move |_| position(number)));
        let callback = flat.first().and_then(|(root, _)| root.callback.as_ref());
        TreeRows {
            ids: jobs().map(|job| job.id.clone().unwrap_or_else(|| Uuid::now_v7().to_string())).collect(),
            types,
            parents: flat.iter().map(|(_, parent)| parent.map_or(0, position)).collect(),
            max_failures: jobs().map(|job| i32::from(job.max_failures_per_item)).collect(),
            final_stages: jobs().map(|job| job.final_stage).collect(),
            sealed: jobs().map(|job| job.sealed).collect(),
            feeds: jobs().map(|job| job.children.iter().any(|child| child.feed.is_some())).collect(),
            dedupes: jobs().map(|job| job.dedupe_key.as_deref()).collect(),
            metas: jobs().map(|job| job.metadata.text()).collect(),
            callback: callback.and_then(|callback| serde_json::to_string(callback).ok()),
            rules: jobs().map(|job| serde_json::to_string(job.feed.as_ref()?).ok()).collect(),
            item_jobs: item_jobs.collect(),
            items: ItemRows::new(jobs().flat_map(|job| &job.items)),
        }
    }

    fn params(&self) -> Vec<Param<'_>> {
        let mut params: Vec<Param<'_>> = vec![
            (&self.ids, Type::TEXT_ARRAY),
            (&self.types, Type::INT4_ARRAY),
            (&self.parents, Type::INT4_ARRAY),
            (&self.max_failures, Type::INT4_ARRAY),
            (&self.final_stages, Type::BOOL_ARRAY),
            (&self.sealed, Type::BOOL_ARRAY),
            (&self.feeds, Type::BOOL_ARRAY),
            (&self.dedupes, Type::TEXT_ARRAY),
            (&self.metas, Type::TEXT_ARRAY),
            (&self.callback, Type::TEXT),
            (&self.rules, Type::TEXT_ARRAY),
            (&self.item_jobs, Type::INT4_ARRAY),
        ];
        params.extend(self.items.params());
        params
    }

    fn created(&self, flat: &[(&NewJob, Option<usize>)], item_ids: Vec<String>) -> Created {
        let root = self.ids.first().cloned().unwrap_or_default();
        let jobs = flat.iter().zip(&self.ids).map(|((job, parent), id)| CreatedJob {
            id: id.clone(),
            kind: job.kind.clone(),
            parent_id: parent.and_then(|parent| self.ids.get(parent)).cloned(),
        });
        Created { id: root.clone(), root_id: root, jobs: jobs.collect(), item_ids }
    }
}

/// The columns of items. A column that no item has is null.
struct ItemRows<'t> {
    payloads: Vec<&'t str>,
    ids: Vec<Option<&'t str>>,
    some_ids: Option<Vec<Option<&'t str>>>,
    dedupes: Option<Vec<Option<&'t str>>>,
    keys: Option<Vec<Option<&'t str>>>,
    priorities: Vec<i16>,
    metas: Vec<&'t str>,
}

impl<'t> ItemRows<'t> {
    fn new(items: impl Iterator<Item = &'t NewItem> + Clone) -> ItemRows<'t> {
        let ids: Vec<_> = items.clone().map(|item| item.id.as_deref()).collect();
        ItemRows {
            payloads: items.clone().map(|item| item.payload.text()).collect(),
            some_ids: unless_empty(ids.clone()),
            ids,
            dedupes: unless_empty(items.clone().map(|item| item.dedupe_key.as_deref()).collect()),
            keys: unless_empty(items.clone().map(|item| item.serialize_key.as_deref()).collect()),
            priorities: items.clone().map(|item| item.priority).collect(),
            metas: items.map(|item| item.metadata.text()).collect(),
        }
    }

    fn params(&self) -> Vec<Param<'_>> {
        vec![
            (&self.payloads, Type::TEXT_ARRAY),
            (&self.some_ids, Type::TEXT_ARRAY),
            (&self.dedupes, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.priorities, Type::INT2_ARRAY),
            (&self.metas, Type::TEXT_ARRAY),
        ]
    }
}

fn unless_empty(column: Vec<Option<&str>>) -> Option<Vec<Option<&str>>> {
    column.iter().any(Option::is_some).then_some(column)
}

/// Reads the errors that the functions raise.
fn taken(error: StoreError) -> StoreError {
    let StoreError::Database(DatabaseError::Refused { code, message }) = &error else { return error };
    match code.as_str() {
        "HJ001" => StoreError::Conflict { reason: "dedupe_key", job_id: Some(message.clone()) },
        "HJ002" => StoreError::Conflict { reason: "id", job_id: Some(message.clone()) },
        "HJ003" => StoreError::Conflict { reason: "id", job_id: None },
        "HJ409" => StoreError::Conflict { reason: "sealed", job_id: None },
        _ => error,
    }
}

fn missing(error: StoreError, job: &str) -> StoreError {
    match &error {
        StoreError::Database(DatabaseError::Refused { code, .. }) if code == "HJ404" => no_job(job),
        _ => error,
    }
}

/// The error that there is no such job.
pub(crate) fn no_job(id: &str) -> StoreError {
    StoreError::NotFound { what: "job", id: id.to_owned() }
}

/// Refuses ids that no job has, and that PostgreSQL does not take.
pub(crate) fn check_id(id: &str) -> Result<(), StoreError> {
    limits::key("id", id).map_err(|_| no_job(id))
}
