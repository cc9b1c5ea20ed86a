//! Migration of all databases, and the check that the list of them is the one that their data lies by.

use hostler_postgres::{Migration, Type, migrate};

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

impl Shards {
    /// Brings the schemas up to date, and checks that the list of databases is the one that their data lies by.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] with the field `databases` if the order or the number of databases is another one than before, or one
    /// that was alone has jobs and is now one of several; otherwise as [`Store::migrate`].
    pub async fn migrate(&self) -> Result<(), StoreError> {
        for store in self.stores() {
            store.migrate().await?;
        }
        // Nothing is recorded unless all of them fit.
        let are_new = self.check_list().await?;
        if self.single().is_some() {
            return Ok(());
        }
        for (number, store) in self.stores().iter().enumerate() {
            if are_new.get(number) == Some(&true) {
                refuse_jobs(store).await?;
            }
            migrate(&store.db, SCHEMA, MIGRATIONS).await?;
            take(store, Place { number, count: self.count() }).await?;
        }
        self.share_secret().await
    }

    /// Checks that the list of databases is the one that their data lies by. Changes nothing. Returns for each whether it is new.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] with the field `databases`; [`StoreError::Database`] if one does not answer.
    pub async fn check_list(&self) -> Result<Vec<bool>, StoreError> {
        let mut are_new = Vec::with_capacity(self.count());
        for (number, store) in self.stores().iter().enumerate() {
            are_new.push(check(store, recorded(store).await?, Place { number, count: self.count() })?);
        }
        Ok(are_new)
    }

    /// Gives all databases the secret of callbacks of the first, so that receivers need one.
    async fn share_secret(&self) -> Result<(), StoreError> {
        let secret = self.store(0)?.callback_secret().await?;
        let sql = "INSERT INTO hostler_jobs.setting (name, value) VALUES ('callback_secret', $1) \
            ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE setting.value <> excluded.value";
        for store in self.stores().iter().skip(1) {
            store.call(sql, &[(&secret, Type::TEXT)]).await?;
        }
        Ok(())
    }
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
