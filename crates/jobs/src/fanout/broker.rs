//! The connection to RabbitMQ: durable queues for types, and messages that the server confirms.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::uri::AMQPUri;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ErrorKind};
use tokio::time::timeout;

use crate::fanout::address;
use crate::store::Hint;

/// Maximum time to connect to a node.
const CONNECT: Duration = Duration::from_secs(15);

/// Maximum time to publish a batch.
const PUBLISH: Duration = Duration::from_secs(10);

/// The beginning of the names of queues; the type follows.
const QUEUE: &str = "hostler.jobs.";

/// Delivery mode of messages that survive a restart.
const PERSISTENT: u8 = 2;

/// AMQP reply code of a declaration that differs from what exists.
const PRECONDITION_FAILED: u16 = 406;

/// AMQP reply codes that only an operator can end: refused access, and a virtual host that does not exist.
const REFUSALS: [u16; 2] = [403, 530];

/// An error of the broker. Texts contain no passwords.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BrokerError {
    /// The broker cannot be reached or is busy. The caller should try again soon.
    #[error("RabbitMQ at {place} cannot be used: {reason}")]
    Unavailable { place: String, reason: String },
    /// The broker refuses the account or its permissions. An operator must act.
    #[error(
        "RabbitMQ at {place} refuses this: {reason}: check the user, the password and the virtual host of jobs.rabbitmq"
    )]
    Refused { place: String, reason: String },
}

/// The way to the broker.
#[derive(Clone)]
pub(super) struct Broker {
    nodes: Arc<[AMQPUri]>,
    place: Arc<str>,
}

impl Broker {
    pub(super) fn new(nodes: Vec<AMQPUri>) -> Self {
        Self { place: address::place(&nodes).into(), nodes: nodes.into() }
    }

    /// Returns `host:port` of all nodes.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Connects to the first node that accepts a connection.
    pub(super) async fn connect(&self) -> Result<Line, BrokerError> {
        let mut fault = None;
        for node in self.nodes.iter() {
            match self.connect_to(node.clone()).await {
                Ok(line) => return Ok(line),
                // A refusal says more than the silence of another node.
                Err(_) if matches!(fault, Some(BrokerError::Refused { .. })) => {}
                Err(error) => fault = Some(error),
            }
        }
        Err(fault.unwrap_or_else(|| self.unavailable("there is no node")))
    }

    async fn connect_to(&self, node: AMQPUri) -> Result<Line, BrokerError> {
        let properties = ConnectionProperties::default().with_connection_name("hostler jobs".into());
        let connecting = async {
            let connection = Connection::connect_uri(node, properties).await?;
            let channel = open(&connection).await?;
            Ok::<_, lapin::Error>((connection, channel))
        };
        let (connection, channel) = self.timed(CONNECT, connecting).await?;
        Ok(Line { broker: self.clone(), connection, channel, declared: HashSet::new() })
    }

    async fn timed<T>(&self, time: Duration, call: impl Future<Output = lapin::Result<T>>) -> Result<T, BrokerError> {
        match timeout(time, call).await {
            Ok(answer) => answer.map_err(|error| self.fault(&error)),
            Err(_) => Err(self.unavailable(&format!("no answer within {time:?}"))),
        }
    }

    fn fault(&self, error: &lapin::Error) -> BrokerError {
        if code(error).is_some_and(|code| REFUSALS.contains(&code)) {
            return BrokerError::Refused { place: self.place.to_string(), reason: error.to_string() };
        }
        self.unavailable(&error.to_string())
    }

    fn unavailable(&self, reason: &str) -> BrokerError {
        BrokerError::Unavailable { place: self.place.to_string(), reason: reason.to_owned() }
    }
}

/// A connection to a node, with a channel that confirms.
pub(super) struct Line {
    broker: Broker,
    connection: Connection,
    channel: Channel,
    /// The queues that are known to exist.
    declared: HashSet<String>,
}

impl Line {
    /// Returns the reason why nothing can be published now.
    pub(super) fn fault(&self) -> Option<BrokerError> {
        let status = self.connection.status();
        if !status.connected() || !self.channel.status().connected() {
            return Some(self.broker.unavailable("the connection is lost"));
        }
        status.blocked().then(|| self.broker.unavailable("it accepts no messages: it is short of memory or disk"))
    }

    /// Publishes hints. Returns the numbers of those that a queue has stored. After an error, some may have been stored.
    pub(super) async fn publish(&mut self, hints: &[Hint]) -> Result<Vec<i64>, BrokerError> {
        let broker = self.broker.clone();
        broker.timed(PUBLISH, self.publish_all(hints)).await
    }

    async fn publish_all(&mut self, hints: &[Hint]) -> lapin::Result<Vec<i64>> {
        for hint in hints {
            self.declare(&hint.kind).await?;
        }
        let mut sent = Vec::with_capacity(hints.len());
        for hint in hints {
            sent.push(send(&self.channel, hint).await?);
        }
        let (mut stored, mut nowhere) = (Vec::with_capacity(hints.len()), HashSet::new());
        for (hint, confirm) in hints.iter().zip(sent) {
            // A message that came back can come with the confirm of another one, so it is told by its queue.
            let (is_stored, returned) = match confirm.await? {
                Confirmation::Ack(returned) => (true, returned),
                Confirmation::Nack(returned) => (false, returned),
                Confirmation::NotRequested => {
                    return Err(io::Error::other("RabbitMQ does not confirm messages").into());
                }
            };
            nowhere.extend(returned.map(|returned| returned.delivery.routing_key.as_str().to_owned()));
            if is_stored {
                stored.push(hint);
            }
        }
        // These queues were deleted. The next batch declares them again.
        self.declared.retain(|queue| !nowhere.contains(queue));
        Ok(stored.into_iter().filter(|hint| !nowhere.contains(&queue(&hint.kind))).map(|hint| hint.id).collect())
    }

    /// Creates the queue of a type if it is missing. A queue of another form is used as it is.
    async fn declare(&mut self, kind: &str) -> lapin::Result<()> {
        let queue = queue(kind);
        if self.declared.contains(&queue) {
            return Ok(());
        }
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        match self.channel.queue_declare(queue.as_str().into(), options, arguments).await {
            Ok(_) => {}
            // The server has closed the channel.
            Err(error) if code(&error) == Some(PRECONDITION_FAILED) => self.channel = open(&self.connection).await?,
            Err(error) => return Err(error),
        }
        self.declared.insert(queue);
        Ok(())
    }
}

async fn open(connection: &Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

async fn send(channel: &Channel, hint: &Hint) -> lapin::Result<lapin::PublisherConfirm> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type("text/plain".into())
        .with_app_id("hostler".into());
    let queue = queue(&hint.kind);
    channel.basic_publish("".into(), queue.as_str().into(), options, hint.item.as_bytes(), properties).await
}

/// Returns the name of a type's queue.
fn queue(kind: &str) -> String {
    format!("{QUEUE}{kind}")
}

fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(amqp) => Some(amqp.get_id()),
        _ => None,
    }
}
