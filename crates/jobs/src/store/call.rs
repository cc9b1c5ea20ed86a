//! Calls of the schema's functions: retried after deadlocks, and answered once under an idempotency key.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hostler_postgres::{Client, DatabaseError, Fit, Param, Row, Type, migrate, schema_version};

use crate::schema::{LATEST, MIGRATIONS, SCHEMA};
use crate::store::{Store, StoreError};

/// The most attempts of a transaction that meets deadlocks or conflicts.
const ATTEMPTS: u32 = 12;

/// The SQLSTATE of a row for whose day there is no partition.
const NO_PARTITION: &str = "23514";

/// A client's key for a request that it may repeat, and a digest of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The key, 200 bytes at most. The caller adds the role or the route if keys are to be separate.
    pub key: String,
    /// A digest of the route and the body. Another request under the key is a fault of the field `Idempotency-Key`.
    pub hash: String,
}

/// The answer under an idempotency key.
pub(crate) enum Answer {
    /// The request was executed.
    New(Vec<Row>),
    /// The request was executed before: this was stored.
    Known(String),
}

impl Store {
    /// Brings the schema up to date, and makes the partitions of the next days.
    ///
    /// # Errors
    /// [`StoreError::Migrate`] if the database cannot be brought up to date; [`StoreError::Unexpected`] if transactions do not read
    /// what is committed.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.check_isolation().await?;
        migrate(&self.db, SCHEMA, MIGRATIONS).await?;
        self.partitions().await
    }

    /// Returns a connection for a call that needs the schema.
    ///
    /// # Errors
    /// [`StoreError::Database`] if the database does not answer, or is held back until its schema has been checked.
    async fn client(&self) -> Result<Client, StoreError> {
        if self.is_closed() {
            let reason = "it was away when the service started, and has not been checked yet".to_owned();
            return Err(StoreError::Database(DatabaseError::Unreachable { reason }));
        }
        Ok(self.db.client().await?)
    }

    /// Checks that the database answers.
    ///
    /// # Errors
    /// [`StoreError::Database`] if it does not.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.db.client().await?.query("SELECT 1", &[]).await?;
        Ok(())
    }

    /// Checks that the database answers and has a schema that this version can work with: its own, or a newer one that is compatible.
    ///
    /// # Errors
    /// [`StoreError::Schema`] if it has another one; [`StoreError::Unexpected`] if transactions do not read what is committed;
    /// [`StoreError::Database`] if it does not answer.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        self.check_isolation().await?;
        let found = schema_version(&self.db, SCHEMA).await?;
        match found.fit(LATEST) {
            Fit::Usable => Ok(()),
            Fit::Missing | Fit::Older | Fit::Newer => Err(StoreError::Schema { found: found.version, wanted: LATEST }),
        }
    }

    /// Checks that new transactions see what was committed before each of their statements.
    async fn check_isolation(&self) -> Result<(), StoreError> {
        let rows = self.db.client().await?.query("SELECT current_setting('transaction_isolation')", &[]).await?;
        let found: String = rows.first().map(|row| row.get(0)).unwrap_or_default();
        if found == "read committed" {
            return Ok(());
        }
        Err(StoreError::Unexpected(format!(
            "the isolation level is {found:?} and has to be \"read committed\"; cure: ALTER ROLE … IN DATABASE … SET \
             default_transaction_isolation = 'read committed'"
        )))
    }

    /// Executes a statement as a transaction. Tries again after deadlocks and conflicts.
    pub(crate) async fn call(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        let mut attempt = 0;
        loop {
            let answer = self.client().await?.query(sql, params).await;
            match answer {
                Ok(rows) => return Ok(rows),
                Err(error) => self.next_attempt(error, &mut attempt).await?,
            }
        }
    }

    /// Executes a statement, unless it was executed under the key before, and stores its answer.
    pub(crate) async fn call_once(
        &self,
        key: &IdempotencyKey,
        sql: &str,
        params: &[Param<'_>],
        answer: impl Fn(&[Row]) -> Result<String, StoreError>,
    ) -> Result<Answer, StoreError> {
        crate::limits::key("Idempotency-Key", &key.key)?;
        let mut attempt = 0;
        loop {
            match self.try_once(key, sql, params, &answer).await {
                // Under the key, a request that may have been executed can be repeated.
                Err(StoreError::Database(DatabaseError::UnknownFate)) if attempt < ATTEMPTS => attempt += 1,
                Err(StoreError::Database(error)) => self.next_attempt(error, &mut attempt).await?,
                ended => return ended,
            }
        }
    }

    async fn try_once(
        &self,
        key: &IdempotencyKey,
        sql: &str,
        params: &[Param<'_>],
        answer: &impl Fn(&[Row]) -> Result<String, StoreError>,
    ) -> Result<Answer, StoreError> {
        let mut client = self.client().await?;
        let transaction = client.transaction().await?;
        let insert = "INSERT INTO hostler_jobs.idempotency (key, hash) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        let inserted = transaction.execute(insert, &[(&key.key, Type::TEXT), (&key.hash, Type::TEXT)]).await?;
        if inserted == 0 {
            let select = "SELECT hash, answer FROM hostler_jobs.idempotency WHERE key = $1";
            let rows = transaction.query(select, &[(&key.key, Type::TEXT)]).await?;
            transaction.commit().await?;
            let Some(row) = rows.first() else {
                return Err(StoreError::Unexpected("an idempotency key is gone".to_owned()));
            };
            if row.get::<_, String>(0) != key.hash {
                return Err(StoreError::invalid("Idempotency-Key", "was used for another request"));
            }
            return Ok(Answer::Known(row.get::<_, Option<String>>(1).unwrap_or_default()));
        }
        let rows = transaction.query(sql, params).await?;
        let text = answer(&rows)?;
        let update = "UPDATE hostler_jobs.idempotency SET answer = $2 WHERE key = $1";
        transaction.execute(update, &[(&key.key, Type::TEXT), (&text, Type::TEXT)]).await?;
        transaction.commit().await?;
        Ok(Answer::New(rows))
    }

    /// Waits before another attempt, or returns the error if there is to be none.
    async fn next_attempt(&self, error: DatabaseError, attempt: &mut u32) -> Result<(), StoreError> {
        let code = error.code().unwrap_or_default();
        let is_conflict = matches!(error, DatabaseError::Busy { .. }) && code.starts_with("40");
        let lacks_partition = code == NO_PARTITION;
        *attempt += 1;
        if *attempt >= ATTEMPTS || !(is_conflict || lacks_partition) {
            return Err(error.into());
        }
        if lacks_partition {
            return self.partitions().await;
        }
        let longest = 1_u64 << (*attempt).min(8);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..=longest))).await;
        Ok(())
    }

    /// Makes the partitions of the days around today.
    ///
    /// # Errors
    /// [`StoreError::Database`] if the database fails.
    pub async fn partitions(&self) -> Result<(), StoreError> {
        let sql = "SELECT hostler_jobs.make_partitions(hostler_jobs.today() - 1, hostler_jobs.today() + 2)";
        self.client().await?.query(sql, &[]).await?;
        Ok(())
    }

    /// The numbers of types, in order. Unknown ones are created.
    pub(crate) async fn type_ids(&self, names: &[&str]) -> Result<Vec<i32>, StoreError> {
        let mut numbers: HashMap<String, i32> =
            names.iter().filter_map(|name| Some(((*name).to_owned(), self.known_type(name)?))).collect();
        let missing: Vec<&str> = names.iter().copied().filter(|name| !numbers.contains_key(*name)).collect();
        if !missing.is_empty() {
            let insert = "INSERT INTO hostler_jobs.job_type (name) SELECT DISTINCT n FROM unnest($1) n ORDER BY n ON CONFLICT DO NOTHING";
            // Looked for first: a conflict would use up a number.
            let mut learned = self.learn_types(&missing).await?;
            if learned.len() < missing.len() {
                self.call(insert, &[(&missing, Type::TEXT_ARRAY)]).await?;
                learned = self.learn_types(&missing).await?;
            }
            numbers.extend(learned);
        }
        let all = names.iter().map(|name| numbers.get(*name).copied());
        all.collect::<Option<_>>().ok_or_else(|| StoreError::Unexpected("a type has no number".to_owned()))
    }

    /// The number of a type; `None` if no job ever had it. Workers that poll for such a type seldom make the database look for it.
    pub(crate) async fn type_id(&self, name: &str) -> Result<Option<i32>, StoreError> {
        let now = Instant::now();
        let known = self.known_type(name);
        if known.is_some() || self.types.lock().is_ok_and(|types| types.is_unknown(name, now)) {
            return Ok(known);
        }
        let learned = self.learn_types(&[name]).await?;
        if let (true, Ok(mut types)) = (learned.is_empty(), self.types.lock()) {
            types.miss(name, now);
        }
        Ok(learned.first().map(|(_, number)| *number))
    }

    fn known_type(&self, name: &str) -> Option<i32> {
        self.types.lock().ok()?.number(name)
    }

    async fn learn_types(&self, names: &[&str]) -> Result<Vec<(String, i32)>, StoreError> {
        let select = "SELECT name, id FROM hostler_jobs.job_type WHERE name = ANY ($1)";
        let rows = self.call(select, &[(&names, Type::TEXT_ARRAY)]).await?;
        let learned: Vec<(String, i32)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        if let Ok(mut types) = self.types.lock() {
            types.learn(&learned);
        }
        Ok(learned)
    }
}
