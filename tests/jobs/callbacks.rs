//! Callbacks of complete trees.

use aws_lc_rs::hmac::{HMAC_SHA256, Key, verify};
use serde_json::{Value, json};

use crate::support::hostler::{PATIENCE, until};
use crate::support::jobs::{Api, Jobs, items};
use crate::support::web::{Reply, Request, Web};

const SECRET: &str = "[jobs]\ncallback_secret = 'the-secret'";

/// Creates a tree of one item with this callback, and completes it. Returns the root's id.
fn completed(api: &Api, callback: Value) -> String {
    let created = api.create(json!({ "type": "t", "sealed": true, "items": items([1]), "callback": callback }));
    api.succeed(&api.claim_one("t", "w"), json!(1)).of(200);
    created["id"].as_str().unwrap().to_owned()
}

/// Checks the signature as a receiver does.
fn is_signed(request: &Request, secret: &str) -> bool {
    let signature = &request.headers["hostler-signature"];
    let (time, tag) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
    let tag: Vec<u8> = (0..tag.len() / 2).map(|at| u8::from_str_radix(&tag[2 * at..2 * at + 2], 16).unwrap()).collect();
    let text = [time.as_bytes(), b".", &request.body].concat();
    verify(&Key::new(HMAC_SHA256, secret.as_bytes()), &text, &tag).is_ok()
}

#[test]
fn a_callback_is_signed_and_tried_until_it_is_taken() {
    let jobs = Jobs::start(SECRET);
    let web = Web::start(|_, before| Reply::status(if before == 0 { 503 } else { 200 }));
    let root = completed(&jobs.api, json!({ "url": format!("http://{}/done?of=tree", web.address) }));
    let requests = until("a second attempt", PATIENCE, || Some(web.requests("tree")).filter(|sent| sent.len() == 2));
    let ids: Vec<_> = requests.iter().map(|request| &request.headers["hostler-event-id"]).collect();
    assert_eq!(ids[0], ids[1], "the event is the same");
    for request in &requests {
        assert!(is_signed(request, "the-secret") && !is_signed(request, "another"));
        let status: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(
            (&status["id"], &status["tree_complete"], &status["succeeded"]),
            (&json!(root), &json!(true), &json!(1))
        );
    }
}

#[test]
fn servers_without_a_secret_share_the_one_of_the_database() {
    let jobs = Jobs::start("");
    let web = Web::start(|_, _| Reply::status(204));
    let url = json!({ "url": format!("http://{}/done", web.address) });
    completed(&jobs.api, url.clone());
    let (_second, api) = jobs.second();
    completed(&api, url);
    let requests = until("both callbacks", PATIENCE, || Some(web.requests("done")).filter(|sent| sent.len() >= 2));
    assert_ne!(requests[0].headers["hostler-event-id"], requests[1].headers["hostler-event-id"]);
    assert!(requests.iter().all(|request| !is_signed(request, "the-secret")));
}

#[test]
fn a_callback_goes_to_a_channel() {
    let jobs = Jobs::start(SECRET);
    jobs.world.queue("done");
    let root = completed(&jobs.api, json!({ "channel": "done" }));
    until("the callback", PATIENCE, || (jobs.world.depth("done").visible == 1).then_some(()));
    let said = jobs.world.output(&["peek", "done", "--json"]);
    assert!(said.stdout.contains(&root), "{said:?}");
}

#[test]
fn addresses_of_metadata_services_are_refused() {
    let jobs = Jobs::start("");
    let callback = json!({ "url": "http://169.254.169.254/latest/meta-data" });
    let answer = jobs.api.call("POST", "/job", Some(&json!({ "type": "t", "callback": callback })));
    assert_eq!(answer.of(422)["field"], "/callback/url");
}
