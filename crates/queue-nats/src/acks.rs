//! Acknowledgements as JetStream reads them. No I/O.

use std::time::Duration;

use serde_json::json;

/// Removes the message.
pub(crate) const DONE: &str = "+ACK";

/// Lets the server's timer begin anew.
pub(crate) const PROGRESS: &str = "+WPI";

/// Returns the acknowledgement that returns a message after a delay.
pub(crate) fn back_after(delay: Duration) -> String {
    let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
    if nanos == 0 { "-NAK".to_owned() } else { format!("-NAK {}", json!({ "delay": nanos })) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_exact() {
        assert_eq!(back_after(Duration::ZERO), "-NAK");
        assert_eq!(back_after(Duration::from_millis(1500)), "-NAK {\"delay\":1500000000}");
    }
}
