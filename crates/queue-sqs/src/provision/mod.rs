//! Compares the desired AWS resources of a channel with the existing ones.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `desired` | the desired resources of a channel | none |
//! | `setting` | one attribute: its value for AWS, and its comparison with the value that AWS returns | none |
//! | `account` | derives ARNs from one ARN | none |
//! | `queue_policy` | queue policies, which permit a topic to send to a queue | none |
//! | `observed` | the existing resources | reads |
//! | `diff` | the steps from existing to desired resources | none |
//! | `apply` | carries out the steps | writes |
//! | `inspect` | faults in existing resources, and their fixes | none |
//! | `policy` | the IAM policy | none |
//!
//! No extra call is made for the account number: it is read from the ARN of any existing resource. If there is none,
//! the first queue that is created (the dead-letter queue, if there is one) provides it for all later resources. The
//! number is not needed to list the planned changes, because resources that do not exist yet are shown by name.

mod account;
mod apply;
mod desired;
mod diff;
mod inspect;
mod observed;
pub(super) mod policy;
mod queue_policy;
mod setting;

use super::Service;
use super::place::Place;
use apply::Applier;
use desired::{Piece, Wanted};
use hostler_queue::{Change, ChannelSpec, Finding, QueueError};
use hostler_types::channel::Channel;
use observed::{Observed, Tags};
pub(super) use setting::SeenRedrive;

pub(super) async fn plan(service: &Service, wanted: &[ChannelSpec]) -> Result<Vec<Change>, QueueError> {
    let mut changes = Vec::new();
    for channel in channels(service, wanted)? {
        let observed = look(service, &channel).await?;
        for step in diff::steps(&channel, &observed) {
            // Consumers of one exchange share its topic.
            if !changes.contains(&step.change) {
                changes.push(step.change);
            }
        }
    }
    Ok(changes)
}

pub(super) async fn apply(
    service: &Service,
    wanted: &[ChannelSpec],
    done: &mut (dyn for<'c> FnMut(&'c Change) + Send),
) -> Result<(), QueueError> {
    for channel in channels(service, wanted)? {
        let observed = look(service, &channel).await?;
        let mut applier = Applier::new(service, observed.account());
        for step in diff::steps(&channel, &observed) {
            applier.take(&step.act).await?;
            done(&step.change);
        }
    }
    Ok(())
}

pub(super) async fn inspect(service: &Service, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
    let wanted = desired::channel(spec, &service.options, &service.names)?;
    let observed = observed::observe(service, &wanted, Tags::Leave).await?;
    if observed.queue.is_missing() {
        let Piece { name, ordered, .. } = &wanted.queue;
        if let Ok(Some(other)) = service.find_queue(name, !ordered).await {
            return Ok(vec![inspect::of_the_other_kind(&wanted.queue, &other.name)]);
        }
    }
    Ok(inspect::findings(&wanted, &observed, &service.options))
}

/// Creates the missing resources that a consumer of `spec` needs. Leaves existing resources unchanged, with one
/// exception (see [`diff::creations`]).
pub(super) async fn create_missing(service: &Service, spec: &ChannelSpec) -> Result<(), QueueError> {
    let wanted = desired::channel(spec, &service.options, &service.names)?;
    if wanted.fan_out.is_none() && has_queues(service, &wanted).await? {
        return Ok(());
    }
    let observed = readable(observed::observe(service, &wanted, Tags::Leave).await?)?;
    let mut applier = Applier::new(service, observed.account());
    for step in diff::creations(&wanted, &observed) {
        applier.take(&step.act).await?;
        tracing::info!(created = step.change.resource, settings = step.change.detail, "created");
    }
    Ok(())
}

/// Creates a queue for a producer, which knows only the queue's name, or returns the existing queue.
pub(super) async fn create_queue(service: &Service, name: &str, ordered: bool) -> Result<Place, QueueError> {
    create(service, &desired::queue(name, ordered, &service.options, &service.names)).await
}

/// Creates a topic for a producer, or returns the existing topic.
pub(super) async fn create_topic(service: &Service, exchange: &str, ordered: bool) -> Result<Place, QueueError> {
    create(service, &desired::topic(exchange, ordered, &service.options, &service.names)).await
}

async fn create(service: &Service, piece: &Piece) -> Result<Place, QueueError> {
    let place = Applier::new(service, None).create(piece).await?;
    tracing::info!(created = piece.title(), "created");
    Ok(place)
}

/// Returns the channels whose target is missing, each with the change that would create the target. If several channels
/// share a target, returns only the first of them.
pub(super) async fn missing_destinations(
    service: &Service,
    channels: &[Channel],
) -> Result<Vec<(Channel, Change)>, QueueError> {
    let mut missing: Vec<(Channel, Change)> = Vec::new();
    for channel in channels {
        if service.find_target(channel).await?.is_some() {
            continue;
        }
        let change = Change::create(destination(service, channel).title());
        // Channels of one exchange share its topic.
        if !missing.iter().any(|(_, known)| *known == change) {
            missing.push((channel.clone(), change));
        }
    }
    Ok(missing)
}

/// Creates the target of a channel's messages.
pub(super) async fn make_destination(service: &Service, channel: &Channel) -> Result<(), QueueError> {
    Applier::new(service, None).create(&destination(service, channel)).await.map(drop)
}

/// Returns the target that would be created for a channel's messages. Nothing but its name is known, so it is a
/// standard queue or topic with default settings.
fn destination(service: &Service, channel: &Channel) -> Piece {
    let (options, names) = (&service.options, &service.names);
    match channel.exchange() {
        Some(exchange) => desired::topic(exchange, false, options, names),
        None => desired::queue(channel.queue(), false, options, names),
    }
}

/// Returns `true` if the queue and its dead-letter queue exist. Caches the queues that were found.
async fn has_queues(service: &Service, wanted: &Wanted) -> Result<bool, QueueError> {
    let is_there =
        async |piece: &Piece| service.find_queue(&piece.name, piece.ordered).await.map(|found| found.is_some());
    let dead_letters = async {
        match &wanted.dead_letters {
            Some(piece) => is_there(piece).await,
            None => Ok(true),
        }
    };
    let (queue, dead_letters) = tokio::try_join!(is_there(&wanted.queue), dead_letters)?;
    Ok(queue && dead_letters)
}

/// Returns the desired resources of all channels, or an error if one of the channels is invalid. Must be called before
/// the first change, so that AWS is unchanged if a channel is invalid.
fn channels(service: &Service, wanted: &[ChannelSpec]) -> Result<Vec<Wanted>, QueueError> {
    desired::channels(wanted, &service.options, &service.names)
}

async fn look(service: &Service, wanted: &Wanted) -> Result<Observed, QueueError> {
    readable(observed::observe(service, wanted, Tags::Read).await?)
}

/// Returns `observed` if hostler was permitted to read all resources. Otherwise, returns an error, because hostler
/// cannot correct a resource that it cannot read.
fn readable(observed: Observed) -> Result<Observed, QueueError> {
    let denials: Vec<_> = observed.denials().collect();
    if denials.is_empty() {
        Ok(observed)
    } else {
        let cure = "`hostler iam --with-provision` prints the policy that is needed";
        Err(QueueError::Refused(format!("{}: {cure}", denials.join("; "))))
    }
}
