//! The job service of hostler: trees of jobs over PostgreSQL, by HTTP.
//!
//! | file | job |
//! |---|---|
//! | `types.rs` | the shapes of requests and answers |
//! | `json.rs` | JSON that is passed through as text, and the check of it |
//! | `limits.rs` | the limits of requests, checked without I/O |
//! | `ids.rs` | the ids of jobs, items and assignments, as text and as numbers |
//! | `feed.rs` | the templates that make a child's payload of a result |
//! | `backoff.rs` | the delay after a failure |
//! | `schema.rs` | the migrations |
//! | `store.rs` | the transactions on the database |
//! | `sweeps.rs` | the periodic transactions |

pub mod json;
pub mod store;
pub mod types;
