//! The shapes of requests and answers of the job service.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::json::RawJson;

mod object;
mod settling;

pub use settling::{
    AddedItem, AddedTo, Failure, FailureAnswer, FailureBody, ResultBody, SettleAnswer, SettleRequest, Settled,
    SettledStatus, Success,
};

use object::objects_only;

objects_only!(NewJob, NewItem, Receiver, FeedForm, AddItems, Progress, Claim, Heartbeat, Release);

/// A job to be created, with its items and its children: the body of `POST /job`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct NewJob {
    /// The type, which workers claim by: 1 to 100 bytes of `[A-Za-z0-9._-]`.
    #[serde(rename = "type")]
    pub kind: String,
    /// An id of the client's choice, 200 bytes at most; a UUIDv7 otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// A key that no other job of this type may have, 200 bytes at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedupe_key: Option<String>,
    /// Failures that an item may have and still be tried again.
    #[serde(default)]
    pub max_failures_per_item: u16,
    /// Set if the results of this job's items are results of the tree.
    #[serde(default)]
    pub final_stage: bool,
    /// Set if the job is created without room for further items. A job with a feed is sealed when its parent is complete.
    #[serde(default)]
    pub sealed: bool,
    /// An object, returned as it is. `{}` by default.
    #[serde(default = "RawJson::object")]
    pub metadata: RawJson,
    /// The receiver of the status once the tree is complete. Only a root has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<Callback>,
    /// Makes items of this job out of each result of the parent's items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed: Option<Feed>,
    /// The first items, 10,000 at most in a request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<NewItem>,
    /// The jobs below, 1,000 jobs at most in a tree, 32 levels at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub children: Vec<NewJob>,
}

/// An item to be created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct NewItem {
    /// The work's input, 1 MiB at most.
    pub payload: RawJson,
    /// An id of the client's choice, 200 bytes at most, not of the form `i-….-…` that the service gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
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

/// The receiver of a tree's status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase", try_from = "Receiver")]
pub enum Callback {
    /// An address that is posted to.
    Url(String),
    /// A channel of the queue.
    Channel(String),
}

impl Callback {
    /// Returns the host and port of an address in lower case. All channels are one receiver, the empty text.
    pub fn receiver(&self) -> String {
        match self {
            Self::Url(url) => {
                let place = url.split_once(':').map_or("", |(_, rest)| rest).trim_start_matches('/');
                place.split(['/', '?', '#']).next().unwrap_or_default().to_lowercase()
            }
            Self::Channel(_) => String::new(),
        }
    }
}

/// A callback as it is read. An enum would be refused without its place.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
struct Receiver {
    url: Option<String>,
    channel: Option<String>,
}

impl TryFrom<Receiver> for Callback {
    type Error = &'static str;

    fn try_from(receiver: Receiver) -> Result<Callback, &'static str> {
        match (receiver.url, receiver.channel) {
            (Some(url), None) => Ok(Callback::Url(url)),
            (None, Some(channel)) => Ok(Callback::Channel(channel)),
            _ => Err("must have either url or channel"),
        }
    }
}

/// A rule that makes items out of each result of the parent's items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase", try_from = "FeedForm")]
pub enum Feed {
    /// The payload of one item, in which `"$"`, `"$.a.b"` and `"$payload.x"` stand for parts of the result and of the payload.
    Payload(RawJson),
    /// The name of an applet of the service, a handler that replies with the array of items.
    Applet(String),
}

/// A feed as it is read. An enum would be refused without its place.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
struct FeedForm {
    #[serde(default, deserialize_with = "given")]
    payload: Option<RawJson>,
    applet: Option<String>,
}

/// Reads a value that is there, so that `null` is a value.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RawJson>, D::Error> {
    RawJson::deserialize(deserializer).map(Some)
}

impl TryFrom<FeedForm> for Feed {
    type Error = &'static str;

    fn try_from(form: FeedForm) -> Result<Feed, &'static str> {
        match (form.payload, form.applet) {
            (Some(payload), None) => Ok(Feed::Payload(payload)),
            (None, Some(applet)) => Ok(Feed::Applet(applet)),
            _ => Err("must have either payload or applet"),
        }
    }
}

/// The ids of a tree that was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Created {
    /// The id of the root.
    pub id: String,
    /// The id of the root again.
    pub root_id: String,
    /// All jobs: each parent before its children, in the order of the request.
    pub jobs: Vec<CreatedJob>,
    /// The ids of the items: all of the first job, then those of the next.
    pub item_ids: Vec<String>,
}

/// A job of a tree that was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedJob {
    /// The job's id.
    pub id: String,
    /// The job's type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The id of the job above; null for the root.
    pub parent_id: Option<String>,
}

/// The body of `POST /job/{id}/items`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct AddItems {
    /// The items, 10,000 at most.
    pub items: Vec<NewItem>,
}

/// The ids of items that were added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddedItems {
    /// One id for each item, in the order of the request.
    pub item_ids: Vec<String>,
}

/// A job as `GET /job` lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobRow {
    /// The job's id.
    pub id: String,
    /// The id of its tree's root.
    pub root_id: String,
    /// The id of the job above; null for a root.
    pub parent_id: Option<String>,
    /// The job's type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Set if no items can be added.
    pub sealed: bool,
    /// Set if it is sealed and nothing is pending.
    pub complete: bool,
    /// Set if its results are results of the tree.
    pub final_stage: bool,
    /// Failures that an item may have and still be tried again.
    pub max_failures_per_item: u16,
    /// Items that were added.
    pub added: u64,
    /// Items that have a result.
    pub succeeded: u64,
    /// Items whose failures are final.
    pub failed: u64,
    /// Items that are neither.
    pub pending: u64,
    /// Set if all jobs of its tree are complete.
    pub tree_complete: bool,
    /// The key that no other job of this type may have.
    pub dedupe_key: Option<String>,
    /// The object that it was created with.
    pub metadata: RawJson,
    /// The time of creation, RFC 3339.
    pub created_at: String,
    /// The time of completion, RFC 3339.
    pub completed_at: Option<String>,
}

/// The progress of a job and of all jobs below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The job's id.
    pub id: String,
    /// The id of its tree's root.
    pub root_id: String,
    /// The id of the job above; null for a root.
    pub parent_id: Option<String>,
    /// The job's type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Set if no items can be added.
    pub sealed: bool,
    /// Set if it is sealed and nothing is pending.
    pub complete: bool,
    /// Set if its results are results of the tree.
    pub final_stage: bool,
    /// Items that were added.
    pub added: u64,
    /// Items that have a result.
    pub succeeded: u64,
    /// Items whose failures are final.
    pub failed: u64,
    /// Items that are neither.
    pub pending: u64,
    /// Pending items that a worker has.
    pub assigned: u64,
    /// Set if all jobs of its tree are complete.
    pub tree_complete: bool,
    /// The jobs below, in the order of their creation.
    #[schema(no_recursion)]
    pub children: Vec<Status>,
}

/// The place of an item in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ItemState {
    /// No worker has it, and it has no end yet.
    Pending,
    /// A worker has it.
    Assigned,
    /// It has a result.
    Succeeded,
    /// Its last failure was final.
    Failed,
}

/// An item as `GET /job_item` lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ItemRow {
    /// The item's id.
    pub id: String,
    /// The id of its job.
    pub job_id: String,
    /// The id of its tree's root.
    pub root_id: String,
    /// The type of its job.
    #[serde(rename = "type")]
    pub kind: String,
    /// The work's input.
    pub payload: RawJson,
    /// Its place in its life.
    pub state: ItemState,
    /// The result, null unless `state` is `succeeded`. A result may be null, too.
    pub result: RawJson,
    /// The last 20 failures, the oldest first. Of an error longer than 16 KiB, only the beginning of its text.
    pub failures: Vec<FailureRow>,
    /// The time before which it is not tried again, RFC 3339.
    pub retry_at: Option<String>,
    /// A key that no other item of the job has.
    pub dedupe_key: Option<String>,
    /// The key whose items run one after another.
    pub serialize_key: Option<String>,
    /// Items with a lower number are claimed first.
    pub priority: i16,
    /// The object that it was created with.
    pub metadata: RawJson,
    /// The time of creation, RFC 3339.
    pub created_at: String,
    /// The progress that the worker reported last; null unless `state` is `assigned`.
    pub progress: Option<Progress>,
}

/// The progress of the work on an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct Progress {
    /// The part of the work that is done, from 0 to 1.
    pub fraction: f64,
    /// A note for people, 200 bytes at most.
    #[serde(default)]
    pub text: String,
}

/// A failure of an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FailureRow {
    /// The error, as the worker gave it.
    pub error: RawJson,
    /// The worker that had the item.
    pub worker_id: String,
    /// The time of the failure, RFC 3339.
    pub at: String,
}

/// An item that a worker was given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Assigned {
    /// The id under which the result or the failure is accepted.
    pub assignment_id: String,
    /// The item.
    pub item: ItemRow,
    /// The period of heartbeats, in seconds. Three missed ones end the assignment by a failure.
    pub heartbeat_seconds: u64,
}

/// The body of `POST /claim`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct Claim {
    /// The types of jobs, 1 to 100 of them.
    pub types: Vec<String>,
    /// The worker's name, 1 to 200 bytes.
    pub worker_id: String,
    /// The number of items wanted, 1 to 1,000.
    pub max: u32,
    /// The time to wait for a first item, 60 s at most; 0 by default.
    #[serde(default)]
    pub wait_seconds: f64,
}

/// The answer to `POST /claim`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Claimed {
    /// The assignments, the first in line first.
    pub assignments: Vec<Assigned>,
}

/// The body of `POST /heartbeat`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct Heartbeat {
    /// The assignments.
    pub assignment_ids: Vec<String>,
    /// The progress of some of them, by assignment. Without an entry, the one before stays.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub progress: BTreeMap<String, Progress>,
}

/// The body of `POST /release`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields, expecting = "an object")]
pub struct Release {
    /// The assignments.
    pub assignment_ids: Vec<String>,
    /// The delay before the items can be claimed, 0 to 31,536,000 s; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<f64>,
}

/// The answer to `POST /heartbeat` and `POST /release`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StaleAssignments {
    /// The assignments that had ended.
    pub stale: Vec<String>,
}

/// The parameters of `GET /job`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobQuery {
    /// Only jobs of this type.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// Only jobs of this tree.
    #[serde(default)]
    pub root_id: Option<String>,
    /// Only jobs that are complete, or that are not.
    #[serde(default)]
    pub complete: Option<bool>,
    /// The most jobs to return, 1 to 1,000; 100 by default.
    #[serde(default)]
    pub limit: Option<u32>,
    /// The `next` of the page before.
    #[serde(default)]
    pub cursor: Option<String>,
}

/// The parameters of `GET /job_item`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ItemQuery {
    /// Only items of this job.
    #[serde(default)]
    pub job_id: Option<String>,
    /// Only items of this tree.
    #[serde(default)]
    pub root_id: Option<String>,
    /// Only items in this state.
    #[serde(default)]
    pub state: Option<ItemState>,
    /// Only items of jobs whose results are results of the tree, or of the other jobs.
    #[serde(default)]
    pub final_stage: Option<bool>,
    /// The most items to return, 1 to 1,000; 100 by default.
    #[serde(default)]
    pub limit: Option<u32>,
    /// The `next` of the page before.
    #[serde(default)]
    pub cursor: Option<String>,
}

/// The answer to `GET /job`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobPage {
    /// The jobs, in the order of their creation.
    pub jobs: Vec<JobRow>,
    /// The cursor of the next page; null if there is none.
    pub next: Option<String>,
}

/// The answer to `GET /job_item`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ItemPage {
    /// The items, in the order of their creation.
    pub items: Vec<ItemRow>,
    /// The cursor of the next page; null if there is none.
    pub next: Option<String>,
}
