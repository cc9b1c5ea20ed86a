//! Seeded runs of the job service, against a reference model and a checker.
//!
//! | file | job |
//! |---|---|
//! | `call.rs` | requests and answers |
//! | `model.rs` | the reference model |
//! | `feed.rs` | the templates of feeds |
//! | `fault.rs` | faults that can be planted in the model |
//! | `scenario.rs` | scenarios by seed |
//! | `site.rs`, `clients.rs` | clients that call a service, and the record of their calls |
//! | `history.rs` | the record |
//! | `checker.rs` | the rules, as invariants over a record |
//! | `virtual_time.rs` | the first world: the model by virtual time |
//! | `databases.rs`, `store_port.rs` | the store over a real server |
//! | `lockstep.rs`, `events.rs`, `renumber.rs` | the second world, one call at a time: the store and the model have to be equal |
//! | `concurrent.rs` | the second world, many clients at once |
//! | `schedules.rs` | transactions of the store that meet in a scripted order |
//! | `sql_faults.rs` | faults that can be planted in the schema |
//! | `runs.rs` | the tests |
//!
//! `HOSTLER_SEEDS=n` sets the number of seeds of each test, and `HOSTLER_SEED=n` the first.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

mod call;
mod checker;
mod clients;
mod concurrent;
mod databases;
mod events;
mod fault;
mod feed;
mod history;
mod lockstep;
mod model;
#[path = "../../../../tests/support/postgres.rs"]
mod postgres;
mod renumber;
mod runs;
mod scenario;
mod schedules;
mod site;
mod sql_faults;
mod store_port;
mod virtual_time;
