//! Tests of the queue over a service by script.

use hostler_queue::{Link, Receipt, Report};
use hostler_types::job::NewJobItem;
use hostler_types::message::Message;
use serde_json::{Value, json};

use super::*;
use crate::scripted::{Answer, Scripted, ok};

const SECOND: Duration = Duration::from_secs(1);

fn queue(service: &Scripted) -> JobQueue {
    JobQueue::new(Arc::clone(&service.client), "resize", "w-1")
}

fn claimed(ids: &[&str], heartbeat: u64) -> String {
    let assignment = |id: &&str| {
        json!({"assignment_id": id, "heartbeat_seconds": heartbeat,
            "item": {"id": format!("item-{id}"), "job_id": "j", "root_id": "r", "payload": {"n": 1}}})
    };
    json!({"assignments": ids.iter().map(assignment).collect::<Vec<_>>()}).to_string()
}

fn request(wait: Duration) -> Receive {
    Receive { max: 10, wait, lease: 30 * SECOND }
}

fn receipt(id: &str) -> Receipt {
    Receipt::new(format!("60 {id}"))
}

fn result(id: &str, reply: &str) -> Settlement {
    Settlement::Ack(receipt(id).with_report(Report::Result(reply.as_bytes().to_vec())))
}

fn failure(id: &str, reason: &str) -> Settlement {
    let report = Report::Failure { reason: reason.to_owned(), retry_in: None };
    Settlement::Release(receipt(id).with_report(report), Duration::ZERO)
}

fn settled(entries: &[(&str, &str)]) -> Answer {
    let entry = |(id, status): &(&str, &str)| json!({"assignment_id": id, "status": status});
    ok(json!({"settled": entries.iter().map(entry).collect::<Vec<_>>()}).to_string())
}

fn problem(status: &'static str, detail: &str) -> Answer {
    Answer::Says(status, json!({"title": "t", "detail": detail, "field": "/x"}).to_string())
}

fn errors(results: Vec<Result<(), Unsettled>>) -> Vec<Option<LeaseError>> {
    results.into_iter().map(|result| result.err().map(|unsettled| unsettled.error)).collect()
}

#[tokio::test]
async fn items_are_claimed_with_the_token_and_keep_the_connection() {
    let service = Scripted::with([ok(claimed(&["a-1", "a-2"], 60)), ok(claimed(&["a-3"], 1))]).await;
    let (queue, stop) = (queue(&service), CancellationToken::new());
    let begin = Instant::now();
    let first = queue.receive(request(SECOND), &stop).await.unwrap();
    assert_eq!(first.iter().map(|one| &*one.message.id).collect::<Vec<_>>(), ["item-a-1", "item-a-2"]);
    assert!(first.iter().all(|one| one.leased_at >= begin && one.leased_at <= Instant::now()));
    let second = queue.receive(request(SECOND), &stop).await.unwrap();
    let durations = [&first[0], &second[0]].map(|one| queue.duration_of(&one.receipt.lease(), 30 * SECOND));
    assert_eq!(durations, [120 * SECOND, 2 * SECOND], "two heartbeats");
    let asked = service.asked();
    assert_eq!(asked[0].path, "/claim");
    assert!(asked[0].head.contains("authorization: bearer hunter2"));
    let expected = json!({"types": ["resize"], "worker_id": "w-1", "max": 10});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&asked[0].body[name], value);
    }
    assert!(asked[0].body["wait_seconds"].as_f64().is_some_and(|wait| wait > 0.5 && wait <= 1.0));
    assert_eq!(service.connections(), 1);
}

#[tokio::test]
async fn a_wait_is_asked_for_in_parts_and_a_stop_ends_it_after_the_part() {
    let millisecond = Duration::from_millis(1);
    let service = Scripted::with([Answer::Late(2 * millisecond, claimed(&[], 60))]).await;
    let received = queue(&service).receive(request(millisecond), &CancellationToken::new()).await;
    assert!(received.unwrap().is_empty());
    let service = Scripted::with([Answer::Late(SECOND / 10, claimed(&["a-1"], 60))]).await;
    let (queue, stop) = (queue(&service), CancellationToken::new());
    let request = request(20 * SECOND);
    let (received, ()) = tokio::join!(queue.receive(request, &stop), async {
        service.until_asked(1).await;
        stop.cancel();
    });
    assert_eq!(received.unwrap().len(), 1, "the item is not left behind");
    assert!(queue.receive(request, &stop).await.unwrap().is_empty());
    assert_eq!(service.asked()[0].body["wait_seconds"], 2.0);
    assert_eq!(service.paths().len(), 1);
}

#[tokio::test]
async fn after_a_long_wait_leases_are_extended_before_they_are_handed_out() {
    let stale = json!({"stale": ["a-2"]}).to_string();
    let late = Answer::Late(Duration::from_millis(600), claimed(&["a-1", "a-2"], 1));
    let none = json!({"stale": []}).to_string();
    let away = problem("503 Service Unavailable", "no");
    let service = Scripted::with([late.clone(), ok(stale), late, away, ok(none)]).await;
    let (queue, stop, begin) = (queue(&service), CancellationToken::new(), Instant::now());
    let received = queue.receive(request(SECOND), &stop).await.unwrap();
    assert_eq!(received.iter().map(|one| &*one.message.id).collect::<Vec<_>>(), ["item-a-1"]);
    assert!(received[0].leased_at >= begin + Duration::from_millis(600), "counted from the extension");
    let received = queue.receive(request(SECOND / 2), &stop).await.unwrap();
    assert!(received.is_empty(), "their leases may have ended");
    assert_eq!(service.paths(), ["/claim", "/heartbeat", "/claim", "/heartbeat", "/release"]);
    assert_eq!(service.asked()[4].body, json!({"assignment_ids": ["a-1", "a-2"]}));
}

#[tokio::test]
async fn refusals_and_outages_are_told_apart_and_the_link_is_shown() {
    let answers = [
        problem("401 Unauthorized", "no token"),
        problem("404 Not Found", "no route"),
        problem("307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/", "there"),
        problem("422 Unprocessable Entity", "bad"),
        problem("503 Service Unavailable", "database"),
        Answer::Hangs,
        ok("<html>"),
        ok(claimed(&["a-1"], 60)),
    ];
    let service = Scripted::with(answers).await;
    let (queue, stop, link) = (queue(&service), CancellationToken::new(), service.client.link());
    let mut told = Vec::new();
    for _ in 0..7 {
        let error = queue.receive(request(Duration::ZERO), &stop).await.unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
        told.push((error.kind(), *link.borrow() == Link::Up));
    }
    let (refused, away) = ("refused", "unavailable");
    let up = |kind| (kind, true);
    let down = |kind| (kind, false);
    assert_eq!(told, [up(refused), up(refused), up(refused), up(refused), down(away), down(away), up(away)]);
    assert!(queue.receive(request(Duration::ZERO), &stop).await.is_ok());
    assert_eq!(*link.borrow(), Link::Up);
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_is_away() {
    let service = Scripted::with([]).await;
    let url = service.client.address().to_owned();
    drop(service);
    let connected = crate::JobService::connect(&crate::Options { url, token: None }).await.map(drop);
    assert!(matches!(connected, Err(QueueError::Unavailable(_))), "{connected:?}");
}

#[tokio::test]
async fn a_service_is_asked_at_the_start_whether_it_takes_the_token() {
    let service = Scripted::with([ok("{}"), problem("403 Forbidden", "a producer")]).await;
    let options = crate::Options { url: service.client.address().to_owned(), token: Some("p".to_owned()) };
    let refused = crate::JobService::connect(&options).await.map(drop);
    assert!(matches!(&refused, Err(QueueError::Refused(text)) if text.contains("jobs.token")), "{refused:?}");
    assert_eq!(service.paths(), ["/readyz", "/heartbeat"]);
}

#[tokio::test]
async fn retry_after_holds_claims_but_no_settlement() {
    let busy = problem("503 Service Unavailable\r\nretry-after: 1", "restarting");
    let service = Scripted::with([busy, settled(&[("a-1", "ok")]), ok(claimed(&["a-2"], 60))]).await;
    let (queue, stop, begin) = (queue(&service), CancellationToken::new(), Instant::now());
    assert!(queue.receive(request(Duration::ZERO), &stop).await.is_err());
    assert!(queue.receive(request(SECOND / 10), &stop).await.unwrap().is_empty(), "not asked");
    assert_eq!(errors(queue.settle(vec![result("a-1", "1")]).await), [None]);
    assert_eq!(queue.receive(request(10 * SECOND), &stop).await.unwrap().len(), 1);
    assert!(begin.elapsed() >= SECOND);
    assert_eq!(service.paths(), ["/claim", "/settle", "/claim"]);
}

#[tokio::test]
async fn each_settlement_has_its_answer_and_what_goes_back_is_released() {
    let answers = [settled(&[("a-2", "stale"), ("a-1", "ok"), ("a-3", "ok")]), ok(r#"{"stale":["a-5"]}"#)];
    let service = Scripted::with(answers).await;
    let dead = Settlement::DeadLetter {
        receipt: receipt("a-3"),
        message: Arc::new(Message::new("1", "")),
        reason: "bad row".to_owned(),
    };
    let back = |id| Settlement::GiveBack(receipt(id), Duration::ZERO);
    let batch = vec![back("a-4"), result("a-1", "{\"w\":1}"), failure("a-2", "boom"), back("a-5"), dead];
    let told = errors(queue(&service).settle(batch).await);
    assert_eq!(told, [None, None, Some(lost()), Some(lost()), None]);
    let asked = service.asked();
    let expected = json!({
        "results": [{"assignment_id": "a-1", "result": {"w": 1}}],
        "failures": [
            {"assignment_id": "a-2", "error": {"error": "boom"}},
            {"assignment_id": "a-3", "error": {"error": "bad row"}, "final": true},
        ],
    });
    assert_eq!((&*asked[0].path, &asked[0].body), ("/settle", &expected));
    assert_eq!((&*asked[1].path, &asked[1].body), ("/release", &json!({"assignment_ids": ["a-4", "a-5"]})));
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_by_the_same_settlement() {
    let service = Scripted::with([Answer::Hangs, settled(&[("a-1", "ok")]), settled(&[])]).await;
    let queue = queue(&service);
    let mut unsettled = queue.settle(vec![result("a-1", "7")]).await;
    let Err(Unsettled { settlement, error: LeaseError::Retry(_) }) = unsettled.remove(0) else {
        panic!("not repeated")
    };
    assert_eq!(errors(queue.settle(vec![settlement]).await), [None]);
    let asked = service.asked();
    assert_eq!(asked[0].body, asked[1].body);
    let [Some(LeaseError::Retry(_))] = errors(queue.settle(vec![result("a-2", "7")]).await)[..] else {
        panic!("an entry without an answer")
    };
}

#[tokio::test]
async fn one_result_that_the_service_refuses_holds_up_no_other() {
    let refused = || problem("422 Unprocessable Entity", "NUL");
    let answers = [
        refused(),                    // a-1, a-2, a-3
        settled(&[("a-1", "ok")]),    // a-1
        refused(),                    // a-2, a-3
        refused(),                    // a-2
        settled(&[("a-2", "ok")]),    // a-2 as a failure
        settled(&[("a-3", "stale")]), // a-3
    ];
    let service = Scripted::with(answers).await;
    let batch = ["a-1", "a-2", "a-3"].map(|id| result(id, "1")).into();
    assert_eq!(errors(queue(&service).settle(batch).await), [None, None, Some(lost())]);
    let instead = &service.asked()[4].body["failures"][0];
    assert_eq!(instead["assignment_id"], "a-2");
    assert!(instead["error"]["error"].as_str().is_some_and(|why| why.contains("/x: NUL")), "{instead}");
}

#[tokio::test]
async fn a_failure_that_the_service_refuses_is_unfit_and_a_denial_is_repeated() {
    let answers = [problem("422 Unprocessable Entity", "no"), problem("403 Forbidden", "revoked")];
    let service = Scripted::with(answers).await;
    let queue = queue(&service);
    assert!(matches!(errors(queue.settle(vec![failure("a-1", "x")]).await)[..], [Some(LeaseError::Unfit(_))]));
    assert!(matches!(errors(queue.settle(vec![failure("a-1", "x")]).await)[..], [Some(LeaseError::Retry(_))]));
}

#[tokio::test]
async fn large_results_go_in_several_requests() {
    let service = Scripted::with([settled(&[("a-2", "ok")]), settled(&[("a-1", "ok")])]).await;
    let large = format!("\"{}\"", "x".repeat(LARGEST * 2 / 3));
    let batch = vec![result("a-1", &large), result("a-2", &large)];
    assert_eq!(errors(queue(&service).settle(batch).await), [None, None]);
    assert_eq!(service.paths(), ["/settle", "/settle"]);
}

#[tokio::test]
async fn heartbeats_tell_which_assignments_have_ended() {
    let service = Scripted::with([ok(r#"{"stale":["a-2"]}"#), Answer::Hangs]).await;
    let (queue, leases) = (queue(&service), ["a-1", "a-2"].map(|id| receipt(id).lease()));
    assert_eq!(queue.extend(&leases, 120 * SECOND).await, [Ok(()), Err(lost())]);
    let told = queue.extend(&leases, 120 * SECOND).await;
    assert!(told.iter().all(|result| matches!(result, Err(LeaseError::Retry(_)))), "{told:?}");
    assert_eq!(service.asked()[0].body, json!({"assignment_ids": ["a-1", "a-2"]}));
}

#[tokio::test]
async fn heartbeats_tell_the_latest_progress() {
    let service = Scripted::with([ok(claimed(&["a-1"], 60)), ok(r#"{"stale":[]}"#)]).await;
    let (queue, stop) = (queue(&service), CancellationToken::new());
    let Delivery { receipt, job, .. } = queue.receive(request(SECOND), &stop).await.unwrap().remove(0);
    let job = job.unwrap();
    job.progress(0.25, "begun").unwrap();
    job.progress(0.5, "half").unwrap();
    assert_eq!(queue.extend(&[receipt.lease()], 120 * SECOND).await, [Ok(())]);
    let expected = json!({"assignment_ids": ["a-1"], "progress": {"a-1": {"fraction": 0.5, "text": "half"}}});
    assert_eq!(service.asked()[1].body, expected);
}

#[tokio::test]
async fn a_service_that_does_not_answer_a_heartbeat_holds_it_up_no_longer_than_the_interval() {
    let service = Scripted::with([Answer::Late(60 * SECOND, String::new())]).await;
    let lease = Receipt::new("1 a-1").lease();
    let begin = Instant::now();
    let told = queue(&service).extend(&[lease], 2 * SECOND).await;
    assert!(matches!(told[..], [Err(LeaseError::Retry(_))]) && begin.elapsed() < 5 * SECOND, "{told:?}");
}

#[tokio::test]
async fn after_a_limit_of_the_host_nothing_is_claimed_for_a_while() {
    let none = || ok(r#"{"stale":[]}"#);
    let service = Scripted::with([none(), ok(claimed(&["a-2"], 60))]).await;
    let (queue, stop, begin) = (queue(&service), CancellationToken::new(), Instant::now());
    assert_eq!(errors(queue.settle(vec![Settlement::GiveBack(receipt("a-1"), SECOND / 2)]).await), [None]);
    assert_eq!(queue.receive(request(10 * SECOND), &stop).await.unwrap().len(), 1);
    assert!(begin.elapsed() >= SECOND / 2);
}

#[tokio::test]
async fn items_of_the_type_are_counted() {
    let metrics = "hostler_jobs_database_up{database=\"db:5432/jobs\"} 1\nhostler_jobs_items{type=\"resize\",state=\"ready\"} 4\n";
    let service = Scripted::with([ok("{}"), ok(r#"{"stale":[]}"#), ok(metrics), ok("")]).await;
    let options = crate::Options { url: service.client.address().to_owned(), token: None };
    let jobs = crate::JobService::connect(&options).await.unwrap();
    assert_eq!(jobs.depth("resize").await.map(|depth| depth.visible), Ok(4));
    assert!(matches!(jobs.depth("resize").await, Err(QueueError::Unavailable(_))));
    let _: Value = service.asked()[1].body.clone();
}

#[tokio::test]
async fn what_a_handler_asks_of_its_job_goes_with_the_result_and_again_if_the_answer_is_lost() {
    let service = Scripted::with([ok(claimed(&["a-1"], 60)), Answer::Hangs, settled(&[("a-1", "ok")])]).await;
    let (queue, stop) = (queue(&service), CancellationToken::new());
    let Delivery { receipt, job, .. } = queue.receive(request(SECOND), &stop).await.unwrap().remove(0);
    let job = job.unwrap();
    let info = job.info();
    assert_eq!([&*info.job_id, &info.root_id, &info.job_type, &info.item_id], ["j", "r", "resize", "item-a-1"]);
    let item = NewJobItem { payload: "{\"n\": 2}".into(), dedupe_key: Some("d".into()), ..NewJobItem::default() };
    job.add_items("child", vec![item]).unwrap();
    job.seal("child").unwrap();
    let mut unsettled = queue.settle(vec![Settlement::Ack(receipt)]).await;
    let Err(Unsettled { settlement, .. }) = unsettled.remove(0) else { panic!("not repeated") };
    assert_eq!(errors(queue.settle(vec![settlement]).await), [None]);
    let item = json!({"payload": {"n": 2}, "dedupe_key": "d", "priority": 0});
    let expected = json!({"results": [{"assignment_id": "a-1", "result": null,
        "add_items": [{"target": "child", "items": [item]}], "seal": ["child"]}], "failures": []});
    assert_eq!([&service.asked()[1].body, &service.asked()[2].body], [&expected, &expected]);
    assert!(job.seal("other").is_err(), "the item is settled");
}
