//! The fan-out over real servers: PostgreSQL, pgbouncer, and the RabbitMQ that `tests/servers.sh` installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

#[path = "../../../../tests/support/postgres.rs"]
mod postgres;
#[path = "../api/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

mod broker;
mod notify;
mod outbox;
mod outside;
mod rabbitmq;

use std::time::Duration;

use hostler_jobs::fanout::{Fanout, RabbitMq};
use hostler_jobs::server::ServerSettings;
use hostler_jobs::store::{Store, StoreSettings};
use hostler_postgres::{Database, Options};

use crate::support::Server;

/// Creates a store over a database, whose assignments last as long as a test.
pub fn store(url: &str) -> Store {
    let options = Options { application: "hostler-jobs-test", connections: 6, deadline: Duration::from_secs(30) };
    Store::new(Database::new(url, options).unwrap(), StoreSettings::default())
}

/// Starts a server over a database.
pub async fn serve(url: &str, fanout: Fanout) -> Server {
    let store = store(url);
    store.migrate().await.unwrap();
    Server::over(store, ServerSettings { fanout, ..ServerSettings::default() }).await
}

/// Returns a fan-out by RabbitMQ that searches for lost messages each second.
pub fn by_rabbitmq(url: &str) -> RabbitMq {
    let mut settings = RabbitMq::new(url).unwrap();
    settings.search = Duration::from_secs(1);
    settings
}
