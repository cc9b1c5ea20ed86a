//! A file that is taken away, rows that cannot be read, and messages that the queue itself dead-letters.

use hostler_queue::{ATTEMPTS_ATTRIBUTE, Admin, REASON_ATTRIBUTE};

use super::*;
use crate::support::hostler::World;

fn dead_letters() -> Channel {
    "jobs-dlq".parse().unwrap()
}

/// A queue whose messages go to the dead-letter queue after one receive; and that queue.
async fn open_both(path: &Path) -> (EmbeddedBroker, Arc<dyn Queue>, Arc<dyn Queue>) {
    let broker = EmbeddedBroker::open(path).unwrap();
    let spec = ChannelSpec { max_receives: Some(1), ..ChannelSpec::new(jobs()) };
    let queue = broker.open(&spec).await.unwrap();
    let dead = broker.open(&ChannelSpec::new(dead_letters())).await.unwrap();
    (broker, queue, dead)
}

async fn receive_for(queue: &Arc<dyn Queue>, wait: Duration, lease: Duration) -> Vec<Delivery> {
    queue.receive(Receive { max: 10, wait, lease }, &CancellationToken::new()).await.unwrap()
}

fn text<'a>(delivery: &'a Delivery, name: &str) -> &'a str {
    let hostler_types::message::AttributeValue::Text(text) = &delivery.message.attributes[name] else {
        panic!("no text")
    };
    text
}

/// Both receives wait in this process, so nothing but the burial can wake the second one.
#[tokio::test]
async fn a_burial_wakes_who_waits_for_dead_letters() {
    let folder = tempfile::tempdir().unwrap();
    let (broker, queue, dead) = open_both(&folder.path().join("queue.db")).await;
    send(&broker, 1).await;
    assert_eq!(receive_for(&queue, Duration::ZERO, Duration::from_millis(200)).await.len(), 1);
    // Its lease ends without a settlement, so the next receive buries it.
    let started = Instant::now();
    let (none, buried) = tokio::join!(
        receive_for(&queue, Duration::from_secs(1), LEASE),
        receive_for(&dead, Duration::from_secs(20), LEASE)
    );
    assert!(none.is_empty());
    assert_eq!(buried.len(), 1);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

/// A file that lacks a part of itself is refused when it is opened, not message by message.
#[tokio::test]
async fn a_file_without_a_table_or_with_an_impossible_clock_is_refused() {
    for (damage, told) in [
        ("DROP TABLE entry", "its table `entry` is missing"),
        ("DROP TABLE dedupe", "its table `dedupe` is missing"),
        ("UPDATE clock SET ahead = 9223372036854775807", "which no clock has written"),
        ("UPDATE clock SET ahead = -9223372036854775808", "which no clock has written"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.db");
        let broker = EmbeddedBroker::open(&path).unwrap();
        broker.open(&ChannelSpec::new(jobs())).await.unwrap();
        drop(broker);
        Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        for opened in [EmbeddedBroker::open(&path), EmbeddedBroker::open_to_look(&path)] {
            let Err(QueueError::Refused(text)) = opened else { panic!("{damage}: not refused") };
            assert!(text.contains("is damaged") && text.contains(told), "{damage}: {text}");
        }
    }
}

#[tokio::test]
async fn an_unreadable_row_is_set_aside_and_the_others_go_on() {
    for max_receives in [Some(9), None] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.db");
        let broker = EmbeddedBroker::open(&path).unwrap();
        let queue = broker.open(&ChannelSpec { max_receives, ..ChannelSpec::new(jobs()) }).await.unwrap();
        let ids = send(&broker, 5).await;
        let meddler = Connection::open(&path).unwrap();
        let change = |sql: &str, id: &str| assert_eq!(meddler.execute(sql, [id]).unwrap(), 1);
        change("UPDATE content SET attributes = '{torn' WHERE id = ?1", &ids[0]);
        change("UPDATE content SET routing_key = CAST(x'ff61' AS TEXT) WHERE id = ?1", &ids[1]);
        change("DELETE FROM content WHERE id = ?1", &ids[2]);

        let received = receive(&queue, Duration::from_secs(20)).await;
        assert_eq!(received.iter().map(|delivery| &delivery.message.id).collect::<Vec<_>>(), [&ids[3], &ids[4]]);
        ack(&queue, received).await;
        assert_eq!(broker.depths(&[jobs()]).await.unwrap()[0].dead_lettered, 3, "{max_receives:?}");

        let dead = broker.open(&ChannelSpec::new(dead_letters())).await.unwrap();
        let buried = receive(&dead, Duration::ZERO).await;
        let [torn, key, missing] = &buried[..] else { panic!("{buried:?}") };
        assert_eq!(torn.message.id, ids[0]);
        for (dead, fault) in [
            (
                torn,
                "its column `attributes` is not a JSON object of texts and {\"base64\": …} (line 1, column 2 of the text)",
            ),
            (key, "its column `routing_key` holds bytes instead of UTF-8 text"),
        ] {
            assert_eq!(text(dead, REASON_ATTRIBUTE), format!("it cannot be read from the queue's file: {fault}"));
        }
        assert_eq!(text(torn, "hostler-unreadable-attributes"), "{torn");
        assert_eq!(&*torn.message.body, b"a", "the body is kept");
        assert_eq!(key.message.routing_key.as_deref(), Some("\u{fffd}a"));
        assert!(text(missing, REASON_ATTRIBUTE).contains("missing") && missing.message.body.is_empty(), "{missing:?}");
    }
}

#[tokio::test]
async fn an_unreadable_row_in_front_of_its_group_lets_the_group_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let broker = EmbeddedBroker::open(&path).unwrap();
    let spec = ChannelSpec { max_receives: Some(9), ordered: true, ..ChannelSpec::new(jobs()) };
    let queue = broker.open(&spec).await.unwrap();
    let ids = send(&broker, 2).await;
    let meddler = Connection::open(&path).unwrap();
    meddler.execute("UPDATE content SET attributes = '{torn' WHERE id = ?1", [&ids[0]]).unwrap();
    let received = receive(&queue, Duration::from_secs(20)).await;
    assert_eq!(received.iter().map(|delivery| &delivery.message.id).collect::<Vec<_>>(), [&ids[1]]);
}

#[tokio::test]
async fn an_unreadable_row_is_buried_when_it_was_received_too_often() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, queue, dead) = open_both(&path).await;
    let ids = send(&broker, 2).await;
    let meddler = Connection::open(&path).unwrap();
    meddler.execute("UPDATE content SET attributes = '[]' WHERE id = ?1", [&ids[0]]).unwrap();
    meddler.execute("UPDATE entry SET attempts = 7", []).unwrap();
    assert!(receive(&queue, Duration::ZERO).await.is_empty());
    let buried = receive(&dead, Duration::ZERO).await;
    assert_eq!(buried.len(), 2);
    assert_eq!(text(&buried[1], ATTEMPTS_ATTRIBUTE), "7");
}

/// A number that no hostler has written says nothing about how often the message was received.
#[tokio::test]
async fn an_impossible_number_of_attempts_is_named_and_not_shown_as_one() {
    for max_receives in [Some(9), None] {
        for stored in [-1, i64::MIN, 1 << 32, i64::MAX] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("queue.db");
            let broker = EmbeddedBroker::open(&path).unwrap();
            let queue = broker.open(&ChannelSpec { max_receives, ..ChannelSpec::new(jobs()) }).await.unwrap();
            let ids = send(&broker, 2).await;
            let meddler = Connection::open(&path).unwrap();
            let damage = "UPDATE entry SET attempts = ?1 WHERE seq = (SELECT seq FROM content WHERE id = ?2)";
            assert_eq!(meddler.execute(damage, rusqlite::params![stored, ids[0]]).unwrap(), 1);
            let received = receive(&queue, Duration::ZERO).await;
            assert_eq!(received.iter().map(|delivery| &delivery.message.id).collect::<Vec<_>>(), [&ids[1]]);

            let dead = broker.open(&ChannelSpec::new(dead_letters())).await.unwrap();
            let buried = receive(&dead, Duration::ZERO).await.remove(0);
            let reason = text(&buried, REASON_ATTRIBUTE);
            let told = format!("its column `attempts` is {stored} instead of a number from 0 to 4294967295");
            assert!(reason.ends_with(&told), "{reason}");
            assert_eq!((buried.attempt, buried.message.attributes.get(ATTEMPTS_ATTRIBUTE)), (1, None));
            assert_eq!(&*buried.message.body, b"a", "the body is kept");
        }
    }
}

#[tokio::test]
async fn a_look_shows_what_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, _queue) = open(&path).await;
    let ids = send(&broker, 2).await;
    let meddler = Connection::open(&path).unwrap();
    meddler.execute("UPDATE content SET attributes = '{torn' WHERE id = ?1", [&ids[0]]).unwrap();
    let mut seen = Vec::new();
    let mut each = |message: &hostler_types::message::Message| {
        seen.push((message.id.clone(), message.attributes.contains_key(REASON_ATTRIBUTE)));
        std::ops::ControlFlow::Continue(())
    };
    assert!(broker.peek(&jobs(), &mut each).await.unwrap());
    assert_eq!(seen, [(ids[0].clone(), true), (ids[1].clone(), false)]);
}

/// Moves a file with its companions.
fn shift(from: &Path, to: &Path) {
    for companion in ["", "-wal", "-shm"] {
        let of = |path: &Path| format!("{}{companion}", path.display());
        fs::rename(of(from), of(to)).unwrap();
    }
}

#[tokio::test]
async fn a_file_that_was_taken_away_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, queue) = open(&path).await;
    send(&broker, 1).await;
    let leased = receive(&queue, Duration::ZERO).await;
    let told = |text: &str| text.contains("was removed or replaced") && text.contains(path.to_str().unwrap());

    let away = folder.path().join("away.db");
    let taken = async { shift(&path, &away) };
    let request = Receive { max: 1, wait: Duration::from_secs(20), lease: LEASE };
    let stop = CancellationToken::new();
    let (waiting, ()) = tokio::join!(queue.receive(request, &stop), taken);
    let error = waiting.unwrap_err();
    assert!(matches!(&error, QueueError::Refused(text) if told(text)), "{error}");

    drop(EmbeddedBroker::open(&path).unwrap());
    let error = broker.send(&jobs(), vec![message("lost")]).await.remove(0).unwrap_err();
    assert!(matches!(&error, SendError::Queue(QueueError::Refused(text)) if told(text)), "{error}");
    assert!(broker.depths(&[jobs()]).await.is_err());
    // What was taken from the old file is settled there.
    ack(&queue, leased).await;

    // The other one is closed by its thread, which removes its companions.
    until(async || !folder.path().join("queue.db-wal").exists()).await;
    shift(&away, &path);
    send(&broker, 1).await;
    assert_eq!(receive(&queue, Duration::ZERO).await.len(), 1, "it is back");
}

/// Its content is in the memory of the host that has it open, and nowhere else.
#[tokio::test]
async fn a_file_that_was_emptied_is_told_with_the_cure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, queue) = open(&path).await;
    let told = |error: &QueueError| {
        let text = error.to_string();
        assert!(
            matches!(error, QueueError::Refused(_)) && text.contains("was emptied") && text.contains("-wal"),
            "{text}"
        );
    };
    let request = Receive { max: 1, wait: Duration::from_secs(20), lease: LEASE };
    let stop = CancellationToken::new();
    let emptied = async { fs::File::create(&path).map(drop).unwrap() };
    let (waiting, ()) = tokio::join!(queue.receive(request, &stop), emptied);
    told(&waiting.unwrap_err());
    let error = broker.send(&jobs(), vec![message("lost")]).await.remove(0).unwrap_err();
    let SendError::Queue(error) = error else { panic!("{error}") };
    told(&error);
}

#[test]
fn commands_beside_a_host_whose_file_was_emptied_say_so() {
    let world = World::new(
        "[consumers.jobs]\nchannel = 'jobs'\nhandler = 'guests/main-echoes.wat'
         processing_timeout = '1s'\nhealthcheck_timeout = '2s'",
    );
    let host = world.started();
    // A host whose first receives are refused ends.
    world.send("jobs", ["x"]);
    host.settled(1);
    fs::File::create(world.path("queue.db")).unwrap();
    for args in [&["queues"][..], &["send", "jobs", "--body", "x"]] {
        let said = world.output(args);
        assert!(
            said.code == 69 && said.stderr.contains("was emptied while a hostler had it open"),
            "{args:?}: {said:?}"
        );
    }
    let unhealthy = || (world.output(&["check-consumer-health"]).code == 1).then_some(());
    crate::support::hostler::until("an unhealthy verdict", PATIENCE, unhealthy);
}

#[tokio::test]
async fn an_empty_file_is_a_new_queue() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    fs::write(&path, "").unwrap();
    assert!(EmbeddedBroker::open_to_look(&path).is_ok());
    fs::write(&path, "").unwrap();
    let (broker, queue) = open(&path).await;
    send(&broker, 1).await;
    assert_eq!(receive(&queue, Duration::ZERO).await.len(), 1);
}

#[test]
fn a_host_whose_file_was_replaced_becomes_unhealthy() {
    let world = World::new(
        "[consumers.jobs]\nchannel = 'jobs'\nhandler = 'guests/main-echoes.wat'
         processing_timeout = '1s'\nhealthcheck_timeout = '2s'",
    );
    let host = world.started();
    shift(&world.path("queue.db"), &world.path("away.db"));
    world.send("jobs", ["x"]);
    host.wait_for(PATIENCE, |line| line.to_string().contains("restart hostler to use what is at this path now"));
    let unhealthy = || (world.output(&["check-consumer-health"]).code == 1).then_some(());
    crate::support::hostler::until("an unhealthy verdict", PATIENCE, unhealthy);
}

#[test]
fn a_host_whose_queue_is_renamed_becomes_unhealthy_until_it_has_its_name_back() {
    let world = World::new(
        "[consumers.jobs]\nchannel = 'jobs'\nhandler = 'guests/main-echoes.wat'
         processing_timeout = '1s'\nhealthcheck_timeout = '2s'",
    );
    let mut host = world.started();
    // A host whose first receives are refused ends.
    world.send("jobs", ["x"]);
    host.settled(1);
    let meddler = Connection::open(world.path("queue.db")).unwrap();
    let rename = |from: &str, to: &str| {
        assert_eq!(meddler.execute("UPDATE queue SET name = ?2 WHERE name = ?1", [from, to]).unwrap(), 1);
    };
    let verdict = |code| (world.output(&["check-consumer-health"]).code == code).then_some(());
    rename("jobs", "old");
    let line = host.wait_for(PATIENCE, |line| line["message"] == "receive failed");
    let error = line["error"].as_str().unwrap();
    assert!(error.contains("the row with id 1, to which its messages belong, is named `old`"), "{error}");
    assert!(error.contains("put it back (id 1, name `jobs`)"), "{error}");
    crate::support::hostler::until("an unhealthy verdict", PATIENCE, || verdict(1));
    rename("old", "jobs");
    world.send("jobs", ["y"]);
    host.settled(2);
    crate::support::hostler::until("a healthy verdict", PATIENCE, || verdict(0));
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_host_whose_index_is_dropped_goes_on_and_says_so() {
    let world = World::new("[consumers.jobs]\nchannel = 'jobs'\nhandler = 'guests/main-echoes.wat'");
    let mut host = world.started();
    Connection::open(world.path("queue.db")).unwrap().execute_batch("DROP INDEX entry_visible").unwrap();
    // Comes before any command, which would create the index too.
    let line = host.wait_for(PATIENCE, |line| line["indexes"] == "entry_visible");
    assert_eq!(line["message"], "the queue's file lacked indexes; they were created anew");
    world.send("jobs", ["x"]);
    host.settled(1);
    assert!(host.lines().iter().all(|line| line["message"] != "receive failed"));
    assert_eq!(host.stop(), 0);
}
