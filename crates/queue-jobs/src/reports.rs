//! Results and failures out of settlements. No I/O.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hostler_queue::{Report, Settlement};
use hostler_types::job::{Buffered, NewJobItem};
use serde_json::value::{RawValue, to_raw_value};

use crate::item::assignment;
use crate::shapes::{Added, Error, Failure, NewItem, Settle, Success};

/// Maximum length of a failure's reason in bytes. A longer one is cut.
const REASON: usize = 64 * 1024;

/// The end that a settlement asks the service for.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The item has this result, and its handler has asked for these items and seals.
    Result(Box<RawValue>, Buffered),
    /// The attempt has failed.
    Failure { reason: String, retry_in_seconds: Option<f64>, is_final: bool },
    /// The item goes back, and no attempt is spent.
    Release,
}

impl Ending {
    /// Returns what a settlement asks for.
    pub(crate) fn of(settlement: &Settlement) -> Self {
        match (settlement, settlement.receipt().report()) {
            (Settlement::Ack(_), Some(Report::Result(reply))) => Self::Result(json(reply), Buffered::default()),
            (Settlement::Ack(_), _) => Self::Result(RawValue::NULL.to_owned(), Buffered::default()),
            (Settlement::Release(..), Some(Report::Failure { reason, retry_in })) => Self::Failure {
                reason: fit(reason),
                retry_in_seconds: retry_in.map(|delay| delay.as_secs_f64()),
                is_final: false,
            },
            (Settlement::Release(..) | Settlement::GiveBack(..), _) => Self::Release,
            (Settlement::DeadLetter { reason, .. }, _) => {
                Self::Failure { reason: fit(reason), retry_in_seconds: None, is_final: true }
            }
        }
    }

    /// Returns what to ask for in its place, after the service has refused it as not valid. `None`: there is nothing else.
    pub(crate) fn instead(&self, why: &str) -> Option<Self> {
        let failure = |reason| Some(Self::Failure { reason, retry_in_seconds: None, is_final: false });
        match self {
            Self::Result(..) => failure(fit(&format!("the job service refused the result: {why}"))),
            // A service that does not know final failures.
            Self::Failure { reason, is_final: true, .. } => failure(reason.clone()),
            Self::Failure { .. } | Self::Release => None,
        }
    }

    /// Returns the size in a request's body, roughly.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Result(result, buffered) => {
                let items = buffered.items.iter().flat_map(|(_, items)| items);
                result.get().len() + items.map(|item| item.payload.len()).sum::<usize>()
            }
            Self::Failure { reason, .. } => reason.len(),
            Self::Release => 0,
        }
    }
}

/// Returns the request that ends assignments. `ends`: handles of leases, each with its end. Releases are left out.
pub(crate) fn request<'a>(ends: impl Iterator<Item = (&'a str, &'a Ending)>) -> Settle<'a> {
    let mut settle = Settle { results: Vec::new(), failures: Vec::new() };
    for (handle, ending) in ends {
        let assignment_id = assignment(handle);
        match ending {
            Ending::Result(result, buffered) => settle.results.push(Success {
                assignment_id,
                result,
                add_items: buffered.items.iter().map(|(target, items)| added(target, items)).collect(),
                seal: buffered.seals.iter().map(String::as_str).collect(),
            }),
            Ending::Failure { reason, retry_in_seconds, is_final } => settle.failures.push(Failure {
                assignment_id,
                error: Error { error: reason },
                retry_in_seconds: *retry_in_seconds,
                is_final: *is_final,
            }),
            Ending::Release => {}
        }
    }
    settle
}

fn added<'a>(target: &'a str, items: &'a [NewJobItem]) -> Added<'a> {
    let item = |item: &'a NewJobItem| NewItem {
        // The buffer has checked that it is JSON.
        payload: serde_json::from_slice(&item.payload).unwrap_or(RawValue::NULL),
        dedupe_key: item.dedupe_key.as_deref(),
        serialize_key: item.serialize_key.as_deref(),
        priority: item.priority,
    };
    Added { target, items: items.iter().map(item).collect() }
}

/// Returns a reply as JSON: the JSON that it is, or else a string, or else an object with the bytes in Base64.
fn json(reply: &[u8]) -> Box<RawValue> {
    if let Ok(value) = serde_json::from_slice::<Box<RawValue>>(reply) {
        return value;
    }
    let written = match str::from_utf8(reply) {
        Ok(text) => to_raw_value(text),
        Err(_) => to_raw_value(&serde_json::json!({ "base64": STANDARD.encode(reply) })),
    };
    written.unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Returns a reason that the service can store: not too long, and without the character that PostgreSQL cannot hold.
fn fit(reason: &str) -> String {
    reason[..reason.floor_char_boundary(REASON)].replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use hostler_queue::Receipt;
    use hostler_types::message::Message;

    use super::*;

    fn receipt(report: Option<Report>) -> Receipt {
        let receipt = Receipt::new("60 a-1");
        match report {
            Some(report) => receipt.with_report(report),
            None => receipt,
        }
    }

    fn written(settlement: &Settlement) -> String {
        let ending = Ending::of(settlement);
        serde_json::to_string(&request([("60 a-1", &ending)].into_iter())).unwrap()
    }

    #[test]
    fn a_reply_is_the_result() {
        for (reply, expected) in [
            (&b"{\"a\": 1.0}"[..], "{\"a\": 1.0}"),
            (b" [1] \n", "[1]"),
            (b"null", "null"),
            (b"", "\"\""),
            (b"fine", "\"fine\""),
            (b"{\"a\":", "\"{\\\"a\\\":\""),
            (b"\xff\x00", "{\"base64\":\"/wA=\"}"),
        ] {
            let ack = Settlement::Ack(receipt(Some(Report::Result(reply.to_vec()))));
            let expected = format!(r#"{{"results":[{{"assignment_id":"a-1","result":{expected}}}],"failures":[]}}"#);
            assert_eq!(written(&ack), expected);
        }
        assert!(written(&Settlement::Ack(receipt(None))).contains("\"result\":null"));
    }

    #[test]
    fn a_failure_says_why_and_when_only_if_the_handler_does() {
        let failed = |retry_in| {
            let report = Report::Failure { reason: "boom\0".to_owned(), retry_in };
            written(&Settlement::Release(receipt(Some(report)), Duration::ZERO))
        };
        let failure = r#""failures":[{"assignment_id":"a-1","error":{"error":"boom�"}"#;
        assert_eq!(failed(None), format!(r#"{{"results":[],{failure}}}]}}"#));
        assert!(failed(Some(Duration::from_millis(1500))).ends_with(",\"retry_in_seconds\":1.5}]}"));
        let message = Arc::new(Message::new("1", ""));
        let dead = Settlement::DeadLetter { receipt: receipt(None), message, reason: "bad row".to_owned() };
        assert!(written(&dead).ends_with(r#""error":{"error":"bad row"},"final":true}]}"#));
    }

    #[test]
    fn what_goes_back_is_no_failure() {
        for settlement in [
            Settlement::GiveBack(receipt(None), Duration::ZERO),
            Settlement::Release(receipt(None), Duration::from_secs(1)),
        ] {
            assert!(matches!(Ending::of(&settlement), Ending::Release));
        }
    }

    #[test]
    fn what_the_service_refuses_becomes_a_plain_failure_once() {
        let result = Ending::of(&Settlement::Ack(receipt(Some(Report::Result(b"1".to_vec())))));
        let failure = result.instead("too large").unwrap();
        assert!(matches!(&failure, Ending::Failure { reason, .. } if reason.ends_with("result: too large")));
        assert!(failure.instead("no").is_none());
        let last = Ending::Failure { reason: "x".to_owned(), retry_in_seconds: None, is_final: true };
        assert!(matches!(last.instead("no"), Some(Ending::Failure { is_final: false, .. })));
        assert!(Ending::Release.instead("no").is_none());
    }
}
