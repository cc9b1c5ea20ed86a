//! World of the embedded queue: the driver works on a real file, with simulated clocks.

pub mod clock;
mod file;
mod trouble;
mod watched;

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use hostler_queue::{ChannelSpec, Provisioner, QueueError};
use hostler_types::message::Outgoing;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::judge::Judge;
use super::records::WatchedRecords;
use super::scenario::{Planned, Scenario};
use super::site::{Line, Opened, Site};
use super::system::System;
use clock::Clocks;
use file::File;
use trouble::Trouble;
use watched::Watched;

/// Delay before an operator, a supervisor or a producer retries.
const AGAIN: Duration = Duration::from_millis(500);

/// A machine with a queue file.
pub struct Embedded {
    system: System,
    scenario: Arc<Scenario>,
    judge: Arc<Judge>,
    started_at: Instant,
    rng: Arc<Mutex<Rng>>,
    clocks: Mutex<Clocks>,
    file: Arc<File>,
    trouble: Arc<Trouble>,
    producer: Mutex<Arc<dyn Provisioner>>,
    _folder: TempDir,
}

impl Embedded {
    /// Creates a machine with a queue.
    pub async fn new(system: System, scenario: Arc<Scenario>, judge: Arc<Judge>) -> Self {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let folder = folder.unwrap();
        let path = folder.path().join("queue.db");
        let clocks = Clocks::start();
        let producer = (system.embedded)(&path, clocks.of_process()).unwrap();
        producer.declare(&ChannelSpec::new("replies".parse().unwrap())).await.unwrap();
        producer.declare(&scenario.channel()).await.unwrap();
        if scenario.keyed.is_some() {
            producer.declare(&ChannelSpec::new("out".parse().unwrap())).await.unwrap();
            producer.records().unwrap().prepare().await.unwrap();
        }
        let file = Arc::new(File::new(&path, Arc::clone(&judge), scenario.keyed.is_some()));
        let trouble = Arc::new(Trouble::new(Arc::clone(&scenario), Arc::clone(&file)));
        let rng = Arc::new(Mutex::new(Rng::with_seed(scenario.key.seed ^ 0xacc)));
        let (clocks, producer) = (Mutex::new(clocks), Mutex::new(producer));
        let started_at = Instant::now();
        Self { system, scenario, judge, started_at, rng, clocks, file, trouble, producer, _folder: folder }
    }

    fn connect(&self) -> Result<Arc<dyn Provisioner>, QueueError> {
        if !fs::exists(&self.file.path).unwrap() {
            // The driver would create a new file. An operator restores the old file first.
            return Err(QueueError::Unavailable("the file is away".into()));
        }
        let clock = self.clocks.lock().unwrap().of_process();
        (self.system.embedded)(&self.file.path, clock)
    }

    /// Connects, with as many retries as needed.
    async fn connected(&self) -> Arc<dyn Provisioner> {
        loop {
            match self.connect() {
                Ok(broker) => return broker,
                Err(_) => sleep(AGAIN).await,
            }
        }
    }
}

#[async_trait]
impl Site for Embedded {
    async fn open(&self, line: &Line, spec: &ChannelSpec) -> Opened {
        loop {
            let broker = self.connected().await;
            if let Ok(queue) = broker.open(spec).await {
                let queue = Arc::new(Watched {
                    line: line.clone(),
                    inner: queue,
                    judge: Arc::clone(&self.judge),
                    file: Arc::clone(&self.file),
                    trouble: Arc::clone(&self.trouble),
                    has_received: Arc::default(),
                });
                let records = self.scenario.keyed.map(|_| {
                    let file = Arc::clone(&self.file);
                    let records = WatchedRecords {
                        line: line.clone(),
                        scenario: Arc::clone(&self.scenario),
                        judge: Arc::clone(&self.judge),
                        inner: broker.records().unwrap(),
                        look: Arc::new(move || file.look()),
                        started_at: self.started_at,
                        rng: Arc::clone(&self.rng),
                    };
                    Arc::new(records) as _
                });
                return Opened { broker, queue, records };
            }
            sleep(AGAIN).await;
        }
    }

    async fn put(&self, message: &Planned) {
        self.judge.sent(&message.name, message.group.as_deref(), None);
        self.judge.keyed(message);
        let outgoing = Outgoing {
            body: message.body().into(),
            attributes: message.attributes(),
            group: message.group.clone(),
            ..Outgoing::default()
        };
        loop {
            let producer = Arc::clone(&self.producer.lock().unwrap());
            let sent = producer.send(&"work".parse().unwrap(), vec![outgoing.clone()]).await;
            if sent.iter().all(Result::is_ok) {
                break;
            }
            sleep(AGAIN).await;
        }
        self.file.put(&message.name);
    }

    fn fail_for(&self, outage: Duration) {
        tokio::spawn(Arc::clone(&self.trouble).outage(outage));
    }

    fn set_clock(&self, by: i64) {
        self.clocks.lock().unwrap().set(by);
    }

    async fn boot(&self) {
        self.clocks.lock().unwrap().boot();
        let producer = self.connected().await;
        *self.producer.lock().unwrap() = producer;
    }

    async fn until_empty(&self, count: usize) {
        self.file.until_empty(count).await;
    }
}
