//! Sends messages to queues and exchanges.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use hostler_queue::{QueueError, SendError, Sent};
use hostler_types::Backoff;
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, MAX_ATTRIBUTES, Outgoing};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::Service;
use super::api::{self, PubAck, PublishError};
use super::declare::missing;
use super::envelope::{self, Parcel, Place};
use super::headers::{ID, NATS_ID};
use super::line::PATIENCE;
use super::raw;

/// Delays before a message is tried again that its stream does not take, for example because it has no leader.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// Maximum time to wait for a leader.
const LEADERLESS: Duration = Duration::from_secs(5);

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

/// Message on its way to its stream.
struct Pending {
    id: String,
    parcel: Parcel,
    group: Option<String>,
}

/// Checks messages, sends none of them, and returns the name of the stream that would store them.
pub(crate) async fn check(service: &Service, channel: &Channel, batch: &[Outgoing]) -> Result<String, SendError> {
    let target = target(service, channel).await?;
    let most = service.line.max_payload();
    for message in batch {
        envelope::check(&service.names, target.place(), message, most)?;
    }
    Ok(target.place().stream(&service.names))
}

/// Sends messages to a channel. Returns the results in the order of the messages.
pub(crate) async fn send(service: &Service, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
    let target = match target(service, channel).await {
        Ok(target) => target,
        Err(error) => return batch.iter().map(|_| Err(error.clone().into())).collect(),
    };
    let most = service.line.max_payload();
    let now = SystemTime::now();
    let prepare = |mut message: Outgoing| -> Result<Pending, SendError> {
        envelope::check(&service.names, target.place(), &message, most)?;
        message.carry_trace(MAX_ATTRIBUTES);
        let id = Uuid::now_v7().to_string();
        let parcel = envelope::outgoing(&service.names, target.place(), &message, &id, now);
        Ok(Pending { id, parcel, group: message.group })
    };
    let pending: Vec<Result<Pending, SendError>> = batch.into_iter().map(prepare).collect();
    let stream = target.place().stream(&service.names);
    // The requests leave in the order in which the futures are polled first.
    let storing = pending.iter().map(|pending| {
        let (parcel, stream) = (pending.as_ref().ok().map(|pending| pending.parcel.clone()), &stream);
        async move {
            match parcel {
                Some(parcel) => api::publish(&service.line, stream, parcel).await,
                None => Err(PublishError::Missing),
            }
        }
    });
    let stored = join_all(storing).await;
    let is_new = |stored: &Result<PubAck, PublishError>| matches!(stored, Ok(PubAck { duplicate: false, .. }));
    let group = |pending: &Result<Pending, SendError>| pending.as_ref().ok()?.group.clone();
    let overtaken = overtaken(pending.iter().zip(&stored).map(|(pending, stored)| (group(pending), is_new(stored))));
    let (mut results, mut groups) = (Vec::new(), FailedGroups::default());
    for ((pending, stored), is_overtaken) in pending.into_iter().zip(stored).zip(overtaken) {
        results.push(match pending {
            Ok(pending) if is_overtaken => {
                let result = sent(service, &target, stored, pending.id).await;
                result.inspect_err(|error| groups.note(pending.group.as_ref(), error))
            }
            Ok(pending) => finish(service, channel, &target, pending, stored, &mut groups).await,
            Err(error) => Err(error),
        });
    }
    results
}

/// Tells of each message of a batch if a later one of its group is stored. It must not be tried again, as it would come after that
/// one. `batch`: the groups of the messages, and if each is stored.
fn overtaken(batch: impl DoubleEndedIterator<Item = (Option<String>, bool)>) -> Vec<bool> {
    let mut later = HashSet::new();
    let mut overtaken: Vec<_> = batch
        .rev()
        .map(|(group, is_stored)| {
            let Some(group) = group else { return false };
            let is_overtaken = later.contains(&group);
            if is_stored {
                later.insert(group);
            }
            is_overtaken
        })
        .collect();
    overtaken.reverse();
    overtaken
}

/// Groups of a batch with messages that were not stored. None after them is tried again, as it would come before them.
#[derive(Debug, Default)]
struct FailedGroups(HashMap<String, SendError>);

impl FailedGroups {
    fn error(&self, group: Option<&String>) -> Option<SendError> {
        self.0.get(group?).cloned()
    }

    fn note(&mut self, group: Option<&String>, error: &SendError) {
        if let Some(group) = group {
            self.0.entry(group.clone()).or_insert_with(|| error.clone());
        }
    }
}

/// Returns the result for a message, which is tried again if its stream was missing or had no leader.
async fn finish(
    service: &Service,
    channel: &Channel,
    target: &Target,
    pending: Pending,
    stored: Result<PubAck, PublishError>,
    groups: &mut FailedGroups,
) -> Result<Sent, SendError> {
    let Pending { id, parcel, group } = pending;
    let stored = match stored {
        Err(PublishError::Missing | PublishError::Unattended(_)) => match groups.error(group.as_ref()) {
            Some(error) => return Err(error),
            None => store_again(service, channel, target, parcel, stored).await,
        },
        stored => stored,
    };
    let result = sent(service, target, stored, id).await;
    result.inspect_err(|error| groups.note(group.as_ref(), error))
}

/// Tries again to store a message. If its stream has gone, looks for it once more, which creates it where the options say so. While
/// the stream has no leader, waits for one.
async fn store_again(
    service: &Service,
    channel: &Channel,
    target: &Target,
    parcel: Parcel,
    mut stored: Result<PubAck, PublishError>,
) -> Result<PubAck, PublishError> {
    let (stream, deadline) = (target.place().stream(&service.names), Instant::now() + LEADERLESS);
    if stored == Err(PublishError::Missing) {
        service.targets.forget(channel);
        service.declarer.forget(&stream);
        if matches!(target, Target::Exchange(_)) {
            // A new one would have no queues, and lose the message without a word.
            return stored;
        }
        if self::target(service, channel).await.map_err(PublishError::Other)? != *target {
            return stored;
        }
        stored = api::publish(&service.line, &stream, parcel.clone()).await;
    }
    for turn in 0.. {
        if !matches!(stored, Err(PublishError::Unattended(_))) || Instant::now() >= deadline {
            break;
        }
        sleep(RETRY.rest(turn, fastrand::f64())).await;
        stored = api::publish(&service.line, &stream, parcel.clone()).await;
    }
    stored
}

/// Returns what the sender is told.
async fn sent(
    service: &Service,
    target: &Target,
    stored: Result<PubAck, PublishError>,
    id: String,
) -> Result<Sent, SendError> {
    let stream = target.place().stream(&service.names);
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
        Err(PublishError::Unattended(why) | PublishError::Conflict(why)) => Err(QueueError::Unavailable(why).into()),
        Err(PublishError::Other(error)) => Err(error.into()),
    }
}

/// Returns the id of a stored message. `None`: it has been removed.
async fn id_of(service: &Service, stream: &str, sequence: u64) -> Option<String> {
    let stored = raw::next(&service.line, stream, sequence, ">").await.ok()??;
    let headers = Some(stored).filter(|stored| stored.sequence == sequence)?.readable().headers?;
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
            create_exchange(service, exchange).await?;
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
        declarer.create_queue(&service.spec_of(channel)).await?;
        Ok(Target::Queue(queue.to_owned()))
    } else {
        Err(missing(&format!("queue `{}`", names.queue(queue))))
    }
}

/// Creates an exchange with the queues of known consumers. It keeps no messages for others.
async fn create_exchange(service: &Service, exchange: &str) -> Result<(), QueueError> {
    let declarer = &service.declarer;
    let known = service.options.consumers.iter().filter(|known| known.channel.exchange() == Some(exchange));
    declarer.create_missing([declarer.exchange(exchange)]).await?;
    for known in known {
        declarer.create_missing(declarer.resources(&known.spec())).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_of_a_group_is_tried_again_after_a_later_one_is_stored() {
        let batch = [("a", false), ("b", false), ("a", true), ("", false), ("", true), ("a", false), ("b", false)];
        let batch =
            batch.map(|(group, is_stored)| (Some(group.to_owned()).filter(|group| !group.is_empty()), is_stored));
        assert_eq!(overtaken(batch.into_iter()), [true, false, false, false, false, false, false]);
    }

    #[test]
    fn none_of_a_group_is_tried_again_after_one_that_failed() {
        let (mut groups, group) = (FailedGroups::default(), "a".to_owned());
        let error = SendError::Queue(QueueError::Unavailable("no leader".to_owned()));
        assert_eq!(groups.error(Some(&group)), None);
        groups.note(None, &error);
        groups.note(Some(&group), &error);
        assert_eq!((groups.error(Some(&group)), groups.error(None)), (Some(error), None));
        assert_eq!(groups.error(Some(&"b".to_owned())), None);
    }
}
