//! Databases with the schema of the store.

use std::time::Duration;

use hostler_jobs::store::{Store, StoreSettings};
use hostler_postgres::{Database, Options};

use crate::postgres::Postgres;

/// A database with the schema, and connections to it.
pub struct Fresh {
    pub db: Database,
    pub stores: Vec<Store>,
}

/// Returns a pool of connections.
pub fn connect(url: &str) -> Database {
    let options = Options { application: "seeds", connections: 4, deadline: Duration::from_secs(10) };
    Database::new(url, options).unwrap()
}

/// Makes a database on a server, with instances of the store. Each instance has connections of its own.
pub async fn fresh(server: &Postgres, settings: &StoreSettings, instances: usize) -> Fresh {
    let url = server.database();
    let stores: Vec<Store> = (0..instances).map(|_| Store::new(connect(&url), settings.clone())).collect();
    stores[0].migrate().await.unwrap();
    Fresh { db: connect(&url), stores }
}

/// Runs a future to its end.
pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
