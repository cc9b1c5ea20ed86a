//! Stores of idempotency records: which ones the consumers need, and their connections.

use std::sync::Arc;

use super::drivers::{QueueDriver, driver, named};
use hostler_config::{Config, Consumer, Driver, OnUnknown, RecordStore};
use hostler_consumer::Idempotency;
use hostler_queue::{Provisioner, QueueError, Records};
use hostler_queue_telemetry::Producer;
use hostler_types::KeySource;

/// A store that consumers name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// Store as the config names it.
    pub store: RecordStore,
    /// Set if the store is the queue's own database.
    pub is_own: bool,
}

impl Named {
    /// Returns the driver of the store.
    pub fn driver(self) -> &'static dyn QueueDriver {
        named(word(self.store))
    }
}

/// Returns the driver that keeps the records of a store.
fn word(store: RecordStore) -> Driver {
    match store {
        RecordStore::Embedded => Driver::Embedded,
        RecordStore::Postgres => Driver::Postgres,
    }
}

/// Returns the stores that the consumers of a config need, each once.
pub fn stores(config: &Config) -> Vec<Named> {
    let mut stores = Vec::new();
    for idempotency in config.consumers.iter().filter_map(|consumer| consumer.idempotency.as_ref()) {
        let store = idempotency.store;
        let named = Named { store, is_own: word(store) == config.queue.driver };
        if !stores.contains(&named) {
            stores.push(named);
        }
    }
    stores
}

/// Returns the drivers that a host uses: that of the queue, and those of other stores of records.
pub fn drivers(config: &Config) -> impl Iterator<Item = &'static dyn QueueDriver> {
    let others = stores(config).into_iter().filter(|named| !named.is_own).map(Named::driver);
    std::iter::once(driver(config)).chain(others)
}

/// The stores of records that the consumers of a host need, connected.
#[derive(Default)]
pub(super) struct RecordStores(Vec<(Named, Arc<dyn Records>)>);

impl RecordStores {
    /// Connects to the stores, and creates what they need if the config lets the host do so. `queue`: the queue service.
    ///
    /// # Errors
    /// [`QueueError`] if a store cannot be used.
    pub(super) async fn connect(config: &Config, queue: Option<&Arc<dyn Provisioner>>) -> Result<Self, QueueError> {
        let mut connected = Vec::new();
        for named in stores(config) {
            let records = match queue.filter(|_| named.is_own) {
                Some(queue) => queue.records()?,
                None => named.driver().connect(config).await?.records()?,
            };
            records.prepare().await?;
            connected.push((named, records));
        }
        Ok(Self(connected))
    }

    /// Returns the idempotency of a consumer. `None`: it has none. `producer`: sends what the handler has sent.
    pub(super) fn of(&self, config: &Config, consumer: &Consumer, producer: &Producer) -> Option<Idempotency> {
        let settings = consumer.idempotency.as_ref()?;
        let (named, records) = self.0.iter().find(|(named, _)| named.store == settings.store)?;
        Some(Idempotency {
            key: settings.key.clone(),
            scope: scope(config, consumer, &settings.key).into(),
            records: Arc::clone(records),
            is_transactional: named.is_own,
            ttl: settings.ttl,
            runs_again: settings.on_unknown == OnUnknown::Run,
            producer: producer.clone(),
        })
    }
}

/// Returns the name under which the keys of a consumer are kept: that of its queue, and the place of the key. The name outlasts a change of
/// the consumer's name.
fn scope(config: &Config, consumer: &Consumer, key: &KeySource) -> String {
    let queue = &config.queue;
    format!("{}:{}{} {key}", queue.driver.word(), queue.prefix(), consumer.channel.queue())
}
