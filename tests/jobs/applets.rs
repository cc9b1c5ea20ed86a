//! Applets: handlers in the job service that make the items of a child out of results.

use serde_json::{Value, json};

use crate::support::guests::{command, component};
use crate::support::hostler::{Host, PATIENCE, World, until};
use crate::support::jobs::{Jobs, items, listens};
use crate::support::postgres::Postgres;

/// Returns the config of applets that are named as their guests.
fn applets(guests: &[&str]) -> String {
    let table = |name: &&str| {
        let handler = if name.starts_with("main-") { command(name) } else { component(name) };
        format!("[jobs.applets.{name}]\nhandler = '{}'\nprocessing_timeout = '1s'\n", handler.display())
    };
    guests.iter().map(table).collect()
}

/// Creates a sealed job `a` with items, and a child `b` for each applet, which feeds it. Returns the answer.
fn family(jobs: &Jobs, payloads: &[Value], applets: &[&str]) -> Value {
    let child = |name: &&str| json!({ "type": format!("of-{name}"), "id": name, "feed": { "applet": name } });
    let children: Vec<_> = applets.iter().map(child).collect();
    let items = items(payloads.iter().cloned());
    jobs.api.create(json!({ "type": "a", "id": "root", "sealed": true, "items": items, "children": children }))
}

fn payloads(jobs: &Jobs, job: &str) -> Vec<Value> {
    jobs.api.items(&format!("job_id={job}")).into_iter().map(|item| item["payload"].clone()).collect()
}

#[test]
fn commands_and_components_make_the_items_of_children() {
    let guests = ["main-wraps", "replies-items"];
    let mut jobs = Jobs::start(&applets(&guests));
    family(&jobs, &[json!({ "n": 1 })], &guests);
    let assignment = jobs.api.claim_one("a", "w");
    for _ in 0..2 {
        jobs.api.succeed(&assignment, json!({ "x": [1.5, null] })).of(200);
    }
    let input = json!({ "result": { "x": [1.5, null] }, "payload": { "n": 1 }, "job": { "id": "root", "type": "a" },
        "child": { "id": "main-wraps", "type": "of-main-wraps" } });
    assert_eq!(payloads(&jobs, "main-wraps"), [input]);
    assert_eq!(payloads(&jobs, "replies-items"), [json!(1), json!(2)]);
    for (guest, count) in guests.into_iter().zip([1, 2]) {
        for assignment in jobs.api.claim(&format!("of-{guest}"), "w", 9, 20).iter() {
            jobs.api.succeed(assignment, json!(null)).of(200);
        }
        assert_eq!(jobs.api.status(guest)["succeeded"], count);
    }
    jobs.api.complete("root");
    let loaded = jobs.host.lines().into_iter().filter(|line| line["message"] == "applet loaded").count();
    assert_eq!(loaded, 2);
    assert_eq!(jobs.host.stop(), 0);
}

#[test]
fn a_result_whose_applet_fails_is_a_failure() {
    for (guest, expected) in [
        ("main-traps", "trapped"),
        ("loops", "it was stopped at its processing timeout of 1s"),
        ("acks", "without a reply"),
        ("replies", "not a JSON array of items"),
        ("fails", "the database is away"),
    ] {
        let jobs = Jobs::start(&applets(&[guest]));
        family(&jobs, &[json!(1)], &[guest]);
        let assignment = jobs.api.claim_one("a", "w");
        for _ in 0..2 {
            jobs.api.succeed(&assignment, json!(1)).of(200);
        }
        let [item] = jobs.api.items("job_id=root").try_into().unwrap();
        assert_eq!((&item["state"], item["failures"].as_array().unwrap().len()), (&json!("failed"), 1), "{item}");
        let error = item["failures"][0]["error"].as_str().unwrap();
        let place = format!("the applet \"{guest}\", which feeds the child \"of-{guest}\", made no items: ");
        assert!(error.starts_with(&place) && error.contains(expected), "{error}");
        assert_eq!(payloads(&jobs, guest), [] as [Value; 0]);
    }
}

#[test]
fn the_results_of_a_consumer_feed_a_child_by_an_applet() {
    let mut jobs = Jobs::start(&applets(&["main-wraps"]));
    let handler = component("replies");
    jobs.world.config(&format!("[consumers.a]\njob = 'a'\nhandler = '{}'\n", handler.display()));
    // The service has the other one.
    jobs.world.set("HOSTLER_HOST__HEALTH_FILE", "consumer.json".to_owned());
    let mut host = jobs.world.started();
    let given: Vec<_> = (0..40).map(|n| json!({ "n": n })).collect();
    family(&jobs, &given, &["main-wraps"]);
    until("all results", PATIENCE, || (jobs.api.status("root")["succeeded"] == 40).then_some(()));
    let mut fed: Vec<_> = payloads(&jobs, "main-wraps").into_iter().map(|input| input["result"].clone()).collect();
    fed.sort_by_key(|result| result["n"].as_u64());
    assert_eq!(fed, given);
    assert_eq!(host.stop(), 0);
}

#[test]
fn an_instance_that_lacks_an_applet_leaves_its_results_to_others() {
    let jobs = Jobs::start(&applets(&["replies-items"]));
    family(&jobs, &[json!(1)], &["replies-items"]);
    jobs.world.config("");
    let (mut other, api) = jobs.second();
    let unknown =
        api.post("/job", json!({ "type": "a", "children": [{ "type": "b", "feed": { "applet": "replies-items" } }] }));
    assert_eq!(unknown.of(422)["field"], "/children/0/feed/applet");
    let assignment = api.claim_one("a", "w");
    let refused = api.succeed(&assignment, json!(1));
    assert_eq!(refused.headers["retry-after"], "1");
    let detail = refused.of(503)["detail"].to_string();
    assert!(detail.contains("replies-items") && detail.contains("cannot run here"), "{detail}");
    jobs.api.succeed(&assignment, json!(1)).of(200);
    assert_eq!(payloads(&jobs, "replies-items").len(), 2);
    assert_eq!(other.stop(), 0);
}

#[test]
fn a_service_that_is_killed_during_a_run_leaves_the_result_to_the_next() {
    let database = Postgres::shared().database();
    let looping = applets(&["loops"]).replace("'1s'", "'8s'");
    let jobs = Jobs::on(&database, &looping);
    family(&jobs, &[json!(1)], &["loops"]);
    let assignment = jobs.api.claim_one("a", "w");
    let path = format!("/assignment/{}/result", assignment["assignment_id"].as_str().unwrap());
    let _request = jobs.api.begin("POST", &path, &[], Some(r#"{"result":1}"#)).unwrap();
    let Jobs { world, host, .. } = jobs;
    host.kill();
    world.config(&applets(&["replies-items"]).replace("[jobs.applets.replies-items]", "[jobs.applets.loops]"));
    let mut next = Host::start(world.command(&["jobs", "serve"]));
    let api = crate::support::jobs::Api { address: listens(&next), token: None };
    api.succeed(&assignment, json!(1)).of(200);
    assert_eq!(api.status("root")["children"][0]["added"], 2);
    assert_eq!(next.stop(), 0);
}

#[test]
fn a_bad_applet_is_found_before_the_schema_is_touched() {
    let url = Postgres::shared().database();
    let name = url.rsplit('/').next().unwrap().to_owned();
    let env = || vec![("HOSTLER_JOBS__DATABASE", url.clone()), ("HOSTLER_JOBS__LISTEN", "127.0.0.1:0".to_owned())];
    let missing =
        World::with("host.health_file = 'health.json'\n", env(), "[jobs.applets.gone]\nhandler = 'gone.wasm'");
    let large = format!("{}limits.memory = '4GiB'\nconcurrency = 64", applets(&["replies-items"]));
    let large = World::with("host.health_file = 'health.json'\n", env(), &large);
    for command in [&["jobs", "serve"][..], &["check"]] {
        let said = missing.output(command);
        assert!(said.code == 65 && said.stderr.contains("gone.wasm"), "{said:?}");
        let said = large.output(command);
        assert!(said.code == 64 && said.stderr.contains("jobs.applets.replies-items.concurrency = "), "{said:?}");
    }
    let schemas = Postgres::shared().psql(&name, "SELECT count(*) FROM pg_namespace WHERE nspname = 'hostler_jobs'");
    assert_eq!(schemas, "0");
    let fine = World::with("host.health_file = 'health.json'\n", env(), &applets(&["replies-items"]));
    let said = fine.output(&["check"]);
    assert!(said.code == 0 && said.stdout.contains("applet    ok  replies-items: "), "{said:?}");
}
