//! The work as a component, with hostler's SDK.

use hostler_guest::{Failure, Message, Outcome, handler};

#[handler]
fn handle(message: Message) -> Result<Outcome, Failure> {
    if work::holds(&message.body) { Ok(Outcome::Ack) } else { Err(Failure::dead_letter("not what it says")) }
}
