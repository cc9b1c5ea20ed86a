//! Schedules on FIFO queues: each host sends, and SQS drops all messages but the first.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use super::SqsBroker;
use hostler_queue::{Advance, Advanced, Agreement, Broker as _, QueueError, Schedules, SendError};
use hostler_types::ScheduleState;
use hostler_types::message::Outgoing;

/// States of schedules in this process.
#[derive(Debug, Default)]
pub(super) struct OwnStates(Mutex<BTreeMap<String, ScheduleState>>);

impl OwnStates {
    fn get(&self, name: &str) -> Option<ScheduleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn set(&self, name: String, state: ScheduleState) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, state);
    }
}

#[async_trait]
impl Schedules for SqsBroker {
    fn agreement(&self) -> Agreement {
        Agreement::Stateless
    }

    async fn prepare(&self) -> Result<(), QueueError> {
        Ok(())
    }

    async fn look(&self, names: &[String]) -> Result<Vec<Option<ScheduleState>>, QueueError> {
        Ok(names.iter().map(|name| self.0.schedules.get(name)).collect())
    }

    /// Sends the messages with the same deduplication ids as all other hosts. After a failure, all are sent again: SQS drops those
    /// that it has, for 5 minutes (AWS limit).
    async fn advance(&self, step: Advance) -> Result<Advanced, SendError> {
        if !step.starts_from(self.0.schedules.get(&step.name).as_ref()) {
            return Ok(Advanced::Changed);
        }
        let keyed = step
            .messages
            .iter()
            .map(|(due, message)| Outgoing { dedupe: Some(step.message_key(*due)), ..message.clone() });
        let keyed: Vec<Outgoing> = keyed.collect();
        let sent = if keyed.is_empty() { Vec::new() } else { self.send(&step.channel, keyed).await };
        let sent = sent.into_iter().collect::<Result<Vec<_>, _>>()?;
        self.0.schedules.set(step.name, step.to);
        Ok(Advanced::Done(sent))
    }
}
