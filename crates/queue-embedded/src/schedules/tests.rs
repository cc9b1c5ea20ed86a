//! Tests of the store of schedules, each on a file of its own.

use std::path::{Path, PathBuf};

use hostler_queue::{Admin, Agreement, Broker, QueueError, Schedules, SendError};
use hostler_types::channel::Channel;
use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::{EmbeddedBroker, MAX_MESSAGE};

const NAME: &str = "nightly";

/// Creates a folder, and the path of a file in it.
fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    (folder, path)
}

fn open(path: &Path) -> EmbeddedBroker {
    EmbeddedBroker::open(path).unwrap()
}

fn channel() -> Channel {
    "jobs".parse().unwrap()
}

fn state(definition: &str, handled: u64) -> ScheduleState {
    let handled = Timestamp::from_micros(handled);
    ScheduleState { definition: definition.to_owned(), handled, sent: None, seen: handled }
}

/// Returns a step with messages of these bodies.
fn step(from: Option<ScheduleState>, to: ScheduleState, bodies: &[&[u8]]) -> Advance {
    let message = |body: &&[u8]| (to.handled, Outgoing { body: body.to_vec(), ..Outgoing::default() });
    let messages = bodies.iter().map(message).collect();
    Advance { name: NAME.to_owned(), from, to, channel: channel(), messages }
}

async fn stored(broker: &EmbeddedBroker) -> Option<ScheduleState> {
    broker.schedules().unwrap().look(&[NAME.to_owned()]).await.unwrap().remove(0)
}

async fn waiting(broker: &EmbeddedBroker) -> u64 {
    broker.depths(&[channel()]).await.unwrap()[0].visible
}

fn tables(path: &Path) -> Vec<String> {
    let db = Connection::open(path).unwrap();
    let mut query = db.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").unwrap();
    query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[tokio::test]
async fn a_step_is_stored_with_its_messages_and_survives_a_reopen() {
    let (_folder, path) = place();
    let broker = open(&path);
    assert_eq!(broker.agreement(), Agreement::Transaction);
    broker.prepare().await.unwrap();
    broker.prepare().await.unwrap();
    let first = ScheduleState { seen: Timestamp::from_micros(u64::MAX), ..state("a", 1) };
    assert_eq!(broker.advance(step(None, first.clone(), &[])).await, Ok(Advanced::Done(Vec::new())));
    assert!(broker.depths(&[channel()]).await.unwrap()[0].missing, "without messages, no queue is made");
    assert_eq!(stored(&broker).await, Some(first.clone()));
    let next = ScheduleState { sent: Some(Timestamp::from_micros(2)), ..state("b", u64::MAX) };
    let done = broker.advance(step(Some(state("a", 1)), next.clone(), &[b"1", b"2"])).await;
    let Ok(Advanced::Done(sent)) = done else { panic!("{done:?}") };
    assert_eq!(sent.iter().map(|sent| sent.queues).collect::<Vec<_>>(), [Some(1), Some(1)]);
    broker.close().await;

    let broker = open(&path);
    let names = ["other".to_owned(), NAME.to_owned()];
    assert_eq!(broker.look(&names).await, Ok(vec![None, Some(next)]));
    let mut messages = Vec::new();
    let mut note = |message: &hostler_types::message::Message| {
        messages.push((message.id.clone(), message.body.to_vec()));
        std::ops::ControlFlow::Continue(())
    };
    broker.peek(&channel(), &mut note).await.unwrap();
    let expected = [(sent[0].id.clone(), b"1".to_vec()), (sent[1].id.clone(), b"2".to_vec())];
    assert_eq!(messages, expected);
}

#[tokio::test]
async fn of_two_hosts_that_race_one_sends() {
    let (_folder, path) = place();
    let hosts = [open(&path), open(&path)];
    let mut from = None;
    for round in 0..50 {
        let to = state("a", round);
        let take = |host: usize| hosts[host].advance(step(from.clone(), to.clone(), &[b"1"]));
        let (one, other) = tokio::join!(take(0), take(1));
        let mut taken = [one.unwrap(), other.unwrap()];
        taken.sort_by_key(|taken| *taken == Advanced::Changed);
        assert!(matches!(&taken, [Advanced::Done(sent), Advanced::Changed] if sent.len() == 1), "{taken:?}");
        assert_eq!(waiting(&hosts[0]).await, round + 1);
        from = Some(to);
    }
}

#[tokio::test]
async fn a_step_from_another_state_or_with_an_invalid_message_changes_nothing() {
    let (_folder, path) = place();
    let broker = open(&path);
    let first = state("a", 1);
    for found in [None, Some(first.clone())] {
        for from in [None, Some(first.clone()), Some(state("b", 1)), Some(state("a", 0))] {
            if from != found {
                assert_eq!(broker.advance(step(from, state("a", 2), &[b"1"])).await, Ok(Advanced::Changed));
            }
        }
        let large = vec![0; MAX_MESSAGE + 1];
        let refused = broker.advance(step(found.clone(), state("a", 2), &[b"1", &large])).await;
        assert!(matches!(refused, Err(SendError::Invalid(_))), "{refused:?}");
        assert_eq!(stored(&broker).await, found);
        assert!(broker.depths(&[channel()]).await.unwrap()[0].missing);
        if found.is_none() {
            broker.advance(step(None, first.clone(), &[])).await.unwrap();
        }
    }
}

#[tokio::test]
async fn messages_that_cannot_be_stored_undo_the_step() {
    let (_folder, path) = place();
    let broker = open(&path);
    let first = state("a", 1);
    broker.advance(step(None, first.clone(), &[b"1"])).await.unwrap();
    let meddler = Connection::open(&path).unwrap();
    meddler.execute_batch("ALTER TABLE content RENAME TO away").unwrap();
    let failed = broker.advance(step(Some(first.clone()), state("a", 2), &[b"2"])).await;
    assert!(matches!(failed, Err(SendError::Queue(QueueError::Refused(_)))), "{failed:?}");
    meddler.execute_batch("ALTER TABLE away RENAME TO content").unwrap();
    assert_eq!((stored(&broker).await, waiting(&broker).await), (Some(first), 1));
}

#[tokio::test]
async fn a_look_creates_nothing() {
    let (folder, path) = place();
    let names = [NAME.to_owned(), "other".to_owned()];
    let looking = EmbeddedBroker::open_to_look(&path).unwrap();
    assert_eq!(looking.look(&names).await, Ok(vec![None, None]));
    drop(looking);
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "there is no file");

    let broker = open(&path);
    let looking = EmbeddedBroker::open_to_look(&path).unwrap();
    for looks in [&broker, &looking] {
        assert_eq!(looks.look(&names).await, Ok(vec![None, None]));
    }
    let before = tables(&path);
    assert!(matches!(looking.prepare().await, Err(QueueError::Refused(_))));
    assert_eq!(tables(&path), before);
    broker.prepare().await.unwrap();
    assert_eq!(tables(&path).len(), before.len() + 1);
    assert_eq!(looking.look(&names).await, Ok(vec![None, None]));
    broker.advance(step(None, state("a", 1), &[])).await.unwrap();
    assert_eq!(looking.look(&names).await, Ok(vec![Some(state("a", 1)), None]));
    let refused = looking.advance(step(Some(state("a", 1)), state("a", 2), &[])).await;
    assert!(matches!(refused, Err(SendError::Queue(QueueError::Refused(_)))), "{refused:?}");
    assert_eq!(stored(&broker).await, Some(state("a", 1)));
}

/// An older hostler refuses files of another layout.
#[tokio::test]
async fn the_table_of_schedules_leaves_the_layout_as_it_was() {
    let (_folder, path) = place();
    open(&path).close().await;
    let layout = |path: &Path| -> i32 {
        Connection::open(path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    };
    let before = tables(&path);
    assert!(!before.contains(&"schedule".to_owned()), "{before:?}");
    let broker = open(&path);
    broker.prepare().await.unwrap();
    broker.close().await;
    let after: Vec<_> = tables(&path).into_iter().filter(|table| table != "schedule").collect();
    assert_eq!((layout(&path), after), (1, before));
}

#[tokio::test]
async fn a_state_that_hostler_did_not_write_is_refused_with_the_reason() {
    let (_folder, path) = place();
    let broker = open(&path);
    broker.advance(step(None, state("a", 1), &[])).await.unwrap();
    Connection::open(&path).unwrap().execute("UPDATE schedule SET handled = -1", []).unwrap();
    let looked = broker.look(&[NAME.to_owned()]).await;
    assert!(matches!(&looked, Err(QueueError::Refused(text)) if text.contains("`handled` holds a time")), "{looked:?}");
    let failed = broker.advance(step(Some(state("a", 1)), state("a", 2), &[b"1"])).await;
    assert!(matches!(failed, Err(SendError::Queue(QueueError::Refused(_)))), "{failed:?}");
}
