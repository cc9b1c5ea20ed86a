//! Migration of all databases, and the check that the list of them is the one that their data lies by.

use hostler_postgres::{Migration, Transaction, Type, migrate};

use crate::shards::Shards;
use crate::store::{Store, StoreError};

/// The name of the schema that only databases have which are one of several.
const SCHEMA: &str = "hostler_shards";

/// Its migrations, the oldest first. A released file never changes: a change is a new file.
const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "tables", compatible_from: 1, sql: include_str!("tables.sql") },
    Migration { version: 2, name: "keys", compatible_from: 2, sql: include_str!("keys.sql") },
];

/// The place that a database has recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    number: usize,
    count: usize,
}

/// An error of one of the databases, or of its place in their list.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {error}")]
pub struct PlacedError {
    /// The number of the database in the list, from 0.
    pub number: usize,
    /// Its `host:port/name`, without user and password.
    pub place: String,
    /// The error.
    #[source]
    pub error: StoreError,
}

impl Shards {
    /// Brings the schemas up to date, and checks that the list of databases is the one that their data lies by. All are checked before
    /// the first is changed.
    ///
    /// # Errors
    /// [`PlacedError`] with the database: [`StoreError::Invalid`] with the field `databases` as of [`Self::check_list`], otherwise as
    /// [`Store::migrate`].
    pub async fn migrate(&self) -> Result<(), PlacedError> {
        self.check_list().await?;
        for number in 0..self.count() {
            self.set_up(number).await?;
        }
        if self.single().is_some() {
            return Ok(());
        }
        let all: Vec<usize> = (0..self.count()).collect();
        self.share_secret(&all).await
    }

    /// Brings the schemas of a database up to date, and records its place if it is one of several.
    pub(super) async fn set_up(&self, number: usize) -> Result<(), PlacedError> {
        let place = Place { number, count: self.count() };
        self.placed(number, async |store| {
            store.migrate().await?;
            if place.count > 1 {
                migrate(&store.db, SCHEMA, MIGRATIONS).await?;
                take(store, place).await?;
            }
            Ok(())
        })
        .await
    }

    /// Checks that all databases answer, and that their list is the one that their data lies by. Changes nothing.
    ///
    /// # Errors
    /// [`PlacedError`] with the database: [`StoreError::Invalid`] with the field `databases` if the order or the number of databases is
    /// another one than before, if one that was alone has jobs and is now one of several, or if one is in the list by two addresses;
    /// [`StoreError::Database`] if one does not answer.
    pub async fn check_list(&self) -> Result<(), PlacedError> {
        for number in 0..self.count() {
            self.check_place(number).await?;
        }
        if self.single().is_some() {
            return Ok(());
        }
        let all: Vec<usize> = (0..self.count()).collect();
        self.refuse_same(&all).await
    }

    /// Checks that a database answers and lies where it is listed, or is new. Changes nothing.
    pub(super) async fn check_place(&self, number: usize) -> Result<(), PlacedError> {
        let listed = Place { number, count: self.count() };
        self.placed(number, async |store| {
            let is_new = check(store, recorded(store).await?, listed)?;
            if is_new { refuse_jobs(store).await } else { Ok(()) }
        })
        .await
    }

    /// Refuses a list in which two addresses lead to one database: the lock of the one is held for the other.
    pub(super) async fn refuse_same(&self, numbers: &[usize]) -> Result<(), PlacedError> {
        let mut clients = Vec::with_capacity(numbers.len());
        for number in numbers {
            clients.push(self.placed(*number, async |store| Ok(store.db.client().await?)).await?);
        }
        let keys: Vec<i64> = clients.iter().map(|_| fastrand::i64(..)).collect();
        // Each is held until all have been checked.
        let mut held = Vec::with_capacity(self.count());
        for (at, (client, number)) in clients.iter_mut().zip(numbers.iter().copied()).enumerate() {
            let locked = async {
                let transaction = client.transaction().await?;
                let others = locked_of(&transaction, keys.get(..=at).unwrap_or_default()).await?;
                held.push(transaction);
                Ok(others)
            };
            let other = self.placed(number, async |_| locked.await).await?;
            if let Some(other) = other.and_then(|at| numbers.get(at)) {
                let detail =
                    format!("has one database twice: at position {} and at position {}", other + 1, number + 1);
                let same = StoreError::invalid("databases", detail);
                return self.placed(number, async |_| Err(same)).await;
            }
        }
        Ok(())
    }

    /// Adds the place of a database to an error of a call to it.
    async fn placed<T>(
        &self,
        number: usize,
        call: impl AsyncFnOnce(&Store) -> Result<T, StoreError>,
    ) -> Result<T, PlacedError> {
        let placed = |place: &str, error| PlacedError { number, place: place.to_owned(), error };
        let store = self.store(number).map_err(|error| placed("", error))?;
        // The calls of the set-up go through also while the database is held back.
        call(&store.opened()).await.map_err(|error| placed(store.place(), error))
    }

    /// Gives databases the secret of callbacks of the first that has one, so that receivers need one.
    pub(super) async fn share_secret(&self, numbers: &[usize]) -> Result<(), PlacedError> {
        let mut known = None;
        for number in numbers {
            known = self.placed(*number, async |store| store.known_callback_secret().await).await?;
            if known.is_some() {
                break;
            }
        }
        let first = numbers.first().copied().unwrap_or_default();
        let secret = match known {
            Some(secret) => secret,
            None => self.placed(first, async |store| store.callback_secret().await).await?,
        };
        let sql = "INSERT INTO hostler_jobs.setting (name, value) VALUES ('callback_secret', $1) \
            ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE setting.value <> excluded.value";
        for number in numbers {
            self.placed(*number, async |store| store.call(sql, &[(&secret, Type::TEXT)]).await).await?;
        }
        Ok(())
    }
}

/// Locks the last of some keys until the end of a transaction. Returns the number of the last other one that is locked already.
async fn locked_of(transaction: &Transaction<'_>, keys: &[i64]) -> Result<Option<usize>, StoreError> {
    let sql = "SELECT max(k.n) FROM unnest($1) WITH ORDINALITY k (key, n) WHERE NOT pg_try_advisory_xact_lock(k.key)";
    let rows = transaction.query(sql, &[(&keys, Type::INT8_ARRAY)]).await?;
    let last: Option<i64> = rows.first().and_then(|row| row.get(0));
    Ok(last.and_then(|n| usize::try_from(n - 1).ok()))
}

/// The place that a database recorded. `None`: it was never one of several.
async fn recorded(store: &Store) -> Result<Option<Place>, StoreError> {
    let rows = store.call("SELECT to_regclass('hostler_shards.place') IS NOT NULL", &[]).await?;
    if !rows.first().is_some_and(|row| row.get(0)) {
        return Ok(None);
    }
    let rows = store.call("SELECT number, count FROM hostler_shards.place", &[]).await?;
    let number = |number: i16| usize::try_from(number).unwrap_or_default();
    Ok(rows.first().map(|row| Place { number: number(row.get(0)), count: number(row.get(1)) }))
}

/// Compares the place of a database in the list with the recorded one. Returns whether it has to be recorded.
fn check(store: &Store, recorded: Option<Place>, listed: Place) -> Result<bool, StoreError> {
    let (name, total) = (store.place(), listed.count);
    match recorded {
        None => Ok(total > 1),
        Some(place) if place == listed => Ok(false),
        Some(place) if place.count != total => Err(StoreError::invalid(
            "databases",
            format!("has {total} databases, but {name} was set up as one of {}: list all of them", place.count),
        )),
        Some(place) => Err(StoreError::invalid(
            "databases",
            format!(
                "has {name} at position {}, but it was set up at position {}: restore the order",
                listed.number + 1,
                place.number + 1
            ),
        )),
    }
}

/// Refuses a database whose jobs lie by another rule.
async fn refuse_jobs(store: &Store) -> Result<(), StoreError> {
    let rows = store.call("SELECT to_regclass('hostler_jobs.job') IS NOT NULL", &[]).await?;
    if !rows.first().is_some_and(|row| row.get(0)) {
        return Ok(());
    }
    let rows = store.call("SELECT EXISTS (SELECT FROM hostler_jobs.job)", &[]).await?;
    if rows.first().is_some_and(|row| row.get(0)) {
        let detail =
            format!("cannot have {}: it has jobs of a time when it was alone; delete them first", store.place());
        return Err(StoreError::invalid("databases", detail));
    }
    Ok(())
}

async fn take(store: &Store, place: Place) -> Result<(), StoreError> {
    let small = |number: usize| i16::try_from(number).unwrap_or(i16::MAX);
    let (number, count) = (small(place.number), small(place.count));
    let params = [(&number as &(dyn hostler_postgres::ToSql + Sync), Type::INT2), (&count, Type::INT2)];
    store.call("SELECT hostler_shards.take_place($1, $2)", &params).await?;
    // Another process may have been first, with another list.
    check(store, recorded(store).await?, place).map(drop)
}
