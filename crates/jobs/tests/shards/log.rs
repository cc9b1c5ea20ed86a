//! The log of databases that go away and come back.

use std::cell::RefCell;
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hostler_jobs::shards::route::home;
use hostler_jobs::store::IdempotencyKey;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::databases::{connect, joined, tree};
use crate::postgres::Postgres;
use crate::server::Server;

const AWAY: &str = "a database does not answer";
pub const BACK: &str = "the database answers again";

/// The lines of the log in this thread, from the level of information on.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

thread_local! {
    /// Those who want the lines of this thread.
    static WANTED: RefCell<Vec<Lines>> = const { RefCell::new(Vec::new()) };
}

/// The subscriber of the process. It hands each line to those who want the lines of its thread. One subscriber for each test would
/// not do: the library may take an event for disabled in all threads while another test's subscriber comes or goes.
struct Hands;

impl Lines {
    /// Collects the lines of this thread from now on.
    pub fn collect() -> Lines {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(Hands).unwrap());
        let lines = Lines::default();
        WANTED.with_borrow_mut(|wanted| wanted.push(lines.clone()));
        lines
    }

    /// The lines with a text.
    pub fn of(&self, text: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|(_, line)| line.contains(text)).map(|(_, line)| line.clone()).collect()
    }

    fn warnings(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|(level, _)| *level <= Level::WARN).map(|(_, line)| line.clone()).collect()
    }
}

impl Subscriber for Hands {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("hostler_jobs")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let line = (*event.metadata().level(), line.0);
        WANTED.with_borrow(|wanted| wanted.iter().for_each(|lines| lines.0.lock().unwrap().push(line.clone())));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The fields of an event.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

#[tokio::test]
async fn an_outage_is_logged_once_however_many_requests_are_refused() {
    let lines = Lines::collect();
    let mut postgres = Postgres::start();
    let store = connect(&postgres.database());
    store.migrate().await.unwrap();
    let place = store.place().to_owned();
    let server = Server::start(store).await;
    assert_eq!(server.get("/job").await.status(), 200);
    postgres.stop();
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut refused = 0;
    while refused < 20 || lines.of(AWAY).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", lines.warnings());
        let answer = server.get("/job").await;
        assert_eq!((answer.status().as_u16(), answer.headers().contains_key("retry-after")), (503, true));
        refused += 1;
    }
    assert!(lines.of(BACK).is_empty());
    postgres.restart();
    while lines.of(BACK).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", lines.warnings());
        tokio::task::yield_now().await;
    }
    assert_eq!(server.get("/job").await.status(), 200);
    server.stop().await;
    let warnings = lines.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains(AWAY) && warnings[0].contains(&place), "{warnings:#?}");
    assert_eq!(lines.of(BACK).len(), 1);
}

#[tokio::test]
async fn requests_that_wait_for_the_home_of_a_key_log_nothing_more() {
    let lines = Lines::collect();
    let other = Postgres::start();
    let shards = joined(&[Postgres::shared().database(), other.database()]);
    shards.migrate().await.unwrap();
    let at = |number: usize| (0..).map(|n| format!("k{n}")).filter(move |key| home(key, 2) == number);
    let key = at(1).next().unwrap();
    other.freeze();
    let creations = at(0).take(8).map(|idempotency| {
        let root = json!({"type": "a", "items": [{"payload": 1, "serialize_key": key}]});
        shards.create(tree(&root), Some(IdempotencyKey { key: idempotency, hash: "h".to_owned() }))
    });
    for created in join_all(creations).await {
        created.unwrap();
    }
    let warnings = lines.warnings();
    assert!(
        warnings.len() == 1 && warnings[0].contains(AWAY) && warnings[0].contains(shards.stores()[1].place()),
        "{warnings:#?}"
    );
    other.thaw();
    let deadline = Instant::now() + Duration::from_secs(30);
    while lines.of(BACK).is_empty() {
        assert!(Instant::now() < deadline, "the database is back");
        tokio::task::yield_now().await;
    }
}
