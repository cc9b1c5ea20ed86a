//! The conformance suite: what the queue contract promises, asked of every driver.
//!
//! Each case is a function over a [`Harness`]; [`suite!`] makes a test of each for a driver. A case waits for things
//! by receiving with a wait, so that it runs on a real clock and on a paused one.

mod dead_letters;
mod drivers;
mod fan_out;
mod groups;
mod leases;
mod looking;
mod pushing;
mod recording;
mod scheduling;
mod sending;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{ChannelSpec, Delivery, LeaseError, Provisioner, Queue, Receive, Sent, Settlement};
use hostler_types::channel::{Channel, Filter};
use hostler_types::message::Outgoing;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A driver under test, with a service of its own.
pub trait Harness: Sized {
    /// A lease or delay that passes soon, and yet not before the next call is made.
    const TICK: Duration;
    /// Time for which the service remembers a dedupe key.
    const DEDUPE_WINDOW: Duration;
    /// The largest message it takes, in bytes.
    const MAX_MESSAGE: usize;
    /// Abilities of the service, where the contract leaves it to the driver.
    const TRAITS: Traits = Traits::ALL;

    /// A fresh, empty service.
    async fn start() -> Self;

    /// A client of the service; each call makes another one, as if in another process.
    async fn broker(&self) -> Arc<dyn Provisioner>;
}

/// Abilities of a service, where the contract leaves them to the driver. What some services do and others do not is a
/// matter of [`ability!`].
pub struct Traits {
    /// Copies of a message, in the queues of an exchange and in a dead-letter queue, have its id and its time.
    pub copies_keep_ids: bool,
    /// A sender hears how many queues of an exchange a message reached.
    pub counts_copies: bool,
    /// A message that was received too often is dead-lettered with its story, and its receives are counted anew.
    pub tells_why_it_gave_up: bool,
    /// A look at a queue is no receive of its messages.
    pub looks_are_free: bool,
    /// The age of the oldest message is known.
    pub tells_ages: bool,
    /// Queues are listed with the exchange that feeds them.
    pub lists_exchanges: bool,
    /// Counts of a queue that is in use.
    pub counts: Counts,
}

/// Counts of a queue that is in use.
#[derive(PartialEq)]
pub enum Counts {
    /// Everything.
    Everything,
    /// Set if a message that is released with a delay counts as in flight.
    DelayedAsLeased,
    /// Messages that can be received.
    Visible,
}

impl Traits {
    /// A service of our own.
    pub const ALL: Self = Self {
        copies_keep_ids: true,
        counts_copies: true,
        tells_why_it_gave_up: true,
        looks_are_free: true,
        tells_ages: true,
        lists_exchanges: true,
        counts: Counts::Everything,
    };
}

macro_rules! cases {
    ($driver:ident, $harness:ty, $test:meta, $($area:ident: [$($case:ident)*])*) => {
        mod $driver {
            use super::*;
            $(mod $area {
                use super::*;
                $(#[$test]
                async fn $case() {
                    let harness = <$harness as crate::conformance::Harness>::start().await;
                    crate::conformance::$area::$case(&harness).await;
                })*
            })*
        }
    };
}
use cases;

/// Every case that any driver passes, as a test of this one: `suite!(name: Harness, attribute of the tests)`.
macro_rules! suite {
    ($driver:ident: $harness:ty, $test:meta) => {
        cases! { $driver, $harness, $test,
            dead_letters: [
                copy_keeps_what_was_sent
                story_has_no_room
                long_reason_is_cut
                second_story_replaces_the_first
                too_many_receives
                refused_without_a_queue_for_it
            ]
            fan_out: [
                filters_choose_queues
                copies_are_independent
                exchange_takes_messages_by_its_name
                declaring_makes_what_is_missing_and_changes_no_filter
            ]
            groups: [
                one_at_a_time_in_order
                groups_are_parallel
                release_at_once_keeps_the_place
                release_blocks_the_group
                expiry_blocks_the_group
                dead_letter_frees_the_group
                dead_letter_queue_keeps_the_order
                no_group_is_one_group
            ]
            leases: [
                expiry_redelivers
                lease_hides_the_message
                expired_lease_is_lost_at_once
                stale_receipt_changes_nothing
                lease_ends_with_the_settlement
                extend_keeps_the_lease
                extend_counts_from_now
                entries_are_independent
                release_at_once
                give_back
                release_with_delay
                no_lease_is_taken_back
            ]
            looking: [look_shows_all_and_changes_nothing]
            sending: [
                arrives_as_sent
                limits_hold_per_message
                delay_holds_a_message_back
                long_delay_holds_a_message_back
                depths_count
                channels_are_listed
            ]
            waiting: [
                send_wakes
                release_wakes
                next_of_group_wakes
                no_wait_answers_at_once
                wait_ends_empty
                stopped_before
                batch_size_is_kept
                receivers_share
            ]
        }
    };
}
use suite;

/// The cases of abilities that not every service has: `abilities!(name: Harness, attribute of the tests; ability ability …)`.
macro_rules! abilities {
    ($driver:ident: $harness:ty, $test:meta; $($ability:ident)*) => {
        mod $driver {
            use super::*;
            $(ability!($ability: $harness, $test);)*
        }
    };
}
use abilities;

macro_rules! ability {
    // A second message with the same key is dropped. SQS: only by FIFO queues. RabbitMQ: not at all.
    (dedupe: $harness:ty, $test:meta) => {
        cases! { dedupe, $harness, $test,
            fan_out: [dedupe_is_per_exchange]
            sending: [duplicate_is_dropped dedupe_key_is_forgotten]
        }
    };
    (dedupe_in_order: $harness:ty, $test:meta) => {
        cases! { dedupe_in_order, $harness, $test, groups: [duplicate_is_dropped_in_order] }
    };
    // Whether a queue keeps the order of groups is not for good, as it is on SQS and RabbitMQ.
    (reorder: $harness:ty, $test:meta) => {
        cases! { reorder, $harness, $test,
            groups: [
                queue_becomes_ordered
                queue_becomes_unordered
                declaring_changes_no_order
                dead_letters_without_a_group_keep_their_order
            ]
        }
    };
    // One message of a group at a time. SQS: several at once.
    (one_of_a_group: $harness:ty, $test:meta) => {
        cases! { one_of_a_group, $harness, $test, groups: [one_of_a_group_per_receive] }
    };
    // SQS: no delay for a single message of a FIFO queue.
    (delay_in_order: $harness:ty, $test:meta) => {
        cases! { delay_in_order, $harness, $test, groups: [delay_blocks_the_group] }
    };
    // SQS: a changed filter takes up to 15 minutes.
    (refilter: $harness:ty, $test:meta) => {
        cases! { refilter, $harness, $test, fan_out: [filter_can_change] }
    };
    // Ordered and other queues of one exchange. SQS: they would be queues of two topics.
    (mixed_exchange: $harness:ty, $test:meta) => {
        cases! { mixed_exchange, $harness, $test, fan_out: [ordered_copies_too] }
    };
    // SQS: topics and queues of a channel are made by its consumer.
    (sender_first: $harness:ty, $test:meta) => {
        cases! { sender_first, $harness, $test, fan_out: [sender_may_come_first] }
    };
    // Who does not receive a message sees it. SQS and RabbitMQ: only who receives it.
    (peek: $harness:ty, $test:meta) => {
        cases! { peek, $harness, $test, looking: [look_sees_what_is_leased_or_delayed] }
    };
    // SQS: queues that are not FIFO promise no order.
    (plain_order: $harness:ty, $test:meta) => {
        cases! { plain_order, $harness, $test, sending: [plain_queue_keeps_its_order] }
    };
    // Messages are sent ahead of the receives. SQS and our own queues: only what a receive asks for.
    (pushes: $harness:ty, $test:meta) => {
        cases! { pushes, $harness, $test,
            pushing: [
                rest_gives_back_what_was_sent_ahead
                leases_survive_a_rest
                receive_ends_a_rest
                stopped_receive_ends_no_rest
                receive_of_one_after_a_rest_takes_no_others
            ]
        }
    };
    // The queues' database keeps idempotency records.
    (records: $harness:ty, $test:meta) => {
        cases! { records, $harness, $test,
            recording: [
                one_of_many_runs_starts
                success_is_kept_and_another_run_changes_nothing
                runs_lapse_and_are_forgotten
                ack_records_and_sends_in_one_step
                ack_without_its_lease_records_nothing
            ]
        }
    };
    // Hosts share schedules. RabbitMQ: nothing stores what was sent.
    (schedules: $harness:ty, $test:meta) => {
        cases! { schedules, $harness, $test,
            scheduling: [
                step_is_taken_with_its_messages
                one_of_two_hosts_sends
                step_that_is_not_taken_changes_nothing
            ]
        }
    };
    // SQS: a long poll cannot be taken back.
    (stoppable: $harness:ty, $test:meta) => {
        cases! { stoppable, $harness, $test, waiting: [stop_ends_the_wait] }
    };
}
use ability;

/// A lease that does not end during a test.
const LONG: Duration = Duration::from_secs(60);
/// Maximum wait for an event; no more than any driver's longest wait.
const PATIENCE: Duration = Duration::from_secs(20);

fn channel(name: &str) -> Channel {
    name.parse().unwrap()
}

/// A plain channel with a dead-letter queue.
fn spec(name: &str) -> ChannelSpec {
    ChannelSpec { max_receives: Some(1000), ..ChannelSpec::new(channel(name)) }
}

fn ordered(name: &str) -> ChannelSpec {
    ChannelSpec { ordered: true, ..spec(name) }
}

/// Without a dead-letter queue of its own.
fn alone(spec: ChannelSpec) -> ChannelSpec {
    ChannelSpec { max_receives: None, ..spec }
}

fn text(body: &str) -> Outgoing {
    Outgoing { body: body.into(), ..Outgoing::default() }
}

fn grouped(body: &str, group: &str) -> Outgoing {
    Outgoing { group: Some(group.to_owned()), ..text(body) }
}

/// Sends messages that must all be taken.
async fn send(broker: &Arc<dyn Provisioner>, name: &str, batch: Vec<Outgoing>) -> Vec<Sent> {
    broker.send(&channel(name), batch).await.into_iter().map(|sent| sent.unwrap()).collect()
}

/// Returns the messages that are visible now.
async fn take(queue: &Arc<dyn Queue>, max: usize) -> Vec<Delivery> {
    receive(queue, max, Duration::ZERO, LONG).await
}

/// The next message, which must come. A driver may wait for less than it is asked to.
async fn next(queue: &Arc<dyn Queue>, lease: Duration) -> Delivery {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut received = receive(queue, 1, deadline - Instant::now(), lease).await;
        if let Some(delivery) = received.pop() {
            return delivery;
        }
        assert!(Instant::now() < deadline, "no message came");
    }
}

/// So many messages, which must come, and no more; in the order of their ids where the queue has none.
async fn gather(queue: &Arc<dyn Queue>, count: usize) -> Vec<Delivery> {
    let mut received = Vec::new();
    while received.len() < count {
        received.push(next(queue, LONG).await);
    }
    assert!(take(queue, 10).await.is_empty(), "more than {count} messages came");
    received
}

async fn receive(queue: &Arc<dyn Queue>, max: usize, wait: Duration, lease: Duration) -> Vec<Delivery> {
    queue.receive(Receive { max, wait, lease }, &CancellationToken::new()).await.unwrap()
}

/// Settles one delivery, which must succeed.
async fn settle(queue: &Arc<dyn Queue>, settlement: Settlement) {
    assert_eq!(try_settle(queue, settlement).await, Ok(()));
}

async fn try_settle(queue: &Arc<dyn Queue>, settlement: Settlement) -> Result<(), LeaseError> {
    let mut settled = queue.settle(vec![settlement]).await;
    assert_eq!(settled.len(), 1);
    settled.remove(0).map_err(|unsettled| unsettled.error)
}

async fn dead_letter(queue: &Arc<dyn Queue>, delivery: Delivery, reason: &str) {
    let Delivery { message, receipt, .. } = delivery;
    settle(queue, Settlement::DeadLetter { receipt, message, reason: reason.to_owned() }).await;
}

fn bodies(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|delivery| std::str::from_utf8(&delivery.message.body).unwrap()).collect()
}

/// Bodies, where the order does not count.
fn sorted(deliveries: &[Delivery]) -> Vec<&str> {
    let mut bodies = bodies(deliveries);
    bodies.sort_unstable();
    bodies
}

/// Asks until `reached`; for what no receive can tell.
async fn until(patience: Duration, mut reached: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !reached().await {
        assert!(Instant::now() < deadline, "it did not come true in {patience:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
