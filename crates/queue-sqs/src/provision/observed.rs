//! Reads the existing AWS resources of a channel.

use std::collections::BTreeMap;

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::QueueAttributeName;

use super::super::Service;
use super::super::fault::{Fault, is_denial};
use super::account::Account;
use super::desired::{FanOut, Piece, Wanted};
use hostler_queue::QueueError;

/// The existing resources of one channel. A resource that is not desired is not read, and counts as missing.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    pub(super) dead_letters: Seen<Resource>,
    pub(super) queue: Seen<Resource>,
    pub(super) topic: Seen<Resource>,
    pub(super) subscription: Seen<Resource>,
}

/// Result of reading a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen<T> {
    There(T),
    Missing,
    /// hostler has no permission to read the resource. The string names the denied action.
    Denied(String),
}

/// A queue, a topic or a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resource {
    /// Identifier of the resource in calls to AWS: the URL of a queue, otherwise the ARN.
    pub(super) address: String,
    pub(super) arn: String,
    attributes: BTreeMap<String, String>,
    /// Tags. Empty if they were not requested.
    pub(super) tags: BTreeMap<String, String>,
}

/// Selects whether the tags of resources are read in addition to their attributes. Reading tags takes one more call for
/// each resource, and one more permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tags {
    Read,
    Leave,
}

impl<T> Seen<T> {
    pub(super) fn there(&self) -> Option<&T> {
        match self {
            Self::There(resource) => Some(resource),
            Self::Missing | Self::Denied(_) => None,
        }
    }

    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }

    fn denied(&self) -> Option<&str> {
        match self {
            Self::Denied(what) => Some(what),
            Self::There(_) | Self::Missing => None,
        }
    }
}

impl Resource {
    pub(super) fn new(address: String, arn: String, attributes: BTreeMap<String, String>) -> Self {
        Self { address, arn, attributes, tags: BTreeMap::new() }
    }

    /// Returns the value of an attribute. An empty value counts as unset, because some services return an empty value
    /// for an unset attribute.
    pub(super) fn get(&self, attribute: &str) -> Option<&str> {
        self.attributes.get(attribute).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the value of a numeric attribute. `None`: the attribute is unset or not a number.
    pub(super) fn number(&self, attribute: &str) -> Option<u64> {
        self.get(attribute)?.parse().ok()
    }
}

impl Observed {
    /// Returns the account of the resources. `None`: none of them exists yet.
    pub(super) fn account(&self) -> Option<Account> {
        account(&[&self.queue, &self.dead_letters, &self.topic])
    }

    /// Returns a message for each resource that hostler has no permission to read. The message names the denied action.
    pub(super) fn denials(&self) -> impl Iterator<Item = &str> {
        [&self.dead_letters, &self.queue, &self.topic, &self.subscription].into_iter().filter_map(|seen| seen.denied())
    }
}

fn account(seen: &[&Seen<Resource>]) -> Option<Account> {
    seen.iter().find_map(|seen| Account::of(&seen.there()?.arn))
}

/// Reads all desired resources.
///
/// # Errors
/// [`QueueError`]: a call failed. A denial is not an error.
pub(super) async fn observe(service: &Service, wanted: &Wanted, tags: Tags) -> Result<Observed, QueueError> {
    let dead_letters = async {
        match &wanted.dead_letters {
            Some(piece) => queue(service, piece, tags).await,
            None => Ok(Seen::Missing),
        }
    };
    let (queue, dead_letters) = tokio::try_join!(queue(service, &wanted.queue, tags), dead_letters)?;
    let mut observed = Observed { dead_letters, queue, topic: Seen::Missing, subscription: Seen::Missing };
    if let Some(FanOut { topic: piece, .. }) = &wanted.fan_out {
        observed.topic = topic(service, piece, observed.account().as_ref(), tags).await?;
        if let (Some(topic), Some(queue)) = (observed.topic.there(), observed.queue.there()) {
            observed.subscription = subscription(service, &piece.on_aws, &topic.arn, &queue.arn).await?;
        }
    }
    Ok(observed)
}

async fn queue(service: &Service, piece: &Piece, tags: Tags) -> Result<Seen<Resource>, QueueError> {
    let (sqs, name) = (&service.clients.sqs, &piece.on_aws);
    let url = match seen("sqs:GetQueueUrl", name, sqs.get_queue_url().queue_name(name).send().await)? {
        Seen::There(answer) => answer.queue_url.unwrap_or_default(),
        Seen::Missing => return Ok(Seen::Missing),
        Seen::Denied(what) => return Ok(Seen::Denied(what)),
    };
    let asked = sqs.get_queue_attributes().queue_url(&url).attribute_names(QueueAttributeName::All).send().await;
    let attributes = match seen("sqs:GetQueueAttributes", name, asked)? {
        Seen::There(answer) => answer.attributes.unwrap_or_default(),
        Seen::Missing => return Ok(Seen::Missing),
        Seen::Denied(what) => return Ok(Seen::Denied(what)),
    };
    let arn = attributes.get(&QueueAttributeName::QueueArn).cloned().unwrap_or_default();
    let attributes = attributes.into_iter().map(|(name, value)| (name.as_str().to_owned(), value)).collect();
    let mut resource = Resource::new(url, arn, attributes);
    if tags == Tags::Read {
        let asked = sqs.list_queue_tags().queue_url(&resource.address).send().await;
        match seen("sqs:ListQueueTags", name, asked)? {
            Seen::There(answer) => resource.tags.extend(answer.tags.unwrap_or_default()),
            Seen::Missing => return Ok(Seen::Missing),
            Seen::Denied(what) => return Ok(Seen::Denied(what)),
        }
    }
    Ok(Seen::There(resource))
}

/// Reads a topic. The topic's ARN is derived from the account of the existing queues. If there is no existing queue,
/// all topics are listed to find it.
async fn topic(
    service: &Service,
    piece: &Piece,
    account: Option<&Account>,
    tags: Tags,
) -> Result<Seen<Resource>, QueueError> {
    let (sns, name) = (&service.clients.sns, &piece.on_aws);
    let arn = match account {
        Some(account) => account.topic(name),
        None => match service.find_topic(&piece.name, piece.ordered).await? {
            Some(place) => place.address.to_string(),
            None => return Ok(Seen::Missing),
        },
    };
    let asked = sns.get_topic_attributes().topic_arn(&arn).send().await;
    let attributes = match seen("sns:GetTopicAttributes", name, asked)? {
        Seen::There(answer) => answer.attributes.unwrap_or_default(),
        Seen::Missing => return Ok(Seen::Missing),
        Seen::Denied(what) => return Ok(Seen::Denied(what)),
    };
    let mut resource = Resource::new(arn.clone(), arn, attributes.into_iter().collect());
    if tags == Tags::Read {
        let asked = sns.list_tags_for_resource().resource_arn(&resource.arn).send().await;
        match seen("sns:ListTagsForResource", name, asked)? {
            Seen::There(answer) => {
                let tags = answer.tags.unwrap_or_default();
                resource.tags.extend(tags.into_iter().map(|tag| (tag.key, tag.value)));
            }
            Seen::Missing => return Ok(Seen::Missing),
            Seen::Denied(what) => return Ok(Seen::Denied(what)),
        }
    }
    Ok(Seen::There(resource))
}

/// Reads the subscription of a queue to a topic. An unconfirmed subscription has no ARN and no attributes.
pub(super) async fn subscription(
    service: &Service,
    name: &str,
    topic: &str,
    queue: &str,
) -> Result<Seen<Resource>, QueueError> {
    let sns = &service.clients.sns;
    let mut pages = sns.list_subscriptions_by_topic().topic_arn(topic).into_paginator().items().send();
    let arn = loop {
        let Some(page) = pages.next().await else { return Ok(Seen::Missing) };
        match seen("sns:ListSubscriptionsByTopic", name, page)? {
            Seen::There(one) if one.protocol.as_deref() == Some("sqs") && one.endpoint.as_deref() == Some(queue) => {
                break one.subscription_arn.unwrap_or_default();
            }
            Seen::There(_) => {}
            Seen::Missing => return Ok(Seen::Missing),
            Seen::Denied(what) => return Ok(Seen::Denied(what)),
        }
    };
    if !arn.starts_with("arn:") {
        let pending = BTreeMap::from([(PENDING.to_owned(), "true".to_owned())]);
        return Ok(Seen::There(Resource::new(arn.clone(), arn, pending)));
    }
    let asked = sns.get_subscription_attributes().subscription_arn(&arn).send().await;
    Ok(match seen("sns:GetSubscriptionAttributes", name, asked)? {
        Seen::There(answer) => {
            Seen::There(Resource::new(arn.clone(), arn, answer.attributes.unwrap_or_default().into_iter().collect()))
        }
        Seen::Missing => Seen::Missing,
        Seen::Denied(what) => Seen::Denied(what),
    })
}

/// Name of the attribute that marks a subscription as not confirmed yet.
pub(super) const PENDING: &str = "PendingConfirmation";

/// Reads the current value of one attribute of the queue with this URL. `None`: the attribute is unset.
pub(super) async fn queue_attribute(
    service: &Service,
    url: &str,
    attribute: QueueAttributeName,
) -> Result<Option<String>, Fault> {
    let asked = service.clients.sqs.get_queue_attributes().queue_url(url).attribute_names(attribute.clone());
    let answer = asked.send().await.map_err(|error| Fault::of(&format!("GetQueueAttributes of {url}"), &error))?;
    Ok(answer.attributes.and_then(|mut attributes| attributes.remove(&attribute)).filter(|value| !value.is_empty()))
}

/// Converts the answer to a call that reads a resource. `action`: IAM name of the action. `name`: AWS name of the
/// resource.
fn seen<T, E>(action: &str, name: &str, answer: Result<T, SdkError<E>>) -> Result<Seen<T>, QueueError>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let error = match answer {
        Ok(answer) => return Ok(Seen::There(answer)),
        Err(error) => error,
    };
    if is_denial(&error) {
        return Ok(Seen::Denied(format!("{action} on {name} is denied")));
    }
    match Fault::of(&format!("{action} on {name}"), &error) {
        fault if fault.is_missing() => Ok(Seen::Missing),
        fault => Err(fault.into()),
    }
}

#[cfg(test)]
pub(super) mod example {
    use super::super::desired::Kind;
    use super::super::queue_policy;
    use super::super::setting::{RETENTION, Setting};
    use super::*;

    pub(in super::super) fn account() -> Account {
        Account::of("arn:aws:sqs:eu-west-1:123456789012:any").unwrap()
    }

    /// Returns all resources in the desired state.
    pub(in super::super) fn whole(wanted: &Wanted) -> Observed {
        let FanOut { topic, subscription } = match &wanted.fan_out {
            None => return plain(wanted),
            Some(fan_out) => fan_out,
        };
        let mut observed = plain(wanted);
        let topic_arn = account().topic(&topic.on_aws);
        for queue in [&mut observed.queue, &mut observed.dead_letters] {
            if let Seen::There(queue) = queue {
                let policy = queue_policy::admitting(None, &queue.arn, &topic_arn).to_string();
                queue.attributes.insert("Policy".into(), policy);
            }
        }
        observed.topic = Seen::There(piece(topic));
        let arn = format!("{topic_arn}:1");
        observed.subscription = Seen::There(Resource::new(arn.clone(), arn, said(subscription)));
        observed
    }

    /// Returns the state in which no resource exists.
    pub(in super::super) fn nothing() -> Observed {
        let missing = || Seen::Missing;
        Observed { dead_letters: missing(), queue: missing(), topic: missing(), subscription: missing() }
    }

    fn plain(wanted: &Wanted) -> Observed {
        let dead_letters = wanted.dead_letters.as_ref().map_or(Seen::Missing, |wanted| Seen::There(piece(wanted)));
        let mut queue = piece(&wanted.queue);
        queue.attributes.insert(RETENTION.into(), "345600".into());
        Observed { dead_letters, queue: Seen::There(queue), ..nothing() }
    }

    fn piece(wanted: &Piece) -> Resource {
        let arn = match wanted.kind {
            Kind::Queue => account().queue(&wanted.on_aws),
            Kind::Topic | Kind::Subscription => account().topic(&wanted.on_aws),
        };
        let settings: Vec<_> = wanted.at_creation.iter().chain(&wanted.settings).cloned().collect();
        let mut resource = Resource::new(format!("at {}", wanted.on_aws), arn, said(&settings));
        resource.tags = wanted.tags.clone();
        resource
    }

    fn said(settings: &[Setting]) -> BTreeMap<String, String> {
        let text = |setting: &Setting| setting.text(Some(&account())).unwrap();
        settings.iter().map(|setting| (setting.attribute.to_owned(), text(setting))).collect()
    }

    impl Seen<Resource> {
        /// Sets an attribute of an existing resource. An empty value counts as unset.
        pub(in super::super) fn set(&mut self, attribute: &str, value: &str) {
            self.get_mut().attributes.insert(attribute.to_owned(), value.to_owned());
        }

        pub(in super::super) fn get_mut(&mut self) -> &mut Resource {
            match self {
                Self::There(resource) => resource,
                Self::Missing | Self::Denied(_) => panic!("it is not there"),
            }
        }
    }
}
