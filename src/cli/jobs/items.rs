//! Items of a job, as the service lists them, and their failures by error.

use std::collections::BTreeMap;

use super::client::{self, Client};
use crate::exit::Result;
use hostler_jobs::types::{ItemPage, ItemRow, ItemState, Status};

/// Most failed items of one job whose errors are read.
pub(super) const MOST_FAILED: u64 = 10_000;

/// An error, and the number of failed items that it was the last of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) kind: String,
    pub(super) error: String,
    pub(super) items: u64,
}

/// Returns up to `max` items of a job in this state.
pub(super) async fn listed(client: &Client, job: &str, state: ItemState, max: u64) -> Result<Vec<ItemRow>> {
    let (mut items, mut cursor) = (Vec::new(), None);
    loop {
        let limit = client::page(max - items.len() as u64).to_string();
        let query = [
            ("job_id", Some(job.to_owned())),
            ("state", Some(word(state).to_owned())),
            ("limit", Some(limit)),
            ("cursor", cursor.take()),
        ];
        let page: ItemPage = client.get(&["job_item"], query).await?;
        items.extend(page.items);
        match page.next {
            Some(next) if (items.len() as u64) < max => cursor = Some(next),
            _ => return Ok(items),
        }
    }
}

/// Returns the errors of the failed items of a tree, the most frequent first.
pub(super) async fn failures(client: &Client, tree: &Status) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    let mut jobs = vec![tree];
    while let Some(job) = jobs.pop() {
        jobs.extend(&job.children);
        if job.failed > 0 {
            let items = listed(client, &job.id, ItemState::Failed, MOST_FAILED).await?;
            groups.extend(grouped(&job.kind, &items));
        }
    }
    groups.sort_by(|a, b| (b.items, &a.kind, &a.error).cmp(&(a.items, &b.kind, &b.error)));
    Ok(groups)
}

/// Groups failed items by their last error.
fn grouped(kind: &str, items: &[ItemRow]) -> Vec<Group> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for item in items {
        let error = item.failures.last().map_or("null", |failure| failure.error.text());
        *counts.entry(error).or_default() += 1;
    }
    let group = |(error, items): (&str, u64)| Group { kind: kind.to_owned(), error: error.to_owned(), items };
    counts.into_iter().map(group).collect()
}

/// Parses the state of items.
pub(super) fn state(text: &str) -> std::result::Result<ItemState, &'static str> {
    match text {
        "pending" => Ok(ItemState::Pending),
        "assigned" => Ok(ItemState::Assigned),
        "succeeded" => Ok(ItemState::Succeeded),
        "failed" => Ok(ItemState::Failed),
        _ => Err("write pending, assigned, succeeded or failed"),
    }
}

fn word(state: ItemState) -> &'static str {
    match state {
        ItemState::Pending => "pending",
        ItemState::Assigned => "assigned",
        ItemState::Succeeded => "succeeded",
        ItemState::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failed(errors: &[&str]) -> ItemRow {
        let failures: Vec<_> = errors
            .iter()
            .map(|error| json!({ "error": error, "worker_id": "w", "at": "2026-01-01T00:00:00Z" }))
            .collect();
        let row = json!({
            "id": "i", "job_id": "j", "root_id": "r", "type": "t", "payload": 1, "state": "failed", "result": null,
            "failures": failures, "retry_at": null, "dedupe_key": null, "serialize_key": null, "priority": 0, "metadata": {},
            "created_at": "2026-01-01T00:00:00Z",
        });
        serde_json::from_str(&row.to_string()).unwrap()
    }

    #[test]
    fn items_are_grouped_by_their_last_error() {
        let items = [failed(&["a", "b"]), failed(&["b"]), failed(&["a"])];
        let group = |error: &str, items| Group { kind: "t".to_owned(), error: error.to_owned(), items };
        assert_eq!(grouped("t", &items), [group("\"a\"", 1), group("\"b\"", 2)]);
    }

    #[test]
    fn states_read_as_they_are_written() {
        for name in ["pending", "assigned", "succeeded", "failed"] {
            assert_eq!(word(state(name).unwrap()), name);
        }
        assert!(state("done").is_err());
    }
}
