//! The HTTP API of the job service over real connections and a real PostgreSQL.

#[path = "../../../../tests/support/postgres.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;

mod callbacks;
mod document;
mod extras;
mod refusals;
mod routes;
mod shutdown;
mod support;
