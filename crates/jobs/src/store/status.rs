//! The progress of trees.

use std::collections::HashMap;
use std::time::Duration;

use hostler_postgres::{Row, Type};

use crate::store::create::{check_id, no_job};
use crate::store::{Store, StoreError};
use crate::types::Status;

/// The times that a status is read again while another holds the lock of folding.
const LOOKS: u32 = 10;

/// The pause before each.
const PAUSE: Duration = Duration::from_millis(10);

impl Store {
    /// The progress of a job and of those below it. A caller sees its own changes of items. Jobs that these complete may be shown as
    /// open while a deletion or a retry is under way.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Database`].
    pub async fn status(&self, job: &str) -> Result<Status, StoreError> {
        check_id(job)?;
        let sql = "SELECT num, id, parent, type, sealed, complete, final_stage, added, ok, failed, assigned, tree_complete, behind \
            FROM hostler_jobs.tree($1)";
        let mut rows = self.call(sql, &[(&job, Type::TEXT)]).await?;
        for _ in 0..LOOKS {
            if !rows.iter().any(|row| row.get(12)) {
                break;
            }
            // Without a connection, which others need to end.
            tokio::time::sleep(PAUSE).await;
            rows = self.call(sql, &[(&job, Type::TEXT)]).await?;
        }
        build(&rows, job).ok_or_else(|| no_job(job))
    }
}

/// Makes the tree below a job of rows in which parents come before their children.
fn build(rows: &[Row], job: &str) -> Option<Status> {
    let ids: HashMap<i64, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let root_id = rows.first()?.get::<_, String>(1);
    let mut below: HashMap<i64, Vec<Status>> = HashMap::new();
    // From the last to the first, so that the children of a job are there when it is met.
    for row in rows.iter().rev() {
        let parent: Option<i64> = row.get(2);
        let mut children = below.remove(&row.get::<_, i64>(0)).unwrap_or_default();
        children.reverse();
        let status = Status {
            id: row.get(1),
            root_id: root_id.clone(),
            parent_id: parent.and_then(|parent| ids.get(&parent).cloned()),
            kind: row.get(3),
            sealed: row.get(4),
            complete: row.get(5),
            final_stage: row.get(6),
            added: count(row, 7),
            succeeded: count(row, 8),
            failed: count(row, 9),
            pending: count(row, 7).saturating_sub(count(row, 8) + count(row, 9)),
            assigned: count(row, 10),
            tree_complete: row.get(11),
            children,
        };
        if status.id == job {
            return Some(status);
        }
        if let Some(parent) = parent {
            below.entry(parent).or_default().push(status);
        }
    }
    None
}

/// A count, which is never negative once all is folded in.
pub(crate) fn count(row: &Row, column: usize) -> u64 {
    u64::try_from(row.get::<_, i64>(column)).unwrap_or_default()
}
