//! Several databases behind one API: a tree lives whole in one of them, and ids say in which.
//!
//! With one database, every call is that of its [`Store`]. With several, each database records its number and their count, so that a
//! list in another order, or a shorter or longer one, is refused at start.
//!
//! | file | job |
//! |---|---|
//! | `shards/route.rs` | the database of an id, a key or a new tree, decided without I/O |
//! | `shards/place.rs` | migration, and the check of the list |
//! | `shards/start.rs` | the start while some databases are away |
//! | `shards/answers.rs` | which databases answer, and the probes of those that do not |
//! | `shards/jobs.rs` | calls on jobs |
//! | `shards/names.rs` | ids that clients chose |
//! | `shards/work.rs` | calls on assignments |
//! | `shards/pages.rs` | pages of jobs and items |
//! | `shards/sums.rs` | counts and checks over all databases |
//! | `shards/keys.rs` | the steps of serialize keys across databases |
//! | `shards/carrier.rs` | the transport of these steps |
//! | `shards/*.sql` | the tables and functions of databases that are one of several |

mod answers;
mod carrier;
mod jobs;
mod keys;
mod names;
mod pages;
mod place;
pub mod route;
mod start;
mod sums;
mod work;

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

pub use keys::{Answer, Grant, Want};
pub use place::PlacedError;
pub use sums::Summed;

use crate::applets::Applets;
use crate::store::{Store, StoreError};
use answers::Away;
use route::MAX_SHARDS;

/// The databases of a service. Clones share the connections.
#[derive(Clone)]
pub struct Shards {
    stores: Arc<[Store]>,
    /// The databases that do not answer.
    away: Away,
    /// Changes after what may let a serialize key go on.
    changed: Arc<watch::Sender<()>>,
}

impl Shards {
    /// Joins databases, in the order of their numbers. Connects to nothing.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] with the field `databases` if there are none, more than 64, or one twice.
    pub fn new(mut stores: Vec<Store>) -> Result<Shards, StoreError> {
        let refuse = |detail: String| Err(StoreError::invalid("databases", detail));
        if !(1..=MAX_SHARDS).contains(&stores.len()) {
            return refuse(format!("must have 1 to {MAX_SHARDS} databases"));
        }
        for (number, store) in stores.iter().enumerate() {
            if stores.iter().take(number).any(|other| other.place() == store.place()) {
                return refuse(format!("has {} twice", store.place()));
            }
        }
        let is_one_of_several = stores.len() > 1;
        for store in &mut stores {
            store.is_one_of_several = is_one_of_several;
        }
        Ok(Self { stores: stores.into(), away: Away::default(), changed: Arc::default() })
    }

    /// Returns the databases with the applets that feeds may name. Without, they know none.
    #[must_use]
    pub fn with_applets(self, applets: &Arc<dyn Applets>) -> Shards {
        let stores = self.stores.iter().map(|store| store.clone().with_applets(Arc::clone(applets))).collect();
        Shards { stores, ..self }
    }

    /// Returns `true` if results may add items with serialize keys that nobody sees before they are settled.
    fn has_applets(&self) -> bool {
        self.stores.iter().any(Store::has_applets)
    }

    /// The databases, in the order of their numbers.
    pub fn stores(&self) -> &[Store] {
        &self.stores
    }

    /// The only database; `None`: there are several.
    fn single(&self) -> Option<&Store> {
        if let [store] = &*self.stores { Some(store) } else { None }
    }

    /// The number of databases.
    fn count(&self) -> usize {
        self.stores.len()
    }

    /// A database by its number. Unknown numbers are those of ids that nobody gave: the first database does not know them either.
    ///
    /// # Errors
    /// Never, as there is a database at least.
    fn store(&self, number: usize) -> Result<&Store, StoreError> {
        let store = self.stores.get(number).or(self.stores.first());
        store.ok_or_else(|| StoreError::Unexpected("there is no database".to_owned()))
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.stores.iter().map(Store::place)).finish()
    }
}

impl From<Store> for Shards {
    /// One database, whose calls stay as they are.
    fn from(store: Store) -> Shards {
        Self { stores: Arc::new([store]), away: Away::default(), changed: Arc::default() }
    }
}
