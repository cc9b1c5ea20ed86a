//! Hosts that share a schedule agree on who sends: a step is taken once, with its messages, or not at all.

use hostler_queue::{Advance, Advanced, Schedules, SendError};
use hostler_types::{ScheduleState, Timestamp};

use super::*;

const NAME: &str = "nightly";

/// A minute, in microseconds.
const MINUTE: u64 = 60_000_000;

/// The state once all due times up to this minute are settled.
fn state(definition: &str, minute: u64) -> ScheduleState {
    let handled = Timestamp::from_micros(minute * MINUTE);
    ScheduleState { definition: definition.to_owned(), handled, sent: Some(handled), seen: handled }
}

fn step(from: Option<ScheduleState>, to: ScheduleState, messages: Vec<Outgoing>) -> Advance {
    // No two messages have the same due time.
    let due = |place: usize| to.handled.minus(Duration::from_micros(place as u64));
    let messages = messages.into_iter().enumerate().map(|(place, message)| (due(place), message)).collect();
    Advance { name: NAME.to_owned(), from, to, channel: channel("jobs"), messages }
}

fn store(broker: &Arc<dyn Provisioner>) -> &dyn Schedules {
    broker.schedules().unwrap()
}

async fn stored(broker: &Arc<dyn Provisioner>) -> Option<ScheduleState> {
    store(broker).look(&[NAME.to_owned()]).await.unwrap().remove(0)
}

pub async fn step_is_taken_with_its_messages<H: Harness>(harness: &H) {
    let (broker, other) = (harness.broker().await, harness.broker().await);
    let queue = other.open(&spec("jobs")).await.unwrap();
    assert_eq!(stored(&broker).await, None, "a look needs no store");
    store(&broker).prepare().await.unwrap();
    let first = ScheduleState { sent: None, ..state("a", 1) };
    let taken = store(&broker).advance(step(None, first.clone(), Vec::new())).await;
    assert_eq!(taken, Ok(Advanced::Done(Vec::new())));
    assert_eq!(stored(&other).await, Some(first.clone()), "all hosts share it");
    // Another host has noted that it has seen the schedule.
    let seen = ScheduleState { seen: Timestamp::from_micros(u64::MAX), ..first };
    let taken = store(&broker).advance(step(Some(seen), state("b", 3), vec![text("2"), text("3")])).await;
    let Ok(Advanced::Done(sent)) = taken else { panic!("{taken:?}") };
    let received = gather(&queue, 2).await;
    assert_eq!(sorted(&received), ["2", "3"]);
    assert!(received.iter().all(|delivery| sent.iter().any(|sent| sent.id == delivery.message.id)));
    let names = ["other".to_owned(), NAME.to_owned()];
    assert_eq!(store(&other).look(&names).await, Ok(vec![None, Some(state("b", 3))]));
}

pub async fn one_of_two_hosts_sends<H: Harness>(harness: &H) {
    const ROUNDS: u64 = 10;
    let hosts = [harness.broker().await, harness.broker().await];
    let queue = hosts[0].open(&spec("jobs")).await.unwrap();
    for host in &hosts {
        store(host).prepare().await.unwrap();
    }
    let mut from = None;
    for round in 0..ROUNDS {
        let to = state("a", round);
        let take = |host: usize| store(&hosts[host]).advance(step(from.clone(), to.clone(), vec![text("a")]));
        let (one, two) = tokio::join!(take(0), take(1));
        let taken = [one.unwrap(), two.unwrap()];
        let sent = taken.iter().filter(|taken| matches!(taken, Advanced::Done(sent) if sent.len() == 1));
        assert_eq!(sent.count(), 1, "{taken:?}");
        assert!(taken.contains(&Advanced::Changed), "{taken:?}");
        from = Some(to);
    }
    assert_eq!(gather(&queue, usize::try_from(ROUNDS).unwrap()).await.len(), 10);
}

pub async fn step_that_is_not_taken_changes_nothing<H: Harness>(harness: &H) {
    let broker = harness.broker().await;
    let queue = broker.open(&spec("jobs")).await.unwrap();
    store(&broker).prepare().await.unwrap();
    let to = || state("a", 9);
    for found in [None, Some(state("a", 1))] {
        for from in [None, Some(state("a", 1)), Some(state("a", 2)), Some(state("b", 1))] {
            if from != found {
                let taken = store(&broker).advance(step(from, to(), vec![text("a")])).await;
                assert_eq!(taken, Ok(Advanced::Changed));
            }
        }
        let large = Outgoing { body: vec![0; H::MAX_MESSAGE + 1], ..Outgoing::default() };
        let refused = store(&broker).advance(step(found.clone(), to(), vec![text("a"), large])).await;
        assert!(matches!(refused, Err(SendError::Invalid(_))), "{refused:?}");
        assert_eq!(stored(&broker).await, found);
        if found.is_none() {
            store(&broker).advance(step(None, state("a", 1), Vec::new())).await.unwrap();
        }
    }
    assert!(take(&queue, 10).await.is_empty());
}
