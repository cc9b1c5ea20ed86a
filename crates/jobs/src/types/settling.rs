//! The shapes of results and failures.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::object::objects_only;
use crate::json::RawJson;

objects_only!(ResultBody, AddedTo, AddedItem, FailureBody, SettleRequest, Success, Failure);

/// The body of `POST /assignment/{id}/result`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct ResultBody {
    /// The result, 1 MiB at most. `null` is one.
    pub result: RawJson,
    /// Items to add to other jobs of the tree in the same transaction, 10,000 at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add_items: Vec<AddedTo>,
    /// Jobs of the tree to seal after that, 1,000 at most: ids, or types of children of the item's job. If a target is unknown,
    /// is sealed and would get items, or is an open job with a feed to seal, the result is recorded as a failure that says so, and
    /// nothing is added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seal: Vec<String>,
}

/// Items that a result adds to a job of the tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct AddedTo {
    /// The id of a job of the same tree, or the type of the one child of the item's job that has it.
    pub target: String,
    /// The items.
    pub items: Vec<AddedItem>,
}

/// An item that a result adds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct AddedItem {
    /// The work's input, 1 MiB at most.
    pub payload: RawJson,
    /// A key of at most 200 bytes. A second item of the job with this key adds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedupe_key: Option<String>,
    /// Items with the same key run one after another, in the order of their creation: 200 bytes at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serialize_key: Option<String>,
    /// Items with a lower number are claimed first.
    #[serde(default)]
    pub priority: i16,
    /// An object, returned as it is. `{}` by default.
    #[serde(default = "RawJson::object")]
    pub metadata: RawJson,
}

/// The body of `POST /assignment/{id}/failure`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct FailureBody {
    /// The error, 1 MiB at most.
    pub error: RawJson,
    /// The delay before the next attempt, 0 to 31,536,000 s; the back-off otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_in_seconds: Option<f64>,
    /// Set if there is to be no further attempt.
    #[serde(rename = "final", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
}

/// The answer to `POST /assignment/{id}/failure`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailureAnswer {
    /// The time of the next attempt, RFC 3339; null if the failure is final.
    pub retry_at: Option<String>,
}

/// The body of `POST /settle`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct SettleRequest {
    /// The items that succeeded.
    #[serde(default)]
    pub results: Vec<Success>,
    /// The attempts that failed.
    #[serde(default)]
    pub failures: Vec<Failure>,
}

/// A result under an assignment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct Success {
    /// The assignment.
    pub assignment_id: String,
    /// The result, 1 MiB at most. `null` is one.
    pub result: RawJson,
    /// Items to add to other jobs of the tree in the same transaction, 10,000 at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add_items: Vec<AddedTo>,
    /// Jobs of the tree to seal after that, 1,000 at most: ids, or types of children of the item's job. If a target is unknown,
    /// is sealed and would get items, or is an open job with a feed to seal, the result is recorded as a failure that says so, and
    /// nothing is added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seal: Vec<String>,
}

/// A failure under an assignment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct Failure {
    /// The assignment.
    pub assignment_id: String,
    /// The error, 1 MiB at most.
    pub error: RawJson,
    /// The delay before the next attempt, 0 to 31,536,000 s; the back-off otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_in_seconds: Option<f64>,
    /// Set if there is to be no further attempt.
    #[serde(rename = "final", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
}

/// The answer to `POST /settle`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettleAnswer {
    /// One entry for each result, then one for each failure, in the order of the request.
    pub settled: Vec<Settled>,
}

/// The end of an assignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Settled {
    /// The assignment.
    pub assignment_id: String,
    /// The answer to the result or failure.
    pub status: SettledStatus,
}

/// The answer to a result or failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SettledStatus {
    /// It was accepted, now or before.
    Ok,
    /// The assignment had ended in another way.
    Stale,
}
