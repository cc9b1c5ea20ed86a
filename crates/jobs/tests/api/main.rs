//! The HTTP API of the job service over real connections and a real PostgreSQL.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

#[path = "../../../../tests/support/postgres.rs"]
mod postgres;

mod applets;
mod callbacks;
mod document;
mod extras;
mod refusals;
mod routes;
mod shutdown;
mod support;
