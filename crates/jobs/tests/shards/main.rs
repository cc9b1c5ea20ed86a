//! Tests of several databases: the protocol of serialize keys by simulation, and all of it over real databases.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

#[path = "../../../../tests/support/postgres.rs"]
mod postgres;
#[path = "../support/shapes.rs"]
mod shapes;

mod databases;
mod http;
mod log;
mod model;
mod port;
mod real;
mod routes;
mod runs;
mod server;
mod simulation;
mod speed;
mod start;
