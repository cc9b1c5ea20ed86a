//! The fake's store of schedules.

use async_trait::async_trait;
use tokio::time::Instant;

use super::{FakeBroker, MAX_MESSAGE};
use crate::{Advance, Advanced, Agreement, QueueError, Schedules, SendError};
use hostler_types::ScheduleState;
use hostler_types::message::MAX_ATTRIBUTES;

#[async_trait]
impl Schedules for FakeBroker {
    fn agreement(&self) -> Agreement {
        Agreement::Transaction
    }

    async fn prepare(&self) -> Result<(), QueueError> {
        Ok(())
    }

    async fn look(&self, names: &[String]) -> Result<Vec<Option<ScheduleState>>, QueueError> {
        let state = self.0.lock();
        Ok(names.iter().map(|name| state.schedules.get(name).cloned()).collect())
    }

    async fn advance(&self, step: Advance) -> Result<Advanced, SendError> {
        for (_, message) in &step.messages {
            message.validate(MAX_MESSAGE)?;
        }
        let now = Instant::now();
        let mut state = self.0.lock();
        if !step.starts_from(state.schedules.get(&step.name)) {
            return Ok(Advanced::Changed);
        }
        state.schedules.insert(step.name, step.to);
        let mut sent = Vec::new();
        for (_, mut message) in step.messages {
            message.carry_trace(MAX_ATTRIBUTES);
            sent.push(state.send(&step.channel, message, now, self.0.wall_clock(now)));
        }
        drop(state);
        self.0.changed.notify_waiters();
        Ok(Advanced::Done(sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admin, Broker};
    use hostler_types::Timestamp;
    use hostler_types::channel::Channel;
    use hostler_types::message::Outgoing;

    const NAME: &str = "nightly";

    fn channel() -> Channel {
        "jobs".parse().unwrap()
    }

    fn state(definition: &str, handled: u64) -> ScheduleState {
        let handled = Timestamp::from_micros(handled);
        ScheduleState { definition: definition.to_owned(), handled, sent: None, seen: handled }
    }

    fn step(from: Option<ScheduleState>, to: ScheduleState, bodies: &[&[u8]]) -> Advance {
        let message = |body: &&[u8]| (to.handled, Outgoing { body: body.to_vec(), ..Outgoing::default() });
        let messages = bodies.iter().map(message).collect();
        Advance { name: NAME.to_owned(), from, to, channel: channel(), messages }
    }

    async fn stored(broker: &FakeBroker) -> Option<ScheduleState> {
        broker.schedules().unwrap().look(&[NAME.to_owned()]).await.unwrap().remove(0)
    }

    async fn waiting(broker: &FakeBroker) -> u64 {
        broker.depths(&[channel()]).await.unwrap()[0].visible
    }

    #[tokio::test]
    async fn a_step_stores_its_state_and_sends_its_messages() {
        let broker = FakeBroker::default();
        assert_eq!(stored(&broker).await, None);
        let first = state("a", 1);
        let done = broker.advance(step(None, first.clone(), &[])).await;
        assert_eq!(done, Ok(Advanced::Done(Vec::new())));
        let next = ScheduleState { sent: Some(Timestamp::from_micros(2)), ..state("a", 2) };
        let seen_later = ScheduleState { seen: Timestamp::from_micros(9), ..first };
        let done = broker.advance(step(Some(seen_later), next.clone(), &[b"1", b"2"])).await;
        assert!(matches!(&done, Ok(Advanced::Done(sent)) if sent.len() == 2 && sent[0].queues == Some(1)), "{done:?}");
        assert_eq!((stored(&broker).await, waiting(&broker).await), (Some(next), 2));
        let names = ["other".to_owned(), NAME.to_owned()];
        assert!(matches!(broker.look(&names).await.unwrap()[..], [None, Some(_)]));
    }

    #[tokio::test]
    async fn a_step_from_another_state_or_with_an_invalid_message_changes_nothing() {
        let broker = FakeBroker::default();
        let first = state("a", 1);
        for found in [None, Some(first.clone())] {
            for from in [None, Some(first.clone()), Some(state("b", 1)), Some(state("a", 0))] {
                if from == found {
                    continue;
                }
                let taken = broker.advance(step(from, state("a", 2), &[b"1"])).await;
                assert_eq!(taken, Ok(Advanced::Changed));
            }
            let refused = broker.advance(step(found.clone(), state("a", 2), &[b"1", &[0; MAX_MESSAGE + 1]])).await;
            assert!(matches!(refused, Err(SendError::Invalid(_))), "{refused:?}");
            assert_eq!((stored(&broker).await, waiting(&broker).await), (found.clone(), 0));
            if found.is_none() {
                broker.advance(step(None, first.clone(), &[])).await.unwrap();
            }
        }
    }
}
