//! Code that the components of this example share: receipts, and the locales that they are written in.

mod late;
mod locale;

use hostler_guest::{Failure, Message, Outcome};
use serde::Deserialize;

pub use late::late;
pub use locale::Locale;

/// The purchase.
#[derive(Deserialize)]
struct Order {
    name: String,
    cents: u64,
}

/// Writes the receipt of an order. It does not know of locales; `line` does.
///
/// The attribute `fail` makes it fail, to show the effect on the locale: `error`, `trap` or `hang`.
///
/// # Errors
/// The body is no order: the message is dead-lettered.
pub fn receipt(message: &Message, line: impl FnOnce(&str, u64) -> String) -> Result<Outcome, Failure> {
    let order: Order = message.json()?;
    match message.attribute("fail") {
        Some("error") => return Err(Failure::error("the printer is out of paper")),
        #[allow(clippy::panic, reason = "it is what was asked for")]
        Some("trap") => panic!("the printer is on fire"),
        Some("hang") => loop {
            std::hint::spin_loop();
        },
        _ => {}
    }
    Ok(Outcome::reply(line(&order.name, order.cents)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn english(name: &str, cents: u64) -> String {
        Locale::default().line(name, cents)
    }

    #[test]
    fn an_order_gets_its_receipt() {
        let message = Message::test(r#"{"name": "Ada", "cents": 123450}"#);
        assert_eq!(receipt(&message, english), Ok(Outcome::reply("Thank you, Ada: 1,234.50")));
        let error = Failure::error("the printer is out of paper");
        assert_eq!(receipt(&message.with("fail", "error"), english), Err(error));
    }

    #[test]
    fn what_is_no_order_is_dead_lettered() {
        for body in ["", "{}", r#"{"name": "Ada", "cents": -1}"#] {
            let failure = receipt(&Message::test(body), english).unwrap_err();
            assert!(matches!(failure, Failure::DeadLetter(_)), "{body}: {failure}");
        }
    }
}
