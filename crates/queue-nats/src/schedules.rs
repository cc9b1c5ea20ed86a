//! States of schedules, by which several hosts agree on who sends a message that is due.
//!
//! A stream keeps the state of each schedule under a subject of its own. A new state replaces the one that its writer has read, or is
//! refused. The server has no transactions over several streams. So a host first sends the messages, each with an id by which the
//! server drops the same message of another host, and then stores the state. A host that ends between the two leaves the state as
//! it was, and the next host sends the messages again, which the server drops.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_nats::HeaderMap;
use async_trait::async_trait;
use futures_util::future::join_all;
use hostler_queue::{Advance, Advanced, Agreement, Change, QueueError, Schedules, SendError, Sent};
use hostler_types::message::Outgoing;
use hostler_types::{Backoff, ScheduleState, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::api::{self, PublishError};
use super::declare::{Timers, missing};
use super::envelope::Parcel;
use super::headers::NATS_STREAM;
use super::provision::made;
use super::{NatsBroker, Service, send};

/// Header with the sequence number of the message that a new one replaces. 0: there is none.
const REPLACES: &str = "Nats-Expected-Last-Subject-Sequence";

/// Delays before a state is written again that another host has written at the same time.
const CONTENDED: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// Attempts to write a state that other hosts write at the same time.
const ATTEMPTS: u32 = 8;

/// Form in which a state is stored.
#[derive(Debug, Serialize, Deserialize)]
struct StoredState {
    definition: String,
    handled: Timestamp,
    sent: Option<Timestamp>,
    seen: Timestamp,
}

/// A state as the stream has it.
struct Found {
    /// Place of the message in the stream.
    sequence: u64,
    body: Vec<u8>,
    state: ScheduleState,
}

/// Facts that are certain before a message is sent whose state may fail to be stored afterwards. Otherwise, a lasting failure would
/// repeat the message each time that the server has forgotten its id.
#[derive(Debug, Default)]
pub(crate) struct Precautions {
    /// Set if the last write of a state succeeded.
    is_writable: AtomicBool,
    /// Streams that remember ids for long enough.
    remembering: Mutex<HashSet<String>>,
}

fn encode(state: &ScheduleState) -> Vec<u8> {
    let ScheduleState { definition, handled, sent, seen } = state.clone();
    serde_json::to_vec(&StoredState { definition, handled, sent, seen }).unwrap_or_default()
}

fn decode(body: &[u8]) -> Result<ScheduleState, serde_json::Error> {
    let StoredState { definition, handled, sent, seen } = serde_json::from_slice(body)?;
    Ok(ScheduleState { definition, handled, sent, seen })
}

impl Service {
    /// Returns the state of a schedule. `None`: the schedule or the stream has none.
    async fn read_state(&self, name: &str) -> Result<Option<Found>, QueueError> {
        let (stream, subject) = (self.names.schedules(), self.names.schedule(name));
        let Some((sequence, body)) = api::last(&self.line, &stream, &subject).await? else { return Ok(None) };
        let state = decode(&body).map_err(|error| {
            QueueError::Refused(format!(
                "cannot read the state of the schedule `{name}` in the stream `{stream}`, subject `{subject}`: {error}: update \
                 hostler if a later release wrote it; otherwise remove it with `nats stream purge '{stream}' --subject '{subject}'`, \
                 after which the schedule begins anew and sends nothing for the past"
            ))
        })?;
        Ok(Some(Found { sequence, body, state }))
    }

    /// Stores a state in place of the message with this sequence number, 0 for none. Returns the sequence number. `None`: the
    /// subject has another message by now.
    async fn write_state(&self, name: &str, body: Vec<u8>, replaces: u64) -> Result<Option<u64>, QueueError> {
        let stream = self.names.schedules();
        let mut headers = HeaderMap::new();
        headers.insert(REPLACES, replaces.to_string().as_str());
        headers.insert(NATS_STREAM, stream.as_str());
        let parcel = Parcel { subject: self.names.schedule(name), headers, body: body.into() };
        let error = match api::publish(&self.line, &stream, parcel).await {
            Ok(stored) => {
                self.precautions.is_writable.store(true, Ordering::Relaxed);
                return Ok(Some(stored.sequence));
            }
            Err(PublishError::Conflict(_)) => return Ok(None),
            Err(PublishError::Missing) => {
                self.declarer.forget(&stream);
                missing(&self.declarer.schedules().title)
            }
            Err(PublishError::TooLarge(why)) => {
                QueueError::Refused(format!("cannot store the state of the schedule `{name}`: {why}"))
            }
            Err(PublishError::Unattended(why)) => QueueError::Unavailable(why),
            Err(PublishError::Other(error)) => error,
        };
        self.precautions.is_writable.store(false, Ordering::Relaxed);
        Err(error)
    }

    /// Makes sure that the stream with the states exists and keeps them as it must.
    async fn prepare_states(&self) -> Result<(), QueueError> {
        let resource = self.declarer.schedules();
        if self.options.create_missing {
            for (resource, drift) in self.declarer.establish_one(resource, Timers::Raise).await? {
                tracing::warn!("the {} is not as hostler configures it: {}", resource.title, drift.text);
            }
            return Ok(());
        }
        if self.is_usable(&resource).await? { Ok(()) } else { Err(missing(&resource.title)) }
    }

    /// Refuses a stream that forgets ids earlier than hosts rely on.
    async fn check_window(&self, stream: &str) -> Result<(), QueueError> {
        let remembering = || self.precautions.remembering.lock().unwrap_or_else(PoisonError::into_inner);
        if remembering().contains(stream) {
            return Ok(());
        }
        // A stream that has just been removed has the right period when the send creates it again.
        let Some(found) = api::stream(&self.line, stream).await? else { return Ok(()) };
        let window = Duration::from_nanos(found["config"]["duplicate_window"].as_u64().unwrap_or_default());
        let least = self.options.dedupe_window;
        if window < least {
            let (window, least) = (humantime::format_duration(window), humantime::format_duration(least));
            return Err(QueueError::Refused(format!(
                "the stream `{stream}` drops duplicates for only {window} (duplicate_window), so a schedule could send a message \
                 twice: run `hostler provision` with the config of its consumer, or set duplicate_window to at least {least}"
            )));
        }
        remembering().insert(stream.to_owned());
        Ok(())
    }

    /// Sends the messages of a step, each with the id of its due time. If one is not valid, sends none.
    async fn send_due(&self, step: &Advance) -> Result<Vec<Sent>, SendError> {
        if step.messages.is_empty() {
            return Ok(Vec::new());
        }
        let identified = |(due, message): &(Timestamp, Outgoing)| Outgoing {
            dedupe: Some(step.message_key(*due)),
            ..message.clone()
        };
        let batch: Vec<_> = step.messages.iter().map(identified).collect();
        let stream = send::check(self, &step.channel, &batch).await?;
        self.check_window(&stream).await?;
        let mut results = send::send(self, &step.channel, batch).await;
        // The server may take smaller messages than it says. Such a refusal lasts, so it is the one to report.
        if let Some(at) = results.iter().position(|result| matches!(result, Err(SendError::Invalid(_)))) {
            results.swap(0, at);
        }
        results.into_iter().collect()
    }

    /// Takes a step: sends the messages, then stores the state.
    async fn take_step(&self, step: &Advance) -> Result<Advanced, SendError> {
        if !self.declarer.has_stream(&self.names.schedules()).await? {
            self.prepare_states().await?;
        }
        let mut sent = None;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                sleep(CONTENDED.rest(attempt - 1, fastrand::f64())).await;
            }
            let found = self.read_state(&step.name).await?;
            if !step.starts_from(found.as_ref().map(|found| &found.state)) {
                return Ok(Advanced::Changed);
            }
            let mut replaces = found.as_ref().map_or(0, |found| found.sequence);
            let is_writable = step.messages.is_empty() || self.precautions.is_writable.load(Ordering::Relaxed);
            if let Some(found) = found.filter(|_| !is_writable) {
                let Some(rewritten) = self.write_state(&step.name, found.body, replaces).await? else { continue };
                replaces = rewritten;
            }
            let delivered = match sent.take() {
                Some(delivered) => delivered,
                None => self.send_due(step).await?,
            };
            if self.write_state(&step.name, encode(&step.to), replaces).await?.is_some() {
                return Ok(Advanced::Done(delivered));
            }
            // A host may have changed no more than the time of its last write.
            sent = Some(delivered);
        }
        let text = format!("other hosts keep writing the state of the schedule `{}` at the same time", step.name);
        Err(QueueError::Unavailable(text).into())
    }
}

#[async_trait]
impl Schedules for NatsBroker {
    fn agreement(&self) -> Agreement {
        Agreement::DuplicateWindow
    }

    async fn prepare(&self) -> Result<(), QueueError> {
        self.0.prepare_states().await
    }

    async fn planned_changes(&self) -> Result<Vec<Change>, QueueError> {
        let declarer = &self.0.declarer;
        declarer.changes(&declarer.schedules()).await
    }

    async fn make_changes(&self) -> Result<Vec<Change>, QueueError> {
        let declarer = &self.0.declarer;
        let planned = declarer.changes(&declarer.schedules()).await?;
        let left = declarer.establish_one(declarer.schedules(), Timers::Set).await?;
        Ok(planned.into_iter().map(|change| made(change, &left)).collect())
    }

    async fn look(&self, names: &[String]) -> Result<Vec<Option<ScheduleState>>, QueueError> {
        let found = join_all(names.iter().map(|name| self.0.read_state(name))).await;
        found.into_iter().map(|found| Ok(found?.map(|found| found.state))).collect()
    }

    async fn advance(&self, step: Advance) -> Result<Advanced, SendError> {
        self.0.take_step(&step).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_stored_as_text_and_read_back() {
        let time = |seconds| Timestamp::from(std::time::UNIX_EPOCH + Duration::from_secs(seconds));
        let state =
            ScheduleState { definition: "d1".to_owned(), handled: time(120), sent: Some(time(60)), seen: time(121) };
        let text = concat!(
            r#"{"definition":"d1","handled":"1970-01-01T00:02:00.000000Z","#,
            r#""sent":"1970-01-01T00:01:00.000000Z","seen":"1970-01-01T00:02:01.000000Z"}"#
        );
        assert_eq!(String::from_utf8(encode(&state)).unwrap(), text);
        assert_eq!(decode(text.as_bytes()).unwrap(), state);
        let unsent = ScheduleState { sent: None, ..state };
        assert_eq!(decode(&encode(&unsent)).unwrap(), unsent);
        for bad in ["", "{}", r#"{"definition":"d1"}"#, "null"] {
            assert!(decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
