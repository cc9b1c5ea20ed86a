//! The engine on the fake queue, under a paused clock: what moves, what stays, and what an end in the middle leaves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hostler_ops::requeue::{Condition, Ended, LEASE, MoveRequest, Note, Report, run};
use hostler_queue::fake::{Ending, MAX_MESSAGE};
use hostler_queue::{Admin, Broker, ChannelSpec, LeaseError, ORIGINAL_ID_ATTRIBUTE, QueueError, SendError};
use hostler_types::Rate;
use hostler_types::message::{AttributeValue, Claim, Invalid, Message, Outgoing, Typed};
use tokio::time::{Instant, advance};
use tokio_util::sync::CancellationToken;

use super::service::{DAY, Service, body, channel};

fn text(text: &str) -> AttributeValue {
    AttributeValue::Text(text.into())
}

fn message(body: impl ToString) -> Outgoing {
    Outgoing { body: body.to_string().into_bytes(), ..Outgoing::default() }
}

/// `g1`: the body; its first letter is the group.
fn grouped(body: &str) -> Outgoing {
    Outgoing { group: Some(body[..1].into()), ..message(body) }
}

fn numbered(count: usize) -> impl Iterator<Item = Outgoing> {
    (0..count).map(|n| message(format!("{n:04}")))
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("{n:04}")).collect()
}

/// Everything, from `jobs-dlq` to `jobs`; all that a test sends in time is there from the begin.
fn order() -> MoveRequest {
    MoveRequest {
        from: channel("jobs-dlq"),
        to: Some(channel("jobs")),
        conditions: Vec::new(),
        max: None,
        rate: None,
        dry_run: false,
        began: SystemTime::now() + DAY,
    }
}

fn filtered(condition: &str) -> MoveRequest {
    MoveRequest { conditions: vec![condition.parse().unwrap()], ..order() }
}

fn moved(moved: u64) -> Report {
    Report { moved, ..Report::default() }
}

#[tokio::test(start_paused = true)]
async fn everything_that_a_message_carries_goes_with_it() {
    let typed = Typed { data_type: "Number.cents".into(), value: text("7") };
    let claim = Arc::new(Claim { bucket: "b".into(), key: "k".into(), size: Some(9) });
    let original = Outgoing {
        body: Vec::new(),
        attributes: [
            ("text".to_owned(), text("héllo")),
            ("bytes".to_owned(), AttributeValue::Binary(vec![0, 255])),
            ("price".to_owned(), AttributeValue::Typed(Box::new(typed))),
        ]
        .into(),
        routing_key: Some("MOBILE.new".into()),
        group: Some("g".into()),
        claim: Some(claim),
        ..Outgoing::default()
    };
    let service = Service::with(false, [original.clone(), message("plain")]).await;
    let ids: BTreeSet<String> = ["fake-1", "fake-2"].map(str::to_owned).into();
    assert_eq!(service.run(order()).await, (moved(2), Ended::Done));
    let arrived = service.take("jobs").await;
    let Message { body, attributes, group, routing_key, claim, .. } = Message::clone(&arrived[0].message);
    let mut expected = original.attributes;
    expected.insert(ORIGINAL_ID_ATTRIBUTE.into(), text("fake-1"));
    assert_eq!(attributes, expected);
    assert_eq!(
        (body.to_vec(), group, routing_key, claim),
        (vec![], original.group, original.routing_key, original.claim)
    );
    assert!(arrived.iter().all(|delivery| delivery.attempt == 1 && !ids.contains(&delivery.message.id)));
    assert!(service.bodies("jobs-dlq").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_sent_stays_and_the_others_move() {
    let service = Service::with(false, numbered(25)).await;
    let invalid = SendError::Invalid(Invalid::Unsupported("control characters".into()));
    service.script(|script| drop(script.answers.insert("0007".into(), [invalid].into())));
    let mut failed = Vec::new();
    let mut tell = |note: Note<'_>| {
        if let Note::Failed { id, reason } = note {
            failed.push((id.to_owned(), reason.to_owned()));
        }
    };
    let ended = run(&service, order(), &CancellationToken::new(), &mut tell).await.unwrap();
    assert_eq!(ended, (Report { failed: 1, ..moved(24) }, Ended::Done));
    assert_eq!(failed, [("fake-8".to_owned(), "control characters".to_owned())]);
    let stayed = service.take("jobs-dlq").await;
    assert_eq!(
        stayed.iter().map(|delivery| (&*delivery.message.body, delivery.attempt)).collect::<Vec<_>>(),
        [(&b"0007"[..], 2)]
    );
    assert_eq!(service.bodies("jobs").await.len(), 24);
}

#[tokio::test(start_paused = true)]
async fn what_may_pass_is_waited_out() {
    let service = Service::with(false, numbered(25)).await;
    let throttled = QueueError::Unavailable("throttled".into());
    let answers: VecDeque<_> = vec![SendError::Queue(throttled.clone()); 3].into();
    service.script(|script| drop(script.answers.insert("0003".into(), answers)));
    service.fake.fail_receives(3, &throttled);
    service.fake.fail_settles(3, &LeaseError::Retry("throttled".into()));
    assert_eq!(service.run(order()).await, (moved(25), Ended::Done));
    let mut arrived = service.bodies("jobs").await;
    arrived.sort();
    assert_eq!(arrived, numbers(0..25));
}

#[tokio::test(start_paused = true)]
async fn a_dead_queue_ends_the_run_and_all_is_back() {
    for error in [QueueError::Unavailable("down".into()), QueueError::Refused("denied".into())] {
        let service = Service::with(false, numbered(25)).await;
        service.script(|script| script.dead = Some(error.clone()));
        let (report, ended) = service.run(order()).await;
        assert_eq!(ended, Ended::Broken(error.clone()));
        assert_eq!((report.moved, report.failed, report.not_looked_at), (0, 10, 15));
        assert_eq!(service.visible("jobs-dlq").await, 25);

        let service = Service::with(false, numbered(25)).await;
        service.fake.fail_receives(9, &error);
        assert_eq!(service.run(order()).await.1, Ended::Broken(error));
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_match_stays_and_is_received_once_however_long_it_takes() {
    let kind = |n: usize| [("kind".to_owned(), text(if n.is_multiple_of(3) { "a" } else { "b" }))].into();
    let messages = (0..900).map(|n| Outgoing { attributes: kind(n), ..message(n) });
    let service = Service::with(false, messages).await;
    let rate = Some(Rate { permits: 1, per: Duration::from_secs(1) });
    let started = Instant::now();
    let ended = service.run(MoveRequest { rate, ..filtered("attr:kind=a") }).await;
    assert_eq!(ended, (Report { left: 600, ..moved(300) }, Ended::Done));
    assert!(started.elapsed() > LEASE * 4, "{:?}: many leases long", started.elapsed());
    let extended = service.fake.extended().len();
    assert!((600..3_000).contains(&extended), "{extended} extensions: each a few times");
    let left = service.take("jobs-dlq").await;
    assert_eq!(left.len(), 600, "all are visible at once");
    assert!(left.iter().all(|delivery| delivery.attempt == 2), "received once, and now");
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_maximum_moves_and_no_more_is_touched() {
    let service = Service::with(false, numbered(50)).await;
    let ended = service.run(MoveRequest { max: Some(25), ..order() }).await;
    assert_eq!(ended, (Report { not_looked_at: 25, ..moved(25) }, Ended::Done));
    let left = service.take("jobs-dlq").await;
    assert!(left.len() == 25 && left.iter().all(|delivery| delivery.attempt == 1));

    let service = Service::with(false, numbered(50)).await;
    let ended = service.run(MoveRequest { max: Some(2), ..filtered("body~004") }).await;
    assert_eq!(ended, (Report { left: 39, not_looked_at: 9, ..moved(2) }, Ended::Done));
    assert_eq!(
        (service.bodies("jobs").await, service.visible("jobs-dlq").await),
        (vec!["0004".into(), "0040".into()], 48)
    );
    assert!(service.fake.calls().receive < 10, "in whole batches");
}

#[tokio::test(start_paused = true)]
async fn the_rate_holds() {
    let service = Service::with(false, numbered(60)).await;
    let started = Instant::now();
    let mut tell = |note: Note<'_>| {
        if let Note::Progress(report) = note {
            let (moved, after) = (report.moved as f64, started.elapsed().as_secs_f64());
            assert!(moved < 1.001 + 10.0 * after, "{moved} after {after} s: one at once, and ten a second");
        }
    };
    let rate = Some(Rate { permits: 10, per: Duration::from_secs(1) });
    let order = MoveRequest { rate, ..order() };
    assert_eq!(run(&service, order, &CancellationToken::new(), &mut tell).await.unwrap().0.moved, 60);
    let took = started.elapsed().as_secs_f64();
    assert!((5.8..9.0).contains(&took), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_tells_what_would_move_and_moves_nothing() {
    let service = Service::with(false, numbered(25)).await;
    let mut told = BTreeSet::new();
    let mut tell = |note: Note<'_>| {
        if let Note::WouldMove(message) = note {
            told.insert(body(&message.body));
        }
    };
    let dry = MoveRequest { dry_run: true, ..filtered("body~001") };
    let ended = run(&service, dry, &CancellationToken::new(), &mut tell).await.unwrap();
    assert_eq!(ended, (Report { left: 14, ..moved(11) }, Ended::Done));
    assert_eq!(told.into_iter().collect::<Vec<_>>(), [numbers(1..2), numbers(10..20)].concat());
    assert!(service.fake.settled().iter().all(|settled| settled.what == Ending::Release(Duration::ZERO)));
    assert_eq!((service.visible("jobs-dlq").await, service.visible("jobs").await), (25, 0));
}

#[tokio::test(start_paused = true)]
async fn without_a_target_what_fits_is_removed_and_nothing_is_sent() {
    let service = Service::with(false, numbered(25)).await;
    let dropping = MoveRequest { to: None, ..filtered("body~001") };
    let dry = MoveRequest { dry_run: true, ..dropping.clone() };
    assert_eq!(service.run(dry).await, (Report { left: 14, ..moved(11) }, Ended::Done));
    assert_eq!(service.visible("jobs-dlq").await, 25);
    assert_eq!(service.run(MoveRequest { max: Some(4), ..dropping.clone() }).await.0.moved, 4);
    assert_eq!(service.run(dropping).await, (Report { left: 14, ..moved(7) }, Ended::Done));
    let left: BTreeSet<_> = service.bodies("jobs-dlq").await.into_iter().collect();
    assert_eq!(left, [numbers(0..1), numbers(2..10), numbers(20..25)].concat().into_iter().collect());
    assert_eq!(service.visible("jobs").await, 0);
}

#[tokio::test(start_paused = true)]
async fn ids_pick_any_of_them_and_also_what_was_moved_before() {
    let service = Service::with(false, numbered(5)).await;
    let ids = ["fake-2", "fake-4", "no such"].map(str::to_owned);
    let order = MoveRequest { conditions: vec![Condition::Id(ids.into())], ..order() };
    assert_eq!(service.run(order).await, (Report { left: 3, ..moved(2) }, Ended::Done));
    assert_eq!(service.bodies("jobs-dlq").await, ["0000", "0002", "0004"]);
}

/// The process ends between a send and its ack; the queue has the message twice, and the next run makes one of it.
#[tokio::test(start_paused = true)]
async fn an_end_between_send_and_ack_loses_nothing_and_doubles_nothing() {
    let service = Service::with(false, numbered(35)).await;
    service.fake.hold_settles(true);
    let running = tokio::spawn({
        let service = service.clone();
        async move { service.run(order()).await }
    });
    while service.fake.calls().settle == 0 {
        tokio::task::yield_now().await;
    }
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    service.fake.hold_settles(false);
    assert_eq!((service.visible("jobs").await, service.visible("jobs-dlq").await), (10, 25));

    let (report, ended) = service.run(order()).await;
    assert_eq!((report, ended), (Report { not_looked_at: 10, ..moved(25) }, Ended::Done), "ten are leased to the dead");
    advance(LEASE).await;
    assert_eq!(service.run(order()).await, (moved(10), Ended::Done));
    let mut arrived = service.bodies("jobs").await;
    arrived.sort();
    assert_eq!(arrived, numbers(0..35));
    assert_eq!(service.fake.depths(&[channel("jobs-dlq")]).await.unwrap()[0].in_flight, Some(0));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_removed_is_said_to_be_in_both() {
    let service = Service::with(false, numbered(25)).await;
    service.fake.fail_message("fake-3", 99, &LeaseError::Retry("denied".into()));
    assert_eq!(service.run(order()).await, (Report { doubled: 1, ..moved(25) }, Ended::Done));
    advance(LEASE).await;
    assert_eq!((service.visible("jobs").await, service.bodies("jobs-dlq").await), (25, vec!["0002".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn what_was_not_removed_and_comes_again_is_removed_then_and_not_sent_again() {
    let service = Service::with(false, numbered(100)).await;
    service.script(|script| script.keyless = true);
    service.fake.fail_message("fake-1", 1, &LeaseError::Lost("stale".into()));
    let rate = Some(Rate { permits: 1, per: Duration::from_secs(1) });
    assert_eq!(service.run(MoveRequest { rate, ..order() }).await, (moved(100), Ended::Done));
    assert_eq!((service.visible("jobs").await, service.bodies("jobs-dlq").await.len()), (100, 0));
}

#[tokio::test(start_paused = true)]
async fn groups_keep_their_order_and_nothing_passes_what_fails() {
    let bodies: Vec<String> = (1..=30).map(|n| format!("{}{n:02}", ["a", "b", "c"][n % 3])).collect();
    let service = Service::with(true, bodies.iter().map(|body| grouped(body))).await;
    let invalid = SendError::Invalid(Invalid::Unsupported("no".into()));
    service.script(|script| drop(script.answers.insert("b10".into(), [invalid].into())));
    let (report, ended) = service.run(order()).await;
    assert_eq!((report, ended), (Report { failed: 1, not_looked_at: 6, ..moved(23) }, Ended::Done));
    let sent = service.calls().concat();
    for group in ["a", "b", "c"] {
        let of = |bodies: &[String]| -> Vec<String> {
            bodies.iter().filter(|body| body.starts_with(group)).cloned().collect()
        };
        let expected: Vec<_> = of(&bodies).into_iter().filter(|body| group != "b" || body.as_str() <= "b10").collect();
        assert_eq!(of(&sent), expected);
    }
    assert_eq!(service.bodies("jobs-dlq").await, ["b10"], "the head of what stays");
}

#[tokio::test(start_paused = true)]
async fn of_an_ordered_queue_nothing_passes_what_does_not_match() {
    let service = Service::with(true, ["a1x", "a2", "a3x", "b1x", "b2x"].map(grouped)).await;
    let (report, ended) = service.run(filtered("body~x")).await;
    assert_eq!((report, ended), (Report { left: 1, not_looked_at: 1, ..moved(3) }, Ended::Done));
    let groups: BTreeMap<_, Vec<_>> = service.calls().concat().into_iter().fold(BTreeMap::new(), |mut groups, body| {
        groups.entry(body[..1].to_owned()).or_insert_with(Vec::new).push(body);
        groups
    });
    assert_eq!(groups, [("a".into(), vec!["a1x".into()]), ("b".into(), vec!["b1x".into(), "b2x".into()])].into());
    assert_eq!(service.bodies("jobs-dlq").await, ["a2"]);
}

#[tokio::test(start_paused = true)]
async fn several_of_a_group_at_once_are_sent_one_after_the_other() {
    let service = Service::with(false, ["a1", "a2", "a3", "b1", "b2", "c1"].map(grouped)).await;
    let throttled = SendError::Queue(QueueError::Unavailable("throttled".into()));
    let invalid = SendError::Invalid(Invalid::Unsupported("no".into()));
    service.script(|script| {
        script.says_ordered = true;
        script.answers = [("a1".into(), [throttled].into()), ("b1".into(), [invalid].into())].into();
    });
    let (report, ended) = service.run(order()).await;
    assert_eq!((report, ended), (Report { failed: 1, not_looked_at: 1, ..moved(4) }, Ended::Done));
    let calls: Vec<String> = service.calls().iter().map(|call| call.join(" ")).collect();
    assert_eq!(calls, ["a1 b1 c1", "a1", "a2", "a3"], "nothing of b, whose first failed");
    assert_eq!(service.bodies("jobs-dlq").await, ["b1", "b2"]);
}

#[tokio::test(start_paused = true)]
async fn messages_that_fail_again_at_once_do_not_go_round_for_ever() {
    let service = Service::with(false, numbered(500)).await;
    let began = SystemTime::now();
    advance(DAY).await;
    service.script(|script| script.back_to = Some(channel("jobs-dlq")));
    assert_eq!(service.run(MoveRequest { began, ..order() }).await, (moved(500), Ended::Done));
    assert_eq!((service.visible("jobs").await, service.visible("jobs-dlq").await), (500, 500));
}

/// Stamps of an embedded queue may be a tenth of a second behind our clock: what comes back then looks older than the run.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_behind_moves_nothing_twice() {
    let service = Service::with(false, numbered(50)).await;
    service.fake.send(&channel("jobs"), vec![message("mark")]).await.remove(0).unwrap();
    let stamp = service.take("jobs").await.remove(0).message.enqueued_at;
    service.script(|script| script.back_to = Some(channel("jobs-dlq")));
    let order = MoveRequest { began: stamp + Duration::from_millis(100), max: Some(150), ..order() };
    assert_eq!(service.run(order).await, (moved(50), Ended::Done));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_fills_all_the_time_is_left_in_the_end() {
    let service = Service::with(false, numbered(50)).await;
    let began = SystemTime::now();
    advance(DAY).await;
    service.script(|script| script.flooded = true);
    assert_eq!(service.run(MoveRequest { began, ..order() }).await, (moved(50), Ended::Done));
    assert!(service.fake.calls().receive < 30);
}

#[tokio::test(start_paused = true)]
async fn told_to_stop_it_finishes_its_batch_and_gives_back_the_rest() {
    let service = Service::with(false, numbered(500)).await;
    let stop = CancellationToken::new();
    let mut tell = |note: Note<'_>| match note {
        Note::Progress(report) if report.left >= 90 => stop.cancel(),
        _ => {}
    };
    let (report, ended) = run(&service, filtered("body~5"), &stop, &mut tell).await.unwrap();
    assert_eq!(ended, Ended::Stopped);
    assert_eq!(report, Report { left: 90, not_looked_at: 390, ..moved(20) });
    assert_eq!((service.visible("jobs").await, service.visible("jobs-dlq").await), (20, 480));
}

#[tokio::test(start_paused = true)]
async fn a_target_without_dedupe_keys_is_asked_once() {
    let service = Service::with(false, numbered(25)).await;
    service.script(|script| script.keyless = true);
    assert_eq!(service.run(order()).await, (moved(25), Ended::Done));
    let calls: Vec<_> = service.calls().iter().map(Vec::len).collect();
    assert_eq!(calls, [10, 10, 10, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_message_as_large_as_can_be_goes_without_its_id() {
    let service = Service::with(false, [message("x".repeat(MAX_MESSAGE)), message("small")]).await;
    assert_eq!(service.run(order()).await, (moved(2), Ended::Done));
    let arrived = service.take("jobs").await;
    let mut ids: Vec<_> =
        arrived.iter().map(|delivery| delivery.message.attributes.get(ORIGINAL_ID_ATTRIBUTE)).collect();
    ids.sort_by_key(|id| id.is_some());
    assert_eq!(ids, [None, Some(&text("fake-2"))]);
}

#[tokio::test(start_paused = true)]
async fn of_a_fan_out_channel_that_queue_alone_gets_them() {
    let service = Service::with(false, numbered(3)).await;
    for queue in ["news.mobile", "news.all"] {
        service.open(&ChannelSpec::new(channel(queue))).await.unwrap();
    }
    assert_eq!(service.run(MoveRequest { to: Some(channel("news.mobile")), ..order() }).await, (moved(3), Ended::Done));
    assert_eq!((service.visible("mobile").await, service.visible("all").await), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_not_there_is_refused_before_anything_is_touched() {
    let service = Service::with(false, numbered(3)).await;
    for wrong in
        [MoveRequest { to: Some(channel("jbos")), ..order() }, MoveRequest { from: channel("jbos"), ..order() }]
    {
        let refused = run(&service, wrong, &CancellationToken::new(), &mut |_| {}).await.unwrap_err();
        assert!(matches!(&refused, QueueError::Refused(text) if text.contains("`jbos`")), "{refused}");
    }
    assert_eq!((service.fake.calls().receive, service.visible("jobs-dlq").await), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn bodies_that_lie_elsewhere_are_looked_into_and_stay_there() {
    let claimed = |key: &str| {
        let claim = Claim { bucket: "b".into(), key: key.into(), size: None };
        Outgoing { claim: Some(Arc::new(claim)), ..Outgoing::default() }
    };
    let messages = || (0..30).map(|n| claimed(if n % 10 == 9 { "gone" } else { ["yes", "no"][n % 2] }));
    let service = Service::with(false, messages()).await;
    service.script(|script| script.load = LEASE * 3 / 10);
    let (report, ended) = service.run(filtered("body~yes")).await;
    assert_eq!((report, ended), (Report { left: 12, failed: 3, ..moved(15) }, Ended::Done));
    let arrived = service.take("jobs").await;
    assert!(arrived.iter().all(|delivery| delivery.message.claim.as_ref().unwrap().key == "yes"));
    assert!(arrived.iter().all(|delivery| delivery.message.body.is_empty()));
    let extended: BTreeSet<_> = service.fake.extended().into_iter().map(|extended| extended.id).collect();
    let settled = service.fake.settled().into_iter();
    let acked: BTreeSet<_> = settled.filter(|one| one.what == Ending::Ack).map(|one| one.id).collect();
    assert!(acked.is_subset(&extended), "what moved had waited for its body, and was to be sent yet");
    let left = service.take("jobs-dlq").await;
    assert!(left.len() == 15 && left.iter().all(|delivery| delivery.attempt == 2), "no lease was lost");

    let service = Service::with(false, messages()).await;
    service.script(|script| script.load = LEASE / 2);
    assert_eq!(service.run(filtered("body~yes")).await, (Report { failed: 30, ..Report::default() }, Ended::Done));
}
