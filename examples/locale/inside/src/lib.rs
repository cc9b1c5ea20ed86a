//! A handler of receipts with its hooks in the same component: they share its instance, and so a locale that is active.

mod active;

use std::time::Duration;

use hostler_guest::{Failure, Message, Outcome, Report, handler, message_end, message_start, processing_timeout};
use receipt::{Locale, late, receipt};

/// Activates the locale of the message, or the default: whatever was active before.
#[message_start]
fn start(message: Message) {
    active::set(Locale::of(message.attribute("locale")));
    eprintln!("locale {}", active::get());
}

#[handler]
fn handle(message: Message) -> Result<Outcome, Failure> {
    receipt(&message, |name, cents| active::get().line(name, cents))
}

/// Deactivates it. Not called after a trap or at the processing timeout: these end the instance.
#[message_end]
fn end(report: Report) {
    active::set(Locale::default());
    eprintln!("locale {} after {}", active::get(), report.outcome);
}

/// In a fresh instance, in which no locale was activated.
#[processing_timeout]
fn timeout(message: Message, elapsed: Duration) -> Outcome {
    late(&message, elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(message: &Message) -> Result<Outcome, Failure> {
        start(message.clone());
        handle(message.clone())
    }

    #[test]
    fn a_locale_is_active_for_one_message() {
        let message = Message::test(r#"{"name": "Ada", "cents": 150}"#);
        let english = Ok(Outcome::reply("Thank you, Ada: 1.50"));
        let german = message.clone().with("locale", "de");
        assert_eq!(answered(&german), Ok(Outcome::reply("Danke, Ada: 1,50")));
        // Without its end, as if that had failed.
        assert_eq!(answered(&message), english);
        assert!(answered(&german.with("fail", "error")).is_err());
        end(Report::test("failed"));
        assert_eq!(handle(message), english);
    }
}
