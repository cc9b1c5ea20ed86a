//! The steps of serialize keys across databases. Each is one transaction in one database, and may be repeated.
//!
//! A message is carried in three steps: it is read where it is, told to the other side, and dropped where it was. Whoever carries it
//! may stop between any two of them.

use std::time::Duration;

use hostler_postgres::{Param, Row, Type};

use crate::shards::Shards;
use crate::store::StoreError;

/// The most messages that a step carries.
pub(crate) const BATCH: i32 = 1_000;

/// The time after which a holder is asked again whether it needs a key.
const LEASE: Duration = Duration::from_secs(30);

/// A database's request for a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// Its number in that database.
    pub id: i64,
    /// The key.
    pub key: String,
    /// The item.
    pub seq: i64,
}

/// A key that its home grants to a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The key.
    pub key: String,
    /// The number of the grant. Later grants of a key have higher ones.
    pub fence: i64,
    /// The last item that may run.
    pub upto: i64,
}

/// The word of a database about a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The key.
    pub key: String,
    /// The number of the grant.
    pub fence: i64,
    /// `held`, `done` or `stale`.
    pub word: String,
}

/// The databases for which one has something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// The homes for which it has requests or ended grants.
    pub outgoing: Vec<usize>,
    /// The databases for which it has grants.
    pub due: Vec<usize>,
    /// Set if a key waits to be granted.
    pub is_free: bool,
}

/// The number of a database as a parameter.
fn small(number: usize) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}

/// The columns of answers.
fn columns(answers: &[Answer]) -> (Vec<&str>, Vec<i64>, Vec<&str>) {
    let keys = answers.iter().map(|answer| answer.key.as_str()).collect();
    let words = answers.iter().map(|answer| answer.word.as_str()).collect();
    (keys, answers.iter().map(|answer| answer.fence).collect(), words)
}

impl Shards {
    async fn step(&self, at: usize, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        self.store(at)?.call(sql, params).await
    }

    /// Lists the databases for which one has something.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn pending(&self, at: usize) -> Result<Pending, StoreError> {
        let rows = self.step(at, "SELECT outgoing, due, is_free FROM hostler_shards.pending()", &[]).await?;
        let numbers = |row: &Row, column: usize| -> Vec<usize> {
            let numbers: Vec<i16> = row.get(column);
            numbers.into_iter().filter_map(|number| usize::try_from(number).ok()).collect()
        };
        let pending =
            rows.first().map(|row| Pending { outgoing: numbers(row, 0), due: numbers(row, 1), is_free: row.get(2) });
        Ok(pending.unwrap_or_default())
    }

    /// Lists requests for tickets of a home, up to 1,000, in their order.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn wants(&self, at: usize, home: usize) -> Result<Vec<Want>, StoreError> {
        let sql = "SELECT id, key, seq FROM hostler_shards.wanted WHERE home = $1 ORDER BY id LIMIT $2";
        let (home, limit) = (small(home), i64::from(BATCH));
        let rows = self.step(at, sql, &[(&home, Type::INT2), (&limit, Type::INT8)]).await?;
        Ok(rows.iter().map(|row| Want { id: row.get(0), key: row.get(1), seq: row.get(2) }).collect())
    }

    /// Takes tickets at a home for items of a database. The order of a key's tickets is that of these calls.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn register(&self, home: usize, from: usize, wants: &[Want]) -> Result<(), StoreError> {
        let ids: Vec<i64> = wants.iter().map(|want| want.id).collect();
        let keys: Vec<&str> = wants.iter().map(|want| want.key.as_str()).collect();
        let seqs: Vec<i64> = wants.iter().map(|want| want.seq).collect();
        let from = small(from);
        let params: [Param<'_>; 4] =
            [(&from, Type::INT2), (&ids, Type::INT8_ARRAY), (&keys, Type::TEXT_ARRAY), (&seqs, Type::INT8_ARRAY)];
        self.step(home, "SELECT hostler_shards.register($1, $2, $3, $4)", &params).await.map(drop)
    }

    /// Drops requests whose tickets were taken.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn drop_wants(&self, at: usize, wants: &[Want]) -> Result<(), StoreError> {
        let ids: Vec<i64> = wants.iter().map(|want| want.id).collect();
        let sql = "DELETE FROM hostler_shards.wanted WHERE id = ANY ($1)";
        self.step(at, sql, &[(&ids, Type::INT8_ARRAY)]).await.map(drop)
    }

    /// Grants free keys of a home, each to the database of its first ticket. Returns their number.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn grant_keys(&self, home: usize) -> Result<usize, StoreError> {
        let rows = self.step(home, "SELECT hostler_shards.grant_keys($1)", &[(&BATCH, Type::INT4)]).await?;
        Ok(rows.first().map_or(0, |row| usize::try_from(row.get::<_, i32>(0)).unwrap_or_default()))
    }

    /// Lists grants that a database has not been told, or whose lease is over.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn due_grants(&self, home: usize, holder: usize) -> Result<Vec<Grant>, StoreError> {
        let sql = "SELECT key, fence, upto FROM hostler_shards.line WHERE holder = $1 AND due <= clock_timestamp() \
            ORDER BY due LIMIT $2";
        let (holder, limit) = (small(holder), i64::from(BATCH));
        let rows = self.step(home, sql, &[(&holder, Type::INT2), (&limit, Type::INT8)]).await?;
        Ok(rows.iter().map(|row| Grant { key: row.get(0), fence: row.get(1), upto: row.get(2) }).collect())
    }

    /// Tells a database its grants. Returns its word about each.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn open_keys(&self, at: usize, home: usize, grants: &[Grant]) -> Result<Vec<Answer>, StoreError> {
        let keys: Vec<&str> = grants.iter().map(|grant| grant.key.as_str()).collect();
        let fences: Vec<i64> = grants.iter().map(|grant| grant.fence).collect();
        let uptos: Vec<i64> = grants.iter().map(|grant| grant.upto).collect();
        let home = small(home);
        let params: [Param<'_>; 4] =
            [(&home, Type::INT2), (&keys, Type::TEXT_ARRAY), (&fences, Type::INT8_ARRAY), (&uptos, Type::INT8_ARRAY)];
        let sql = "SELECT key, fence, answer FROM hostler_shards.open_keys($1, $2, $3, $4)";
        let rows = self.step(at, sql, &params).await?;
        Ok(rows.iter().map(|row| Answer { key: row.get(0), fence: row.get(1), word: row.get(2) }).collect())
    }

    /// Lists grants of a home that ended, and that the home does not know to have ended.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn returned(&self, at: usize, home: usize) -> Result<Vec<Answer>, StoreError> {
        let sql = "SELECT key, fence FROM hostler_shards.held WHERE home = $1 AND NOT is_open AND NOT is_told \
            ORDER BY fence LIMIT $2";
        let (home, limit) = (small(home), i64::from(BATCH));
        let rows = self.step(at, sql, &[(&home, Type::INT2), (&limit, Type::INT8)]).await?;
        Ok(rows.iter().map(|row| Answer { key: row.get(0), fence: row.get(1), word: "done".to_owned() }).collect())
    }

    /// Tells a home the word of a database about grants. Returns the number of keys that are free now.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn answer(&self, home: usize, from: usize, answers: &[Answer]) -> Result<usize, StoreError> {
        let (keys, fences, words) = columns(answers);
        let (from, lease) = (small(from), LEASE.as_secs_f64());
        let params: [Param<'_>; 5] = [
            (&from, Type::INT2),
            (&keys, Type::TEXT_ARRAY),
            (&fences, Type::INT8_ARRAY),
            (&words, Type::TEXT_ARRAY),
            (&lease, Type::FLOAT8),
        ];
        let rows = self.step(home, "SELECT hostler_shards.answer($1, $2, $3, $4, $5)", &params).await?;
        Ok(rows.first().map_or(0, |row| usize::try_from(row.get::<_, i32>(0)).unwrap_or_default()))
    }

    /// Notes that a home knows that grants ended.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn note_told(&self, at: usize, answers: &[Answer]) -> Result<(), StoreError> {
        let (keys, fences, _) = columns(answers);
        let sql = "UPDATE hostler_shards.held h SET is_told = true FROM unnest($1, $2) u (key, fence) \
            WHERE h.key = u.key AND h.fence = u.fence AND NOT h.is_open";
        self.step(at, sql, &[(&keys, Type::TEXT_ARRAY), (&fences, Type::INT8_ARRAY)]).await.map(drop)
    }

    /// Forgets grants that ended before the last `age`. Returns their number.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn forget(&self, at: usize, age: Duration) -> Result<usize, StoreError> {
        let seconds = age.as_secs_f64();
        let params: [Param<'_>; 2] = [(&seconds, Type::FLOAT8), (&BATCH, Type::INT4)];
        let rows = self.step(at, "SELECT hostler_shards.forget($1, $2)", &params).await?;
        Ok(rows.first().map_or(0, |row| usize::try_from(row.get::<_, i32>(0)).unwrap_or_default()))
    }
}
