//! The job whose item a handler processes, in a consumer with `job` in its config.
//!
//! New items and seals are kept until the item succeeds, and are then committed with its result. An attempt that fails adds
//! nothing, so a retry does not add anything twice.
//!
//! ```
//! use hostler_guest::job::{self, Item};
//! use hostler_guest::{Failure, Message, Outcome, handler};
//!
//! #[handler]
//! fn handle(message: Message) -> Result<Outcome, Failure> {
//!     let pages = [1, 2, 3].map(|page| Item::new(format!(r#"{{"page": {page}}}"#)).dedupe_key(format!("page-{page}")));
//!     job::add("render", pages)?;
//!     job::progress(0.5, "split")?;
//!     Ok(Outcome::reply(r#"{"pages": 3}"#))
//! }
//!
//! # fn main() {
//! use hostler_guest::testing;
//!
//! testing::set_job(Some(job::Job::test("split")));
//! assert!(handle(Message::test("{}")).is_ok());
//! assert_eq!(testing::take_added()[0].1.len(), 3);
//! # }
//! ```
//!
//! In tests on a developer's machine, [`testing`](crate::testing) sets the job, and returns the requests.

use std::error::Error;
use std::fmt;

/// The job of an item, and the item.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Job {
    /// Id of the job.
    pub id: String,
    /// Id of the root of the job's tree. The same as `id` if the job is the root.
    pub root_id: String,
    /// Type of the job.
    pub kind: String,
    /// Id of the item.
    pub item_id: String,
    /// Number of this attempt. The first is 1.
    pub attempt: u32,
}

impl Job {
    /// Creates a job of this type, for tests. To change other values, set the public fields.
    #[must_use]
    pub fn test(kind: impl Into<String>) -> Self {
        Self { id: "test".into(), root_id: "test".into(), kind: kind.into(), item_id: "test".into(), attempt: 1 }
    }
}

/// An item to add to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Item {
    /// JSON text, at most 1 MiB.
    pub payload: String,
    /// A second item with the same key in the same job is not added. At most 200 bytes.
    pub dedupe_key: Option<String>,
    /// Items with the same key are processed one at a time, in the order in which they were added. At most 200 bytes.
    pub serialize_key: Option<String>,
    /// Items with a lower number are processed first. The default is 0.
    pub priority: i16,
}

impl Item {
    /// Creates an item with this payload, which is JSON text.
    pub fn new(payload: impl Into<String>) -> Self {
        Self { payload: payload.into(), dedupe_key: None, serialize_key: None, priority: 0 }
    }

    /// Creates an item with this value as its payload.
    ///
    /// # Errors
    /// The value cannot be written as JSON, for example a map whose keys are not texts.
    #[cfg(feature = "json")]
    pub fn json<T: serde::Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::to_string(value).map(Self::new)
    }

    /// Sets the deduplication key. A second item with the same key in the same job is not added.
    #[must_use]
    pub fn dedupe_key(self, key: impl Into<String>) -> Self {
        Self { dedupe_key: Some(key.into()), ..self }
    }

    /// Sets the key whose items are processed one at a time, in order.
    #[must_use]
    pub fn serialize_key(self, key: impl Into<String>) -> Self {
        Self { serialize_key: Some(key.into()), ..self }
    }

    /// Sets the priority. Items with a lower number are processed first.
    #[must_use]
    pub fn priority(self, priority: i16) -> Self {
        Self { priority, ..self }
    }
}

/// Reason why a request was not accepted. Nothing of the request is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobError {
    /// The message is not an item of a job.
    NoJob(String),
    /// The request breaks a rule.
    Invalid(String),
    /// The attempt has asked for as much as one attempt may.
    Full(String),
}

impl fmt::Display for JobError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NoJob(text) | Self::Invalid(text) | Self::Full(text)) = self;
        formatter.write_str(text)
    }
}

impl Error for JobError {}

/// Returns the job and the item. `None`: the message is not an item of a job.
#[must_use]
pub fn current() -> Option<Job> {
    #[cfg(target_family = "wasm")]
    return crate::contract::current_job();
    #[cfg(not(target_family = "wasm"))]
    crate::testing::current_job()
}

/// Adds items to a job of the same tree when this item succeeds: all of them or none. `target`: id of the job, or the type of a
/// child of the current job. One attempt adds at most 10,000 items and 16 MiB.
///
/// # Errors
/// [`JobError`]. If a handler returns this error by `?`, the item fails, and may be tried again.
pub fn add(target: &str, items: impl IntoIterator<Item = Item>) -> Result<(), JobError> {
    let items: Vec<Item> = items.into_iter().collect();
    #[cfg(target_family = "wasm")]
    return crate::contract::add_items(target, items);
    #[cfg(not(target_family = "wasm"))]
    crate::testing::add_items(target, items)
}

/// Seals a job when this item succeeds, after the items are added: no more can be added to it. `job`: as `target` of [`add`].
///
/// # Errors
/// [`JobError`], as [`add`].
pub fn seal(job: &str) -> Result<(), JobError> {
    #[cfg(target_family = "wasm")]
    return crate::contract::seal(job);
    #[cfg(not(target_family = "wasm"))]
    crate::testing::seal(job)
}

/// Reports the progress of the item: the share that is done, from 0 to 1, and a text of at most 200 bytes. The latest report
/// replaces the others. It is shown although the item is not done.
///
/// # Errors
/// [`JobError`], as [`add`].
pub fn progress(fraction: f64, text: &str) -> Result<(), JobError> {
    #[cfg(target_family = "wasm")]
    return crate::contract::progress(fraction, text);
    #[cfg(not(target_family = "wasm"))]
    crate::testing::progress(fraction, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Failure, testing};

    #[test]
    fn the_test_sees_every_request() {
        testing::set_job(Some(Job::test("split")));
        assert_eq!(current().map(|job| job.kind), Some("split".into()));
        let item = Item::new("1").dedupe_key("d").serialize_key("s").priority(-1);
        assert_eq!(add("render", [item.clone()]), Ok(()));
        assert_eq!(seal("render"), Ok(()));
        assert_eq!(progress(0.5, "half"), Ok(()));
        assert_eq!(testing::take_added(), [("render".to_owned(), vec![item])]);
        assert_eq!(testing::take_sealed(), ["render"]);
        assert_eq!(testing::take_progress(), Some((0.5, "half".to_owned())));
        assert_eq!((testing::take_added(), testing::take_progress()), (vec![], None));
    }

    #[test]
    fn without_a_job_a_request_fails_the_message() {
        assert_eq!(current(), None);
        let failed = add("render", []).map_err(Failure::from);
        assert_eq!(failed, Err(Failure::Error("the message is not an item of a job".into())));
        assert!(seal("render").is_err() && progress(0.0, "").is_err());
    }

    #[cfg(feature = "json")]
    #[test]
    fn an_item_is_made_of_any_value() {
        assert_eq!(Item::json(&[1, 2]).map(|item| item.payload).ok(), Some("[1,2]".into()));
    }
}
