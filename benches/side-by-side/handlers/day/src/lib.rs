//! The work of `day.sh`. Of a hundred messages, two succeed only after a requeue, two only after a delay, and one never.

use hostler_guest::{Failure, Message, Outcome, handler};
use work::Order;

#[handler]
fn handle(message: Message) -> Result<Outcome, Failure> {
    let order: Order = serde_json::from_slice(&message.body)?;
    if order.compute() != order.check {
        return Err(Failure::dead_letter("not what it says"));
    }
    // The retry policy of day.sh requeues twice, and then delays twice.
    let (succeeds_at, failure) = match order.number % 100 {
        0 | 1 => (2, "unexpected error"),
        2 | 3 => (4, "a system that this one needs lags behind"),
        4 => (u32::MAX, "not to be processed"),
        _ => (1, ""),
    };
    if message.attempt < succeeds_at { Err(Failure::error(failure)) } else { Ok(Outcome::Ack) }
}
