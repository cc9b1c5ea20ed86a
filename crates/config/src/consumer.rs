//! The validated configuration of one consumer.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;

use super::choice::{Driver, FilterType, OnProcessingTimeout, OnTrap, OnUnknown, RecordStore, Reply};
use super::grants::{DirGrant, Dirs, HandlerRef, Network, Origin};
use super::guest_variable::GuestVariable;
use super::read::Bytes;
use super::servers::Servers;
use super::settings::{Mismatch, Section, Settings};
use super::units::Share;
use hostler_types::channel::{Channel, Filter};
use hostler_types::secret::SecretRef;
use hostler_types::tcp_grant::TcpGrant;
use hostler_types::{KeySource, Rate};

/// Settings of one consumer, `[consumers.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// Name: 1 to 71 characters from `A-Z a-z 0-9 _ -`.
    pub name: String,
    /// Channel from which the consumer receives. Two consumers in the configuration must not have the same queue.
    pub channel: Channel,
    /// Subject whose requests the handler answers. `channel` then is only a name: that of the consumer. `None`: the consumer
    /// receives from the channel.
    pub subject: Option<Subject>,
    /// Type of the jobs whose items the handler processes. `channel` then is only a name: that of the consumer. `None`: the
    /// consumer processes no jobs. Not together with `subject`.
    pub job: Option<String>,
    /// Set for a FIFO queue. Messages of one group are processed in order, one at a time.
    pub ordered: bool,
    /// Scope of the deduplication and of the throughput limit of a FIFO queue. `true`: they apply to each message group
    /// separately; `ordered` must be set. `false`: they apply to the whole queue. `None`: hostler leaves these settings
    /// of the queue unchanged.
    pub high_throughput: Option<bool>,
    /// WASM handler.
    pub handler: HandlerRef,
    /// Component with lifecycle hooks in addition to the handler.
    pub hooks: Option<HandlerRef>,
    /// Expected SHA-256 of the handler. A handler with another hash is refused. `None`: the hash is not checked.
    pub sha256: Option<[u8; 32]>,
    /// Expected SHA-256 of the component in `hooks`. `None`: the hash is not checked.
    pub hooks_sha256: Option<[u8; 32]>,
    /// Maximum number of handler calls at the same time, each with one message or one batch: 1 to 1024. `None`: 16, or
    /// fewer if the memory is too small.
    pub concurrency: Option<usize>,
    /// Batches. `None`: the handler gets one message at a time.
    pub batch: Option<Batch>,
    /// Keys of which each is processed once. `None`: each message is processed. Never together with `batch`, `subject` or `job`.
    pub idempotency: Option<Idempotency>,
    /// Visibility timeout: 1 s to 12 h (SQS limit).
    pub lease: Duration,
    /// Maximum run time of a handler: 1 s to 12 h. On SQS, the sum of this time and `lease` must not exceed 12 h.
    pub processing_timeout: Duration,
    /// Maximum age of a message at the start of its handler: 1 s to 14 d (maximum retention of SQS). An older message
    /// counts as late.
    pub delay_tolerance: Duration,
    /// Maximum delay of messages that are sent to the consumer: at most 13 d, one day less than the maximum retention
    /// of SQS.
    pub longest_delay: Duration,
    /// Treatment of a message that exceeds the processing timeout. Must not be [`OnProcessingTimeout::DeadLetter`] if
    /// the consumer has no dead-letter queue.
    pub on_processing_timeout: OnProcessingTimeout,
    /// Maximum time that the consumer may spend in one state, or may go without a poll. If the consumer exceeds this
    /// time, the health check fails. Must be longer than `processing_timeout`.
    pub healthcheck_timeout: Duration,
    /// Maximum number of messages to start per period, in this process. `None`: unlimited.
    pub rate_limit: Option<Rate>,
    /// Maximum number of messages that one sandbox processes before it is replaced. At least 1.
    pub messages_per_instance: u32,
    /// Part of a WASI command's output to send as the reply.
    pub reply: Reply,
    /// Destination of replies. `None`: a reply counts as an ack. Must not be the consumer's own queue. May be the
    /// consumer's own exchange only if a filter is set. Otherwise, the consumer would receive its own replies.
    pub reply_channel: Option<Channel>,
    /// Enables the dead-letter queue.
    pub dead_letter: bool,
    /// Escalation of failed attempts.
    pub retry: Retry,
    /// Conditions for pausing when too many messages fail. `None`: receiving never pauses for this reason.
    pub breaker: Option<Breaker>,
    /// Filter for messages of the exchange. [`Filter::All`] if the channel has no exchange.
    pub filter: Filter,
    /// Grants of the guest.
    pub allow: Allow,
    /// Resource limits of the guest.
    pub limits: Limits,
    /// Ownership and alarm settings of the queues.
    pub tags: Tags,
}

/// A subject of NATS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The subject. May contain wildcards.
    pub pattern: String,
    /// Group of receivers, each request coming to one of them.
    pub queue_group: String,
}

/// `[consumers.NAME.batch]`: several messages in one call of the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Maximum number of messages: 1 to 1,000. Together with `concurrency`, at most 16,384 messages at the same time.
    pub max: usize,
    /// Maximum time that a message waits for others, from when it was received, while a slot is free: at most 60 s.
    pub wait: Duration,
    /// Maximum size of the bodies and attributes in bytes: 1 KiB to 64 MiB. A larger message is alone in its batch.
    pub bytes: u64,
    /// Treatment of messages without an answer when the handler traps or times out.
    pub on_trap: OnTrap,
}

/// `[consumers.NAME.idempotency]`: keys of which each is processed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// Place of the key in a message.
    pub key: KeySource,
    /// Store of the records. The queue's own if it is its database.
    pub store: RecordStore,
    /// Time for which a processed key is remembered: 1 min to 366 d, at least as long as `longest_delay`.
    pub ttl: Duration,
    /// Treatment of a message whose key has an earlier run without a result.
    pub on_unknown: OnUnknown,
}

/// `[consumers.NAME.retry]`: the escalation of failed attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Number of failed attempts, counted from the first, after which the message is released with the fixed delay
    /// `requeue_delay`: 0 to 100.
    pub requeues: u32,
    /// Fixed delay after each of the first `requeues` failed attempts: at most 12 h (SQS limit for hiding a message).
    pub requeue_delay: Duration,
    /// Number of failed attempts, counted after the first `requeues` ones, after which the message is released with an
    /// increasing delay: 0 to 100. If the next attempt fails too, the message is dead-lettered.
    pub delays: u32,
    /// First of the increasing delays, before jitter: at most `max_delay`. Each further delay is twice the previous
    /// one, up to `max_delay`.
    pub delay: Duration,
    /// Upper limit of the increasing delays: at most 12 h.
    pub max_delay: Duration,
}

/// `[consumers.NAME.breaker]`: conditions under which receiving pauses because too many messages fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    /// Share of failed messages above which receiving pauses.
    pub failures: Share,
    /// Period in which failed and other messages are counted: 1 s to 1 h.
    pub over: Duration,
    /// Minimum number of messages in this period before receiving can pause: 1 to 1,000,000.
    pub min: u32,
    /// Duration of the first pause: 1 s to 10 min.
    pub pause: Duration,
}

/// `[consumers.NAME.allow]`: grants of the guest; nothing by default.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Allow {
    /// Origins to which the guest may send HTTP requests: `http(s)://host[:port]` in lower case, without a default port.
    pub http: Vec<String>,
    /// Private networks that the guest may reach under the host names in `http` and `tcp`. All other host names must
    /// resolve to public addresses.
    pub networks: Vec<IpNet>,
    /// TCP servers that the guest may connect to. The same server occurs only with the same TLS.
    pub tcp: Vec<TcpGrant>,
    /// Environment variables of the guest. The values may be secrets, so `Debug` omits them.
    pub env: BTreeMap<String, String>,
    /// Environment variables of the guest whose values are looked up. None of them is in `env`.
    pub secrets: BTreeMap<String, SecretRef>,
    /// Folders to which the guest has access. Each folder must have a different guest path.
    pub dirs: Vec<DirGrant>,
    /// Channels to which the guest may send.
    pub send: Vec<Channel>,
    /// Subjects of NATS to which the guest may send, with wildcards. A channel in `send` goes before them.
    pub subjects: Vec<String>,
}

impl Allow {
    /// Returns the files of authorities that the grants of TCP servers name.
    pub fn ca_files(&self) -> impl Iterator<Item = &Path> {
        self.tcp.iter().filter_map(|grant| grant.tls.as_ref()?.ca.as_deref())
    }

    /// Returns the files with secrets that variables refer to.
    pub fn secret_files(&self) -> impl Iterator<Item = &Path> {
        self.secrets.values().filter_map(SecretRef::file)
    }
}

impl fmt::Debug for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { http, networks, tcp, env, secrets, dirs, send, subjects } = self;
        let env: Vec<_> = env.keys().collect();
        let mut allow = f.debug_struct("Allow");
        allow.field("http", http).field("networks", networks).field("tcp", tcp).field("env", &env);
        allow.field("secrets", secrets).field("dirs", dirs).field("send", send).field("subjects", subjects).finish()
    }
}

/// `[consumers.NAME.limits]`: resource limits of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size in bytes of one sandbox's linear memory: 1 MiB to 4 GiB (limit of 32-bit WASM). `None`: depends on the
    /// host's memory.
    pub memory: Option<u64>,
    /// Maximum number of TCP sockets that one sandbox has open: 1 to 256; 0 for applets.
    pub connections: u32,
    /// Maximum number of bytes of stdout and stderr to store per message: at most 16 MiB.
    pub output: u64,
}

/// `[consumers.NAME.tags]`: ownership and alarm settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tags {
    /// Owner of the queues: at most 256 characters (AWS limit for a tag).
    pub owner: Option<String>,
    /// Marks the alarms on the consumer's queues as critical.
    pub critical: bool,
    /// Minimum number of messages in the queue for an alarm. `None`: `alarms.threshold`.
    pub alarm_threshold: Option<u64>,
    /// Minimum number of messages in the dead-letter queue for an alarm. `None`: 1.
    pub dead_letter_alarm_threshold: Option<u64>,
}

impl Consumer {
    /// Returns the name of what the consumer receives from, for people: the channel, the subject or the type of jobs.
    pub fn source(&self) -> String {
        match (&self.subject, &self.job) {
            (Some(subject), _) => subject.pattern.clone(),
            (None, Some(job)) => job.clone(),
            (None, None) => self.channel.to_string(),
        }
    }

    /// Returns `true` if the consumer receives from its channel.
    pub fn has_channel(&self) -> bool {
        self.subject.is_none() && self.job.is_none()
    }

    /// Converts the checked settings of the consumer `name`. Returns an error if the table of keys does not match this
    /// code.
    pub(super) fn read(name: &str, settings: &Settings) -> Result<Self, Mismatch> {
        let at = settings.consumer(name);
        let dead_letter = at.need("dead_letter")?;
        let processing_timeout = at.need("processing_timeout")?;
        let on_timeout = if dead_letter { OnProcessingTimeout::DeadLetter } else { OnProcessingTimeout::Exit };
        let healthcheck_timeout = at.maybe("healthcheck_timeout")?;
        let (env, secrets) = variables(&at);
        Ok(Self {
            name: name.to_owned(),
            channel: channel(name, &at)?,
            subject: subject(name, &at, &settings.root())?,
            job: at.maybe("job")?,
            ordered: at.need("ordered")?,
            high_throughput: at.maybe("high_throughput")?,
            handler: at.need("handler")?,
            hooks: at.maybe("hooks")?,
            sha256: at.maybe("sha256")?,
            hooks_sha256: at.maybe("hooks_sha256")?,
            concurrency: at.maybe("concurrency")?,
            batch: batch(&at)?,
            idempotency: idempotency(&at, &settings.root())?,
            lease: at.need("lease")?,
            processing_timeout,
            delay_tolerance: at.need("delay_tolerance")?,
            longest_delay: at.need("longest_delay")?,
            on_processing_timeout: at.maybe("on_processing_timeout")?.unwrap_or(on_timeout),
            healthcheck_timeout: healthcheck_timeout.unwrap_or(processing_timeout + Duration::from_secs(30)),
            rate_limit: at.maybe("rate_limit")?,
            messages_per_instance: at.need("messages_per_instance")?,
            reply: at.need("reply")?,
            reply_channel: at.maybe("reply_channel")?,
            dead_letter,
            retry: retry(&at)?,
            breaker: breaker(&at)?,
            filter: filter(&at)?,
            allow: Allow {
                http: at.need::<Vec<Origin>>("allow.http")?.into_iter().map(|origin| origin.0).collect(),
                networks: at.need::<Vec<Network>>("allow.networks")?.into_iter().map(|network| network.0).collect(),
                tcp: at.need::<Servers>("allow.tcp")?.0,
                env,
                secrets,
                dirs: at.need::<Dirs>("allow.dirs")?.0,
                send: at.need("allow.send")?,
                subjects: at.need("allow.subjects")?,
            },
            limits: Limits {
                memory: at.maybe::<Bytes>("limits.memory")?.map(|bytes| bytes.0),
                connections: at.need("limits.connections")?,
                output: at.need::<Bytes>("limits.output")?.0,
            },
            tags: tags(&at)?,
        })
    }
}

fn tags(at: &Section<'_>) -> Result<Tags, Mismatch> {
    Ok(Tags {
        owner: at.maybe("tags.owner")?,
        critical: at.need("tags.critical")?,
        alarm_threshold: at.maybe("tags.alarm_threshold")?,
        dead_letter_alarm_threshold: at.maybe("tags.dead_letter_alarm_threshold")?,
    })
}

fn channel(name: &str, at: &Section<'_>) -> Result<Channel, Mismatch> {
    if at.is_set("subject") || at.is_set("job") {
        // The name of a consumer is that of a channel, too.
        return name.parse().or_else(|_| at.need("channel"));
    }
    at.need("channel")
}

fn subject(name: &str, at: &Section<'_>, root: &Section<'_>) -> Result<Option<Subject>, Mismatch> {
    let Some(pattern) = at.maybe("subject")? else { return Ok(None) };
    let queue_group = match at.maybe("queue_group")? {
        Some(group) => group,
        None => format!("{}{name}", root.need::<String>("queue.nats.prefix")?),
    };
    Ok(Some(Subject { pattern, queue_group }))
}

/// Returns the variables of `allow.env`: the values, and the references to secrets.
fn variables(at: &Section<'_>) -> (BTreeMap<String, String>, BTreeMap<String, SecretRef>) {
    let (mut env, mut secrets) = (BTreeMap::new(), BTreeMap::new());
    for (name, variable) in at.values("allow.env") {
        match variable {
            GuestVariable::Text(text) => drop(env.insert(name, text)),
            GuestVariable::Secret(reference) => drop(secrets.insert(name, reference)),
        }
    }
    (env, secrets)
}

fn retry(at: &Section<'_>) -> Result<Retry, Mismatch> {
    Ok(Retry {
        requeues: at.need("retry.requeues")?,
        requeue_delay: at.need("retry.requeue_delay")?,
        delays: at.need("retry.delays")?,
        delay: at.need("retry.delay")?,
        max_delay: at.need("retry.max_delay")?,
    })
}

fn breaker(at: &Section<'_>) -> Result<Option<Breaker>, Mismatch> {
    let Some(failures) = at.maybe("breaker.failures")? else { return Ok(None) };
    let (over, min, pause) = (at.need("breaker.over")?, at.need("breaker.min")?, at.need("breaker.pause")?);
    Ok(Some(Breaker { failures, over, min, pause }))
}

fn batch(at: &Section<'_>) -> Result<Option<Batch>, Mismatch> {
    let Some(max) = at.maybe("batch.max")? else { return Ok(None) };
    let (wait, bytes) = (at.need("batch.wait")?, at.need::<Bytes>("batch.bytes")?.0);
    Ok(Some(Batch { max, wait, bytes, on_trap: at.need("batch.on_trap")? }))
}

fn idempotency(at: &Section<'_>, root: &Section<'_>) -> Result<Option<Idempotency>, Mismatch> {
    let Some(key) = at.maybe::<String>("idempotency.key")? else { return Ok(None) };
    let key = KeySource::parse(&key).map_err(|fault| at.mismatch("idempotency.key", fault))?;
    let store = match at.maybe("idempotency.store")? {
        Some(store) => store,
        None if root.need::<Driver>("queue.driver")? == Driver::Postgres => RecordStore::Postgres,
        None => RecordStore::Embedded,
    };
    let (ttl, on_unknown) = (at.need("idempotency.ttl")?, at.need("idempotency.on_unknown")?);
    Ok(Some(Idempotency { key, store, ttl, on_unknown }))
}

fn filter(at: &Section<'_>) -> Result<Filter, Mismatch> {
    let values = at.need("filter.values")?;
    Ok(match at.maybe("filter.type")? {
        None => Filter::All,
        Some(FilterType::Exact) => Filter::Exact(values),
        Some(FilterType::Prefix) => Filter::Prefix(values),
        Some(FilterType::Exclude) => Filter::Exclude(values),
    })
}
