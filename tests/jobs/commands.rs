//! `hostler jobs ls`, `show`, `retry` and `cancel`.

use serde_json::{Value, json};

use crate::support::hostler::Said;
use crate::support::jobs::{Jobs, items};

/// Creates a tree with a failed, a succeeded and a pending item. Returns the root's id.
fn tree(jobs: &Jobs) -> String {
    let api = &jobs.api;
    let created = api.create(json!({
        "type": "fetch", "items": items([1, 2, 3]), "children": [{ "type": "count", "final_stage": true }],
    }));
    let claimed = api.claim("fetch", "w", 2, 0);
    api.succeed(&claimed[0], json!(7)).of(200);
    api.fail(&claimed[1], json!({ "error": "no route to host" })).of(200);
    created["id"].as_str().unwrap().to_owned()
}

/// Runs a command that succeeds.
fn said(jobs: &Jobs, args: &[&str]) -> Said {
    let said = jobs.world.output(&[&["jobs"][..], args].concat());
    assert_eq!(said.code, 0, "{args:?}: {said:?}");
    said
}

fn json_of(said: &Said) -> Value {
    serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"))
}

#[test]
fn jobs_are_listed() {
    let jobs = Jobs::start("");
    let none = said(&jobs, &["ls"]);
    assert_eq!((none.stdout.as_str(), none.stderr.as_str()), ("", "there is no such job\n"));
    let root = tree(&jobs);
    // A status brings the counters up to date, which a list shows as they are.
    jobs.api.status(&root);
    let done = jobs.api.create(json!({ "type": "done", "sealed": true }));
    jobs.api.complete(done["id"].as_str().unwrap());
    let listed = said(&jobs, &["ls"]);
    let lines: Vec<_> = listed.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{listed:?}");
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["TYPE", "STATE", "SUCCEEDED", "FAILED", "PENDING", "CREATED", "JOB"]
    );
    let row: Vec<_> = lines[1].split_whitespace().collect();
    assert_eq!((&row[..5], row[6]), (&["fetch", "open", "1", "1", "1"][..], &*root));
    let open = json_of(&said(&jobs, &["ls", "--open", "--json"]));
    let types: Vec<_> = open.as_array().unwrap().iter().map(|job| job["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["fetch", "count"]);
    assert_eq!(json_of(&said(&jobs, &["ls", "--type", "done", "--json"]))[0]["complete"], true);
    assert_eq!(json_of(&said(&jobs, &["ls", "--max", "1", "--json"])).as_array().unwrap().len(), 1);
}

#[test]
fn a_tree_is_shown_with_its_errors() {
    let jobs = Jobs::start("");
    let root = tree(&jobs);
    let shown = said(&jobs, &["show", &root]);
    let lines: Vec<_> = shown.stdout.lines().collect();
    let row: Vec<_> = lines[1].split_whitespace().collect();
    assert_eq!(row, ["fetch", "open", "1", "1", "1", "0", &*root]);
    assert!(lines[2].starts_with("  count "), "{shown:?}");
    assert!(
        shown.stdout.contains("\n2 jobs: 1 succeeded, 1 failed, 1 pending; the tree is not complete\n"),
        "{shown:?}"
    );
    assert!(shown.stdout.ends_with("\n1 item of fetch failed: \"no route to host\"\n"), "{shown:?}");
    let whole = json_of(&said(&jobs, &["show", &root, "--json"]));
    assert_eq!((&whole["status"]["id"], &whole["status"]["children"][0]["type"]), (&json!(root), &json!("count")));
    assert_eq!(whole["errors"], json!([{ "type": "fetch", "error": "no route to host", "items": 1 }]));
}

#[test]
fn items_of_a_job_are_listed_by_state() {
    let jobs = Jobs::start("");
    let root = tree(&jobs);
    let failed = json_of(&said(&jobs, &["show", &root, "--items", "failed", "--json"]));
    assert_eq!((&failed[0]["payload"], &failed[0]["failures"][0]["error"]), (&json!(2), &json!("no route to host")));
    let table = said(&jobs, &["show", &root, "--items", "pending"]);
    let row: Vec<_> = table.stdout.lines().nth(1).unwrap().split_whitespace().skip(1).collect();
    assert_eq!(row, ["pending", "0", "-", "3"]);
    assert_eq!(said(&jobs, &["show", &root, "--items", "assigned"]).stderr, "there is no such item\n");
    assert_eq!(jobs.world.output(&["jobs", "show", &root, "--items", "lost"]).code, 2);
}

#[test]
fn failed_items_are_tried_again() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let created = api.create(json!({ "type": "t", "sealed": true, "items": items([1]) }));
    let root = created["id"].as_str().unwrap();
    api.fail(&api.claim_one("t", "w"), json!({ "error": 1 })).of(200);
    api.complete(root);
    assert_eq!(said(&jobs, &["retry", root]).stdout, format!("1 item of {root} pending again\n"));
    let status = api.status(root);
    assert_eq!(
        (&status["complete"], &status["tree_complete"], &status["pending"]),
        (&json!(false), &json!(false), &json!(1))
    );
    let again = api.claim_one("t", "w");
    assert_eq!(again["item"]["failures"].as_array().unwrap().len(), 1, "failures stay on record");
    api.succeed(&again, json!(1)).of(200);
    assert_eq!(api.complete(root)["succeeded"], 1);
    assert_eq!(said(&jobs, &["retry", root]).stdout, format!("0 items of {root} pending again\n"));
}

#[test]
fn a_job_is_cancelled_only_with_a_word_for_it() {
    let jobs = Jobs::start("");
    let root = tree(&jobs);
    let refused = jobs.world.output(&["jobs", "cancel", &root]);
    assert!(refused.code == 2 && refused.stderr.contains("add --yes"), "{refused:?}");
    jobs.api.status(&root);
    let assigned = jobs.api.claim_one("fetch", "w");
    assert_eq!(said(&jobs, &["cancel", &root, "--yes"]).stdout, format!("{root} is removed, with the tree below it\n"));
    assert_eq!(jobs.api.beat(&assigned).status, 410);
    assert_eq!(jobs.world.output(&["jobs", "cancel", &root, "--yes"]).code, 1);
}

#[test]
fn the_service_is_found_by_its_url_alone() {
    let jobs = Jobs::start("[jobs]\ntokens = { producer = 'the-producer', operator = 'the-operator' }");
    let url = format!("http://{}", jobs.api.address);
    std::fs::remove_file(jobs.world.path("hostler.toml")).unwrap();
    let command = |token: Option<&str>| {
        let mut command = jobs.world.command(&["jobs", "ls", "--url", &url]);
        command.env_remove("HOSTLER_JOBS__DATABASE").env_remove("HOSTLER_JOBS__LISTEN").env_remove("HOSTLER_JOBS__URL");
        command.envs(token.map(|token| ("HOSTLER_JOBS__TOKEN", token)));
        Said::new(command.output().unwrap())
    };
    let denied = command(None);
    assert!(denied.code == 69 && denied.stderr.contains("HOSTLER_JOBS__TOKEN"), "{denied:?}");
    let listed = command(Some("the-operator"));
    assert_eq!((listed.code, listed.stderr.as_str()), (0, "there is no such job\n"));
}
