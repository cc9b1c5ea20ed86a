//! The job service of hostler: trees of jobs over PostgreSQL, by HTTP.
//!
//! | file | job |
//! |---|---|
//! | `types.rs`, `types/` | the shapes of requests and answers |
//! | `json.rs` | JSON that is passed through as text |
//! | `json_text.rs` | JSON texts that PostgreSQL stores and readers understand |
//! | `limits.rs` | the limits of requests, checked without I/O |
//! | `ids.rs` | the ids of items and assignments, as text and as numbers |
//! | `feed.rs` | the templates that make a child's payload of a result |
//! | `applets.rs` | guests that make the items of a child of a result: their calls and replies |
//! | `backoff.rs` | the delay after a failure |
//! | `schema.rs`, `schema/` | the migrations: tables, and a function for each transaction |
//! | `store.rs`, `store/` | the calls of these functions |
//! | `shards.rs`, `shards/` | several databases behind one API |
//! | `sweeps.rs` | the periodic transactions |
//! | `api.rs`, `api/` | the HTTP API |
//! | `callbacks.rs`, `callbacks/` | the delivery of callbacks |
//! | `fanout.rs`, `fanout/` | hints about ready items, for other instances and workers |
//! | `hex.rs` | bytes as hexadecimal digits |
//! | `server.rs`, `server/` | the listener, and all parts together |

pub mod api;
pub mod applets;
pub mod backoff;
pub mod callbacks;
pub mod fanout;
pub mod feed;
mod hex;
pub mod ids;
pub mod json;
mod json_text;
pub mod limits;
pub mod schema;
pub mod server;
pub mod shards;
pub mod store;
pub mod sweeps;
pub mod types;
