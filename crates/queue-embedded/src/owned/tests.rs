use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use super::*;
use hostler_queue::{Admin, Broker, ChannelSpec, REASON_ATTRIBUTE, Receive};
use hostler_types::message::{AttributeValue, Outgoing};
use tokio_util::sync::CancellationToken;

struct Bench {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    broker: EmbeddedBroker,
    owned: OwnedQueues,
}

fn channels() -> [Channel; 2] {
    ["retry-high", "retry"].map(|name| name.parse().unwrap())
}

async fn own(path: &Path) -> (EmbeddedBroker, OwnedQueues) {
    let broker = EmbeddedBroker::open(path).unwrap();
    let owned = broker.own(&channels(), &"retry-dlq".parse().unwrap()).await.unwrap();
    (broker, owned)
}

async fn bench() -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, owned) = own(&path).await;
    Bench { _folder: folder, path, broker, owned }
}

fn new(id: &str, subject: &str, at: i64, due: i64) -> NewMessage {
    NewMessage {
        queue: 1,
        id: id.to_owned(),
        subject: subject.to_owned(),
        attributes: Attributes::from([("a".to_owned(), AttributeValue::Text("1".to_owned()))]),
        body: Bytes::from(id.to_owned()),
        attempts: 0,
        enqueued_at: at,
        due,
        parked: false,
    }
}

fn due(until: i64, after: Option<Cursor>, max: usize) -> Load {
    let wanted = Wanted::Due { after, until };
    Load { queue: 1, wanted, skip: Arc::default(), max, max_bytes: usize::MAX }
}

fn parked(subject: &str) -> Load {
    Load { wanted: Wanted::Parked(subject.into()), ..due(0, None, 10) }
}

impl Bench {
    async fn store(&self, messages: Vec<NewMessage>) -> Vec<Place> {
        self.owned.turn(Turn { new: messages, ..Turn::default() }).await.unwrap().new
    }

    async fn step(&self, step: Step) {
        self.owned.turn(Turn { steps: vec![step], ..Turn::default() }).await.unwrap();
    }

    async fn load(&self, load: Load) -> Page {
        self.owned.turn(Turn { loads: vec![load], ..Turn::default() }).await.unwrap().pages.remove(0)
    }

    async fn dead_letters(&self) -> Vec<Message> {
        let mut dead = Vec::new();
        let mut keep = |message: &Message| {
            dead.push(message.clone());
            ControlFlow::Continue(())
        };
        self.broker.peek(&"retry-dlq".parse().unwrap(), &mut keep).await.unwrap();
        dead
    }
}

/// Returns the number of messages, and of dead letters.
async fn in_all(owned: &OwnedQueues) -> (u64, u64) {
    let counts = owned.count().await.unwrap();
    (counts.visible + counts.delayed, counts.dead_lettered)
}

fn ids(page: &Page) -> Vec<&str> {
    page.messages.iter().map(|stored| &*stored.message.id).collect()
}

#[tokio::test]
async fn messages_are_read_in_the_order_in_which_they_become_due() {
    let bench = bench().await;
    let now = bench.owned.now();
    bench.store(vec![new("c", "s", now, now + 30), new("a", "s", now, now + 10), new("b", "s", now, now + 20)]).await;
    let first = bench.load(due(now + 100, None, 2)).await;
    assert_eq!((ids(&first), first.has_more), (vec!["a", "b"], true));
    let stored = &first.messages[0];
    assert_eq!((stored.due, stored.attempts, stored.message.routing_key.as_deref()), (now + 10, 0, Some("s")));
    assert_eq!(stored.message.attributes["a"].as_text(), Some("1"));
    let second = bench.load(due(now + 100, first.end, 2)).await;
    assert_eq!((ids(&second), second.has_more), (vec!["c"], false));
    let soon = bench.load(due(now + 19, None, 9)).await;
    assert_eq!((ids(&soon), soon.has_more), (vec!["a"], false), "no later than asked for");
    let skip = Arc::new(HashSet::from([first.messages[0].place.seq]));
    let page = bench.load(Load { skip, ..due(now + 100, None, 1) }).await;
    assert_eq!((ids(&page), page.has_more), (vec!["b"], true));
    let page = bench.load(Load { max_bytes: 1, ..due(now + 100, None, 9) }).await;
    assert_eq!((ids(&page), page.has_more), (vec!["a"], true), "the bytes are bounded, but one message fits");
}

#[tokio::test]
async fn steps_move_messages() {
    let bench = bench().await;
    let now = bench.owned.now();
    let places = bench.store(["a", "b", "c"].map(|id| new(id, "s", now, now)).into()).await;
    bench.step(Step::Reschedule { place: places[0], attempts: 3, due: now + 50 }).await;
    bench.step(Step::Remove(places[1])).await;
    bench.step(Step::DeadLetter { place: places[2], attempts: 7, reason: "gave up".to_owned() }).await;
    let page = bench.load(due(now + 100, None, 9)).await;
    assert_eq!((ids(&page), page.messages[0].attempts, page.messages[0].due), (vec!["a"], 3, now + 50));
    let dead = bench.dead_letters().await;
    assert_eq!((dead.len(), &*dead[0].id, &*dead[0].body), (1, "c", &b"c"[..]));
    assert_eq!(dead[0].attributes[REASON_ATTRIBUTE].as_text(), Some("gave up"));
    assert_eq!(dead[0].attributes["hostler-attempts"].as_text(), Some("7"));
    assert_eq!(in_all(&bench.owned).await, (1, 1));
    // A step for a message that is gone changes nothing.
    bench.step(Step::DeadLetter { place: places[1], attempts: 7, reason: "gave up".to_owned() }).await;
    bench.step(Step::Remove(places[2])).await;
    assert_eq!(in_all(&bench.owned).await, (1, 1));
}

fn park(place: Place, subject: &str, due: i64, until: Option<i64>) -> Step {
    Step::Park { place, subject: subject.into(), due, until }
}

#[tokio::test]
async fn parked_messages_wait_for_their_subject_and_outlive_a_restart() {
    let bench = bench().await;
    let now = bench.owned.now();
    let at_once = NewMessage { parked: true, ..new("c", "s", now, now) };
    let later = NewMessage { parked: true, ..new("d", "s", now, now + 9) };
    let places = bench.store(vec![new("a", "s", now, now), new("b", "t.u", now, now), at_once, later]).await;
    for step in [park(places[0], "s", now - 5, None), park(places[1], "t.u", now, None)] {
        bench.step(step).await;
    }
    assert_eq!(ids(&bench.load(due(now + 100, None, 9)).await), ["d"], "what is not yet due is not parked");
    bench.step(Step::Remove(places[3])).await;
    let Bench { _folder, path, broker, owned } = bench;
    drop((broker, owned));
    let (broker, owned) = own(&path).await;
    let bench = Bench { _folder, path, broker, owned };
    let subjects = bench.owned.parked().await.unwrap();
    assert_eq!(subjects, [(1, "s".to_owned()), (1, "t.u".to_owned())]);
    let page = bench.load(parked("s")).await;
    assert_eq!((ids(&page), page.messages[0].due, page.messages[1].due), (vec!["a", "c"], now - 5, now));
    bench.step(Step::Reschedule { place: places[0], attempts: 1, due: now + 5 }).await;
    bench.step(Step::Remove(places[2])).await;
    assert!(bench.load(parked("s")).await.messages.is_empty());
    assert_eq!(ids(&bench.load(due(now + 100, None, 9)).await), ["a"]);
    bench.step(Step::DeadLetter { place: places[1], attempts: 0, reason: "x".to_owned() }).await;
    assert!(bench.owned.parked().await.unwrap().is_empty());
    assert_eq!(bench.dead_letters().await.len(), 1);
}

#[tokio::test]
async fn parked_messages_are_read_in_the_order_in_which_they_were_due() {
    let bench = bench().await;
    let now = bench.owned.now();
    let places = bench.store(["a", "b", "c", "d"].map(|id| new(id, "s", now, now)).into()).await;
    let dues = [now - 10, now - 40, now - 20, now - 30];
    for (place, due) in places.into_iter().zip(dues) {
        bench.step(park(place, "s", due, None)).await;
    }
    let first = bench.load(Load { max: 2, ..parked("s") }).await;
    assert_eq!((ids(&first), first.has_more, first.messages[0].due), (vec!["b", "d"], true, now - 40));
    let skip = first.messages.iter().map(|stored| stored.place.seq).collect();
    let rest = bench.load(Load { skip: Arc::new(skip), ..parked("s") }).await;
    assert_eq!((ids(&rest), rest.has_more), (vec!["c", "a"], false));
}

#[tokio::test]
async fn a_parked_message_is_found_when_it_expires() {
    let bench = bench().await;
    let now = bench.owned.now();
    let places = bench.store(vec![new("a", "s", now, now), new("b", "s", now, now)]).await;
    bench.step(park(places[0], "s", now - 7, Some(now + 50))).await;
    bench.step(park(places[1], "s", now - 7, None)).await;
    assert!(bench.load(due(now + 49, None, 9)).await.messages.is_empty());
    let page = bench.load(due(now + 50, None, 9)).await;
    assert_eq!((ids(&page), page.messages[0].due), (vec!["a"], now - 7));
    assert_eq!(ids(&bench.load(parked("s")).await), ["a", "b"]);
}

#[tokio::test]
async fn parked_messages_of_unknown_subjects_are_found() {
    let bench = bench().await;
    let now = bench.owned.now();
    let subjects = ["a", "a.b", "a!", "b", "c"];
    let messages = subjects.iter().flat_map(|subject| [(subject, now - 1), (subject, now - 2)]);
    for (number, (subject, due)) in messages.enumerate() {
        let places = bench.store(vec![new(&number.to_string(), subject, now, now)]).await;
        bench.step(park(places[0], subject, due, None)).await;
    }
    let find = |after: &str, max| Load { wanted: Wanted::Subjects { after: after.to_owned() }, ..due(0, None, max) };
    let first = bench.load(find("", 3)).await;
    assert_eq!((ids(&first), first.has_more), (vec!["1", "5", "3"], true), "the first of each");
    let rest = bench.load(find("a.b", 3)).await;
    assert_eq!((ids(&rest), rest.has_more), (vec!["7", "9"], false));
}

#[tokio::test]
async fn headers_count_among_the_bytes_of_a_page() {
    let bench = bench().await;
    let now = bench.owned.now();
    let attributes = Attributes::from([("a".to_owned(), AttributeValue::Text("x".repeat(10_000)))]);
    let message = |id: &str| NewMessage { attributes: attributes.clone(), ..new(id, "s", now, now) };
    bench.store(vec![message("a"), message("b"), message("c")]).await;
    let page = bench.load(Load { max_bytes: 15_000, ..due(now, None, 9) }).await;
    assert_eq!((ids(&page), page.has_more), (vec!["a", "b"], true));
}

#[tokio::test]
async fn the_rows_are_those_of_any_other_queue() {
    let bench = bench().await;
    let now = bench.owned.now();
    bench.store(vec![new("a", "s", now, now + 60_000), NewMessage { parked: true, ..new("b", "s", now, now) }]).await;
    let depth = bench.broker.depths(&["retry".parse().unwrap()]).await.unwrap().remove(0);
    assert_eq!((depth.visible, depth.delayed, depth.dead_lettered), (1, Some(1), 0));
    // What another process sends to the queue is found, and its write is told.
    let turn = Turn { loads: vec![due(now + 100, None, 9)], ..Turn::default() };
    bench.owned.turn(turn.clone()).await.unwrap();
    assert!(!bench.owned.turn(turn.clone()).await.unwrap().others_wrote);
    let other = EmbeddedBroker::open(&bench.path).unwrap();
    let message = Outgoing { body: b"x".to_vec(), routing_key: Some("t".to_owned()), ..Outgoing::default() };
    other.send(&"retry".parse().unwrap(), vec![message]).await.remove(0).unwrap();
    let until = bench.owned.now();
    let turned = bench.owned.turn(Turn { loads: vec![due(until, None, 9)], ..turn }).await.unwrap();
    assert!(turned.others_wrote);
    assert_eq!(turned.pages[0].messages[0].message.routing_key.as_deref(), Some("t"));
    // A dead letter can be received as from any other queue.
    let place = turned.pages[0].messages[0].place;
    bench.step(Step::DeadLetter { place, attempts: 1, reason: "x".to_owned() }).await;
    let queue = other.open(&ChannelSpec::new("retry-dlq".parse().unwrap())).await.unwrap();
    let request = Receive { max: 1, wait: Duration::ZERO, lease: Duration::from_secs(9) };
    assert_eq!(queue.receive(request, &CancellationToken::new()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_message_that_cannot_be_read_is_set_aside() {
    let bench = bench().await;
    let now = bench.owned.now();
    bench.store(vec![new("a", "s", now, now), new("b", "s", now, now)]).await;
    let meddler = Connection::open(&bench.path).unwrap();
    meddler.execute("UPDATE content SET attributes = '{' WHERE id = 'a'", []).unwrap();
    assert_eq!(ids(&bench.load(due(now, None, 9)).await), ["b"]);
    let dead = bench.dead_letters().await;
    assert_eq!((dead.len(), &*dead[0].id), (1, "a"));
}

#[tokio::test]
async fn a_turn_with_a_new_message_is_flushed_and_others_are_not() {
    let bench = bench().await;
    let now = bench.owned.now();
    let level = async || {
        let read = |db: &Session<'_>| db.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0));
        bench.owned.writer.call(Need::Read, read).await.unwrap()
    };
    let places = bench.store(vec![new("a", "s", now, now)]).await;
    assert_eq!(level().await, 2, "FULL");
    bench.step(Step::Remove(places[0])).await;
    assert_eq!(level().await, 1, "NORMAL");
    bench.owned.turn(Turn { flush: true, ..Turn::default() }).await.unwrap();
    assert_eq!(level().await, 2, "FULL, for what was not flushed");
}

#[tokio::test]
async fn a_file_on_a_network_file_system_is_not_shared_and_outlives_its_process() {
    assert_eq!(crate::Sharing::at(Path::new("/")), crate::Sharing::Processes, "a local disk");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let options = || crate::Options { sharing: crate::Sharing::None, ..crate::Options::default() };
    let open = async || {
        let broker = EmbeddedBroker::open_with(&path, options())?;
        let owned = broker.own(&channels(), &"retry-dlq".parse().unwrap()).await?;
        Ok::<_, QueueError>((broker, owned))
    };
    let (broker, owned) = open().await.unwrap();
    let now = owned.now();
    owned.turn(Turn { new: vec![new("a", "s", now, now)], ..Turn::default() }).await.unwrap();
    assert!(!folder.path().join("queue.db-shm").exists(), "there is no memory to share");
    // As after the end of the process, with what it left.
    let copy = folder.path().join("copy.db");
    for end in ["", "-wal"] {
        std::fs::copy(format!("{}{end}", path.display()), format!("{}{end}", copy.display())).unwrap();
    }
    drop((broker, owned));
    let broker = EmbeddedBroker::open_with(&copy, options()).unwrap();
    let owned = broker.own(&channels(), &"retry-dlq".parse().unwrap()).await.unwrap();
    assert_eq!(in_all(&owned).await, (1, 0));
}

#[tokio::test]
async fn a_closed_subject_stays_closed_after_a_restart() {
    let bench = bench().await;
    let now = bench.owned.now();
    let close = |subject: &str, until| Step::Close { subject: subject.into(), until };
    for step in [close("a", now + 60_000), close("a", now + 70_000), close("b", now)] {
        bench.step(step).await;
    }
    let Bench { _folder, path, broker, owned } = bench;
    drop((broker, owned));
    let (_broker, owned) = own(&path).await;
    assert_eq!(owned.closed().await.unwrap(), [("a".to_owned(), now + 70_000)]);
}

#[tokio::test]
async fn subjects_that_are_open_again_take_no_room() {
    let bench = bench().await;
    let now = bench.owned.now();
    let close = |subject: String, until| Step::Close { subject: subject.into(), until };
    let mut steps: Vec<_> = (0..100).map(|n| close(n.to_string(), now)).collect();
    steps.push(close("closed".to_owned(), now + 60_000));
    bench.owned.turn(Turn { steps, ..Turn::default() }).await.unwrap();
    bench.owned.turn(Turn { flush: true, ..Turn::default() }).await.unwrap();
    let count = |db: &Session<'_>| db.query_row("SELECT count(*) FROM dedupe", [], |row| row.get::<_, i64>(0));
    let rows = bench.owned.writer.call(Need::Read, count).await.unwrap();
    assert!(rows <= 2, "{rows} rows");
    assert_eq!(bench.owned.closed().await.unwrap(), [("closed".to_owned(), now + 60_000)]);
}

#[tokio::test]
async fn closed_subjects_move_to_another_store() {
    let (bench, own) = (bench().await, bench().await);
    let now = bench.owned.now();
    for (subject, until) in [("a", now + 60_000), ("b", now + 90_000), ("past", now)] {
        bench.step(Step::Close { subject: subject.into(), until }).await;
    }
    own.step(Step::Close { subject: "b".into(), until: own.owned.now() + 3_600_000 }).await;
    let mut closed = bench.broker.closed_subjects().await.unwrap();
    closed.sort();
    let stored = own.broker.close_subjects(closed).await.unwrap();
    assert_eq!(stored.len(), 2);
    assert!((stored[0].1 - own.owned.now()).abs_diff(60_000) < 5_000, "{stored:?}");
    let mut kept = own.owned.closed().await.unwrap();
    kept.sort();
    assert_eq!(kept, stored, "the longer time wins");
    assert!(stored[1].1 > own.owned.now() + 3_000_000);
}

#[tokio::test]
async fn counts_are_those_of_all_queues_in_steps() {
    let bench = bench().await;
    let now = bench.owned.now();
    let due = |n: i64| if n % 10 == 0 { now + 60_000 } else { now };
    let many = (0..25_000).map(|n| NewMessage { parked: n % 10 == 1, ..new("a", "s", now + n, due(n)) });
    let places = bench.store(many.chain([NewMessage { queue: 0, ..new("b", "s", now - 5, now) }]).collect()).await;
    bench.step(Step::DeadLetter { place: places[1], attempts: 1, reason: "x".to_owned() }).await;
    let counts = bench.owned.count().await.unwrap();
    let expected = Counts { visible: 22_500, delayed: 2_500, dead_lettered: 1, oldest: Some(now - 5) };
    assert_eq!(counts, expected);
    let used = bench.owned.used_bytes().await.unwrap();
    assert!((1 << 20..64 << 20).contains(&used), "{used}");
}

#[tokio::test]
async fn a_turn_that_fails_does_not_hide_that_others_wrote() {
    let bench = bench().await;
    let turn = Turn { loads: vec![due(bench.owned.now(), None, 9)], ..Turn::default() };
    bench.owned.turn(turn.clone()).await.unwrap();
    let meddler = Connection::open(&bench.path).unwrap();
    meddler.execute("INSERT INTO dedupe (scope, key, id, sent_at) VALUES ('x', 'y', '', 0)", []).unwrap();
    // The table is missing while the turn is carried out.
    meddler.execute("ALTER TABLE entry RENAME TO aside", []).unwrap();
    assert!(bench.owned.turn(turn.clone()).await.is_err());
    meddler.execute("ALTER TABLE aside RENAME TO entry", []).unwrap();
    assert!(bench.owned.turn(turn.clone()).await.unwrap().others_wrote);
    assert!(!bench.owned.turn(turn).await.unwrap().others_wrote);
}

#[tokio::test]
async fn a_batch_is_bounded_in_bytes_and_misses_no_message() {
    let bench = bench().await;
    let now = bench.owned.now();
    let large = |n: i64| NewMessage {
        attributes: Attributes::from([("a".to_owned(), AttributeValue::Text("x".repeat(6 << 20)))]),
        ..new("a", "s", now + n, now)
    };
    bench.store((0..4).map(large).collect()).await;
    let batch = bench.broker.read_batch(1_000).await.unwrap();
    assert_eq!(batch.messages.len(), 3, "headers count too");
    bench.broker.remove_batch(&batch).await.unwrap();
    // The row of the queue is gone, but the message is not.
    let meddler = Connection::open(&bench.path).unwrap();
    meddler.execute("DELETE FROM queue WHERE name = 'retry'", []).unwrap();
    let own = own(&bench.path.with_extension("other")).await;
    let batch = Arc::new(bench.broker.read_batch(1_000).await.unwrap());
    assert_eq!(batch.messages.len(), 1);
    assert_eq!(own.0.store_batch("x", batch, Arc::default()).await.unwrap(), 1);
    let channels = own.0.channels().await.unwrap();
    assert!(channels.iter().any(|channel| channel.queue() == "retry-lost"), "{channels:?}");
}

#[tokio::test]
async fn messages_of_a_queue_that_nobody_schedules_move_to_another() {
    let bench = bench().await;
    let now = bench.owned.now();
    let high = |id: &str, parked| NewMessage { queue: 0, parked, ..new(id, "s", now, now + 50) };
    bench.store(vec![high("a", false), high("b", true), high("c", false)]).await;
    assert_eq!(bench.broker.move_entries("retry-high", "retry", 2).await.unwrap(), 2);
    assert_eq!(bench.broker.move_entries("retry-high", "retry", 2).await.unwrap(), 1);
    assert_eq!(bench.broker.move_entries("retry-high", "retry", 2).await.unwrap(), 0);
    let page = bench.load(due(now + 100, None, 9)).await;
    assert_eq!((ids(&page), page.messages[0].due), (vec!["a", "b", "c"], now + 50), "none is parked any more");
    let places = bench.store(vec![NewMessage { queue: 0, ..new("d", "s", now, now) }]).await;
    bench.step(park(places[0], "s", now - 7, Some(now + 60_000))).await;
    assert_eq!(bench.broker.move_entries("retry-high", "retry", 2).await.unwrap(), 1);
    let page = bench.load(due(now, None, 9)).await;
    assert_eq!((ids(&page), page.messages[0].due), (vec!["d"], now - 7), "it need not wait until it expires");
}

#[tokio::test]
async fn a_closed_broker_has_closed_its_file() {
    let Bench { _folder, path, broker, owned } = bench().await;
    let open =
        || std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    assert!(open().any(|file| file == path));
    broker.close().await;
    assert!(!open().any(|file| file == path));
    assert!(owned.turn(Turn { new: vec![new("a", "s", 0, 0)], ..Turn::default() }).await.is_err());
}
