//! Servers and PostgreSQL are killed in the middle of the work: nothing is lost, and no result is accepted under two assignments.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::{Value, json};

use crate::support::hostler::{Host, PATIENCE, SECOND, until};
use crate::support::jobs::{Api, Jobs, listens};
use crate::support::postgres::Postgres;

/// Items of the run, of which each one in three has a serialize key.
const ITEMS: usize = 3000;

const WORKERS: usize = 6;

/// Addresses of the servers at the moment, and the assignments whose results were accepted, by item.
struct Shared {
    servers: Mutex<Vec<Api>>,
    accepted: Mutex<BTreeMap<String, BTreeSet<String>>>,
    over: AtomicBool,
}

impl Shared {
    fn server(&self, number: usize) -> Api {
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers[number % servers.len()].clone()
    }

    /// Works until the run is over. Calls that fail are made again, on the other server.
    fn work(&self, worker: usize) {
        let mut turn = worker;
        while !self.over.load(Ordering::Relaxed) {
            turn += 1;
            let claim = json!({ "types": ["t"], "worker_id": format!("w{worker}"), "max": 20, "wait_seconds": 1 });
            let Some(claimed) = self.call(turn, "/claim", &claim) else { continue };
            let assigned = claimed["assignments"].as_array().unwrap();
            let result = |one: &Value| json!({ "assignment_id": one["assignment_id"], "result": one["assignment_id"] });
            let settle = json!({ "results": assigned.iter().map(result).collect::<Vec<_>>() });
            // A settlement whose answer is lost is repeated, for as long as somebody may want to know.
            let settled = loop {
                turn += 1;
                match self.call(turn, "/settle", &settle) {
                    Some(settled) => break settled,
                    None if self.over.load(Ordering::Relaxed) => return,
                    None => {}
                }
            };
            let mut accepted = self.accepted.lock().unwrap();
            for (one, end) in assigned.iter().zip(settled["settled"].as_array().unwrap()) {
                if end["status"] == "ok" {
                    let (item, assignment) = (&one["item"]["id"], &end["assignment_id"]);
                    let text = |value: &Value| value.as_str().unwrap().to_owned();
                    accepted.entry(text(item)).or_default().insert(text(assignment));
                }
            }
        }
    }

    fn call(&self, turn: usize, path: &str, body: &Value) -> Option<Value> {
        let answer = self.server(turn).try_call("POST", path, Some(body)).ok()?;
        match answer.status {
            200 => Some(answer.body),
            status => {
                assert!(matches!(status, 429 | 500..), "{path}: {status} {}", answer.body);
                None
            }
        }
    }
}

#[test]
fn nothing_is_lost_or_done_twice_when_servers_and_the_database_are_killed() {
    let mut postgres = Postgres::start();
    let jobs = Jobs::on(&postgres.database(), "[jobs]\nheartbeat = '1s'");
    let (second, beside) = jobs.second();
    let item = |number: usize| match number % 3 {
        0 => json!({ "payload": number, "serialize_key": format!("k{}", number % 30) }),
        _ => json!({ "payload": number }),
    };
    let items: Vec<_> = (0..ITEMS).map(item).collect();
    let created =
        jobs.api.create(json!({ "type": "t", "sealed": true, "max_failures_per_item": 1000, "items": items }));
    let root = created["id"].as_str().unwrap().to_owned();
    let shared = Shared {
        servers: Mutex::new(vec![jobs.api.clone(), beside]),
        accepted: Mutex::default(),
        over: AtomicBool::new(false),
    };
    let done = || shared.accepted.lock().unwrap().len();
    let reached = |part: usize| until("progress", 2 * PATIENCE, || (done() >= ITEMS * part / 10).then_some(()));
    let mut hosts = vec![jobs.host, second];
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let shared = &shared;
            scope.spawn(move || shared.work(worker));
        }
        let ended = Ended(&shared.over);
        reached(1);
        for (number, part) in [(0, 3), (1, 5)] {
            hosts.remove(0).kill();
            let host = Host::start(jobs.world.command(&["jobs", "serve"]));
            shared.servers.lock().unwrap()[number] = Api { address: listens(&host), token: None };
            hosts.push(host);
            reached(part);
        }
        postgres.kill();
        postgres.restart();
        until("a complete tree", 3 * PATIENCE, || {
            let answer = shared.server(0).try_call("GET", &format!("/job/{root}/status"), None).ok()?;
            (answer.status == 200 && answer.body["tree_complete"] == true).then_some(())
        });
        drop(ended);
    });
    let api = shared.server(0);
    let status = until("an answer", 30 * SECOND, || {
        Some(api.get(&format!("/job/{root}/status"))).filter(|answer| answer.status == 200)
    });
    let counts = ["added", "succeeded", "failed", "pending"].map(|name| status.body[name].as_u64().unwrap());
    assert_eq!(counts, [ITEMS as u64, ITEMS as u64, 0, 0]);
    let accepted = shared.accepted.lock().unwrap();
    assert!(accepted.values().all(|assignments| assignments.len() == 1), "an item was done under two assignments");
    let kept = api.items(&format!("job_id={root}&state=succeeded"));
    assert_eq!(kept.len(), ITEMS);
    for item in &kept {
        // A result that was committed may have lost its answer, and its worker with the end of the run.
        if let Some(assignments) = accepted.get(item["id"].as_str().unwrap()) {
            assert!(assignments.contains(item["result"].as_str().unwrap()), "{item}");
        }
    }
    let numbers: BTreeSet<_> = kept.iter().map(|item| item["payload"].as_u64().unwrap()).collect();
    assert_eq!(numbers.len(), ITEMS);
}

/// Ends the workers, also if the test fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
