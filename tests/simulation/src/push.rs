//! World of a push broker: a model of the service and of its driver, which speak the queue contract.

mod driver;
mod errors;
mod plan;
mod service;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hostler_queue::ChannelSpec;

use super::judge::Judge;
use super::scenario::{Denied, Planned, Scenario};
use super::site::{Line, Opened, Site};
use driver::{Client, Driver};
use service::Service;

/// The model.
pub struct Push {
    service: Arc<Service>,
}

impl Push {
    pub fn new(scenario: Arc<Scenario>, judge: Arc<Judge>) -> Self {
        Self { service: Arc::new(Service::new(scenario, judge)) }
    }
}

#[async_trait]
impl Site for Push {
    async fn open(&self, line: &Line, spec: &ChannelSpec) -> Opened {
        self.service.connect(line.life);
        let driver = Driver { line: line.clone(), service: Arc::clone(&self.service) };
        let queue = Arc::new(Client { driver: driver.clone(), ordered: spec.ordered });
        Opened { broker: Arc::new(driver), queue, records: None }
    }

    async fn put(&self, message: &Planned) {
        self.service.put(message);
    }

    fn fail_for(&self, outage: Duration) {
        self.service.fail_for(outage);
    }

    fn deny(&self, _: Denied, denial: Duration) {
        self.service.block(denial);
    }

    fn cut(&self) {
        self.service.cut();
    }

    fn sent_ahead(&self, life: usize) -> Option<usize> {
        self.service.sent_ahead(life)
    }

    async fn until_empty(&self, count: usize) {
        self.service.until_empty(count).await;
    }
}
