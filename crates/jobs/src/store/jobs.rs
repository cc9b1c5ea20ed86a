//! Pages of jobs.

use hostler_postgres::{Param, Type};

use crate::json::RawJson;
use crate::limits;
use crate::store::claim::stored;
use crate::store::status::count;
use crate::store::{Store, StoreError};
use crate::types::{JobPage, JobQuery, JobRow};

/// The entries of a page unless the query says otherwise.
const PAGE: u32 = 100;

/// The most entries of a page.
const MAX_PAGE: u32 = 1_000;

impl Store {
    /// A page of jobs, in the order of their creation. Counters are folded first, so that a caller sees its own changes.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if a parameter is faulty; [`StoreError::Database`].
    pub async fn jobs(&self, query: &JobQuery) -> Result<JobPage, StoreError> {
        let limit = page_size(query.limit)?;
        let after = query.cursor.as_deref().map_or(Ok(0), job_cursor)?;
        let wanted = i64::from(limit) + 1;
        let mut conditions = vec!["j.num > $1"];
        let mut params: Vec<Param<'_>> = vec![(&after, Type::INT8), (&wanted, Type::INT8)];
        let (kind, root);
        let mut texts = Vec::new();
        if let Some(name) = &query.kind {
            limits::kind("type", name)?;
            let Some(id) = self.type_id(name).await? else { return Ok(JobPage { jobs: Vec::new(), next: None }) };
            kind = id;
            params.push((&kind, Type::INT4));
            texts.push(format!("j.type = ${}", params.len()));
        }
        if let Some(id) = &query.root_id {
            limits::key("root_id", id)?;
            root = id.as_str();
            params.push((&root, Type::TEXT));
            texts.push(format!("j.root = (SELECT x.num FROM hostler_jobs.job x WHERE x.id = ${})", params.len()));
        }
        match query.complete {
            Some(true) => conditions.push("j.complete"),
            Some(false) => conditions.push("NOT j.complete"),
            None => {}
        }
        conditions.extend(texts.iter().map(String::as_str));
        self.fold_for(query.root_id.as_deref()).await?;
        let sql = format!(
            "SELECT j.num, j.id, r.id, p.id, t.name, j.sealed, j.complete, j.final_stage, j.max_failures, j.added, j.ok, \
             j.failed, r.tree_completed_at IS NOT NULL, j.dedupe_key, j.metadata::text, hostler_jobs.rfc3339(j.created_at), \
             hostler_jobs.rfc3339(j.completed_at) \
             FROM (SELECT * FROM hostler_jobs.job j WHERE {} ORDER BY j.num LIMIT $2) j \
             JOIN hostler_jobs.job r ON r.num = j.root JOIN hostler_jobs.job_type t ON t.id = j.type \
             LEFT JOIN hostler_jobs.job p ON p.num = j.parent ORDER BY j.num",
            conditions.join(" AND ")
        );
        let rows = self.call(&sql, &params).await?;
        let size = usize::try_from(limit).unwrap_or(usize::MAX);
        let next = if rows.len() > size { rows.get(size.saturating_sub(1)) } else { None };
        let next = next.map(|row| format!("{:x}", row.get::<_, i64>(0)));
        let jobs = rows.iter().take(size).map(|row| {
            Ok(JobRow {
                id: row.get(1),
                root_id: row.get(2),
                parent_id: row.get(3),
                kind: row.get(4),
                sealed: row.get(5),
                complete: row.get(6),
                final_stage: row.get(7),
                max_failures_per_item: u16::try_from(row.get::<_, i32>(8)).unwrap_or(u16::MAX),
                added: count(row, 9),
                succeeded: count(row, 10),
                failed: count(row, 11),
                pending: count(row, 9).saturating_sub(count(row, 10) + count(row, 11)),
                tree_complete: row.get(12),
                dedupe_key: row.get(13),
                metadata: row.get::<_, Option<String>>(14).map_or_else(|| Ok(RawJson::object()), stored)?,
                created_at: row.get(15),
                completed_at: row.get(16),
            })
        });
        Ok(JobPage { jobs: jobs.collect::<Result<_, StoreError>>()?, next })
    }
}

impl Store {
    /// Folds the counters of a tree, or of all jobs, if there is anything to fold. One pass: changes that come meanwhile are left.
    async fn fold_for(&self, root: Option<&str>) -> Result<(), StoreError> {
        match root {
            Some(_) => self.call("SELECT hostler_jobs.fold_tree($1)", &[(&root, Type::TEXT)]).await?,
            None => {
                let sql = "SELECT hostler_jobs.fold(NULL, true) WHERE EXISTS (SELECT FROM hostler_jobs.delta)";
                self.call(sql, &[]).await?
            }
        };
        Ok(())
    }
}

/// The entries of a page.
pub(crate) fn page_size(limit: Option<u32>) -> Result<u32, StoreError> {
    let limit = limit.unwrap_or(PAGE);
    if (1..=MAX_PAGE).contains(&limit) {
        return Ok(limit);
    }
    Err(StoreError::invalid("limit", format!("has to be from 1 to {MAX_PAGE}")))
}

fn job_cursor(text: &str) -> Result<i64, StoreError> {
    i64::from_str_radix(text, 16).map_err(|_| StoreError::invalid("cursor", "is not the `next` of a page"))
}
