//! The PostgreSQL driver: queues in the tables of the schema `hostler_queue`.

use std::time::Duration;

use hostler_queue::{DEDUPE_WINDOW, QueueError};

/// Maximum size of a message in bytes, with its attributes: 16 MiB (limit of this driver).
pub const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// Value of `messaging.system` (OpenTelemetry semantic conventions).
pub const SYSTEM: &str = "postgresql";

/// Options of the driver.
#[derive(Clone)]
pub struct Options {
    /// URL of the database, with the user and the password.
    pub url: String,
    /// Beginning of the names of all queues and exchanges.
    pub prefix: String,
    /// Set if the schema, and missing queues and subscriptions, are created.
    pub create_missing: bool,
    /// Maximum number of connections, without the one that listens.
    pub connections: usize,
    /// Maximum duration of each call to the server.
    pub deadline: Duration,
    /// Period after a message is sent in which another message with the same deduplication key counts as a duplicate. The default is 5
    /// minutes. Tests may set a shorter period.
    pub dedupe_window: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            url: "postgres://127.0.0.1/hostler".to_owned(),
            prefix: String::new(),
            create_missing: false,
            connections: 8,
            deadline: Duration::from_secs(10),
            dedupe_window: DEDUPE_WINDOW,
        }
    }
}

/// The queues of a database.
pub struct PostgresBroker(());

impl PostgresBroker {
    /// Connects. Creates or migrates the schema if the options say so.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the options are not valid, the server refuses the user, or a newer hostler has migrated the schema.
    /// [`QueueError::Unavailable`] if the server cannot be reached.
    #[allow(clippy::unused_async, reason = "the signature is fixed before the body")]
    pub async fn connect(_: Options) -> Result<Self, QueueError> {
        Err(QueueError::Refused("not there yet".to_owned()))
    }
}
