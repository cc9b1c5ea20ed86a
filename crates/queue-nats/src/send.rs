//! Sends messages to queues and exchanges.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use futures_util::future::join_all;
use hostler_queue::{QueueError, SendError, Sent};
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, MAX_ATTRIBUTES, Outgoing};
use tokio::time::Instant;
use uuid::Uuid;

use super::Service;
use super::api::{self, PubAck, PublishError};
use super::declare::missing;
use super::envelope::{self, Parcel, Place};
use super::headers::{ID, NATS_ID};
use super::line::PATIENCE;

/// Place to which a channel's messages go.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Queue(String),
    Exchange(String),
}

impl Target {
    fn place(&self) -> Place<'_> {
        match self {
            Self::Queue(queue) => Place::Queue(queue),
            Self::Exchange(exchange) => Place::Exchange(exchange),
        }
    }
}

/// Known places.
#[derive(Debug, Default)]
pub(crate) struct Targets(Mutex<HashMap<Channel, Target>>);

impl Targets {
    fn get(&self, channel: &Channel) -> Option<Target> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(channel).cloned()
    }

    fn learn(&self, channel: &Channel, target: Target) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(channel.clone(), target);
    }

    fn forget(&self, channel: &Channel) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(channel);
    }
}

/// Sends messages to a channel. Returns the results in the order of the messages.
pub(crate) async fn send(service: &Service, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
    let target = match target(service, channel).await {
        Ok(target) => target,
        Err(error) => return batch.iter().map(|_| Err(error.clone().into())).collect(),
    };
    let most = service.line.max_payload();
    let now = SystemTime::now();
    let sending = batch.into_iter().map(|mut message| {
        let checked = envelope::check(&service.names, target.place(), &message, most);
        message.carry_trace(MAX_ATTRIBUTES);
        let id = Uuid::now_v7().to_string();
        let parcel = envelope::outgoing(&service.names, target.place(), &message, &id, now);
        let target = &target;
        async move {
            checked?;
            store(service, channel, target, parcel, id).await
        }
    });
    // The requests leave in the order in which the futures are polled first.
    join_all(sending).await
}

/// Stores a message. If its stream has gone, looks for it once more, which creates it where the options say so.
async fn store(
    service: &Service,
    channel: &Channel,
    target: &Target,
    parcel: Parcel,
    id: String,
) -> Result<Sent, SendError> {
    let stream = target.place().stream(&service.names);
    let mut stored = api::publish(&service.line, parcel.clone()).await;
    if stored == Err(PublishError::Missing) {
        service.targets.forget(channel);
        service.declarer.forget(&stream);
        if self::target(service, channel).await? == *target {
            stored = api::publish(&service.line, parcel).await;
        }
    }
    match stored {
        Ok(PubAck { duplicate: false, .. }) => {
            // How many queues of an exchange a message reaches, the server does not tell.
            let queues = matches!(target, Target::Queue(_)).then_some(1);
            Ok(Sent { id, queues })
        }
        Ok(PubAck { sequence, .. }) => {
            let id = id_of(service, &stream, sequence).await.unwrap_or(id);
            Ok(Sent { id, queues: Some(0) })
        }
        Err(PublishError::Missing) => Err(missing(&format!("stream `{stream}`")).into()),
        Err(PublishError::TooLarge(_)) => {
            let max = service.line.max_payload();
            Err(Invalid::TooLarge { size: max + 1, max }.into())
        }
        Err(PublishError::Other(error)) => Err(error.into()),
    }
}

/// Returns the id of a stored message. `None`: it has been removed.
async fn id_of(service: &Service, stream: &str, sequence: u64) -> Option<String> {
    let stored = api::by_sequence(&service.line, stream, sequence).await.ok()??;
    let headers = stored.message.headers.as_ref()?;
    headers.get(ID).or_else(|| headers.get(NATS_ID)).map(|id| id.as_str().to_owned())
}

/// Returns the place to which a channel's messages go.
async fn target(service: &Service, channel: &Channel) -> Result<Target, QueueError> {
    service.line.up(Instant::now() + PATIENCE / 2).await?;
    if let Some(known) = service.targets.get(channel) {
        return Ok(known);
    }
    let target = find(service, channel).await?;
    service.targets.learn(channel, target.clone());
    Ok(target)
}

/// Looks for the place to which a channel's messages go. A bare name is a queue, or else an exchange. Creates what is missing if
/// the options say so.
async fn find(service: &Service, channel: &Channel) -> Result<Target, QueueError> {
    let (declarer, names, creates) = (&service.declarer, &service.names, service.options.create_missing);
    if let Some(exchange) = channel.exchange() {
        if creates {
            declarer.create_missing([declarer.exchange(exchange)]).await?;
        } else if !declarer.has_stream(&names.exchange(exchange)).await? {
            return Err(missing(&format!("exchange `{}`", names.queue(exchange))));
        }
        return Ok(Target::Exchange(exchange.to_owned()));
    }
    let queue = channel.queue();
    if declarer.has_stream(&names.queue(queue)).await? {
        Ok(Target::Queue(queue.to_owned()))
    } else if declarer.has_stream(&names.exchange(queue)).await? {
        Ok(Target::Exchange(queue.to_owned()))
    } else if creates {
        declarer.create_queue(channel).await?;
        Ok(Target::Queue(queue.to_owned()))
    } else {
        Err(missing(&format!("queue `{}`", names.queue(queue))))
    }
}
