//! The shapes of requests and answers, as far as a worker needs them.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The body of `POST /claim`.
#[derive(Debug, Serialize)]
pub(crate) struct Claim<'a> {
    pub(crate) types: [&'a str; 1],
    pub(crate) worker_id: &'a str,
    pub(crate) max: usize,
    pub(crate) wait_seconds: f64,
}

/// The answer to `POST /claim`.
#[derive(Debug, Deserialize)]
pub(crate) struct Claimed {
    pub(crate) assignments: Vec<Assigned>,
}

/// An item, and the assignment of it to this worker.
#[derive(Debug, Deserialize)]
pub(crate) struct Assigned {
    pub(crate) assignment_id: String,
    pub(crate) item: Item,
    pub(crate) heartbeat_seconds: u64,
}

/// An item. Fields that this crate does not know are ignored, so that the service may be newer.
#[derive(Debug, Deserialize)]
pub(crate) struct Item {
    pub(crate) id: String,
    pub(crate) job_id: String,
    pub(crate) root_id: String,
    pub(crate) payload: Box<RawValue>,
    #[serde(default)]
    pub(crate) failures: Vec<IgnoredAny>,
    #[serde(default)]
    pub(crate) serialize_key: Option<String>,
    #[serde(default)]
    pub(crate) metadata: Option<Box<RawValue>>,
}

/// The body of `POST /release`, and of a heartbeat without progress.
#[derive(Debug, Serialize)]
pub(crate) struct Ids<'a> {
    pub(crate) assignment_ids: Vec<&'a str>,
}

/// The body of `POST /heartbeat`.
#[derive(Debug, Serialize)]
pub(crate) struct Heartbeat<'a> {
    pub(crate) assignment_ids: Vec<&'a str>,
    /// The latest progress of some of them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) progress: BTreeMap<&'a str, Progress>,
}

/// The progress of a handler.
#[derive(Debug, Serialize)]
pub(crate) struct Progress {
    pub(crate) fraction: f64,
    pub(crate) text: String,
}

/// The answer to `POST /heartbeat` and `POST /release`.
#[derive(Debug, Deserialize)]
pub(crate) struct Stale {
    pub(crate) stale: Vec<String>,
}

/// The body of `POST /settle`.
#[derive(Debug, Serialize)]
pub(crate) struct Settle<'a> {
    pub(crate) results: Vec<Success<'a>>,
    pub(crate) failures: Vec<Failure<'a>>,
}

/// A result under an assignment.
#[derive(Debug, Serialize)]
pub(crate) struct Success<'a> {
    pub(crate) assignment_id: &'a str,
    pub(crate) result: &'a RawValue,
    /// Items to add to other jobs of the tree, in the same transaction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) add_items: Vec<Added<'a>>,
    /// Jobs to seal after that, by id or by the type of a child.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) seal: Vec<&'a str>,
}

/// Items for one job of the tree.
#[derive(Debug, Serialize)]
pub(crate) struct Added<'a> {
    /// Id of the job, or type of a child.
    pub(crate) target: &'a str,
    pub(crate) items: Vec<NewItem<'a>>,
}

/// An item to add.
#[derive(Debug, Serialize)]
pub(crate) struct NewItem<'a> {
    pub(crate) payload: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dedupe_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) serialize_key: Option<&'a str>,
    pub(crate) priority: i16,
}

/// A failure under an assignment.
#[derive(Debug, Serialize)]
pub(crate) struct Failure<'a> {
    pub(crate) assignment_id: &'a str,
    pub(crate) error: Error<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_in_seconds: Option<f64>,
    #[serde(rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_final: bool,
}

/// The error of a failure.
#[derive(Debug, Serialize)]
pub(crate) struct Error<'a> {
    pub(crate) error: &'a str,
}

/// The answer to `POST /settle`.
#[derive(Debug, Deserialize)]
pub(crate) struct Settled {
    pub(crate) settled: Vec<Ended>,
}

/// The end of an assignment: `ok` or `stale`.
#[derive(Debug, Deserialize)]
pub(crate) struct Ended {
    pub(crate) assignment_id: String,
    pub(crate) status: String,
}

/// The reason that the service gives for a refusal.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Problem {
    #[serde(default)]
    pub(crate) title: Option<String>,
    #[serde(default)]
    pub(crate) detail: Option<String>,
    #[serde(default)]
    pub(crate) field: Option<String>,
}

/// Writes a request's body. No shape of this module has a key that is no text, the one thing that cannot be written.
pub(crate) fn body(shape: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(shape).unwrap_or_default()
}
