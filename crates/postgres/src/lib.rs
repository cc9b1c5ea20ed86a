//! Connections to PostgreSQL: pools, TLS, deadlines, errors, migrations.
//!
//! Every call of [`Client`] and [`Transaction`] ends within the deadline of its [`Database`] or its own, even if the server is frozen. A call that
//! passes the deadline drops its connection. Statements are unnamed, so that pgbouncer in transaction mode can be between.

mod address;
mod client;
mod connect;
mod database;
mod error;
mod listen;
mod migrate;
mod tls;
mod transaction;

pub use address::AddressError;
pub use client::{Client, Param};
pub use database::{Database, Options};
pub use error::DatabaseError;
pub use listen::{Note, Notifications};
pub use migrate::{Applied, Fit, MigrateError, Migration, SchemaVersion, migrate, schema_version};
pub use tokio_postgres::types::{ToSql, Type};
pub use tokio_postgres::{Error as RowError, Row};
pub use transaction::Transaction;
