//! The routes of the job service: each has the shape that clients are written against.

use serde_json::{Value, json};

use crate::support::jobs::{Api, Jobs, items};

/// Checks that an object has these fields, and possibly others.
#[track_caller]
fn has(value: &Value, fields: &str) {
    for field in fields.split(' ') {
        assert!(value.get(field).is_some(), "{field} is not in {value}");
    }
}

/// Checks that a time is one by RFC 3339.
#[track_caller]
fn is_time(value: &Value) {
    let text = value.as_str().unwrap_or_else(|| panic!("{value} is no time"));
    let bytes = text.as_bytes();
    assert!(text.len() >= 20 && bytes[4] == b'-' && bytes[10] == b'T' && bytes[13] == b':', "{text}");
    assert!(text.ends_with('Z') || text.contains('+'), "{text}");
}

/// Checks a refusal.
#[track_caller]
fn is_problem(api: &Api, method: &str, path: &str, body: Option<&Value>, status: u16) -> Value {
    let answer = api.call(method, path, body);
    assert_eq!(answer.headers["content-type"], "application/problem+json", "{}", answer.body);
    let problem = answer.of(status);
    has(&problem, "title detail");
    problem
}

#[test]
fn a_tree_is_created_listed_and_counted() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let created = api.create(json!({
        "type": "root", "items": items([1, 2]), "metadata": { "who": "me" },
        "children": [{ "type": "child", "final_stage": true, "items": items([3]) }],
    }));
    has(&created, "id root_id jobs item_ids");
    assert_eq!((&created["id"], created["item_ids"].as_array().unwrap().len()), (&created["root_id"], 3));
    let tree = created["jobs"].as_array().unwrap();
    assert_eq!((&tree[0]["type"], &tree[0]["parent_id"]), (&json!("root"), &Value::Null));
    assert_eq!((&tree[1]["type"], &tree[1]["parent_id"]), (&json!("child"), &created["id"]));

    let root = created["id"].as_str().unwrap();
    let status = api.status(root);
    let fields = "id root_id parent_id type sealed complete final_stage added succeeded failed pending assigned \
                  tree_complete children";
    has(&status, fields);
    has(&status["children"][0], fields);
    assert_eq!((&status["added"], &status["pending"], &status["assigned"]), (&json!(2), &json!(2), &json!(0)));
    assert_eq!((&status["sealed"], &status["complete"]), (&json!(false), &json!(false)));

    let listed = api.get(&format!("/job?root_id={root}&type=child&complete=false&limit=5")).of(200);
    has(&listed, "jobs next");
    assert_eq!((&listed["jobs"][0]["id"], &listed["next"]), (&tree[1]["id"], &Value::Null));

    let first = api.get(&format!("/job_item?root_id={root}&limit=2")).of(200);
    has(&first, "items next");
    let fields = "id job_id root_id payload state result failures retry_at dedupe_key serialize_key";
    has(&first["items"][0], fields);
    assert_eq!((&first["items"][0]["state"], &first["items"][0]["failures"]), (&json!("pending"), &json!([])));
    let cursor = first["next"].as_str().unwrap();
    let rest = api.get(&format!("/job_item?root_id={root}&limit=2&cursor={cursor}")).of(200);
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null));
    assert_eq!(api.items(&format!("root_id={root}&final_stage=true")).len(), 1);
}

#[test]
fn an_item_is_assigned_extended_and_settled() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let created = api.create(json!({ "type": "t", "max_failures_per_item": 1, "items": items(["a"]) }));
    let item = created["item_ids"][0].as_str().unwrap();
    let assigned = api.call("POST", &format!("/job_item/{item}/worker/w-1"), None).of(201);
    has(&assigned, "assignment_id item heartbeat_seconds");
    assert_eq!((&assigned["item"]["id"], &assigned["item"]["payload"]), (&json!(item), &json!("a")));
    assert_eq!(assigned["heartbeat_seconds"], 60);
    let again = is_problem(api, "POST", &format!("/job_item/{item}/worker/w-2"), None, 409);
    assert_eq!(again["reason"], "assigned");
    api.beat(&assigned).of(200);

    let failed = api.fail(&assigned, json!({ "error": { "why": "no" }, "retry_in_seconds": 3600 })).of(200);
    is_time(&failed["retry_at"]);
    let waits = is_problem(api, "POST", &format!("/job_item/{item}/worker/w-1"), None, 409);
    assert_eq!(waits["reason"], "retry_at");
    let row = &api.items(&format!("job_id={}", created["id"].as_str().unwrap()))[0];
    let failure = &row["failures"][0];
    assert_eq!((&failure["error"]["why"], &failure["worker_id"]), (&json!("no"), &json!("w-1")));
    is_time(&failure["at"]);
    is_time(&row["retry_at"]);
    assert_eq!(api.beat(&assigned).status, 410);
    assert_eq!(api.succeed(&assigned, json!(1)).status, 410);
}

#[test]
fn results_of_all_kinds_are_kept_and_a_repeated_one_is_accepted() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let results = [json!(null), json!({ "a": [1, 2.5] }), json!("text"), json!(12345678901234567890_u64)];
    let created = api.create(json!({ "type": "t", "sealed": true, "items": items(0..results.len()) }));
    for result in &results {
        let assigned = api.claim_one("t", "w");
        api.succeed(&assigned, result.clone()).of(200);
        api.succeed(&assigned, result.clone()).of(200);
    }
    let root = created["id"].as_str().unwrap();
    assert_eq!(api.complete(root)["succeeded"], results.len());
    let kept: Vec<_> =
        api.items(&format!("job_id={root}&state=succeeded")).iter().map(|item| item["result"].clone()).collect();
    assert_eq!(kept, results);
    let item = created["item_ids"][0].as_str().unwrap();
    assert_eq!(is_problem(api, "POST", &format!("/job_item/{item}/worker/w"), None, 409)["reason"], "done");
}

#[test]
fn batches_are_claimed_extended_settled_and_given_back() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let created = api.create(json!({ "type": "t", "items": items(0..4) }));
    let claimed = api.claim("t", "w", 10, 0);
    assert_eq!(claimed.len(), 4);
    has(&claimed[0], "assignment_id item heartbeat_seconds");
    let ids: Vec<_> = claimed.iter().map(|assigned| assigned["assignment_id"].clone()).collect();
    let stale = api.post("/heartbeat", json!({ "assignment_ids": [ids[0], "a-1-1-1"] })).of(200);
    assert_eq!(stale["stale"], json!(["a-1-1-1"]));
    assert_eq!(api.post("/release", json!({ "assignment_ids": [ids[3]] })).of(200), json!({ "stale": [] }));
    let settled = api.post(
        "/settle",
        json!({
            "results": [{ "assignment_id": ids[0], "result": 1 }, { "assignment_id": ids[3], "result": 1 }],
            "failures": [{ "assignment_id": ids[1], "error": "no" }],
        }),
    );
    let settled = settled.of(200);
    let pair = |id: &Value, status: &str| json!({ "assignment_id": id, "status": status });
    assert_eq!(settled["settled"], json!([pair(&ids[0], "ok"), pair(&ids[3], "stale"), pair(&ids[1], "ok")]));
    let status = api.status(created["id"].as_str().unwrap());
    let counts = ["succeeded", "failed", "pending", "assigned"].map(|name| status[name].as_u64().unwrap());
    assert_eq!(counts, [1, 1, 2, 1]);
    let given_back = &api.claim("t", "w", 10, 0)[0];
    assert_eq!(given_back["item"]["failures"], json!([]), "a release is no failure");
}

#[test]
fn a_job_takes_items_until_it_is_sealed() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let created = api.create(json!({ "type": "t" }));
    let root = created["id"].as_str().unwrap();
    let added = api.post(&format!("/job/{root}/items"), json!({ "items": items([1, 2]) })).of(201);
    assert_eq!(added["item_ids"].as_array().unwrap().len(), 2);
    api.call("POST", &format!("/job/{root}/seal"), None).of(200);
    api.call("POST", &format!("/job/{root}/seal"), None).of(200);
    is_problem(api, "POST", &format!("/job/{root}/items"), Some(&json!({ "items": items([3]) })), 409);
    for assigned in api.claim("t", "w", 2, 0) {
        api.succeed(&assigned, json!(0)).of(200);
    }
    let status = api.complete(root);
    assert_eq!((&status["complete"], &status["succeeded"]), (&json!(true), &json!(2)));
    let empty = api.create(json!({ "type": "t", "sealed": true }));
    api.complete(empty["id"].as_str().unwrap());
}

#[test]
fn a_dedupe_key_is_taken_once_by_job_and_by_item() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    let job = json!({ "type": "t", "dedupe_key": "k", "id": "mine/1" });
    assert_eq!(api.create(job.clone())["id"], "mine/1");
    let again = json!({ "type": "t", "dedupe_key": "k" });
    assert_eq!(is_problem(api, "POST", "/job", Some(&again), 409)["job_id"], "mine/1");
    api.create(json!({ "type": "other", "dedupe_key": "k" }));
    let item = json!({ "payload": 1, "dedupe_key": "i" });
    let two = api.create(json!({ "type": "t", "items": [item, item] }));
    assert_eq!(two["item_ids"][0], two["item_ids"][1]);
    assert_eq!(api.status(two["id"].as_str().unwrap())["added"], 1);
}

#[test]
fn faulty_requests_name_their_field() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    for (path, body, field) in [
        ("/job", json!({ "type": "t", "tipe": 1 }), "tipe"),
        ("/job", json!({ "type": "t", "items": [{ "payload": 1, "prio": 1 }] }), "prio"),
        ("/job", json!({ "type": "a b" }), "type"),
        ("/job", json!({}), "type"),
        ("/claim", json!({ "types": ["t"], "worker_id": "w", "max": 1, "wait": 1 }), "wait"),
        ("/settle", json!({ "results": [{ "assignment_id": "a" }] }), "result"),
    ] {
        let problem = is_problem(api, "POST", path, Some(&body), 422);
        assert!(problem.to_string().contains(field), "{path} {body}: {problem}");
    }
    let nul = json!({ "type": "t", "items": [{ "payload": "a\u{0}b" }] });
    is_problem(api, "POST", "/job", Some(&nul), 422);
    is_problem(api, "GET", "/job?tipe=t", None, 422);
    for (method, path) in [("GET", "/job/none/status"), ("DELETE", "/job/none"), ("POST", "/job/none/seal")] {
        is_problem(api, method, path, None, 404);
    }
    is_problem(api, "GET", "/nowhere", None, 404);
    let cut = api.send("POST", "/job", &[], Some("{\"type\":")).unwrap();
    assert!(matches!(cut.status, 400 | 422), "{cut:?}");
}

#[test]
fn the_service_describes_itself() {
    let jobs = Jobs::start("");
    let api = &jobs.api;
    api.get("/healthz").of(200);
    api.get("/readyz").of(200);
    let document = api.get("/openapi.json").of(200);
    let paths = document["paths"].as_object().unwrap();
    for path in [
        "/job",
        "/job/{id}/status",
        "/job/{id}",
        "/job/{id}/items",
        "/job/{id}/seal",
        "/job/{id}/retry",
        "/job_item",
        "/claim",
        "/settle",
        "/heartbeat",
        "/release",
        "/assignment/{id}/result",
        "/assignment/{id}/failure",
        "/assignment/{id}/heartbeat",
    ] {
        assert!(paths.contains_key(path), "{path} is not described");
    }
    assert!(api.get("/metrics").of(200).as_str().unwrap().contains("# TYPE"));
}
