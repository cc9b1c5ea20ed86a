//! Pages of items.
//!
//! A page looks at a bounded number of items. So a page of items in a rare state may be short, or empty, and yet have a next one.

use hostler_postgres::{Param, Row, Type};

use crate::ids::ItemRef;
use crate::json::RawJson;
use crate::limits;
use crate::store::claim::{stored, stored_failures};
use crate::store::jobs::page_size;
use crate::store::{Store, StoreError};
use crate::types::{ItemPage, ItemQuery, ItemRow, ItemState, Progress};

/// The most items that a page in one state looks at.
const WINDOW: i64 = 10_000;

/// The size of the items of a page, in bytes, which its last item may exceed.
const BUDGET: i64 = 16 << 20;

/// The place of an item among all: by job, or by day, and by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    major: i64,
    seq: i64,
}

/// The jobs whose items are wanted, and their tree's day. Without: all items.
struct Scope {
    day: i32,
    jobs: Vec<i64>,
}

impl Store {
    /// A page of items, in the order of jobs and of creation, or of creation alone without a job and a tree.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if a parameter is faulty; [`StoreError::Database`]. An unknown job has no items.
    pub async fn items(&self, query: &ItemQuery) -> Result<ItemPage, StoreError> {
        let limit = page_size(query.limit)?;
        let cursor = query.cursor.as_deref().map(item_cursor).transpose()?.unwrap_or(Cursor { major: -1, seq: -1 });
        let scope = self.scope(query, cursor).await?;
        // Days are smaller numbers than jobs.
        let most = if scope.is_some() { i64::MAX } else { i64::from(i32::MAX) };
        let cursor = Cursor { major: cursor.major.min(most), ..cursor };
        if scope.as_ref().is_some_and(|scope| scope.jobs.is_empty()) {
            return Ok(ItemPage { items: Vec::new(), next: None });
        }
        let wanted = i64::from(limit) + 1;
        let is_filtered = query.state.is_some() || (scope.is_none() && query.final_stage.is_some());
        let window = if is_filtered { WINDOW.max(wanted) } else { wanted };
        let mut params: Vec<Param<'_>> =
            vec![(&cursor.major, Type::INT8), (&cursor.seq, Type::INT8), (&window, Type::INT8), (&wanted, Type::INT8)];
        if let Some(scope) = &scope {
            params.push((&scope.day, Type::INT4));
            params.push((&scope.jobs, Type::INT8_ARRAY));
        }
        let rows = self.call(&statement(query, scope.is_some()), &params).await?;
        page(&rows, limit, window)
    }

    /// Finds the jobs that a query is about, from the cursor's on.
    async fn scope(&self, query: &ItemQuery, cursor: Cursor) -> Result<Option<Scope>, StoreError> {
        if query.job_id.is_none() && query.root_id.is_none() {
            return Ok(None);
        }
        for (field, id) in [("job_id", &query.job_id), ("root_id", &query.root_id)] {
            id.as_deref().map_or(Ok(()), |id| limits::key(field, id))?;
        }
        let place = if query.root_id.is_some() {
            "j.root = (SELECT x.num FROM hostler_jobs.job x WHERE x.id = $2) AND ($1::text IS NULL OR j.id = $1)"
        } else {
            "j.id = $1 AND $2::text IS NULL"
        };
        let sql = format!(
            "SELECT j.num, j.day FROM hostler_jobs.job j WHERE {place} AND ($3::bool IS NULL OR j.final_stage = $3) \
             AND j.num >= $4 ORDER BY j.num"
        );
        let params: [Param<'_>; 4] = [
            (&query.job_id, Type::TEXT),
            (&query.root_id, Type::TEXT),
            (&query.final_stage, Type::BOOL),
            (&cursor.major, Type::INT8),
        ];
        let rows = self.call(&sql, &params).await?;
        let day = rows.first().map_or(0, |row| row.get(1));
        Ok(Some(Scope { day, jobs: rows.iter().map(|row| row.get(0)).collect() }))
    }
}

/// The statement of a page. It looks at a window of items (`scan`), takes those that are wanted (`hit`), and tells where the window
/// ends.
fn statement(query: &ItemQuery, is_scoped: bool) -> String {
    let failed_only = is_scoped && query.state == Some(ItemState::Failed);
    let (table, extra) = if failed_only { ("done", "AND NOT i.ok") } else { ("item", "") };
    let scan = if is_scoped {
        format!(
            "SELECT u.num AS major, s.day, s.seq, s.job FROM unnest($6::bigint[]) u (num) CROSS JOIN LATERAL (\
             SELECT i.day, i.seq, i.job FROM hostler_jobs.{table} i WHERE i.day = $5 AND i.job = u.num {extra} \
             AND i.seq > CASE WHEN u.num = $1 THEN $2 ELSE -1 END ORDER BY i.job, i.seq LIMIT $3) s LIMIT $3"
        )
    } else {
        "SELECT i.day::bigint AS major, i.day, i.seq, i.job FROM hostler_jobs.item i WHERE (i.day, i.seq) > ($1::int, $2) \
         ORDER BY i.day, i.seq LIMIT $3"
            .to_owned()
    };
    let state = match query.state {
        None => "true",
        Some(ItemState::Succeeded) => "d.ok",
        Some(ItemState::Failed) => "NOT d.ok",
        Some(ItemState::Assigned) => "a.seq IS NOT NULL",
        Some(ItemState::Pending) => "d.ok IS NULL AND a.seq IS NULL",
    };
    let stage = match query.final_stage {
        Some(true) => "j.final_stage",
        Some(false) => "NOT j.final_stage",
        None => "true",
    };
    format!(
        "WITH scan AS MATERIALIZED ({scan}), \
         hit AS MATERIALIZED (SELECT s.major, s.day, s.seq, s.job, d.ok, d.result, a.seq IS NOT NULL AS assigned, a.fraction, a.note \
          FROM scan s \
          CROSS JOIN LATERAL (SELECT j.final_stage FROM hostler_jobs.job j WHERE j.num = s.job LIMIT 1) j \
          LEFT JOIN LATERAL (SELECT d.ok, d.result FROM hostler_jobs.done d WHERE d.day = s.day AND d.seq = s.seq LIMIT 1) d ON true \
          LEFT JOIN LATERAL (SELECT a.seq, a.fraction, a.note FROM hostler_jobs.assignment a WHERE a.seq = s.seq LIMIT 1) a ON true \
          WHERE {state} AND {stage} ORDER BY s.major, s.seq LIMIT $4) \
         SELECT * FROM (SELECT w.n, w.major, w.seq, h.major, h.seq, h.day, i.id, j.id, r.id, t.name, i.payload::text, h.ok, h.result::text, \
          h.assigned, hostler_jobs.failures_of(h.day, h.seq), hostler_jobs.rfc3339(l.due), i.dedupe_key, i.serialize_key, \
          i.priority, i.metadata::text, hostler_jobs.rfc3339(i.at), h.fraction, h.note, \
          (SELECT count(*) FROM hit), \
          coalesce(sum(octet_length(i.payload::text) + coalesce(octet_length(h.result::text), 0) \
           + coalesce(octet_length(hostler_jobs.failures_of(h.day, h.seq)), 0)) \
           OVER (ORDER BY h.major, h.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::bigint AS before \
         FROM (SELECT s.major, s.seq, (SELECT count(*) FROM scan) AS n FROM scan s ORDER BY s.major DESC, s.seq DESC LIMIT 1) w \
         LEFT JOIN hit h ON true \
         LEFT JOIN LATERAL (SELECT * FROM hostler_jobs.item i WHERE i.day = h.day AND i.seq = h.seq LIMIT 1) i ON true \
         LEFT JOIN hostler_jobs.job j ON j.num = h.job LEFT JOIN hostler_jobs.job r ON r.num = j.root \
         LEFT JOIN hostler_jobs.job_type t ON t.id = j.type LEFT JOIN hostler_jobs.later l ON l.seq = h.seq \
         ORDER BY h.major, h.seq) x WHERE x.before < {BUDGET}"
    )
}

/// Reads a page. The first columns tell how many items were looked at, and the last of them.
fn page(rows: &[Row], limit: u32, window: i64) -> Result<ItemPage, StoreError> {
    let size = usize::try_from(limit).unwrap_or(usize::MAX);
    let Some(first) = rows.first() else { return Ok(ItemPage { items: Vec::new(), next: None }) };
    let hits: Vec<&Row> = rows.iter().filter(|row| row.get::<_, Option<i64>>(4).is_some()).collect();
    let found: i64 = first.get(23);
    let is_cut = i64::try_from(hits.len()).is_ok_and(|taken| taken < found);
    let next = if let (true, true, Some(last)) = (is_cut, hits.len() <= size, hits.last()) {
        Some(Cursor { major: last.get(3), seq: last.get(4) })
    } else if hits.len() > size {
        hits.get(size.saturating_sub(1)).map(|row| Cursor { major: row.get(3), seq: row.get(4) })
    } else if first.get::<_, i64>(0) >= window {
        Some(Cursor { major: first.get(1), seq: first.get(2) })
    } else {
        None
    };
    let items = hits.into_iter().take(size).map(item).collect::<Result<_, _>>()?;
    Ok(ItemPage { items, next: next.map(|cursor| format!("{:x}-{:x}", cursor.major, cursor.seq)) })
}

fn item(row: &Row) -> Result<ItemRow, StoreError> {
    let place = ItemRef { day: row.get(5), seq: row.get(4) };
    let state = match (row.get::<_, Option<bool>>(11), row.get::<_, bool>(13)) {
        (Some(true), _) => ItemState::Succeeded,
        (Some(false), _) => ItemState::Failed,
        (None, true) => ItemState::Assigned,
        (None, false) => ItemState::Pending,
    };
    let failures: Option<String> = row.get(14);
    Ok(ItemRow {
        id: row.get::<_, Option<String>>(6).unwrap_or_else(|| place.to_string()),
        job_id: row.get(7),
        root_id: row.get(8),
        kind: row.get(9),
        payload: stored(row.get(10))?,
        state,
        result: row.get::<_, Option<String>>(12).map_or_else(|| Ok(RawJson::null()), stored)?,
        failures: failures.map_or(Ok(Vec::new()), |text| stored_failures(&text))?,
        retry_at: row.get(15),
        dedupe_key: row.get(16),
        serialize_key: row.get(17),
        priority: row.get(18),
        metadata: row.get::<_, Option<String>>(19).map_or_else(|| Ok(RawJson::object()), stored)?,
        created_at: row.get(20),
        progress: row
            .get::<_, Option<f64>>(21)
            .map(|fraction| Progress { fraction, text: row.get::<_, Option<String>>(22).unwrap_or_default() }),
    })
}

fn item_cursor(text: &str) -> Result<Cursor, StoreError> {
    let fault = || StoreError::invalid("cursor", "is not the `next` of a page");
    let (major, seq) = text.split_once('-').ok_or_else(fault)?;
    let number = |digits: &str| i64::from_str_radix(digits, 16).ok().filter(|number| *number >= 0);
    Ok(Cursor { major: number(major).ok_or_else(fault)?, seq: number(seq).ok_or_else(fault)? })
}
