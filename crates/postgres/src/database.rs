//! A database: its pool of connections.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, PoolError, RecyclingMethod};

use crate::address::{self, AddressError};
use crate::client::Client;
use crate::connect::Connector;
use crate::error::DatabaseError;
use crate::listen::{self, Notifications};
use crate::tls;

/// Settings of a [`Database`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Name in `pg_stat_activity`, unless the URL has an `application_name`.
    pub application: &'static str,
    /// Maximum number of connections of the pool, at least 1.
    pub connections: usize,
    /// Maximum duration of each call.
    pub deadline: Duration,
}

/// A database, with a pool of connections. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool,
    connector: Connector,
    config: tokio_postgres::Config,
    deadline: Duration,
    place: String,
    /// Set once statements have to begin a transaction of their own.
    begins: Arc<AtomicBool>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Database").field(&self.inner.place).finish()
    }
}

impl Database {
    /// Parses the URL (`postgres://` or `postgresql://`), and reads the certificates that it names. Connects to nothing yet.
    ///
    /// # Errors
    /// [`AddressError`] if the URL or a file of it is faulty. The text does not contain the URL.
    pub fn new(url: &str, options: Options) -> Result<Self, AddressError> {
        let address = address::parse(url)?;
        let connector = Connector { tls: tls::connector(&address)?, mode: address.mode };
        let mut config = address.config;
        if config.get_application_name().is_none() {
            config.application_name(options.application);
        }
        // A host that is gone is noticed even by a connection that only listens.
        config
            .keepalives_idle(Duration::from_secs(30))
            .keepalives_interval(Duration::from_secs(10))
            .keepalives_retries(3);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(60));
        }
        // Fast: a closed connection is told without a round trip.
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_connect(config.clone(), connector.clone(), recycling);
        let pool = Pool::builder(manager).max_size(options.connections.max(1)).build();
        let pool = pool.map_err(|error| AddressError::new(format!("the pool cannot be built: {error}")))?;
        let (deadline, place, begins) = (options.deadline, address.place, Arc::default());
        let inner = Inner { pool, connector, config, deadline, place, begins };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns a connection of the pool. Makes a new one if none is free.
    ///
    /// # Errors
    /// [`DatabaseError`], at the latest when the deadline has passed.
    pub async fn client(&self) -> Result<Client, DatabaseError> {
        let inner = &self.inner;
        let object = tokio::time::timeout(inner.deadline, inner.pool.get()).await;
        match object.map_err(|_| DatabaseError::Deadline)? {
            Ok(object) => {
                let (tls, begins) = (inner.connector.tls.clone(), Arc::clone(&inner.begins));
                Ok(Client::new(object, inner.deadline, tls, begins))
            }
            Err(PoolError::Backend(error)) => Err(error.into()),
            Err(error) => Err(DatabaseError::Unreachable { reason: error.to_string() }),
        }
    }

    /// Makes a connection outside of the pool, for `LISTEN`. Its calls have no deadline.
    ///
    /// # Errors
    /// [`DatabaseError`], at the latest when the deadline has passed.
    pub async fn direct(&self) -> Result<(tokio_postgres::Client, Notifications), DatabaseError> {
        let connected = listen::connect(&self.inner.config, &self.inner.connector);
        tokio::time::timeout(self.inner.deadline, connected).await.map_err(|_| DatabaseError::Deadline)?
    }

    /// Returns `host:port/database`, without user and password.
    pub fn place(&self) -> &str {
        &self.inner.place
    }

    /// Returns the maximum duration of each call.
    pub fn deadline(&self) -> Duration {
        self.inner.deadline
    }
}
