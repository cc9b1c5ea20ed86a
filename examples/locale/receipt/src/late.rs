//! Outcomes of messages that exceeded their processing timeout.

use std::time::Duration;

use hostler_guest::{Message, Outcome};

/// Delay of a message that may wait.
const LATER: Duration = Duration::from_secs(600);

/// By the attribute `when-late`: `later` tries again after ten minutes, within the attempts of the retry policy. Any other
/// message is dead-lettered, as a receipt that comes late helps nobody.
#[must_use]
pub fn late(message: &Message, elapsed: Duration) -> Outcome {
    match message.attribute("when-late") {
        Some("later") => Outcome::Delay(LATER),
        _ => Outcome::dead_letter(format!("no receipt after {:.1} s", elapsed.as_secs_f64())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_whether_it_may_wait() {
        let (message, elapsed) = (Message::test(""), Duration::from_millis(2004));
        assert_eq!(late(&message, elapsed), Outcome::dead_letter("no receipt after 2.0 s"));
        assert_eq!(late(&message.with("when-late", "later"), elapsed), Outcome::Delay(LATER));
    }
}
