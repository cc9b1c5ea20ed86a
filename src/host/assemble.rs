//! Builds the parts of a consumer from its config.

use std::collections::BTreeMap;
use std::time::Duration;

use super::driver;
use super::guests::sets;
use super::resources::{self, Demand, FilePlan, HOST, Handles, Machine, Plan, SLOTS, Share};
use crate::exit::{self, Exit, Failure};
use hostler_config::{self as config, Config, DirMode, Driver, RecordStore, Reply};
use hostler_consumer::{Policy, Spec};
use hostler_queue::request::Terms;
use hostler_queue::{ChannelSpec, SubjectSpec, tag};
use hostler_queue_telemetry::Producer;
use hostler_telemetry::traces;
use hostler_types::Rate;
use hostler_types::channel::Channel;
use hostler_wasm::{Definition, Dir, Grants, Loaded, Pool, Source};

/// Number of sandboxes that each consumer has in addition to those of its slots. The `state-changed` hook needs one of them. The
/// others cover the time in which a finished sandbox is still being removed while its successor already runs. Unused sandboxes
/// cost only address space.
const SPARE_SANDBOXES: u32 = 4;

/// Time for which messages that a rate limit delays may lie in the host, in addition to the processing timeout.
const WINDOW: Duration = Duration::from_secs(5);

/// Returns the settings of a consumer. `drain` is the time from the start of a shutdown until the host stops the remaining work.
pub(super) fn spec(consumer: &config::Consumer, share: &Share, drain: Duration) -> Spec {
    Spec {
        name: consumer.name.as_str().into(),
        channel: consumer.source().into(),
        ordered: consumer.ordered,
        concurrency: share.slots,
        batch: consumer.batch,
        lease: consumer.lease,
        processing_timeout: consumer.processing_timeout,
        delay_tolerance: consumer.delay_tolerance,
        longest_poll: (consumer.healthcheck_timeout / 3).min(drain),
        rate_limit: consumer.rate_limit,
        policy: policy(consumer),
        breaker: consumer.breaker,
        output: usize::try_from(consumer.limits.output).unwrap_or(usize::MAX),
    }
}

fn policy(consumer: &config::Consumer) -> Policy {
    Policy {
        retry: consumer.retry,
        on_processing_timeout: consumer.on_processing_timeout,
        dead_letter: consumer.dead_letter,
    }
}

/// Returns the definition of a consumer's channel. The redrive policy of the queue allows two more attempts than the consumer's
/// own policy. Therefore, the queue itself dead-letters only messages that the consumer cannot dead-letter, for example because
/// they crash the host.
pub fn channel_spec(consumer: &config::Consumer) -> ChannelSpec {
    channel_spec_with(consumer, consumer.concurrency.unwrap_or(SLOTS))
}

/// Returns the same for a consumer with this number of slots.
pub(super) fn channel_spec_with(consumer: &config::Consumer, slots: usize) -> ChannelSpec {
    ChannelSpec {
        channel: consumer.channel.clone(),
        ordered: consumer.ordered,
        high_throughput: consumer.high_throughput,
        filter: consumer.filter.clone(),
        max_receives: consumer
            .dead_letter
            .then(|| policy(consumer).attempts().saturating_add(spare_receives(consumer))),
        longest_delay: consumer.longest_delay,
        window: window(slots * batch_size(consumer), consumer.rate_limit, consumer.processing_timeout),
        lease: consumer.lease,
        subject: consumer
            .subject
            .as_ref()
            .map(|subject| SubjectSpec { subject: subject.pattern.clone(), queue_group: subject.queue_group.clone() }),
        tags: tags(consumer),
    }
}

/// Returns the number of receives for which the queue waits beyond the attempts of the consumer's policy. With idempotency, a message comes
/// back while another run has its key, and while the store of the records is away, which SQS counts as receives.
fn spare_receives(consumer: &config::Consumer) -> u32 {
    if consumer.idempotency.is_some() { 100 } else { 2 }
}

/// Returns the maximum number of messages in one call of the handler.
fn batch_size(consumer: &config::Consumer) -> usize {
    consumer.batch.map_or(1, |batch| batch.max)
}

/// Returns the number of messages that a service may send ahead to a consumer, including those that its handlers work on: one per
/// slot, or a full batch. `slots`: number of places for messages. With a rate limit, no more than the limit lets through while one handler runs and in the seconds after it; fewer would
/// leave slots empty that the limit permits to be used.
fn window(slots: usize, limit: Option<Rate>, processing_timeout: Duration) -> usize {
    match limit {
        Some(rate) => slots.min(rate.in_time(WINDOW.saturating_add(processing_timeout))).max(1),
        None => slots,
    }
}

/// Returns the channels that a consumer sends to. Leaves out channels that exist anyway, because a consumer in the
/// config receives from them or dead-letters messages to them.
pub fn destinations(config: &Config, consumer: &config::Consumer) -> Vec<Channel> {
    without_own(config, consumer.reply_channel.iter().chain(&consumer.allow.send))
}

/// Returns the channels that schedules send to. Leaves out channels that exist anyway, like [`destinations`].
pub fn scheduled_destinations(config: &Config) -> Vec<Channel> {
    without_own(config, config.schedules.iter().map(|schedule| &schedule.channel))
}

/// Sorts channels, and leaves out those that exist anyway, because a consumer in the config receives from them or dead-letters
/// messages to them.
fn without_own<'a>(config: &Config, sent: impl Iterator<Item = &'a Channel>) -> Vec<Channel> {
    let is_made = |channel: &Channel| {
        config.with_channels().any(|other| {
            let (made, name) = (&other.channel, channel.queue());
            match channel.exchange() {
                Some(_) => made.exchange() == channel.exchange(),
                None => {
                    made.queue() == name
                        || made.exchange() == Some(name)
                        || other.dead_letter && made.dead_letter_queue() == name
                }
            }
        })
    };
    let mut sent: Vec<Channel> = sent.cloned().collect();
    sent.retain(|channel| !is_made(channel));
    sent.sort();
    sent.dedup();
    sent
}

/// Returns the tags of a consumer's queues. Tags mark the queues as managed by hostler and store the alarm thresholds.
fn tags(consumer: &config::Consumer) -> BTreeMap<String, String> {
    let config::Tags { owner, critical, alarm_threshold, dead_letter_alarm_threshold } = &consumer.tags;
    let number = |threshold: &Option<u64>| threshold.map(|threshold| threshold.to_string());
    let tags = [
        (tag::CONSUMER, Some(consumer.name.clone())),
        (tag::OWNER, owner.clone()),
        (tag::CRITICAL, Some(critical.to_string())),
        (tag::ALARM_THRESHOLD, number(alarm_threshold)),
        (tag::DEAD_LETTER_ALARM_THRESHOLD, number(dead_letter_alarm_threshold)),
    ];
    tags.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Returns the definition of a consumer's handler. Guests send messages through `producer`. `None`: guests cannot send.
pub(super) fn definition(
    consumer: &config::Consumer,
    source: Source,
    hooks: Option<Source>,
    producer: Option<Producer>,
) -> Definition {
    let dirs = consumer.allow.dirs.iter().map(|dir| Dir {
        host: dir.host.clone(),
        guest: dir.guest.to_string_lossy().into_owned(),
        writable: dir.mode == DirMode::ReadWrite,
    });
    Definition {
        consumer: consumer.name.as_str().into(),
        source,
        sha256: consumer.sha256,
        hooks,
        hooks_sha256: consumer.hooks_sha256,
        grants: Grants {
            env: consumer.allow.env.clone(),
            secrets: None,
            dirs: dirs.collect(),
            http: consumer.allow.http.clone(),
            networks: consumer.allow.networks.clone(),
            tcp: consumer.allow.tcp.clone(),
            connections: consumer.limits.connections,
            send: consumer.allow.send.clone(),
            subjects: consumer.allow.subjects.clone(),
            terms: Terms::default(),
            reply_channel: consumer.reply_channel.clone(),
            producer,
        },
        messages_per_instance: consumer.messages_per_instance,
        batches: consumer.batch.is_some(),
        reply_from_stdout: consumer.reply == Reply::Stdout,
        metrics: None,
    }
}

/// Returns the way in which messages of guests to subjects are acknowledged.
pub(super) fn terms(config: &Config) -> Terms {
    let nats = &config.queue.nats;
    Terms { timeout: nats.request_timeout, fallback: nats.fallback.clone() }
}

/// Divides the machine's memory among the consumers. `loaded` contains one element per consumer, in the order of the config. An
/// element is `None` until the consumer's handler is loaded.
///
/// # Errors
/// Exit code 64 if the slots and sandboxes of the config do not fit into the memory. The error message shows the calculation.
pub fn plan(config: &Config, machine: &Machine, loaded: &[Option<&Loaded>]) -> exit::Result<Plan> {
    let loaded = loaded.iter().copied().chain(std::iter::repeat(None));
    let demands: Vec<_> =
        config.consumers.iter().zip(loaded).map(|(consumer, loaded)| demand(consumer, loaded)).collect();
    let traces = if config.telemetry.otlp_endpoint.is_some() { traces::footprint() } else { 0 };
    resources::plan(&machine.memory, HOST + traces, &demands).map_err(|refusal| Failure::new(Exit::BadConfig, refusal))
}

/// Returns the memory demand of a consumer. Until the handler is loaded, its code size and its `state-changed` hook do not
/// count.
pub(super) fn demand(consumer: &config::Consumer, loaded: Option<&Loaded>) -> Demand {
    Demand {
        consumer: consumer.name.clone(),
        slots: consumer.concurrency,
        memory: consumer.limits.memory,
        output: consumer.limits.output,
        // A command also gets them as lines of JSON, in which a byte may take six.
        messages: consumer.batch.map_or(0, |batch| batch.bytes.saturating_mul(3)),
        hooks_apart: consumer.hooks.is_some(),
        http: !consumer.allow.http.is_empty(),
        connections: connections(consumer),
        tls: consumer.allow.tcp.iter().any(|grant| grant.tls.is_some()),
        observes_states: loaded.is_some_and(Loaded::observes_states),
        code: loaded.map_or(0, Loaded::code_size),
    }
}

/// Returns the maximum number of TCP connections of one of the consumer's sandboxes. 0 if no server is granted.
fn connections(consumer: &config::Consumer) -> u64 {
    if consumer.allow.tcp.is_empty() { 0 } else { consumer.limits.connections.into() }
}

/// Returns the size of the sandbox pool. The pool is large enough for every memory plan that [`plan`] can return.
pub fn pool(config: &Config) -> Pool {
    Pool { sandboxes: config.consumers.iter().map(sandboxes).fold(0, u32::saturating_add) }
}

/// Returns the maximum number of concurrent sandboxes of a consumer.
fn sandboxes(consumer: &config::Consumer) -> u32 {
    let slots = u32::try_from(consumer.concurrency.unwrap_or(SLOTS)).unwrap_or(u32::MAX);
    // Hooks in a separate component need a second sandbox per slot.
    slots.saturating_mul(if consumer.hooks.is_some() { 2 } else { 1 }).saturating_add(SPARE_SANDBOXES)
}

/// Computes the maximum number of open files per sandbox.
///
/// # Errors
/// Exit code 64 if the limit on open files is too low for the slots of the config. The error message shows the calculation.
pub fn file_plan(config: &Config) -> exit::Result<FilePlan> {
    let handles = config.consumers.iter().map(|consumer| Handles {
        sandboxes: sandboxes(consumer).into(),
        folders: consumer.allow.dirs.len() as u64,
        origins: consumer.allow.http.len() as u64,
        connections: connections(consumer),
    });
    let plan = FilePlan::measure(&handles.collect::<Vec<_>>(), sets(&config.consumers));
    plan.map_err(|few| Failure::new(Exit::BadConfig, few))
}

/// Returns a warning for each setting that has no effect with the driver in the config, and for each that needs a change of the
/// service's own config.
pub fn config_warnings(config: &Config) -> Vec<String> {
    let driver = driver(config);
    let unused = (config.payload.bucket.is_some() && !driver.uses_payload()).then(|| {
        let word = config.queue.driver.word();
        format!("payload.bucket: queue.driver = \"{word}\" keeps large messages itself (the setting has no effect)")
    });
    let of_the_queue = config.consumers.iter().filter(|consumer| consumer.job.is_none());
    let early = of_the_queue.filter_map(|consumer| {
        let why = driver.takes_back_early(consumer)?;
        Some(format!("consumers.{}: {why}", consumer.name))
    });
    unused.into_iter().chain(early).chain(config.consumers.iter().filter_map(|it| local_records(config, it))).collect()
}

/// Returns a warning if other hosts that receive from the same queue do not know what this one has processed.
fn local_records(config: &Config, consumer: &config::Consumer) -> Option<String> {
    let is_local = consumer.idempotency.as_ref()?.store == RecordStore::Embedded;
    (is_local && config.queue.driver != Driver::Embedded).then(|| {
        let name = &consumer.name;
        format!(
            "consumers.{name}.idempotency.store: the records are in a file of this host: another host that receives from the queue processes \
             a key again (`postgres` is for several hosts)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_sends_ahead_what_the_slots_and_the_rate_limit_let_through() {
        let per_second = |permits| Some(Rate { permits, per: Duration::from_secs(1) });
        let seconds = Duration::from_secs;
        assert_eq!(window(16, None, seconds(30)), 16);
        assert_eq!(window(16, per_second(100), seconds(30)), 16);
        // Ten-second handlers at one message a second keep ten slots busy.
        assert_eq!(window(16, per_second(1), seconds(10)), 15);
        assert_eq!(window(1, Some(Rate { permits: 1, per: seconds(3600) }), seconds(1)), 1);
    }
}
