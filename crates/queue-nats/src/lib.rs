//! NATS queue driver: JetStream, a stream for each queue.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `address` | addresses of servers | none |
//! | `acks` | acknowledgements | none |
//! | `names` | names and subjects on the server | none |
//! | `topology` | streams and consumers of a channel, and how others differ | none |
//! | `headers`, `envelope` | messages and copies in NATS's form | none |
//! | `stamp` | numbers that the server gives to a delivery | none |
//! | `hand` | the messages in hand: leases, groups, the server's timers; `hand/surplus` chooses what is too much | none |
//! | `frames` | messages that the client library cannot read | none |
//! | `pulls` | the request for messages that the server has not answered in full | none |
//! | `connecting` | client options by an address, for the retry service | none |
//! | `client` | the client of the client library, and its replacement | server |
//! | `line` | the connection, and requests over it | server |
//! | `api` | calls of JetStream, in JSON | through `line` |
//! | `raw` | stored messages with the bytes of their headers | through `api` |
//! | `screening` | sets messages aside that end the connection | through `api` |
//! | `declare` | creates streams and consumers, and compares | through `api` |
//! | `notes` | deliveries that are no attempts | through `api` |
//! | `source` | what the consumer of a queue asks for | none |
//! | `send` | messages to queues and exchanges | through `api` |
//! | `queue` | receives; `queue/session` takes messages, `queue/settle` settles; all by `queue/shared` | server |
//! | `replies` | answers of receivers to requests | none |
//! | `requests` | messages to subjects, which a receiver acknowledges | server |
//! | `subjects` | subjects whose requests are answered, without a stream; `subjects/desk` keeps the requests | server |
//! | `forward` | messages of exchanges to their queues | server |
//! | `look` | counts, names and stored messages | through `api` |
//! | `rights` | permissions that receiving needs | server |
//! | `provision` | plans, findings | through `declare` |
//! | `schedules` | states of schedules, and the messages that they make due | through `api` |

mod acks;
mod address;
mod api;
pub mod client;
pub mod connecting;
mod declare;
mod envelope;
mod forward;
mod frames;
mod hand;
mod headers;
mod line;
mod look;
mod names;
mod notes;
mod provision;
mod pulls;
mod queue;
mod raw;
pub mod replies;
mod requests;
mod rights;
mod schedules;
mod screening;
mod send;
mod source;
mod stamp;
mod subjects;
mod topology;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use hostler_queue::{
    Admin, Broker, ChannelSpec, DEDUPE_WINDOW, Depth, Link, Origin, Queue, QueueError, Request, Requested, Schedules,
    SendError, Sent, no_queue,
};
use hostler_types::channel::{Channel, Filter};
use hostler_types::message::{Invalid, Message, Outgoing};
use serde_json::Value;
use tokio::sync::watch;

use declare::{Declarer, Resource, Timers, missing};
use line::Line;
use names::{CONSUMER, Names};
use notes::Notes;
use queue::{NatsQueue, Shared};
use schedules::Precautions;
use send::Targets;
use source::Source;
use subjects::SubjectQueue;
use topology::Common;

pub use envelope::OWN_HEADERS;

/// Value of `messaging.system`.
pub const SYSTEM: &str = "nats";

/// Time after which the server delivers a message again, if it does not tell.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// Options of the driver.
#[derive(Clone)]
pub struct Options {
    /// Address of the server, or of several of a cluster.
    pub url: String,
    /// Text of a credentials file: the user's JWT and the seed of its key.
    pub credentials: Option<String>,
    /// Seed of the user's NKey.
    pub nkey: Option<String>,
    /// PEM file with certificates of authorities to trust. `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// PEM file with the certificate and the private key of the client.
    pub client_cert: Option<PathBuf>,
    /// Beginning of the names of all streams and of their subjects.
    pub prefix: String,
    /// Set if missing streams and consumers are created.
    pub create_missing: bool,
    /// Number of copies of each new stream.
    pub replicas: u32,
    /// Time for which the server remembers a deduplication key.
    pub dedupe_window: Duration,
    /// Known consumers. Commands open their queues alike.
    pub consumers: Vec<Known>,
}

/// A consumer of the config.
#[derive(Debug, Clone)]
pub struct Known {
    /// Its channel.
    pub channel: Channel,
    /// Set if it keeps the order of groups.
    pub ordered: bool,
    /// Filter for messages of the exchange.
    pub filter: Filter,
    /// Set if it has a dead-letter queue.
    pub dead_letters: bool,
    /// Duration of its leases.
    pub lease: Duration,
}

impl Known {
    /// Describes a consumer whose order, filter and lease are the defaults, and which has a dead-letter queue.
    pub fn new(channel: Channel) -> Self {
        let ChannelSpec { channel, ordered, filter, lease, .. } = ChannelSpec::new(channel);
        Self { channel, ordered, filter, dead_letters: true, lease }
    }

    fn spec(&self) -> ChannelSpec {
        ChannelSpec {
            ordered: self.ordered,
            filter: self.filter.clone(),
            lease: self.lease,
            // The number makes no difference to what is created.
            max_receives: self.dead_letters.then_some(u32::MAX),
            ..ChannelSpec::new(self.channel.clone())
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            url: "nats://127.0.0.1:4222".to_owned(),
            credentials: None,
            nkey: None,
            ca: None,
            client_cert: None,
            prefix: String::new(),
            create_missing: false,
            replicas: 1,
            dedupe_window: DEDUPE_WINDOW,
            consumers: Vec::new(),
        }
    }
}

/// All that the queues of a broker share.
struct Service {
    options: Options,
    names: Names,
    line: Arc<Line>,
    declarer: Declarer,
    notes: Notes,
    targets: Targets,
    precautions: Precautions,
    /// Opened queues, to count the messages that wait here.
    opened: Mutex<Vec<Weak<Shared>>>,
}

impl Service {
    fn origin(&self, channel: &Channel) -> Origin {
        let name = self.names.queue(channel.exchange().unwrap_or(channel.queue()));
        Origin { system: SYSTEM, address: Some(format!("{}/{name}", self.line.address).into()) }
    }

    /// Returns the known consumer of a queue, or of the queue that this dead-letter queue belongs to.
    fn known(&self, channel: &Channel) -> Option<&Known> {
        self.options.consumers.iter().find(|known| {
            known.channel.queue() == channel.queue() || known.channel.dead_letter_queue() == channel.queue()
        })
    }

    /// Describes a queue that is created before its consumer is opened.
    fn spec_of(&self, channel: &Channel) -> ChannelSpec {
        let lease = self.known(channel).map(|known| known.lease);
        let spec = ChannelSpec::new(channel.clone());
        ChannelSpec { lease: lease.unwrap_or(spec.lease), ..spec }
    }

    /// Returns the number of messages of a stream that this process knows to be visible, though the server counts them as
    /// delivered.
    fn visible(&self, stream: &str) -> u64 {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let of_stream = opened.iter().filter_map(Weak::upgrade).filter(|shared| shared.stream() == stream);
        of_stream.map(|shared| shared.visible()).sum()
    }

    /// Makes sure that what a channel consists of exists, in a form that its consumer can work with.
    async fn open_existing(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        for resource in self.declarer.resources(spec) {
            if !self.is_usable(&resource).await? {
                if resource.stream == self.names.notes() {
                    tracing::warn!(
                        stream = resource.stream,
                        "the stream is missing, so deliveries that no handler sees count as attempts: run `hostler provision`"
                    );
                    continue;
                }
                return Err(missing(&resource.title));
            }
        }
        Ok(())
    }

    /// Returns `false` if a stream or consumer is missing.
    ///
    /// # Errors
    /// It differs so that hostler cannot work with it.
    async fn is_usable(&self, resource: &Resource) -> Result<bool, QueueError> {
        let Some(found) = self.declarer.found(resource).await? else { return Ok(false) };
        let findings = topology::findings(&resource.title, &resource.drift(&found));
        if let Some(fatal) = findings.iter().find(|finding| finding.fatal) {
            return Err(QueueError::Refused(fatal.to_string()));
        }
        findings.iter().for_each(|finding| tracing::debug!("{finding}"));
        Ok(true)
    }

    /// Returns the time after which the server delivers a message of a queue again.
    async fn server_wait(&self, stream: &str) -> Result<Duration, QueueError> {
        let info = api::consumer(&self.line, stream, CONSUMER).await?;
        Ok(info.as_ref().map_or(DEFAULT_WAIT, server_wait))
    }
}

/// Returns the time after which the server delivers a message again, from what it tells of a consumer.
fn server_wait(consumer: &Value) -> Duration {
    consumer["config"]["ack_wait"].as_u64().map_or(DEFAULT_WAIT, Duration::from_nanos)
}

/// A NATS server or cluster with JetStream.
pub struct NatsBroker(Arc<Service>);

impl NatsBroker {
    /// Connects.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the options are not valid, or the server refuses the user. [`QueueError::Unavailable`] if the
    /// server cannot be reached.
    pub async fn connect(options: Options) -> Result<Self, QueueError> {
        let line = Arc::new(Line::connect(&options).await?);
        let names = Names::new(&options.prefix);
        let common = Common { replicas: options.replicas, dedupe_window: options.dedupe_window };
        Ok(Self(Arc::new(Service {
            declarer: Declarer::new(Arc::clone(&line), names.clone(), common),
            notes: Notes::new(Arc::clone(&line), names.clone()),
            targets: Targets::default(),
            precautions: Precautions::default(),
            opened: Mutex::default(),
            options,
            names,
            line,
        })))
    }

    fn opened(&self, source: Source) -> Arc<dyn Queue> {
        let queue = NatsQueue::new(Arc::clone(&self.0), source);
        let mut opened = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|shared| shared.strong_count() > 0);
        opened.push(Arc::downgrade(queue.shared()));
        Arc::new(queue)
    }
}

#[async_trait]
impl Broker for NatsBroker {
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError> {
        let service = &self.0;
        if let Some(subject) = &spec.subject {
            return Ok(Arc::new(SubjectQueue::new(Arc::clone(service), subject.clone(), spec.window)));
        }
        if service.options.create_missing {
            for (resource, drift) in service.declarer.establish(spec, Timers::Raise).await? {
                tracing::warn!("the {} is not as hostler configures it: {}", resource.title, drift.text);
            }
        } else {
            service.open_existing(spec).await?;
        }
        let stream = service.names.queue(spec.channel.queue());
        let server = service.server_wait(&stream).await?;
        Ok(self.opened(Source {
            channel: spec.channel.clone(),
            stream,
            consumer: CONSUMER.to_owned(),
            dead_letters: spec.max_receives.map(|_| spec.channel.dead_letter_queue()),
            max_receives: spec.max_receives,
            ordered: spec.ordered,
            exchanges: spec.channel.exchange().map(str::to_owned).into_iter().collect(),
            filter: spec.filter.clone(),
            server,
        }))
    }

    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        send::send(&self.0, channel, batch).await
    }

    async fn request(&self, request: Request) -> Result<Requested, SendError> {
        requests::request(&self.0.line, request).await
    }

    fn check(&self, _: &Channel, message: &Outgoing) -> Result<(), Invalid> {
        message.validate(self.0.line.max_payload())
    }

    fn schedules(&self) -> Result<&dyn Schedules, QueueError> {
        Ok(self)
    }

    fn origin(&self, channel: &Channel) -> Origin {
        self.0.origin(channel)
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.0.line.link()
    }
}

#[async_trait]
impl Admin for NatsBroker {
    async fn channels(&self) -> Result<Vec<Channel>, QueueError> {
        self.0.queues().await
    }

    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError> {
        let feeds = self.0.feeds().await?;
        let mut depths = Vec::new();
        for channel in channels {
            depths.push(self.0.depth(channel, &feeds).await);
        }
        Ok(depths)
    }

    async fn exchanges_feeding(&self, channels: &[Channel]) -> Result<Option<Vec<String>>, QueueError> {
        let feeds = self.0.feeds().await?;
        let of = |channel: &Channel| feeds.get(channel.queue()).cloned().unwrap_or_default();
        Ok(Some(channels.iter().flat_map(of).collect()))
    }

    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError> {
        let service = &self.0;
        let stream = service.names.queue(channel.queue());
        let Some(found) = api::stream(&service.line, &stream).await? else { return Err(no_queue(channel)) };
        if found["config"]["retention"] != "workqueue" {
            return Err(QueueError::Refused(format!("the stream `{stream}` is not a queue of hostler")));
        }
        if service.options.create_missing {
            let spec = service.spec_of(channel);
            service.declarer.create_missing(service.declarer.queue(channel.queue(), &spec)).await?;
        } else if api::consumer(&service.line, &stream, CONSUMER).await?.is_none() {
            return Err(missing(&format!("consumer of the queue {stream}")));
        }
        let known = service.known(channel);
        let server = service.server_wait(&stream).await?;
        let fed = known.filter(|known| known.channel.queue() == channel.queue());
        Ok(self.opened(Source {
            channel: channel.clone(),
            stream,
            consumer: CONSUMER.to_owned(),
            dead_letters: None,
            max_receives: None,
            ordered: known.is_some_and(|known| known.ordered),
            exchanges: fed.and_then(|known| known.channel.exchange()).map(str::to_owned).into_iter().collect(),
            filter: fed.map_or(Filter::All, |known| known.filter.clone()),
            server,
        }))
    }

    async fn peek(
        &self,
        channel: &Channel,
        each: &mut (dyn for<'m> FnMut(&'m Message) -> ControlFlow<()> + Send),
    ) -> Result<bool, QueueError> {
        self.0.look(channel, each).await?;
        Ok(true)
    }
}
