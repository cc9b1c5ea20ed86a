//! Carries out provisioning steps. All provisioning calls that change AWS are made in this file. Each step can be
//! repeated without harm.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_sns::types::Tag;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::QueueAttributeName;
use tokio::time::{Instant, sleep};

use super::super::Service;
use super::super::fault::{Fault, is_denial};
use super::super::place::Place;
use super::account::Account;
use super::desired::{Kind, Piece};
use super::diff::Act;
use super::observed;
use super::queue_policy;
use super::setting::Setting;
use hostler_queue::QueueError;

/// Maximum time to wait until SQS finds a new queue. AWS documents no maximum. One or two seconds are usual.
const UNTIL_FOUND: Duration = Duration::from_secs(15);

/// Maximum time for which the creation of a queue is retried if a queue with the same name was deleted recently. AWS
/// refuses the creation for 60 s after the deletion.
const UNTIL_FORGOTTEN: Duration = Duration::from_secs(75);

/// Interval between lookups of a new queue. The interval between attempts to create a queue is four times as long.
const PAUSE: Duration = Duration::from_millis(500);

/// Carries out steps one by one. `account`: account of an existing resource. If there is no existing resource, the
/// first queue that is created provides the account.
pub(super) struct Applier<'a> {
    service: &'a Service,
    account: Option<Account>,
}

impl<'a> Applier<'a> {
    pub(super) fn new(service: &'a Service, account: Option<Account>) -> Self {
        Self { service, account }
    }

    /// Carries out one step.
    ///
    /// # Errors
    /// [`QueueError`]: the step failed. It can be repeated.
    pub(super) async fn take(&mut self, act: &Act<'_>) -> Result<(), QueueError> {
        match act {
            Act::Leave => Ok(()),
            Act::Create(piece) => self.create(piece).await.map(drop),
            Act::Set { kind, address, attribute, value } => self.set(*kind, address, attribute, value).await,
            Act::Tag { kind: Kind::Queue, address, tags } => {
                let call = self.service.clients.sqs.tag_queue().queue_url(address);
                let tags = tags.clone().into_iter().collect();
                done("TagQueue", address, call.set_tags(Some(tags)).send().await)
            }
            Act::Tag { address, tags, .. } => {
                let call = self.service.clients.sns.tag_resource().resource_arn(address);
                done("TagResource", address, call.set_tags(Some(topic_tags(tags)?)).send().await)
            }
            Act::Untag { kind: Kind::Queue, address, names } => {
                let call = self.service.clients.sqs.untag_queue().queue_url(address);
                done("UntagQueue", address, call.set_tag_keys(Some(names.clone())).send().await)
            }
            Act::Untag { address, names, .. } => {
                let call = self.service.clients.sns.untag_resource().resource_arn(address);
                done("UntagResource", address, call.set_tag_keys(Some(names.clone())).send().await)
            }
            Act::Admit { queue, topic } => self.admit(queue, topic).await,
            Act::Subscribe { queue, topic, settings } => self.subscribe(queue, topic, settings).await,
        }
    }

    /// Creates a queue or a topic, or returns the existing one.
    pub(super) async fn create(&mut self, piece: &Piece) -> Result<Place, QueueError> {
        match piece.kind {
            Kind::Topic => self.create_topic(piece).await,
            Kind::Queue | Kind::Subscription => self.create_queue(piece).await,
        }
    }

    async fn create_queue(&mut self, piece: &Piece) -> Result<Place, QueueError> {
        let name = &piece.on_aws;
        let attributes = self.attributes(piece.at_creation.iter().chain(&piece.settings));
        let attributes: HashMap<_, _> =
            attributes.map(|(name, value)| (QueueAttributeName::from(name), value)).collect();
        let call = self.service.clients.sqs.create_queue().queue_name(name).set_attributes(Some(attributes));
        let call = call.set_tags(Some(piece.tags.clone().into_iter().collect()));
        let started = Instant::now();
        let mut told = false;
        while let Err(error) = call.clone().send().await {
            if is_taken(&error) {
                break;
            }
            let recently = error.code().is_some_and(|code| code.ends_with("QueueDeletedRecently"));
            if !recently || started.elapsed() > UNTIL_FORGOTTEN {
                return Err(failed("CreateQueue", name, &error));
            }
            if !std::mem::replace(&mut told, true) {
                tracing::info!("queue {name} was deleted a moment ago; waiting until it may be created again");
            }
            sleep(PAUSE * 4).await;
        }
        let place = self.found(piece).await?;
        if self.account.is_none() {
            let arn = observed::queue_attribute(self.service, &place.address, QueueAttributeName::QueueArn).await?;
            self.account = arn.and_then(|arn| Account::of(&arn));
        }
        Ok(place)
    }

    /// Finds a queue that was just created. Repeats the lookup for up to [`UNTIL_FOUND`], because SQS may not find a
    /// new queue at once.
    async fn found(&self, piece: &Piece) -> Result<Place, QueueError> {
        let deadline = Instant::now() + UNTIL_FOUND;
        loop {
            match self.service.find_queue(&piece.name, piece.ordered).await? {
                Some(place) => return Ok(place),
                None if Instant::now() > deadline => {
                    let text = format!("{} was created, and is not found yet: try again", piece.title());
                    return Err(QueueError::Unavailable(text));
                }
                None => sleep(PAUSE).await,
            }
        }
    }

    async fn create_topic(&self, piece: &Piece) -> Result<Place, QueueError> {
        let name = &piece.on_aws;
        let attributes: HashMap<_, _> =
            self.attributes(piece.at_creation.iter().chain(&piece.settings)).map(|(n, v)| (n.to_owned(), v)).collect();
        let call = self.service.clients.sns.create_topic().name(name).set_attributes(Some(attributes));
        let error = match call.set_tags(Some(topic_tags(&piece.tags)?)).send().await {
            Ok(answer) => {
                return Ok(self.service.remember_topic(name, answer.topic_arn.as_deref().unwrap_or_default()));
            }
            Err(error) => error,
        };
        if is_taken(&error)
            && let Some(place) = self.service.find_topic(&piece.name, piece.ordered).await?
        {
            return Ok(place);
        }
        Err(failed("CreateTopic", name, &error))
    }

    async fn set(&self, kind: Kind, address: &str, attribute: &str, value: &str) -> Result<(), QueueError> {
        let (sqs, sns) = (&self.service.clients.sqs, &self.service.clients.sns);
        match kind {
            Kind::Queue => {
                let call = sqs.set_queue_attributes().queue_url(address).attributes(attribute.into(), value);
                done("SetQueueAttributes", address, call.send().await)
            }
            Kind::Topic => {
                let call = sns.set_topic_attributes().topic_arn(address).attribute_name(attribute);
                done("SetTopicAttributes", address, call.attribute_value(value).send().await)
            }
            Kind::Subscription => {
                let call = sns.set_subscription_attributes().subscription_arn(address).attribute_name(attribute);
                done("SetSubscriptionAttributes", address, call.attribute_value(value).send().await)
            }
        }
    }

    /// Adds a statement to the queue's policy that lets the topic send to the queue. Reads the policy again right
    /// before writing it, because others may have added statements.
    async fn admit(&self, queue: &Piece, topic: &Piece) -> Result<(), QueueError> {
        let account = self.account()?;
        let place = self.found(queue).await?;
        let policy = observed::queue_attribute(self.service, &place.address, QueueAttributeName::Policy).await?;
        let (queue, topic) = (account.queue(&queue.on_aws), account.topic(&topic.on_aws));
        if queue_policy::admits(policy.as_deref(), &queue, &topic) {
            return Ok(());
        }
        let policy = queue_policy::admitting(policy.as_deref(), &queue, &topic).to_string();
        self.set(Kind::Queue, &place.address, QueueAttributeName::Policy.as_str(), &policy).await
    }

    async fn subscribe(&self, queue: &Piece, topic: &Piece, settings: &[Setting]) -> Result<(), QueueError> {
        let account = self.account()?;
        let (queue_arn, topic_arn) = (account.queue(&queue.on_aws), account.topic(&topic.on_aws));
        let attributes: HashMap<_, _> =
            self.attributes(settings.iter()).map(|(name, value)| (name.to_owned(), value)).collect();
        let call = self.service.clients.sns.subscribe().topic_arn(&topic_arn).protocol("sqs").endpoint(&queue_arn);
        let call = call.set_attributes(Some(attributes)).return_subscription_arn(true);
        let Err(error) = call.send().await else { return Ok(()) };
        if is_taken(&error) {
            let seen = observed::subscription(self.service, &topic.on_aws, &topic_arn, &queue_arn).await?;
            if seen.there().is_some() {
                return Ok(());
            }
        }
        Err(failed("Subscribe", &queue.on_aws, &error))
    }

    /// Returns the attribute name and value for each setting of a new resource. Omits settings that new resources have
    /// by default.
    fn attributes<'s>(
        &'s self,
        settings: impl Iterator<Item = &'s Setting>,
    ) -> impl Iterator<Item = (&'static str, String)> {
        let said = settings.filter(|setting| !setting.goes_without_saying());
        said.filter_map(|setting| Some((setting.attribute, setting.text(self.account.as_ref())?)))
    }

    fn account(&self) -> Result<&Account, QueueError> {
        let unknown = || QueueError::Refused("the account is unknown: AWS gave no ARN of a queue".into());
        self.account.as_ref().ok_or_else(unknown)
    }
}

fn topic_tags<'a>(tags: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Vec<Tag>, QueueError> {
    let tag = |(name, value): (&String, &String)| Tag::builder().key(name).value(value).build();
    let tags: Result<_, _> = tags.into_iter().map(tag).collect();
    tags.map_err(|error| QueueError::Refused(format!("a tag cannot be made: {error}")))
}

/// Returns `true` if the error may mean that the resource already exists with other settings, because another process
/// created it first.
fn is_taken<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    let code = error.code().unwrap_or_default();
    ["QueueNameExists", "QueueAlreadyExists", "InvalidParameter"].iter().any(|known| code.ends_with(known))
}

fn done<T, E>(what: &str, on: &str, answer: Result<T, SdkError<E>>) -> Result<(), QueueError>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    answer.map(drop).map_err(|error| failed(what, on, &error))
}

fn failed<E>(what: &str, on: &str, error: &SdkError<E>) -> QueueError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    match Fault::of(&format!("{what} of {on}"), error) {
        Fault::Never(text) if is_denial(error) => {
            QueueError::Refused(format!("{text}: `hostler iam --with-provision` prints what is needed"))
        }
        fault => fault.into(),
    }
}
