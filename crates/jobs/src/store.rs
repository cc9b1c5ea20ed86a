//! The store: every change of jobs and items is one transaction on PostgreSQL.
//!
//! Each transaction is a function of the schema (`schema/*.sql`), which says above it what it locks, in which order. So a call is one
//! round trip, its plans are cached, and a client that freezes between two statements holds no lock. Only requests with an
//! idempotency key take several statements. All times are the database's.
//!
//! Locks are taken in this order: the lock of folding, rows of jobs, of assignments, of serialize keys, of `ready` and `later`.
//! If two transactions meet in another order, the server breaks the deadlock, and [`Store`] tries again.
//!
//! | file | job |
//! |---|---|
//! | `store/call.rs` | calls, retried after deadlocks; requests with an idempotency key |
//! | `store/create.rs` | creating trees, adding items, sealing |
//! | `store/claim.rs` | claiming, assigning, heartbeats, release |
//! | `store/undelivered.rs` | claims with an unknown end |
//! | `store/known_types.rs` | the numbers of types in memory |
//! | `store/settle.rs` | results and failures |
//! | `store/joined.rs` | ends of single assignments that go together |
//! | `store/ending.rs` | ends of assignments as rows |
//! | `store/extras.rs` | items that results add, by feeds or as workers ask |
//! | `store/feeding.rs` | the feeds of children, and the runs of their applets |
//! | `store/applet_runs.rs` | the turns and the stops of these runs |
//! | `store/status.rs` | the progress of trees |
//! | `store/jobs.rs`, `store/items.rs` | pages of jobs and items |
//! | `store/admin.rs` | deletion, retry, sweeps, counts |
//! | `store/outbox.rs` | callbacks |
//! | `store/fanout.rs` | the outbox of the fan-out, and notifications |
//! | `store/silence.rs` | the log of a database that does not answer |
//! | `store/error.rs` | errors |

mod admin;
mod applet_runs;
mod call;
mod claim;
mod create;
mod ending;
mod error;
mod extras;
mod fanout;
mod feeding;
mod items;
mod jobs;
mod joined;
mod known_types;
mod outbox;
pub(crate) mod settle;
mod silence;
mod status;
mod undelivered;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hostler_postgres::Database;
use tokio::sync::Semaphore;

use crate::applets::Applets;
pub use admin::Counts;
pub use call::IdempotencyKey;
pub use error::StoreError;
pub(crate) use fanout::CHANNEL;
pub use fanout::{Hint, OutboxState};
use feeding::Busy;
use joined::Joined;
use known_types::KnownTypes;
pub use outbox::{Delivery, DueCallback};
pub use settle::Settlement;
use silence::Silence;

/// The most claims with an unknown end whose items are being given back at a time.
const UNDELIVERED: usize = 256;

/// The periods of the store.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// The period of heartbeats: 1 s to 10 min. Three missed ones end an assignment.
    pub heartbeat: Duration,
    /// The time for which complete trees are kept.
    pub retention: Duration,
    /// The delay after the first failure, at most; after each further one twice that.
    pub backoff: Duration,
    /// The longest delay after a failure.
    pub backoff_max: Duration,
}

impl Default for StoreSettings {
    fn default() -> StoreSettings {
        StoreSettings {
            heartbeat: Duration::from_secs(60),
            retention: Duration::from_secs(7 * 24 * 3600),
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(15 * 60),
        }
    }
}

/// The store. Clones share the connections.
#[derive(Clone)]
pub struct Store {
    pub(crate) db: Database,
    pub(crate) settings: StoreSettings,
    /// The types that this process has asked for.
    pub(crate) types: Arc<Mutex<KnownTypes>>,
    /// The times at which sweeps of this process last ended well, or began.
    swept: Arc<Mutex<BTreeMap<&'static str, Instant>>>,
    /// The last known state of the database, for the log.
    silence: Arc<Silence>,
    /// Set while calls that need the schema are refused, because it has not been checked.
    closed: Arc<AtomicBool>,
    /// Permits for giving back the items of claims with an unknown end.
    undelivered: Arc<Semaphore>,
    /// Ends of single assignments that wait for a transaction.
    joined: Arc<Joined>,
    /// Assignments whose results are with applets.
    pub(crate) busy: Busy,
    /// Set if serialize keys are granted by other databases.
    pub(crate) is_one_of_several: bool,
    /// The applets of this process. `None`: it knows none.
    applets: Option<Arc<dyn Applets>>,
}

impl Store {
    /// Makes a store. Connects to nothing yet.
    pub fn new(db: Database, settings: StoreSettings) -> Store {
        let undelivered = Arc::new(Semaphore::new(UNDELIVERED));
        Store {
            db,
            settings,
            types: Arc::default(),
            swept: Arc::default(),
            silence: Arc::default(),
            closed: Arc::default(),
            undelivered,
            joined: Arc::default(),
            busy: Busy::default(),
            is_one_of_several: false,
            applets: None,
        }
    }

    /// Returns the store with the applets that feeds may name. Without, it knows none.
    #[must_use]
    pub fn with_applets(self, applets: Arc<dyn Applets>) -> Store {
        Store { applets: Some(applets), ..self }
    }

    /// The settings.
    pub fn settings(&self) -> &StoreSettings {
        &self.settings
    }

    /// The database.
    pub fn database(&self) -> &Database {
        &self.db
    }

    /// Notes that a sweep has ended well, or begins.
    pub(crate) fn note_sweep(&self, name: &'static str) {
        self.swept.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Instant::now());
    }

    /// The seconds since each sweep of this process last ended well, by name.
    pub fn sweep_lags(&self) -> Vec<(&'static str, f64)> {
        let swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        swept.iter().map(|(name, at)| (*name, at.elapsed().as_secs_f64())).collect()
    }

    /// Refuses calls that need the schema, or lets them through again. Clones share this.
    pub(crate) fn set_closed(&self, is_closed: bool) {
        self.closed.store(is_closed, Ordering::Release);
    }

    /// Returns `true` while calls that need the schema are refused.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns a clone whose calls go through, for the one who checks the schema.
    pub(crate) fn opened(&self) -> Store {
        Store { closed: Arc::default(), ..self.clone() }
    }

    /// Returns `true` if feeds may name applets here.
    pub(crate) fn has_applets(&self) -> bool {
        self.applets.is_some()
    }

    /// The applets of this process.
    pub(crate) fn applets(&self) -> Option<&dyn Applets> {
        self.applets.as_deref()
    }

    /// The database's place, `host:port/name`.
    pub fn place(&self) -> &str {
        self.db.place()
    }
}
