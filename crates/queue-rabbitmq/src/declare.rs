//! Declares queues, exchanges and bindings, and looks for those that exist.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{ChannelSpec, QueueError};
use lapin::options::{ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, ExchangeKind};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::connection::{Line, in_time};
use super::drift::Drift;
use super::fault::{difference, is_missing, queue_error};
use super::ladder;
use super::names::Names;
use super::topology::{self, Binding, QueueSpec};

/// Maximum time of an operation, and of waiting for the connection before.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum time to create the delay ladder: a few dozen queues and exchanges, each of which a cluster agrees on.
const LADDER_PATIENCE: Duration = Duration::from_secs(120);

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

    /// Asks the server through a channel of its own. Returns the server's answer.
    ///
    /// # Errors
    /// There is no channel.
    async fn ask<T, F>(&self, ask: impl FnOnce(Channel) -> F) -> Result<lapin::Result<T>, QueueError>
    where
        F: Future<Output = lapin::Result<T>>,
    {
        let deadline = Instant::now() + PATIENCE;
        let channel = self.line.channel(deadline).await?;
        Ok(in_time(deadline, ask(channel)).await)
    }

    /// Returns the number of messages that are ready in a queue. `None`: the queue does not exist.
    ///
    /// # Errors
    /// The queue cannot be looked up.
    pub(super) async fn ready(&self, queue: &str) -> Result<Option<u32>, QueueError> {
        let options = QueueDeclareOptions::durable().passive();
        let asked = async |channel: Channel| channel.queue_declare(queue.into(), options, FieldTable::default()).await;
        let found = self.ask(asked).await?;
        existing(found.map(|found| found.message_count()), || format!("cannot look up the queue `{queue}`"))
    }

    /// Returns `true` if the exchange exists.
    ///
    /// # Errors
    /// The exchange cannot be looked up.
    pub(super) async fn has_exchange(&self, exchange: &str) -> Result<bool, QueueError> {
        let options = ExchangeDeclareOptions { passive: true, durable: true, ..ExchangeDeclareOptions::default() };
        let (kind, none) = (ExchangeKind::Topic, FieldTable::default());
        let found = self
            .ask(async |channel: Channel| channel.exchange_declare(exchange.into(), kind, options, none).await)
            .await?;
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
        self.feed(spec).await?;
        Ok(drifts)
    }

    /// Creates the exchange of a channel if it is missing, and lets it deliver to the channel's queue.
    async fn feed(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        let Some(exchange) = spec.channel.exchange() else { return Ok(()) };
        self.exchange(&self.names.full(exchange)).await?;
        self.bind_all(&topology::bindings(&self.names, spec)?).await
    }

    /// Creates a queue if it is missing. Returns the difference if the queue exists in another form.
    pub(super) async fn compare(&self, queue: &QueueSpec) -> Result<Option<Drift>, QueueError> {
        let (name, options) = (queue.name.as_str(), QueueDeclareOptions::durable());
        let arguments = queue.arguments.clone();
        let declared = self.ask(async |channel: Channel| channel.queue_declare(name.into(), options, arguments).await);
        match declared.await? {
            Ok(_) => Ok(None),
            Err(error) => match difference(&error) {
                Some(text) => Ok(Some(Drift::of(name, text))),
                None => Err(queue_error(&format!("cannot declare the queue `{name}`"), &error)),
            },
        }
    }

    /// Creates a queue if it is missing, and lets the delay ladder deliver to it. Returns the difference if the queue exists in
    /// another form.
    pub(super) async fn queue(&self, queue: &QueueSpec) -> Result<Option<Drift>, QueueError> {
        self.ladder().await?;
        let drift = self.compare(queue).await?;
        self.land(&queue.name).await?;
        Ok(drift)
    }

    /// Lets the delay ladder deliver to a queue.
    ///
    /// # Errors
    /// The queue or the ladder is missing, or the user has no permission to bind the queue.
    pub(super) async fn land(&self, queue: &str) -> Result<(), QueueError> {
        self.bind_all(&[topology::landing(&self.names, queue)]).await
    }

    /// Creates an exchange if it is missing. An exchange of another type stays as it is.
    pub(super) async fn exchange(&self, name: &str) -> Result<(), QueueError> {
        let declared = self.ask(async |channel: Channel| declare_exchange(&channel, name, FieldTable::default()).await);
        match declared.await? {
            Err(error) if difference(&error).is_none() => {
                Err(queue_error(&format!("cannot declare the exchange `{name}`"), &error))
            }
            _ => Ok(()),
        }
    }

    async fn bind_all(&self, bindings: &[Binding]) -> Result<(), QueueError> {
        for binding in bindings {
            let bound = self.ask(async |channel: Channel| bind(&channel, binding).await).await?;
            let (queue, exchange) = (&binding.queue, &binding.exchange);
            bound.map_err(|error| queue_error(&format!("cannot bind the queue `{queue}` to `{exchange}`"), &error))?;
        }
        Ok(())
    }

    /// Creates the delay ladder if it is missing.
    pub(super) async fn ladder(&self) -> Result<(), QueueError> {
        self.ladder.get_or_try_init(|| self.build_ladder()).await.copied()
    }

    /// Returns `true` if the delay ladder is complete.
    ///
    /// # Errors
    /// The ladder cannot be looked up.
    pub(super) async fn has_ladder(&self) -> Result<bool, QueueError> {
        self.has_exchange(&self.names.ladder_is_complete()).await
    }

    async fn build_ladder(&self) -> Result<(), QueueError> {
        if self.has_ladder().await? {
            return Ok(());
        }
        let deadline = Instant::now() + LADDER_PATIENCE;
        let channel = self.line.channel(deadline).await?;
        let built = in_time(deadline, declare_ladder(&channel, &self.names)).await;
        built.map_err(|error| queue_error("cannot create the queues for delays", &error))
    }
}

async fn declare_ladder(channel: &Channel, names: &Names) -> lapin::Result<()> {
    let durable = QueueDeclareOptions::durable;
    let lost = names.lost();
    declare_exchange(channel, &lost, FieldTable::default()).await?;
    channel.queue_declare(lost.as_str().into(), durable(), topology::lost_arguments()).await?;
    bind(channel, &topology::lost_binding(names)).await?;
    declare_exchange(channel, &names.landing(), topology::landing_arguments(names)).await?;
    for level in ladder::levels(names) {
        let (name, next) = (level.name.as_str(), level.next.as_str());
        declare_exchange(channel, name, FieldTable::default()).await?;
        channel.queue_declare(name.into(), durable(), topology::level_arguments(&level)).await?;
        let held = Binding { exchange: name.to_owned(), queue: name.to_owned(), pattern: level.held.clone() };
        bind(channel, &held).await?;
        let (options, none) = (ExchangeBindOptions::default(), FieldTable::default());
        channel.exchange_bind(next.into(), name.into(), level.passed.as_str().into(), options, none).await?;
    }
    // Created last, so it tells that the ladder is complete.
    declare_exchange(channel, &names.ladder_is_complete(), FieldTable::default()).await
}

async fn bind(channel: &Channel, binding: &Binding) -> lapin::Result<()> {
    let Binding { exchange, queue, pattern } = binding;
    let (options, none) = (QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind(queue.as_str().into(), exchange.as_str().into(), pattern.as_str().into(), options, none).await
}

async fn declare_exchange(channel: &Channel, name: &str, arguments: FieldTable) -> lapin::Result<()> {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(name.into(), ExchangeKind::Topic, options, arguments).await
}

/// Returns what was found. `None`: it does not exist.
fn existing<T>(found: lapin::Result<T>, what: impl Fn() -> String) -> Result<Option<T>, QueueError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(queue_error(&what(), &error)),
    }
}
