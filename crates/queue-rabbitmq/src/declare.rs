//! Declares queues, exchanges and bindings, and looks for those that exist.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{ChannelSpec, QueueError};
use lapin::options::{ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, ExchangeKind};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::connection::Line;
use super::drift::Drift;
use super::fault::{difference, is_missing, queue_error};
use super::ladder;
use super::names::Names;
use super::topology::{self, QueueSpec};

/// Maximum time to wait for the connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Declares and looks up through the line. Each operation has a channel of its own, because a refusal closes the channel.
pub(super) struct Declarer {
    line: Arc<Line>,
    names: Names,
    /// Set once the delay ladder is known to exist.
    ladder: OnceCell<()>,
}

impl Declarer {
    pub(super) fn new(line: Arc<Line>, names: Names) -> Self {
        Self { line, names, ladder: OnceCell::new() }
    }

    async fn channel(&self) -> Result<Channel, QueueError> {
        self.line.channel(Instant::now() + PATIENCE).await
    }

    /// Returns the number of messages that are ready in a queue. `None`: the queue does not exist.
    ///
    /// # Errors
    /// The queue cannot be looked up.
    pub(super) async fn ready(&self, queue: &str) -> Result<Option<u32>, QueueError> {
        let options = QueueDeclareOptions::durable().passive();
        let found = self.channel().await?.queue_declare(queue.into(), options, FieldTable::default()).await;
        existing(found.map(|found| found.message_count()), || format!("cannot look up the queue `{queue}`"))
    }

    /// Returns `true` if the exchange exists.
    ///
    /// # Errors
    /// The exchange cannot be looked up.
    pub(super) async fn has_exchange(&self, exchange: &str) -> Result<bool, QueueError> {
        let options = ExchangeDeclareOptions { passive: true, durable: true, ..ExchangeDeclareOptions::default() };
        let channel = self.channel().await?;
        let found =
            channel.exchange_declare(exchange.into(), ExchangeKind::Topic, options, FieldTable::default()).await;
        existing(found, || format!("cannot look up the exchange `{exchange}`")).map(|found| found.is_some())
    }

    /// Creates what a channel needs, as far as it is missing. Returns what exists in another form.
    ///
    /// # Errors
    /// Something cannot be created.
    pub(super) async fn establish(&self, spec: &ChannelSpec) -> Result<Vec<Drift>, QueueError> {
        self.ladder().await?;
        let mut drifts = Vec::new();
        for queue in topology::queues(&self.names, spec) {
            drifts.extend(self.queue(&queue).await?);
        }
        if let Some(exchange) = spec.channel.exchange() {
            self.exchange(&self.names.full(exchange)).await?;
            self.bind(spec).await?;
        }
        Ok(drifts)
    }

    /// Creates a queue if it is missing. Returns the difference if the queue exists in another form.
    pub(super) async fn compare(&self, queue: &QueueSpec) -> Result<Option<Drift>, QueueError> {
        let (name, options) = (queue.name.as_str(), QueueDeclareOptions::durable());
        match self.channel().await?.queue_declare(name.into(), options, queue.arguments.clone()).await {
            Ok(_) => Ok(None),
            Err(error) => match difference(&error) {
                Some(text) => Ok(Some(Drift::of(name, text))),
                None => Err(queue_error(&format!("cannot create the queue `{name}`"), &error)),
            },
        }
    }

    /// Creates a queue if it is missing, and lets the delay ladder deliver to it. Returns the difference if the queue exists in
    /// another form.
    pub(super) async fn queue(&self, queue: &QueueSpec) -> Result<Option<Drift>, QueueError> {
        self.ladder().await?;
        let (name, drift) = (queue.name.as_str(), self.compare(queue).await?);
        let (landing, pattern) = (self.names.landing(), ladder::landing_pattern(name));
        let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
        let channel = self.channel().await?;
        let bound =
            channel.queue_bind(name.into(), landing.as_str().into(), pattern.as_str().into(), options, arguments).await;
        bound.map_err(|error| queue_error(&format!("cannot bind the queue `{name}`"), &error))?;
        Ok(drift)
    }

    /// Creates an exchange if it is missing. An exchange of another type stays as it is.
    pub(super) async fn exchange(&self, name: &str) -> Result<(), QueueError> {
        let declared = declare_exchange(&self.channel().await?, name).await;
        match declared {
            Err(error) if difference(&error).is_none() => {
                Err(queue_error(&format!("cannot create the exchange `{name}`"), &error))
            }
            _ => Ok(()),
        }
    }

    async fn bind(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        let channel = self.channel().await?;
        for binding in topology::bindings(&self.names, spec) {
            let (queue, exchange) = (binding.queue.as_str(), binding.exchange.as_str());
            let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
            let bound = channel
                .queue_bind(queue.into(), exchange.into(), binding.pattern.as_str().into(), options, arguments)
                .await;
            bound.map_err(|error| queue_error(&format!("cannot bind the queue `{queue}` to `{exchange}`"), &error))?;
        }
        Ok(())
    }

    /// Creates the delay ladder if it is missing.
    pub(super) async fn ladder(&self) -> Result<(), QueueError> {
        self.ladder.get_or_try_init(|| self.build_ladder()).await.copied()
    }

    async fn build_ladder(&self) -> Result<(), QueueError> {
        // Created last, so it tells that the ladder is complete.
        let complete = self.names.ladder_is_complete();
        if self.has_exchange(&complete).await? {
            return Ok(());
        }
        let channel = self.channel().await?;
        let built = async {
            declare_exchange(&channel, &self.names.landing()).await?;
            for level in ladder::levels(&self.names) {
                let (name, next) = (level.name.as_str(), level.next.as_str());
                declare_exchange(&channel, name).await?;
                let arguments = topology::level_arguments(&level);
                channel.queue_declare(name.into(), QueueDeclareOptions::durable(), arguments).await?;
                let (options, none) = (QueueBindOptions::default(), FieldTable::default());
                channel.queue_bind(name.into(), name.into(), level.held.as_str().into(), options, none.clone()).await?;
                let options = ExchangeBindOptions::default();
                channel.exchange_bind(next.into(), name.into(), level.passed.as_str().into(), options, none).await?;
            }
            declare_exchange(&channel, &complete).await
        };
        built.await.map_err(|error: lapin::Error| queue_error("cannot create the queues for delays", &error))
    }
}

async fn declare_exchange(channel: &Channel, name: &str) -> lapin::Result<()> {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(name.into(), ExchangeKind::Topic, options, FieldTable::default()).await
}

/// Returns what was found. `None`: it does not exist.
fn existing<T>(found: lapin::Result<T>, what: impl Fn() -> String) -> Result<Option<T>, QueueError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(queue_error(&what(), &error)),
    }
}
