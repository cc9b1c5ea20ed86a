//! The interface that a simulation drives: the pure model, or real databases. Each call is a transaction in one database.

use hostler_jobs::shards::{Answer, Grant, Want};

/// A number of a database.
pub type Db = usize;

/// An item: its database and its number there.
pub type Item = (Db, i64);

/// Databases with items of serialize keys.
pub trait Port {
    /// Adds items with a key. Returns their numbers, in order.
    async fn create(&mut self, at: Db, key: &str, count: usize) -> Vec<i64>;
    /// Gives up to `max` items to a worker. Returns their keys and numbers.
    async fn claim(&mut self, at: Db, max: usize) -> Vec<(String, i64)>;
    /// Ends the run of an item that a worker has: for good, or to be tried again.
    async fn end(&mut self, at: Db, seq: i64, is_final: bool);
    /// Deletes an item that has not ended, also if a worker has it.
    async fn delete(&mut self, at: Db, seq: i64);
    /// Makes an item pending again that has ended for good.
    async fn retry(&mut self, at: Db, seq: i64);
    /// As `Shards::wants`.
    async fn wants(&mut self, at: Db, home: Db) -> Vec<Want>;
    /// As `Shards::register`.
    async fn register(&mut self, home: Db, from: Db, wants: &[Want]);
    /// As `Shards::drop_wants`.
    async fn drop_wants(&mut self, at: Db, wants: &[Want]);
    /// As `Shards::grant_keys`.
    async fn grant_keys(&mut self, home: Db);
    /// As `Shards::due_grants`.
    async fn due_grants(&mut self, home: Db, holder: Db) -> Vec<Grant>;
    /// As `Shards::open_keys`.
    async fn open_keys(&mut self, at: Db, home: Db, grants: &[Grant]) -> Vec<Answer>;
    /// As `Shards::returned`.
    async fn returned(&mut self, at: Db, home: Db) -> Vec<Answer>;
    /// As `Shards::answer`.
    async fn answer(&mut self, home: Db, from: Db, answers: &[Answer]);
    /// As `Shards::note_told`.
    async fn note_told(&mut self, at: Db, answers: &[Answer]);
    /// Forgets all grants that ended.
    async fn forget(&mut self, at: Db);
    /// Ends all leases of a home.
    async fn end_leases(&mut self, home: Db);
    /// Describes what is left that should not be, once all is done: waiting items, tickets, grants.
    async fn leftovers(&mut self) -> Vec<String>;
}
