//! {{name}} greets the guest that the message names.

use hostler_guest::{Failure, Message, Outcome, handler};
use serde::Deserialize;

#[derive(Deserialize)]
struct Guest {
    name: String,
}

/// Handles one message, in a fresh sandbox. A body that is not JSON of this form is dead-lettered. Any other error goes to
/// the consumer's retry policy.
#[handler]
fn handle(message: Message) -> Result<Outcome, Failure> {
    let guest: Guest = message.json()?;
    if guest.name.is_empty() {
        return Err(Failure::dead_letter("the name is empty"));
    }
    Ok(Outcome::reply(format!("Hello, {}!", guest.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_greeted() {
        let outcome = handle(Message::test(r#"{"name": "Ada"}"#));
        assert_eq!(outcome, Ok(Outcome::reply("Hello, Ada!")));
    }

    #[test]
    fn a_body_without_a_name_is_dead_lettered() {
        for body in ["", "Ada", "{}", r#"{"name": 1}"#, r#"{"name": ""}"#] {
            let failure = handle(Message::test(body)).unwrap_err();
            assert!(matches!(failure, Failure::DeadLetter(_)), "{body}");
        }
    }
}
