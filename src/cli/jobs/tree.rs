//! `hostler jobs show`: a tree of jobs with its progress, or the items of a job.

use serde_json::{Value, json};

use super::client::ServiceArg;
use super::items::{self, Group, MOST_FAILED};
use super::shown;
use crate::cli::output::{counted, pretty_json};
use crate::cli::table::table;
use crate::cli::{block_on, print, say};
use crate::exit::{Exit, Result};
use hostler_jobs::types::{ItemState, Status};

const HELP: &str = "\
Examples:
  hostler jobs show 0197a4f2-9c1e-7b3d-8f65-2f1f6d3c0a11
  hostler jobs show 0197a4f2-9c1e-7b3d-8f65-2f1f6d3c0a11 --items failed --json

Shows the tree below the job, and the last errors of its failed items by number. --items lists those items of the job \
    itself in place of the tree; with --json with payloads, results and all failures.";

/// Show a tree of jobs with its progress and errors
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct ShowArgs {
    /// The job's id
    job: String,
    /// List its items that are pending, assigned, succeeded or failed
    #[arg(long, value_name = "STATE", value_parser = items::state)]
    items: Option<ItemState>,
    /// List at most N items
    #[arg(long, value_name = "N", default_value_t = 100, requires = "items", value_parser = crate::cli::source::count)]
    max: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: ServiceArg,
}

/// Sums over a tree.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    pub(super) pending: u64,
}

pub(super) fn show(args: &ShowArgs) -> Result {
    match args.items {
        Some(state) => show_items(args, state),
        None => show_tree(args),
    }
}

fn show_items(args: &ShowArgs, state: ItemState) -> Result {
    let client = args.service.client()?;
    let found = block_on(async {
        // Tells a job that does not exist from one without such items.
        client.status(&args.job).await?;
        items::listed(&client, &args.job, state, args.max).await
    })?;
    if args.json {
        print(pretty_json(&found)?);
    } else if found.is_empty() {
        say("there is no such item");
    } else {
        print(table(&shown::ITEMS, &found.iter().map(shown::item).collect::<Vec<_>>()));
    }
    Ok(Exit::Ok)
}

fn show_tree(args: &ShowArgs) -> Result {
    let client = args.service.client()?;
    let (status, errors) = block_on(async {
        let status = client.status(&args.job).await?;
        let errors = items::failures(&client, &status).await?;
        Ok((status, errors))
    })?;
    if args.json {
        let errors: Vec<_> = errors.iter().map(in_json).collect();
        print(pretty_json(&json!({ "status": status, "errors": errors }))?);
        return Ok(Exit::Ok);
    }
    let mut rows = Vec::new();
    add_rows(&status, 0, &mut rows);
    print(table(&shown::TREE, &rows));
    let (jobs, sums) = sums(&status);
    print(format_args!("\n{}", summary(&status, jobs, &sums)));
    if !errors.is_empty() {
        print(format_args!("\n{}", errors.iter().map(line).collect::<Vec<_>>().join("\n")));
        if sums.failed > errors.iter().map(|group| group.items).sum() {
            say(format_args!("hostler: note: of each job, the first {MOST_FAILED} failed items were read"));
        }
    }
    Ok(Exit::Ok)
}

fn add_rows(job: &Status, depth: usize, rows: &mut Vec<Vec<String>>) {
    rows.push(shown::node(job, depth));
    for child in &job.children {
        add_rows(child, depth + 1, rows);
    }
}

/// Returns the number of jobs of a tree, and the sums of their items.
pub(super) fn sums(tree: &Status) -> (u64, Sums) {
    let mut total = Sums { succeeded: tree.succeeded, failed: tree.failed, pending: tree.pending };
    let mut jobs = 1;
    for child in &tree.children {
        let (below, sums) = sums(child);
        jobs += below;
        total.succeeded += sums.succeeded;
        total.failed += sums.failed;
        total.pending += sums.pending;
    }
    (jobs, total)
}

fn summary(status: &Status, jobs: u64, sums: &Sums) -> String {
    let end = if status.tree_complete { "the tree is complete" } else { "the tree is not complete" };
    let Sums { succeeded, failed, pending } = sums;
    format!("{}: {succeeded} succeeded, {failed} failed, {pending} pending; {end}", counted(jobs, "job"))
}

fn in_json(Group { kind, error, items }: &Group) -> Value {
    let error: Value = serde_json::from_str(error).unwrap_or_default();
    json!({ "type": kind, "error": error, "items": items })
}

fn line(Group { kind, error, items }: &Group) -> String {
    format!("{} of {kind} failed: {}", counted(*items, "item"), shown::short(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Status {
        let node = |id: &str, kind: &str, succeeded: u64, failed: u64, children: serde_json::Value| {
            json!({
                "id": id, "root_id": "r", "parent_id": null, "type": kind, "sealed": true, "complete": false,
                "final_stage": false, "added": 9, "succeeded": succeeded, "failed": failed, "pending": 1, "assigned": 0,
                "tree_complete": false, "children": children,
            })
        };
        let leaf = node("c", "leaf", 3, 1, json!([]));
        serde_json::from_value(node("r", "root", 2, 0, json!([leaf]))).unwrap()
    }

    #[test]
    fn a_tree_is_shown_by_indented_rows_and_sums() {
        let mut rows = Vec::new();
        add_rows(&tree(), 0, &mut rows);
        assert_eq!(rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), ["root", "  leaf"]);
        let (jobs, total) = sums(&tree());
        assert_eq!((jobs, &total), (2, &Sums { succeeded: 5, failed: 1, pending: 2 }));
        assert_eq!(
            summary(&tree(), jobs, &total),
            "2 jobs: 5 succeeded, 1 failed, 2 pending; the tree is not complete"
        );
    }
}
