//! The broker: opens channels, sends, lists, and provisions.

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use hostler_postgres::{Client, Database, DatabaseError, Transaction};
use hostler_queue::{
    Admin, Advance, Advanced, Agreement, Broker, Change, ChannelSpec, Depth, Finding, Inventory, Link, Listing,
    ManagedQueue, Origin, Provisioner, Queue, QueueError, Records, Schedules, SendError, Sent,
};
use hostler_types::ScheduleState;
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, MAX_ATTRIBUTES, Message, Outgoing};
use tokio::sync::watch;

use super::additions::{self, OF_SCHEDULES};
use super::faults::no_schema;
use super::options::Options;
use super::provision::{self, Difference, Leftover};
use super::queue::PostgresQueue;
use super::records::PostgresRecords;
use super::schema::{self, State};
use super::send::check;
use super::service::Service;
use super::settle::Source;
use super::topology::{self, Wanted};
use super::{admin, rights, schedules, send};

/// The queues of a database. Calls fail within the deadline of the options, and connections that are lost are made again.
pub struct PostgresBroker(Arc<Service>);

impl PostgresBroker {
    /// Connects. Creates the schema, or brings it to the latest version, if the options say so. An older version is left as
    /// it is if the user may not change it. Queues work with it. [`Schedules::prepare`] and [`Records::prepare`] are refused if their table
    /// is missing.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the options are not valid, the server refuses the user, or a newer hostler has migrated the schema.
    /// [`QueueError::Unavailable`] if the server cannot be reached.
    pub async fn connect(options: Options) -> Result<Self, QueueError> {
        let settings = hostler_postgres::Options {
            application: "hostler",
            connections: options.connections,
            deadline: options.deadline,
        };
        let database = Database::new(&options.url, settings)
            .map_err(|fault| QueueError::Refused(format!("the URL of the database {fault}")))?;
        if options.create_missing {
            schema::create_or_keep(&database).await?;
        } else {
            // Fails early if the server cannot be reached.
            schema::state(&database).await?;
        }
        Ok(Self(Arc::new(Service::new(database, options))))
    }

    fn wanted(&self, spec: &ChannelSpec) -> Wanted {
        let service = &self.0;
        let exchange = spec.channel.exchange().map(|exchange| (service.full(exchange), spec.filter.clone()));
        Wanted {
            queue: service.full(spec.channel.queue()),
            dead_letters: spec.max_receives.map(|_| service.full(&spec.channel.dead_letter_queue())),
            exchange,
            ordered: spec.ordered,
            tags: spec.tags.clone(),
        }
    }

    async fn client(&self) -> Result<Client, QueueError> {
        self.0.run(self.0.database.client()).await
    }

    /// Makes changes in a transaction.
    async fn change(
        &self,
        act: impl AsyncFnOnce(&Transaction<'_>) -> Result<(), DatabaseError>,
    ) -> Result<(), QueueError> {
        let mut client = self.client().await?;
        let changed = async {
            let tx = client.transaction().await?;
            act(&tx).await?;
            tx.commit().await
        };
        self.0.run(changed).await
    }

    /// Returns true if nothing has been created in the database yet.
    async fn lacks_schema(&self) -> Result<bool, QueueError> {
        Ok(schema::state(&self.0.database).await? == State::Missing)
    }

    /// Returns the differences of a channel from its wanted state, and `false` if there is no schema.
    async fn differences(&self, spec: &ChannelSpec) -> Result<(Vec<Difference>, bool), QueueError> {
        let wanted = self.wanted(spec);
        if self.lacks_schema().await? {
            return Ok((provision::all_missing(&wanted), false));
        }
        let client = self.client().await?;
        Ok((self.0.run(provision::differences(&client, &wanted)).await?, true))
    }

    /// Returns the subscriptions of a channel's queue that the config does not name.
    async fn leftovers(&self, spec: &ChannelSpec) -> Result<Vec<Leftover>, QueueError> {
        let client = self.client().await?;
        self.0.run(provision::leftovers(&client, &self.0.options.prefix, &self.wanted(spec))).await
    }

    /// Makes sure that the resources of a channel exist.
    async fn open_existing(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        let (differences, has_schema) = self.differences(spec).await?;
        if !has_schema {
            return Err(QueueError::Refused(no_schema().to_owned()));
        }
        for finding in differences.into_iter().filter_map(|one| one.finding(false)) {
            if finding.fatal {
                return Err(QueueError::Refused(finding.to_string()));
            }
            tracing::warn!("{finding}");
        }
        Ok(())
    }
}

#[async_trait]
impl Broker for PostgresBroker {
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError> {
        let wanted = self.wanted(spec);
        if self.0.options.create_missing {
            self.change(async |tx| topology::establish(tx, &wanted).await).await?;
        } else {
            self.open_existing(spec).await?;
        }
        let source = Source {
            queue: wanted.queue,
            channel: spec.channel.to_string(),
            dead_letters: wanted.dead_letters.zip(spec.max_receives),
            ordered: spec.ordered,
        };
        Ok(Arc::new(PostgresQueue::new(Arc::clone(&self.0), spec.channel.clone(), source)))
    }

    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        let checked: Vec<_> = batch.iter().map(check).collect();
        let valid = batch.into_iter().zip(&checked).filter_map(|(message, check)| check.is_ok().then_some(message));
        let carrying = |mut message: Outgoing| {
            message.carry_trace(MAX_ATTRIBUTES);
            message
        };
        let valid: Vec<Outgoing> = valid.map(carrying).collect();
        let sent = if valid.is_empty() { Ok(Vec::new()) } else { send::send(&self.0, channel, &valid).await };
        let mut sent = sent.map(Vec::into_iter);
        let answer = |check: Result<(), Invalid>| {
            check?;
            let next = sent.as_mut().map_err(|error| error.clone())?.next();
            Ok(next.ok_or_else(hostler_queue::parallel::stopping)?)
        };
        checked.into_iter().map(answer).collect()
    }

    fn schedules(&self) -> Result<&dyn Schedules, QueueError> {
        Ok(self)
    }

    fn records(&self) -> Result<Arc<dyn Records>, QueueError> {
        Ok(Arc::new(PostgresRecords::new(Arc::clone(&self.0))))
    }

    fn check(&self, _: &Channel, message: &Outgoing) -> Result<(), Invalid> {
        check(message)
    }

    fn origin(&self, channel: &Channel) -> Origin {
        self.0.origin(channel)
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.0.link()
    }
}

#[async_trait]
impl Schedules for PostgresBroker {
    fn agreement(&self) -> Agreement {
        Agreement::Transaction
    }

    async fn prepare(&self) -> Result<(), QueueError> {
        additions::prepare(&self.0, OF_SCHEDULES).await
    }

    /// The schema is planned with the queues. What remains is a table that somebody has removed from it.
    async fn planned_changes(&self) -> Result<Vec<Change>, QueueError> {
        additions::missing(&self.0, OF_SCHEDULES).await
    }

    async fn make_changes(&self) -> Result<Vec<Change>, QueueError> {
        additions::restore(&self.0, OF_SCHEDULES).await
    }

    async fn look(&self, names: &[String]) -> Result<Vec<Option<ScheduleState>>, QueueError> {
        let names: Vec<String> = names.iter().map(|name| self.0.full(name)).collect();
        let client = self.client().await?;
        self.0.run(schedules::look(&client, &names)).await
    }

    async fn advance(&self, mut step: Advance) -> Result<Advanced, SendError> {
        for (_, message) in &mut step.messages {
            check(message)?;
            message.carry_trace(MAX_ATTRIBUTES);
        }
        Ok(schedules::advance(&self.0, step).await?)
    }
}

#[async_trait]
impl Admin for PostgresBroker {
    async fn channels(&self) -> Result<Vec<Channel>, QueueError> {
        if self.lacks_schema().await? {
            return Ok(Vec::new());
        }
        let client = self.client().await?;
        let names = self.0.run(admin::channels(&client, &self.0.options.prefix)).await?;
        // Leaves out queues whose names are not valid channel names.
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError> {
        let names = |channel: &Channel| (self.0.full(channel.queue()), self.0.full(&channel.dead_letter_queue()));
        let names: Vec<_> = channels.iter().map(names).collect();
        if self.lacks_schema().await? {
            return Ok(channels.iter().map(|_| Ok(Depth { missing: true, ..Depth::default() })).collect());
        }
        let client = self.client().await?;
        Ok(self.0.run(admin::depths(&client, &names)).await?.into_iter().map(Ok).collect())
    }

    async fn destinations(&self) -> Result<Option<Vec<Channel>>, QueueError> {
        let client = self.client().await?;
        let names = self.0.run(admin::destinations(&client, &self.0.options.prefix)).await?;
        Ok(Some(names.iter().filter_map(|name| name.parse().ok()).collect()))
    }

    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError> {
        let name = self.0.full(channel.queue());
        let mut client = self.client().await?;
        let found = async {
            let tx = client.transaction().await?;
            topology::find(&tx, &name).await
        };
        let found = self.0.run(found).await?.ok_or_else(|| hostler_queue::no_queue(channel))?;
        let source =
            Source { queue: found.name, channel: channel.to_string(), dead_letters: None, ordered: found.ordered };
        Ok(Arc::new(PostgresQueue::new(Arc::clone(&self.0), channel.clone(), source)))
    }

    async fn peek(
        &self,
        channel: &Channel,
        each: &mut (dyn for<'m> FnMut(&'m Message) -> ControlFlow<()> + Send),
    ) -> Result<bool, QueueError> {
        let name = self.0.full(channel.queue());
        let mut after = 0;
        loop {
            let client = self.client().await?;
            let page = self.0.run(admin::page(&client, &name, after)).await?;
            // A callback may take long, and needs no connection.
            drop(client);
            let (page, last) = page.ok_or_else(|| hostler_queue::no_queue(channel))?;
            let Some(last) = last else { return Ok(true) };
            after = last;
            for (_, message) in page {
                if each(&message).is_break() {
                    return Ok(true);
                }
            }
        }
    }
}

#[async_trait]
impl Provisioner for PostgresBroker {
    async fn declare(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        schema::create_or_keep(&self.0.database).await?;
        let wanted = self.wanted(spec);
        self.change(async |tx| topology::declare(tx, &wanted).await).await
    }

    async fn plan(&self, wanted: &[ChannelSpec]) -> Result<Vec<Change>, QueueError> {
        let mut changes = Vec::from_iter(schema::planned(schema::state(&self.0.database).await?));
        for spec in wanted {
            let (differences, has_schema) = self.differences(spec).await?;
            let leftovers = if has_schema { self.leftovers(spec).await? } else { Vec::new() };
            let left = leftovers.iter().map(Leftover::change);
            for change in differences.into_iter().map(Difference::change).chain(left) {
                // A dead-letter queue that has its own consumer occurs in the changes of two channels.
                if !changes.contains(&change) {
                    changes.push(change);
                }
            }
        }
        Ok(changes)
    }

    async fn provision(
        &self,
        wanted: &[ChannelSpec],
        done: &mut (dyn for<'c> FnMut(&'c Change) + Send),
    ) -> Result<(), QueueError> {
        let changes = self.plan(wanted).await?;
        schema::create(&self.0.database).await?;
        for spec in wanted {
            let wanted = self.wanted(spec);
            self.change(async |tx| topology::establish(tx, &wanted).await).await?;
            // Reads back what was written: a trigger or a rule of an operator may have prevented it.
            if let Some(left) = self.differences(spec).await?.0.into_iter().next() {
                return Err(QueueError::Refused(format!("a change has no effect: {}", left.change())));
            }
        }
        changes.iter().for_each(done);
        Ok(())
    }

    async fn inspect(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        let creates = self.0.options.create_missing;
        if self.lacks_schema().await? {
            let cure = "`hostler provision` creates it, and so does provision = \"auto\"".to_owned();
            let fault = format!("the database has no schema {}", schema::SCHEMA);
            return Ok(vec![Finding { fault, cure, fatal: !creates }]);
        }
        let client = self.client().await?;
        // Without rights, the queues may not be readable.
        if let Some(finding) = self.0.run(rights::inspect(&client, creates)).await? {
            return Ok(vec![finding]);
        }
        drop(client);
        let (differences, _) = self.differences(spec).await?;
        let leftovers = self.leftovers(spec).await?;
        let findings = differences.into_iter().filter_map(|one| one.finding(creates));
        Ok(findings.chain(leftovers.iter().map(Leftover::finding)).collect())
    }

    async fn missing_destinations(&self, channels: &[Channel]) -> Result<Vec<(Channel, Change)>, QueueError> {
        let lacks_schema = self.lacks_schema().await?;
        let mut client = self.client().await?;
        let mut missing = Vec::new();
        for channel in channels {
            let name = self.0.full(channel.exchange().unwrap_or(channel.queue()));
            let is_queue = channel.exchange().is_none();
            let found = async {
                if lacks_schema {
                    return Ok(false);
                }
                let tx = client.transaction().await?;
                Ok(is_queue && topology::find(&tx, &name).await?.is_some()
                    || topology::is_exchange(&tx, &name).await?
                    || !topology::subscribed(&tx, &name).await?.is_empty())
            };
            if !self.0.run(found).await? {
                let kind = if is_queue { "queue" } else { "exchange" };
                missing.push((channel.clone(), Change::create(format!("{kind} {name}"))));
            }
        }
        Ok(missing)
    }

    async fn make_destination(&self, channel: &Channel) -> Result<(), QueueError> {
        let name = self.0.full(channel.exchange().unwrap_or(channel.queue()));
        let is_exchange = channel.exchange().is_some();
        self.change(async |tx| {
            if is_exchange {
                topology::make_exchange(tx, &name).await
            } else {
                topology::make_queue(tx, &name, false, "{\"hostler:managed\": \"true\"}").await
            }
        })
        .await
    }
}

#[async_trait]
impl Inventory for PostgresBroker {
    async fn queues(&self) -> Result<Listing<ManagedQueue>, QueueError> {
        let client = self.client().await?;
        let found = self.0.run(admin::managed(&client, &self.0.options.prefix)).await?;
        Ok(Listing { found, unread: Vec::new() })
    }
}
