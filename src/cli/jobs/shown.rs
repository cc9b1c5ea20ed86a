//! Cells of the tables that `hostler jobs` prints.

use hostler_jobs::types::{ItemRow, ItemState, JobRow, Status};

/// Most characters of an error or a payload in a table.
const WIDTH: usize = 60;

/// Header of a table of jobs.
pub(super) const JOBS: [&str; 7] = ["TYPE", "STATE", "SUCCEEDED", "FAILED", "PENDING", "CREATED", "JOB"];

/// Header of a tree of jobs.
pub(super) const TREE: [&str; 7] = ["TYPE", "STATE", "SUCCEEDED", "FAILED", "PENDING", "ASSIGNED", "JOB"];

/// Header of a table of items.
pub(super) const ITEMS: [&str; 5] = ["ITEM", "STATE", "FAILURES", "RETRY AT", "PAYLOAD"];

/// Returns the cells of a job.
pub(super) fn job(job: &JobRow) -> Vec<String> {
    vec![
        job.kind.clone(),
        state(job.sealed, job.complete).to_owned(),
        job.succeeded.to_string(),
        job.failed.to_string(),
        job.pending.to_string(),
        job.created_at.clone(),
        job.id.clone(),
    ]
}

/// Returns the cells of a job in a tree, `depth` levels below the first.
pub(super) fn node(job: &Status, depth: usize) -> Vec<String> {
    vec![
        format!("{}{}", "  ".repeat(depth), job.kind),
        state(job.sealed, job.complete).to_owned(),
        job.succeeded.to_string(),
        job.failed.to_string(),
        job.pending.to_string(),
        job.assigned.to_string(),
        job.id.clone(),
    ]
}

/// Returns the cells of an item.
pub(super) fn item(item: &ItemRow) -> Vec<String> {
    let state = match item.state {
        ItemState::Pending => "pending",
        ItemState::Assigned => "assigned",
        ItemState::Succeeded => "succeeded",
        ItemState::Failed => "failed",
    };
    vec![
        item.id.clone(),
        state.to_owned(),
        item.failures.len().to_string(),
        item.retry_at.clone().unwrap_or_else(|| "-".to_owned()),
        short(item.payload.text()),
    ]
}

fn state(sealed: bool, complete: bool) -> &'static str {
    match (sealed, complete) {
        (_, true) => "complete",
        (true, false) => "sealed",
        (false, false) => "open",
    }
}

/// Shortens a JSON text to a cell of a table.
pub(super) fn short(text: &str) -> String {
    let start: String = text.chars().take(WIDTH).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    start + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_open_then_sealed_then_complete() {
        assert_eq!(
            [(false, false), (true, false), (true, true)].map(|(sealed, complete)| state(sealed, complete)),
            ["open", "sealed", "complete"]
        );
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(short("{}"), "{}");
        let long = "ä".repeat(WIDTH + 1);
        assert_eq!(short(&long), format!("{}…", "ä".repeat(WIDTH)));
    }
}
