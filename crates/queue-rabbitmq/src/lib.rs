//! RabbitMQ queue driver: quorum queues over AMQP 0-9-1.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `names` | names on the server | none |
//! | `topology` | queues, arguments and bindings of a channel | none |
//! | `bindings` | bindings that are missing, or left by an earlier filter | none |
//! | `drift` | what exists in another form | none |
//! | `ladder` | delays by queues of powers of two seconds | none |
//! | `headers`, `envelope` | messages and copies in AMQP's form | none |
//! | `frame` | the size of the frame with a message's headers, and what fits | none |
//! | `unacked` | the prefetch window: leases, groups, receipts | none |
//! | `permissions` | what a user must be allowed | none |
//! | `uncounted` | deliveries that are no attempts | none |
//! | `links` | the worse state of two connections | none |
//! | `screen` | frames that the client library could not read | none |
//! | `tuning` | frames that are larger than the server's limit | none |
//! | `fault` | errors of the client, by what the caller does next | none |
//! | `repaired` | the way of all frames, through `screen` | server |
//! | `connection` | connections, and their return after a loss | server |
//! | `confirms` | the server's answers to a batch of messages | none |
//! | `publisher` | confirmed publishes | server |
//! | `declare` | declarations and look-ups | server |
//! | `send` | messages to queues and exchanges | through `publisher` |
//! | `queue` | receives; `queue/triage` decides, `queue/feed` takes messages, `queue/settle` settles; all by `queue/shared` | server |
//! | `look` | queues for commands, which take what they ask for; `look/leases` has the leases | server |
//! | `provision` | plans, findings | through `declare` |
//! | `management` | what AMQP does not tell | the management API |
//! | `wire` | messages out of AMQP's bytes, for the fuzz target | none |

mod bindings;
mod confirms;
mod connection;
mod declare;
mod drift;
mod envelope;
mod fault;
mod frame;
mod headers;
mod ladder;
mod links;
mod look;
mod management;
mod names;
pub mod permissions;
mod provision;
mod publisher;
mod queue;
mod repaired;
mod screen;
mod send;
mod topology;
mod tuning;
mod unacked;
mod uncounted;
pub mod wire;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use hostler_queue::{Admin, Broker, ChannelSpec, Depth, Link, Origin, Queue, QueueError, SendError, Sent, no_queue};
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, Outgoing};
use tokio::sync::watch;
use tokio::time::Instant;

use connection::{Endpoint, Line, Role};
use declare::Declarer;
use drift::Drift;
use links::Links;
use look::LookQueue;
use management::Management;
use names::Names;
use publisher::Publisher;
use queue::{RabbitQueue, Shared, Source};
use send::{Targets, missing};

/// Maximum size of a message in bytes, with its attributes: 16 MiB (default limit of RabbitMQ 4).
pub const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// Value of `messaging.system` (OpenTelemetry semantic conventions).
pub const SYSTEM: &str = "rabbitmq";

/// Factor by which the prefetch of an ordered queue exceeds its consumer's slots. Messages that wait for their group fill the
/// prefetch, and should leave room for other groups.
const ORDERED_WINDOW: usize = 8;

/// Prefetch for commands that look at the messages of an ordered queue. The messages stay in hand until all have been looked at.
const ORDERED_LOOK_WINDOW: u16 = 1000;

/// Options of the driver.
#[derive(Clone)]
pub struct Options {
    /// URL of the server, with the user, the password and the virtual host.
    pub url: String,
    /// Certificates of authorities to trust, in PEM format, in addition to those of the system.
    pub ca: Option<String>,
    /// Certificate and private key of the client, in PEM format.
    pub client_identity: Option<(Vec<u8>, Vec<u8>)>,
    /// Beginning of the names of all queues and exchanges.
    pub prefix: String,
    /// Beginning of the names of the queues for delays. `None`: the prefix.
    pub ladder_prefix: Option<String>,
    /// Set if missing queues and exchanges are created.
    pub create_missing: bool,
    /// Interval of heartbeats. After one without a sign of life of the server, leases are lost; after two, the connection.
    pub heartbeat: Duration,
    /// Known channels. AMQP does not list queues, so these are listed if there is no management API; with it, they tell which
    /// exchange feeds a queue.
    pub channels: Vec<Channel>,
    /// Known channels with ordered consumers. Their queues and dead-letter queues are created and opened as ordered ones.
    pub ordered: Vec<Channel>,
    /// Address of the management API, for example `http://rabbit.example.com:15672`. `None`: the API is not used.
    pub management_url: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            url: "amqp://127.0.0.1".to_owned(),
            ca: None,
            client_identity: None,
            prefix: String::new(),
            ladder_prefix: None,
            create_missing: false,
            heartbeat: Duration::from_secs(10),
            channels: Vec::new(),
            ordered: Vec::new(),
            management_url: None,
        }
    }
}

/// All that the queues of a broker share.
struct Service {
    options: Options,
    names: Names,
    address: Arc<str>,
    consuming: Arc<Line>,
    links: Links,
    declarer: Declarer,
    publisher: Publisher,
    targets: Targets,
    management: Option<Management>,
    /// Opened queues, to count the messages that the server has sent ahead.
    opened: Mutex<Vec<Weak<Shared>>>,
}

impl Service {
    fn origin(&self, channel: &Channel) -> Origin {
        let name = self.names.full(channel.exchange().unwrap_or(channel.queue()));
        Origin { system: SYSTEM, address: Some(format!("{}/{name}", self.address).into()) }
    }

    /// Returns `true` if the queue of a channel is known to be ordered.
    fn is_ordered(&self, channel: &Channel) -> bool {
        self.options
            .ordered
            .iter()
            .any(|ordered| ordered.queue() == channel.queue() || ordered.dead_letter_queue() == channel.queue())
    }

    /// Lets the delay ladder deliver to a queue that exists. Without the permission to bind the queue, its delayed messages may
    /// get lost on their way, which is logged.
    ///
    /// # Errors
    /// The queues for delays are missing, or the server cannot be asked.
    async fn land(&self, queue: &str) -> Result<(), QueueError> {
        if !self.declarer.has_ladder().await? {
            return Err(missing(&format!("set of {}", provision::DELAYS), self.options.create_missing));
        }
        match self.declarer.land(queue).await {
            Err(QueueError::Refused(error)) => {
                let lost = self.names.lost();
                tracing::warn!(
                    queue,
                    error,
                    "cannot bind the queue to the queues for delays; unless `hostler provision` did, delayed messages go to `{lost}`"
                );
                Ok(())
            }
            landed => landed,
        }
    }

    /// Makes sure that what a channel consists of exists, in a form that its consumer can work with as far as the management API
    /// tells. AMQP tells the form only to a user who may declare queues, and the server logs each refusal.
    ///
    /// # Errors
    /// Something is missing or in another form, or the server cannot be asked.
    async fn open_existing(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        for queue in topology::queues(&self.names, spec) {
            if self.declarer.ready(&queue.name).await?.is_none() {
                return Err(missing(&format!("queue `{}`", queue.name), self.options.create_missing));
            }
            let Some(management) = &self.management else { continue };
            match management.has_single_consumer(&queue.name).await {
                Ok(Some(single)) if single != spec.ordered => {
                    return Err(QueueError::Refused(Drift::of_order(&queue.name, single).finding().to_string()));
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(queue = queue.name, %error, "the form of the queue is not compared"),
            }
        }
        let (findings, _) = self.inspect_bindings(spec).await?;
        if let Some(finding) = findings.iter().find(|finding| finding.fatal) {
            return Err(QueueError::Refused(finding.to_string()));
        }
        for finding in findings {
            tracing::warn!("{finding}");
        }
        Ok(())
    }

    /// Returns `true` if a queue that exists hands a message that is rejected to its dead-letter queue, as hostler declares it.
    /// Asks the management API, or else for a declaration like that of the queue, which only some users may do.
    async fn has_net(&self, channel: &Channel, ordered: bool) -> bool {
        let wanted = topology::queue(&self.names, channel, ordered);
        if let Some(management) = &self.management
            && let Ok(Some(arguments)) = management.arguments_of(&wanted.name).await
        {
            return topology::has_net(&arguments, &wanted);
        }
        // Only with the net does it have all arguments that hostler declares.
        channel.of_dead_letters().is_none()
            && matches!(self.declarer.ready(&wanted.name).await, Ok(Some(_)))
            && matches!(self.declarer.compare(&wanted).await, Ok(None))
    }

    /// Returns the number of messages of a queue that the server has sent ahead to this process.
    fn sent_ahead(&self, queue: &str) -> u64 {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|shared| shared.reads(queue))
            .map(|shared| shared.visible())
            .sum()
    }
}

/// A RabbitMQ server or cluster, with a connection for publishing and one for consuming.
pub struct RabbitBroker(Arc<Service>);

impl RabbitBroker {
    /// Connects.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the options are not valid, or the server refuses the user. [`QueueError::Unavailable`] if the
    /// server cannot be reached.
    pub async fn connect(options: Options) -> Result<Self, QueueError> {
        let endpoint = Arc::new(Endpoint::new(&options)?);
        let (publishing, consuming) =
            (Line::new(Arc::clone(&endpoint), Role::Publishing), Line::new(Arc::clone(&endpoint), Role::Consuming));
        let names = Names::new(&options.prefix, options.ladder_prefix.as_ref().unwrap_or(&options.prefix));
        let management = options.management_url.as_ref();
        let management = management.map(|url| Management::new(url, endpoint.account(), &options)).transpose()?;
        publishing.get(Instant::now()).await?;
        Ok(Self(Arc::new(Service {
            address: endpoint.address().into(),
            // The server reads nothing from a publishing connection while it blocks it.
            declarer: Declarer::new(Arc::clone(&consuming), names.clone()),
            publisher: Publisher::new(Arc::clone(&publishing)),
            targets: Targets::default(),
            management,
            opened: Mutex::default(),
            links: Links::of(publishing.link(), consuming.link()),
            options,
            names,
            consuming,
        })))
    }

    fn opened(&self, source: Source) -> Arc<dyn Queue> {
        let queue = RabbitQueue::new(Arc::clone(&self.0), source);
        let mut opened = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|shared| shared.strong_count() > 0);
        opened.push(Arc::downgrade(queue.shared()));
        Arc::new(queue)
    }

    /// Returns the known channels that exist, with their dead-letter queues.
    async fn known_channels(&self) -> Result<Vec<Channel>, QueueError> {
        let mut found = Vec::new();
        for channel in &self.0.options.channels {
            for queue in [channel.clone()].into_iter().chain(channel.dead_letter_queue().parse().ok()) {
                let name = self.0.names.full(queue.queue());
                if !found.contains(&queue) && self.0.declarer.ready(&name).await?.is_some() {
                    found.push(queue);
                }
            }
        }
        Ok(found)
    }

    /// Counts the messages of a queue. `unacked`: number of those that the server has sent and that are not acked, if known.
    async fn depth(&self, channel: &Channel, unacked: Option<u64>) -> Result<Depth, QueueError> {
        let service = &self.0;
        let count = async |name: &str| -> Result<Option<(u64, u64)>, QueueError> {
            let ready = service.declarer.ready(name).await?;
            Ok(ready.map(|ready| (u64::from(ready), service.sent_ahead(name))))
        };
        let found = count(&service.names.full(channel.queue())).await?;
        let dead_letters = match channel.of_dead_letters() {
            Some(_) => None,
            None => count(&service.names.full(&channel.dead_letter_queue())).await?,
        };
        let (ready, sent_ahead) = found.unwrap_or_default();
        Ok(Depth {
            visible: ready + sent_ahead,
            // The server counts as unacked what it has sent ahead.
            in_flight: unacked.map(|unacked| unacked.saturating_sub(sent_ahead)),
            dead_lettered: dead_letters.map_or(0, |(ready, sent_ahead)| ready + sent_ahead),
            missing: found.is_none(),
            ..Depth::default()
        })
    }
}

#[async_trait]
impl Broker for RabbitBroker {
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError> {
        let service = &self.0;
        if service.options.create_missing {
            for drift in service.declarer.establish(spec).await? {
                if drift.is_fatal() {
                    return Err(QueueError::Refused(drift.finding().to_string()));
                }
                tracing::warn!("{}", drift.finding());
            }
        } else {
            service.open_existing(spec).await?;
            if provision::needs_ladder(spec) {
                service.land(&service.names.full(spec.channel.queue())).await?;
            }
        }
        let full = |name: &str| service.names.full(name);
        let window = if spec.ordered { spec.window.saturating_mul(ORDERED_WINDOW) } else { spec.window };
        let exchange = spec.channel.exchange().filter(|_| topology::is_loose(&spec.filter)).map(full);
        Ok(self.opened(Source {
            channel: spec.channel.clone(),
            is_for_command: false,
            queue: full(spec.channel.queue()),
            dead_letters: spec.max_receives.map(|_| full(&spec.channel.dead_letter_queue())),
            max_receives: spec.max_receives,
            ordered: spec.ordered,
            loose: exchange.map(|exchange| (exchange, spec.filter.clone())),
            window: u16::try_from(window.max(1)).unwrap_or(u16::MAX),
        }))
    }

    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        send::send(&self.0, channel, batch).await
    }

    fn check(&self, _: &Channel, message: &Outgoing) -> Result<(), Invalid> {
        send::check(message, self.0.publisher.frame_limits().sent())
    }

    fn origin(&self, channel: &Channel) -> Origin {
        self.0.origin(channel)
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.0.links.worse()
    }
}

#[async_trait]
impl Admin for RabbitBroker {
    /// Lists all queues by the management API. Without it, lists the known channels that exist, with their dead-letter queues.
    async fn channels(&self) -> Result<Vec<Channel>, QueueError> {
        let Some(management) = &self.0.management else { return self.known_channels().await };
        let queues = management.queues().await?;
        let channels = queues.keys().filter_map(|queue| self.0.names.channel(queue));
        let known = &self.0.options.channels;
        let fed = |queue: Channel| known.iter().find(|channel| channel.alone() == queue).cloned().unwrap_or(queue);
        Ok(channels.map(fed).collect())
    }

    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError> {
        let unacked = match &self.0.management {
            // The other counts are known without it.
            Some(management) => management.queues().await.unwrap_or_else(|error| {
                tracing::debug!(%error, "unacked messages are not counted");
                BTreeMap::new()
            }),
            None => BTreeMap::new(),
        };
        let mut depths = Vec::new();
        for channel in channels {
            let unacked = unacked.get(&self.0.names.full(channel.queue())).copied().flatten();
            depths.push(self.depth(channel, unacked).await);
        }
        Ok(depths)
    }

    /// Lists the exchanges that a queue is bound to, by the management API. AMQP does not list bindings.
    async fn exchanges_feeding(&self, channels: &[Channel]) -> Result<Option<Vec<String>>, QueueError> {
        let Some(management) = &self.0.management else { return Ok(None) };
        let mut exchanges = Vec::new();
        for channel in channels {
            match management.exchanges_of(&self.0.names.full(channel.queue())).await {
                Ok(bound) => {
                    let found = bound.iter().filter_map(|exchange| self.0.names.channel(exchange));
                    exchanges.extend(found.map(|exchange| exchange.queue().to_owned()));
                }
                Err(QueueError::Refused(error)) => {
                    tracing::debug!(error, "bindings are not listed");
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(exchanges))
    }

    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError> {
        let queue = self.0.names.full(channel.queue());
        let Some(_) = self.0.declarer.ready(&queue).await? else { return Err(no_queue(channel)) };
        if !self.0.is_ordered(channel) {
            return Ok(Arc::new(LookQueue::new(Arc::clone(&self.0), channel.clone())));
        }
        Ok(self.opened(Source {
            channel: channel.clone(),
            is_for_command: true,
            queue,
            dead_letters: None,
            max_receives: None,
            ordered: true,
            loose: None,
            window: ORDERED_LOOK_WINDOW,
        }))
    }
}
