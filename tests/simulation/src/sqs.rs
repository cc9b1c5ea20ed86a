//! World of SQS: the driver uses the real protocol with a model of the service.

pub mod service;
pub mod wire;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use aws_smithy_runtime_api::client::http::SharedHttpConnector;
use fastrand::Rng;
use hostler_queue::fake::FakeRecords;
use hostler_queue::{ChannelSpec, Provisioner, Records};
use tokio::time::{Instant, sleep};

use super::judge::Judge;
use super::records::WatchedRecords;
use super::scenario::{Denied, Planned, Scenario};
use super::site::{Line, Opened, Site};
use super::system::System;
use service::Service;
use wire::Wire;

/// Maximum time for which an outage also blocks the store of idempotency records.
const HOLD: Duration = Duration::from_secs(15);

/// The model, and the brokers of processes that have not started yet.
pub struct Sqs {
    scenario: Arc<Scenario>,
    judge: Arc<Judge>,
    service: Arc<Service>,
    brokers: Mutex<BTreeMap<usize, Arc<dyn Provisioner>>>,
    /// Store of idempotency records.
    records: FakeRecords,
    started_at: Instant,
    rng: Arc<Mutex<Rng>>,
}

impl Sqs {
    /// Creates a world for the processes on these lines.
    pub async fn new(system: System, scenario: Arc<Scenario>, judge: Arc<Judge>, lines: &[Line]) -> Self {
        let service = Arc::new(Service::new(Arc::clone(&scenario), Arc::clone(&judge)));
        let rng = Arc::new(Mutex::new(Rng::with_seed(scenario.key.seed ^ 0xacc)));
        let (records, started_at) = (FakeRecords::default(), Instant::now());
        let world = Self { scenario, judge, service, brokers: Mutex::default(), records, started_at, rng };
        // The brokers are created before the run, because the SDK reads files on threads that do not use the virtual clock.
        for line in lines {
            let wire = Wire {
                line: line.clone(),
                scenario: Arc::clone(&world.scenario),
                service: Arc::clone(&world.service),
                judge: Arc::clone(&world.judge),
            };
            let broker = (system.sqs)(SharedHttpConnector::new(wire)).await.unwrap();
            world.brokers.lock().unwrap().insert(line.life, broker);
        }
        world
    }

    fn records(&self, line: &Line) -> Arc<dyn Records> {
        Arc::new(WatchedRecords {
            line: line.clone(),
            scenario: Arc::clone(&self.scenario),
            judge: Arc::clone(&self.judge),
            inner: Arc::new(self.records.clone()),
            look: Arc::new(|| ()),
            started_at: self.started_at,
            rng: Arc::clone(&self.rng),
        })
    }
}

#[async_trait]
impl Site for Sqs {
    async fn open(&self, line: &Line, spec: &ChannelSpec) -> Opened {
        let broker = self.brokers.lock().unwrap().remove(&line.life).expect("a broker for each process");
        let queue = broker.open(spec).await.unwrap();
        Opened { broker, queue, records: self.scenario.keyed.map(|_| self.records(line)) }
    }

    async fn put(&self, message: &Planned) {
        self.service.put(message);
    }

    fn fail_for(&self, outage: Duration) {
        self.service.fail_for(outage);
        let records = self.records.clone();
        tokio::spawn(async move {
            records.hold(true);
            sleep(outage.min(HOLD)).await;
            records.hold(false);
        });
    }

    fn deny(&self, denied: Denied, denial: Duration) {
        self.service.deny(denied, denial);
    }

    async fn until_empty(&self, count: usize) {
        self.service.until_empty(count).await;
    }
}
