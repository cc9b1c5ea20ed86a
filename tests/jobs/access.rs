//! Tokens and roles of the job service.

use serde_json::json;

use crate::support::jobs::{Api, Jobs, items};

const TOKENS: &str = "
    [jobs]
    tokens = { producer = 'the-producer', worker = 'the-worker', operator = 'the-operator' }
";

#[test]
fn each_token_does_what_its_role_may() {
    let jobs = Jobs::start(TOKENS);
    let with = |token| Api { token, ..jobs.api.clone() };
    let [nobody, stranger] = [with(None), with(Some("the-operators"))];
    let [producer, worker, operator] = ["the-producer", "the-worker", "the-operator"].map(|token| with(Some(token)));
    let job = json!({ "type": "t", "items": items([1]) });
    for api in [&nobody, &stranger] {
        let refused = api.post("/job", job.clone());
        assert_eq!(refused.headers["www-authenticate"], "Bearer");
        assert_eq!(refused.status, 401);
        assert_eq!(api.get("/job").status, 401);
        api.get("/healthz").of(200);
    }
    assert_eq!(worker.post("/job", job.clone()).status, 403);
    let created = producer.create(job);
    let (root, item) = (created["id"].as_str().unwrap(), created["item_ids"][0].as_str().unwrap());
    let claim = json!({ "types": ["t"], "worker_id": "w", "max": 1 });
    assert_eq!(producer.post("/claim", claim.clone()).status, 403);
    assert_eq!(producer.call("POST", &format!("/job_item/{item}/worker/w"), None).status, 403);
    assert_eq!(worker.call("DELETE", &format!("/job/{root}"), None).status, 403);
    let assigned = worker.claim_one("t", "w");
    assert_eq!(producer.succeed(&assigned, json!(1)).status, 403);
    worker.fail(&assigned, json!({ "error": 1 })).of(200);
    assert_eq!(worker.call("POST", &format!("/job/{root}/retry"), None).status, 403);
    assert_eq!(operator.call("POST", &format!("/job/{root}/retry"), None).of(200), json!({ "retried": 1 }));
    operator.succeed(&operator.claim_one("t", "w"), json!(1)).of(200);
    producer.get(&format!("/job/{root}/status")).of(200);
    assert_eq!(operator.call("DELETE", &format!("/job/{root}"), None).status, 204);
}

#[test]
fn without_tokens_pages_of_other_sites_are_kept_out() {
    let jobs = Jobs::start("");
    let from = |name: &str, value: &str| jobs.api.send("GET", "/job", &[(name, value)], None).unwrap().status;
    assert_eq!(from("Origin", "https://evil.example.com"), 403);
    assert_eq!(from("Origin", "http://localhost:3000"), 200);
}

#[test]
fn no_token_and_no_password_is_printed() {
    let jobs = Jobs::start(TOKENS);
    let operator = Api { token: Some("the-operator"), ..jobs.api.clone() };
    operator.get("/job").of(200);
    assert_eq!(Api { token: Some("hunter2"), ..jobs.api.clone() }.get("/job").status, 401);
    let mut jobs = jobs;
    assert_eq!(jobs.host.stop(), 0);
    let log = format!("{:?}", jobs.host.lines());
    for secret in ["the-producer", "the-worker", "the-operator", "hunter2", "postgres://"] {
        assert!(!log.contains(secret), "{secret} is in {log}");
    }
}

#[test]
fn more_requests_than_the_rate_are_told_when_to_come_again() {
    let jobs = Jobs::start("[jobs]\nrate_limit = '5/h'");
    let answers: Vec<_> = (0..6).map(|_| jobs.api.get("/job")).collect();
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 200, 200, 200, 200, 429]);
    assert!(answers[5].headers["retry-after"].parse::<u64>().unwrap() > 0);
    jobs.api.get("/healthz").of(200);
}
