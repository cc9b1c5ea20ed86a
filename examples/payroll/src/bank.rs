//! Outcomes of checks by the responses of the bank. No I/O.

use std::time::Duration;

use hostler_guest::{Failure, Outcome};
use serde::{Deserialize, Serialize};

/// Longest wait that the bank may ask for.
const LONGEST: Duration = Duration::from_secs(3600);

/// A response of the bank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) retry_after: Option<String>,
    pub(super) body: Vec<u8>,
}

/// The result of a check. Other fields of the response are left out.
#[derive(Debug, Serialize, Deserialize)]
struct Sent {
    receipt: String,
}

/// Returns the outcome of a check.
pub(super) fn judge(response: &Response) -> Result<Outcome, Failure> {
    let Response { status, retry_after, body } = response;
    let said = || format!("the bank said {status}");
    match (status, retry_after.as_deref().and_then(wait)) {
        (200, _) => {
            let sent: Sent = serde_json::from_slice(body).map_err(|_| Failure::error("the bank gave no receipt"))?;
            Ok(Outcome::json(&sent)?)
        }
        (429 | 503, Some(wait)) => Err(Failure::delay(wait)),
        (408 | 425 | 429 | 500.., _) => Err(Failure::error(said())),
        _ => Err(Failure::dead_letter(said())),
    }
}

/// Reads a header `Retry-After` with a number of seconds.
fn wait(text: &str) -> Option<Duration> {
    let seconds: u64 = text.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.max(1)).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, retry_after: Option<&str>, body: &str) -> Result<Outcome, Failure> {
        judge(&Response { status, retry_after: retry_after.map(str::to_owned), body: body.into() })
    }

    #[test]
    fn the_receipt_is_the_result() {
        let outcome = judged(200, None, r#"{"receipt": "r-1", "of": "bank"}"#);
        assert_eq!(outcome, Ok(Outcome::reply(r#"{"receipt":"r-1"}"#)));
        assert_eq!(judged(200, None, "fine"), Err(Failure::Error("the bank gave no receipt".into())));
    }

    #[test]
    fn a_busy_bank_gets_the_check_when_it_wants_to() {
        assert_eq!(judged(503, Some("2"), ""), Err(Failure::Delay(Duration::from_secs(2))));
        assert_eq!(judged(429, Some("99999999"), ""), Err(Failure::Delay(LONGEST)));
        for wait in [None, Some("soon")] {
            assert_eq!(judged(503, wait, ""), Err(Failure::Error("the bank said 503".into())));
        }
    }

    #[test]
    fn a_check_that_the_bank_cannot_read_is_dead_lettered() {
        for status in [302, 400, 422] {
            assert_eq!(judged(status, None, ""), Err(Failure::DeadLetter(format!("the bank said {status}"))));
        }
    }
}
