//! The validated configuration of one consumer.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ipnet::IpNet;

use super::choice::{FilterType, OnProcessingTimeout, Reply};
use super::grants::{DirGrant, Dirs, HandlerRef, Network, Origin};
use super::read::Bytes;
use super::settings::{Mismatch, Section, Settings};
use super::units::Share;
use hostler_types::Rate;
use hostler_types::channel::{Channel, Filter};

/// `[consumers.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// Its name: 1 to 71 of `A-Z a-z 0-9 _ -`.
    pub name: String,
    /// The channel that it listens on. No other consumer of the configuration uses the same queue.
    pub channel: Channel,
    /// FIFO: messages of one group are processed in order, one at a time.
    pub ordered: bool,
    /// `true`: deduplication scope and throughput limit of its FIFO queue are per message group; `false`: per queue; `None`:
    /// as the queue is. Never `true` unless `ordered`.
    pub high_throughput: Option<bool>,
    /// The WASM handler.
    pub handler: HandlerRef,
    /// A component with lifecycle hooks beside the handler.
    pub hooks: Option<HandlerRef>,
    /// The handler's SHA-256.
    pub sha256: Option<[u8; 32]>,
    /// The SHA-256 of the component under `hooks`.
    pub hooks_sha256: Option<[u8; 32]>,
    /// Messages processed at a time: 1 to 1024; `None`: as many as the memory allows.
    pub concurrency: Option<usize>,
    /// Visibility timeout: 1 s to 12 h, SQS's limit.
    pub lease: Duration,
    /// The time after which a handler is stopped: 1 s to 12 h; on SQS 12 h less a lease at most.
    pub processing_timeout: Duration,
    /// The age from which a message counts as late: 1 s to 14 d, SQS's longest retention.
    pub delay_tolerance: Duration,
    /// The treatment of a message whose time ran out; never dead-letter without a dead-letter queue.
    pub on_processing_timeout: OnProcessingTimeout,
    /// The longest time in one state, or without a poll, that counts as healthy; longer than `processing_timeout`.
    pub healthcheck_timeout: Duration,
    /// The most messages to start per period.
    pub rate_limit: Option<Rate>,
    /// Messages that one sandbox handles before it is replaced: at least 1.
    pub messages_per_instance: u32,
    /// The part of a WASI command's output that is its reply.
    pub reply: Reply,
    /// The destination of replies; `None`: a reply counts as an ack. Never the consumer's own queue; its exchange only with a
    /// filter.
    pub reply_channel: Option<Channel>,
    /// Enables the dead-letter queue.
    pub dead_letter: bool,
    /// The escalation of failed attempts.
    pub retry: Retry,
    /// The breaker, which pauses receiving when too much fails; `None`: receiving never pauses for failures.
    pub breaker: Option<Breaker>,
    /// The part of the exchange's messages that the queue gets; [`Filter::All`] on a channel without an exchange.
    pub filter: Filter,
    /// The guest's grants.
    pub allow: Allow,
    /// The guest's resource limits.
    pub limits: Limits,
    /// Ownership and alarms of the queues.
    pub tags: Tags,
}

/// `[consumers.NAME.retry]`: the escalation of failed attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Failed attempts released after `requeue_delay`: 0 to 100.
    pub requeues: u32,
    /// The wait after each of these: at most 12 h, the longest that SQS hides a message.
    pub requeue_delay: Duration,
    /// Failed attempts after those, released after a growing delay: 0 to 100. The next failure dead-letters.
    pub delays: u32,
    /// The first delay, before jitter; doubled each time: at most `max_delay`.
    pub delay: Duration,
    /// The longest delay: at most 12 h.
    pub max_delay: Duration,
}

/// `[consumers.NAME.breaker]`: the conditions under which receiving pauses because too much fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    /// The share of failed messages beyond which it pauses.
    pub failures: Share,
    /// The period over which messages count: 1 s to 1 h.
    pub over: Duration,
    /// The minimum number of messages in that period: 1 to 1,000,000.
    pub min: u32,
    /// The first pause: 1 s to 10 min.
    pub pause: Duration,
}

/// `[consumers.NAME.allow]`: the guest's grants; nothing by default.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Allow {
    /// Origins, `http(s)://host[:port]` in lower case, without a default port.
    pub http: Vec<String>,
    /// Private networks to which the names of these origins may resolve.
    pub networks: Vec<IpNet>,
    /// Environment of the guest. The values may be secrets: `Debug` omits them.
    pub env: BTreeMap<String, String>,
    /// Folders, each with a guest path of its own.
    pub dirs: Vec<DirGrant>,
    /// Channels that the guest may send to.
    pub send: Vec<Channel>,
}

impl fmt::Debug for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { http, networks, env, dirs, send } = self;
        let env: Vec<_> = env.keys().collect();
        let mut allow = f.debug_struct("Allow");
        allow.field("http", http).field("networks", networks).field("env", &env);
        allow.field("dirs", dirs).field("send", send).finish()
    }
}

/// `[consumers.NAME.limits]`: the guest's resource limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of linear memory of one sandbox: 1 MiB to 4 GiB, the most that 32-bit WASM addresses; `None`: as the host's
    /// memory allows.
    pub memory: Option<u64>,
    /// Bytes of stdout and stderr kept per message: at most 16 MiB.
    pub output: u64,
}

/// `[consumers.NAME.tags]`: ownership and alarms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tags {
    /// The owner of the queues: at most 256 characters, AWS's limit for a tag.
    pub owner: Option<String>,
    /// Flags alarms as critical.
    pub critical: bool,
    /// The number of messages in the queue that raises an alarm; `None`: `alarms.threshold`.
    pub alarm_threshold: Option<u64>,
    /// The number of messages in the dead-letter queue that raises an alarm; `None`: 1.
    pub dead_letter_alarm_threshold: Option<u64>,
}

impl Consumer {
    /// Reads checked settings. An error means that the table of keys and this code disagree.
    pub(super) fn read(name: &str, settings: &Settings) -> Result<Self, Mismatch> {
        let at = settings.consumer(name);
        let dead_letter = at.need("dead_letter")?;
        let processing_timeout = at.need("processing_timeout")?;
        let on_timeout = if dead_letter { OnProcessingTimeout::DeadLetter } else { OnProcessingTimeout::Exit };
        let healthcheck_timeout = at.maybe("healthcheck_timeout")?;
        Ok(Self {
            name: name.to_owned(),
            channel: at.need("channel")?,
            ordered: at.need("ordered")?,
            high_throughput: at.maybe("high_throughput")?,
            handler: at.need("handler")?,
            hooks: at.maybe("hooks")?,
            sha256: at.maybe("sha256")?,
            hooks_sha256: at.maybe("hooks_sha256")?,
            concurrency: at.maybe("concurrency")?,
            lease: at.need("lease")?,
            processing_timeout,
            delay_tolerance: at.need("delay_tolerance")?,
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
                env: at.texts("allow.env"),
                dirs: at.need::<Dirs>("allow.dirs")?.0,
                send: at.need("allow.send")?,
            },
            limits: Limits {
                memory: at.maybe::<Bytes>("limits.memory")?.map(|bytes| bytes.0),
                output: at.need::<Bytes>("limits.output")?.0,
            },
            tags: Tags {
                owner: at.maybe("tags.owner")?,
                critical: at.need("tags.critical")?,
                alarm_threshold: at.maybe("tags.alarm_threshold")?,
                dead_letter_alarm_threshold: at.maybe("tags.dead_letter_alarm_threshold")?,
            },
        })
    }
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

fn filter(at: &Section<'_>) -> Result<Filter, Mismatch> {
    let values = at.need("filter.values")?;
    Ok(match at.maybe("filter.type")? {
        None => Filter::All,
        Some(FilterType::Exact) => Filter::Exact(values),
        Some(FilterType::Prefix) => Filter::Prefix(values),
        Some(FilterType::Exclude) => Filter::Exclude(values),
    })
}
