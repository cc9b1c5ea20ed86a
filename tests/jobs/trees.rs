//! Whole trees: results feed the jobs below, and jobs are sealed and complete from the top down.

use std::collections::BTreeSet;
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::support::hostler::{PATIENCE, SECOND, until};
use crate::support::jobs::{Jobs, items};

#[test]
fn results_feed_three_levels_and_the_tree_completes() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let created = api.create(json!({
        "type": "list", "sealed": true, "items": items([json!({ "name": "a" }), json!({ "name": "b" })]),
        "children": [{
            "type": "fetch", "feed": { "payload": { "url": "$.url", "of": "$payload.name", "all": "$" } },
            "children": [{ "type": "count", "final_stage": true, "feed": { "payload": "$.size" } }],
        }],
    }));
    let root = created["id"].as_str().unwrap();
    for assigned in api.claim("list", "w", 10, 0) {
        let name = assigned["item"]["payload"]["name"].as_str().unwrap().to_owned();
        api.succeed(&assigned, json!({ "url": format!("http://{name}") })).of(200);
    }
    let fetch = [api.claim_one("fetch", "w"), api.claim_one("fetch", "w")];
    let mut payloads: Vec<_> = fetch.iter().map(|assigned| assigned["item"]["payload"].clone()).collect();
    payloads.sort_by_key(Value::to_string);
    let payload =
        |name: &str| json!({ "url": format!("http://{name}"), "of": name, "all": { "url": format!("http://{name}") } });
    let mut expected = [payload("a"), payload("b")];
    expected.sort_by_key(Value::to_string);
    assert_eq!(payloads, expected);
    for (assigned, size) in fetch.iter().zip([7, 8]) {
        api.succeed(assigned, json!({ "size": size })).of(200);
    }
    for _ in 0..2 {
        let assigned = api.claim_one("count", "w");
        api.succeed(&assigned, assigned["item"]["payload"].clone()).of(200);
    }
    let status = api.complete(root);
    let below = &status["children"][0]["children"][0];
    assert_eq!((&below["sealed"], &below["complete"], &below["succeeded"]), (&json!(true), &json!(true), &json!(2)));
    let results = api.items(&format!("root_id={root}&final_stage=true&state=succeeded"));
    let results: BTreeSet<_> = results.iter().map(|item| item["result"].as_u64().unwrap()).collect();
    assert_eq!(results, BTreeSet::from([7, 8]));
}

#[test]
fn a_child_is_sealed_by_its_parent_even_if_all_of_the_parents_items_fail() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let created = api.create(json!({
        "type": "a", "sealed": true, "items": items([1]), "children": [{ "type": "b", "feed": { "payload": "$" } }],
    }));
    let failed = api.fail(&api.claim_one("a", "w"), json!({ "error": "no" })).of(200);
    assert_eq!(failed["retry_at"], Value::Null, "no failure was allowed");
    let status = api.complete(created["id"].as_str().unwrap());
    assert_eq!((&status["failed"], &status["children"][0]["added"]), (&json!(1), &json!(0)));
}

#[test]
fn lower_priorities_and_older_items_are_claimed_first() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let item = |payload: &str, priority: i32| json!({ "payload": payload, "priority": priority });
    api.create(json!({ "type": "t", "items": [item("c", 5), item("a", -1), item("b", 0), item("d", 5)] }));
    let claimed: Vec<_> = api.claim("t", "w", 4, 0).iter().map(|one| one["item"]["payload"].clone()).collect();
    assert_eq!(claimed, ["a", "b", "c", "d"]);
}

#[test]
fn items_of_a_serialize_key_run_one_by_one_across_types_and_trees() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let keyed = |payload: u32| json!({ "payload": payload, "serialize_key": "k" });
    api.create(json!({ "type": "a", "max_failures_per_item": 1, "items": [keyed(1)] }));
    let second = api.create(json!({ "type": "b", "items": [keyed(2)] }));
    let other = api.create(json!({ "type": "b", "items": [{ "payload": 9, "serialize_key": "other" }] }));
    assert_eq!(api.claim_one("b", "w")["item"]["job_id"], other["id"]);
    assert!(api.claim("b", "w", 10, 0).is_empty(), "an older item of the key is pending");
    let item = second["item_ids"][0].as_str().unwrap();
    let refused = api.call("POST", &format!("/job_item/{item}/worker/w"), None).of(409);
    assert_eq!(refused["reason"], "serialize_key");
    api.fail(&api.claim_one("a", "w"), json!({ "error": 1, "retry_in_seconds": 1 })).of(200);
    assert!(api.claim("b", "w", 10, 0).is_empty(), "a head that waits holds its key");
    api.succeed(&api.claim_one("a", "w"), json!(null)).of(200);
    assert_eq!(api.claim_one("b", "w")["item"]["payload"], 2);
}

#[test]
fn many_workers_keep_the_order_of_each_key() {
    let jobs = Jobs::start("");
    let keyed = |(key, number): (u32, u32)| json!({ "payload": [key, number], "serialize_key": format!("k{key}") });
    let pairs = (0..20).flat_map(|number| (0..5).map(move |key| (key, number)));
    let created =
        jobs.api.create(json!({ "type": "t", "sealed": true, "items": pairs.map(keyed).collect::<Vec<_>>() }));
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let (api, done) = (jobs.api.clone(), &done);
            scope.spawn(move || {
                loop {
                    let claimed = api.claim("t", &format!("w{worker}"), 3, 1);
                    if claimed.is_empty() && done.lock().unwrap().len() == 100 {
                        return;
                    }
                    for assigned in claimed {
                        done.lock().unwrap().push(assigned["item"]["payload"].clone());
                        api.succeed(&assigned, json!(null)).of(200);
                    }
                }
            });
        }
    });
    let done = done.into_inner().unwrap();
    for key in 0..5 {
        let order: Vec<_> = done.iter().filter(|pair| pair[0] == key).map(|pair| pair[1].as_u64().unwrap()).collect();
        assert_eq!(order, (0..20).collect::<Vec<_>>(), "key {key}");
    }
    jobs.api.complete(created["id"].as_str().unwrap());
}

#[test]
fn a_failed_item_waits_and_then_fails_for_good() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let created = api.create(json!({ "type": "t", "sealed": true, "max_failures_per_item": 2, "items": items([1]) }));
    for attempt in 1..=3 {
        let assigned = api.claim_one("t", "w");
        assert_eq!(assigned["item"]["failures"].as_array().unwrap().len(), attempt - 1);
        let failed = api.fail(&assigned, json!({ "error": attempt, "retry_in_seconds": 0 })).of(200);
        assert_eq!(failed["retry_at"].is_null(), attempt == 3, "{failed}");
    }
    let status = api.complete(created["id"].as_str().unwrap());
    assert_eq!((&status["failed"], &status["pending"]), (&json!(1), &json!(0)));
}

#[test]
fn three_missed_heartbeats_are_a_failure() {
    let jobs = Jobs::start("[jobs]\nheartbeat = '1s'");
    let api = &jobs.api;
    let created = api.create(json!({ "type": "t", "max_failures_per_item": 1, "items": items([1, 2]) }));
    let [lost, kept] = [api.claim_one("t", "lost"), api.claim_one("t", "kept")];
    assert_eq!(lost["heartbeat_seconds"], 1);
    let job = created["id"].as_str().unwrap();
    let failed = until("the loss of a worker", PATIENCE, || {
        api.beat(&kept).of(200);
        api.items(&format!("job_id={job}")).into_iter().find(|item| item["failures"] != json!([]))
    });
    assert_eq!((&failed["id"], &failed["failures"][0]["worker_id"]), (&lost["item"]["id"], &json!("lost")));
    assert!(failed["failures"][0]["error"].to_string().contains("heartbeat"), "{failed}");
    assert_eq!(api.succeed(&lost, json!(1)).status, 410);
    api.succeed(&kept, json!(1)).of(200);
    let again = until("another attempt", 30 * SECOND, || api.claim("t", "w", 1, 5).pop());
    assert_eq!(again["item"]["id"], lost["item"]["id"]);
}

#[test]
fn a_deleted_job_takes_its_tree_and_its_assignments_with_it() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let keyed = json!({ "payload": 1, "serialize_key": "k" });
    let created =
        api.create(json!({ "type": "a", "items": [keyed], "children": [{ "type": "b", "items": items([2]) }] }));
    api.create(json!({ "type": "c", "items": [{ "payload": 3, "serialize_key": "k" }] }));
    let [of_root, of_child] = [api.claim_one("a", "w"), api.claim_one("b", "w")];
    let root = created["id"].as_str().unwrap();
    assert_eq!(api.call("DELETE", &format!("/job/{root}"), None).status, 204);
    for assigned in [&of_root, &of_child] {
        assert_eq!(api.beat(assigned).status, 410);
        assert_eq!(api.succeed(assigned, json!(1)).status, 410);
        assert_eq!(api.fail(assigned, json!({ "error": 1 })).status, 410);
    }
    for job in created["jobs"].as_array().unwrap() {
        assert_eq!(api.get(&format!("/job/{}/status", job["id"].as_str().unwrap())).status, 404);
    }
    assert_eq!(api.claim_one("c", "w")["item"]["payload"], 3, "the key goes on to the next item");
}
