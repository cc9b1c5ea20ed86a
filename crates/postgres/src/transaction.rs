//! Transactions of a connection of the pool.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::join;
use tokio_postgres::{Error, Row};

use crate::client::{Client, Param};
use crate::error::DatabaseError;

/// First statement of each transaction. The server's default may be another level.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// A transaction. Dropping this value rolls it back.
#[derive(Debug)]
pub struct Transaction<'c> {
    client: &'c Client,
    begun: AtomicBool,
    /// Set by the first error, after which the server refuses all statements.
    failed: AtomicBool,
    ended: bool,
}

impl Client {
    /// Starts a transaction (READ COMMITTED). `BEGIN` goes to the server with the first statement. Dropping the transaction rolls it
    /// back.
    ///
    /// # Errors
    /// [`DatabaseError::Unreachable`] if the connection is closed.
    #[allow(clippy::unused_async, reason = "the interface leaves room for a round trip")]
    pub async fn transaction(&mut self) -> Result<Transaction<'_>, DatabaseError> {
        self.raw()?;
        Ok(Transaction::new(self))
    }
}

impl<'c> Transaction<'c> {
    fn new(client: &'c Client) -> Self {
        Self { client, begun: AtomicBool::new(false), failed: AtomicBool::new(false), ended: false }
    }

    /// Executes a statement, and returns its rows.
    ///
    /// # Errors
    /// [`DatabaseError`], at the latest when the deadline has passed. The transaction can then only be rolled back.
    pub async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, DatabaseError> {
        self.after_begin(self.client.raw()?.query_typed(sql, params)).await
    }

    /// Executes a statement, and returns the number of rows that it changed.
    ///
    /// # Errors
    /// [`DatabaseError`], at the latest when the deadline has passed. The transaction can then only be rolled back.
    pub async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, DatabaseError> {
        self.after_begin(self.client.raw()?.execute_typed(sql, params)).await
    }

    /// Executes a statement that may take longer than other calls, and returns the number of rows that it changed.
    ///
    /// # Errors
    /// [`DatabaseError`], at the latest when `deadline` has passed. The transaction can then only be rolled back.
    pub async fn execute_within(
        &self,
        deadline: Duration,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<u64, DatabaseError> {
        // Begins the transaction if this is its first statement.
        self.batch("").await?;
        let answer = self.client.timed_within(deadline, self.client.raw()?.execute_typed(sql, params)).await;
        if answer.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        answer
    }

    /// Executes statements without parameters, separated by semicolons.
    ///
    /// # Errors
    /// [`DatabaseError`], at the latest when the deadline has passed. The transaction can then only be rolled back.
    pub async fn batch(&self, sql: &str) -> Result<(), DatabaseError> {
        self.after_begin(self.client.raw()?.batch_execute(sql)).await
    }

    /// Commits the transaction.
    ///
    /// # Errors
    /// [`DatabaseError::UnknownFate`] if the server did not answer. After any other error, nothing was changed.
    pub async fn commit(mut self) -> Result<(), DatabaseError> {
        if self.failed.load(Ordering::Relaxed) {
            // The server would answer `COMMIT` with a rollback, which is not an error.
            let message = "the transaction has failed before its commit".to_owned();
            return Err(DatabaseError::Refused { code: "25P02".to_owned(), message });
        }
        if !self.begun.load(Ordering::Relaxed) {
            return Ok(());
        }
        let raw = self.client.raw()?;
        self.ended = true;
        self.client.timed(raw.batch_execute("COMMIT")).await.map_err(DatabaseError::of_commit)
    }

    /// Rolls the transaction back. Returns when the server has done so.
    ///
    /// # Errors
    /// [`DatabaseError`] if the connection is lost. The server then rolls back.
    pub async fn rollback(mut self) -> Result<(), DatabaseError> {
        let raw = self.client.raw()?;
        self.ended = true;
        if !self.begun.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.client.timed(raw.batch_execute("ROLLBACK")).await
    }

    /// Awaits a call. Sends `BEGIN` before the first one, without awaiting its answer.
    async fn after_begin<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, DatabaseError> {
        let answer = if self.begun.swap(true, Ordering::Relaxed) {
            self.client.timed(call).await
        } else {
            self.begin_with(call).await
        };
        if answer.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        answer
    }

    /// Sends `BEGIN` and a call together.
    async fn begin_with<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, DatabaseError> {
        let raw = self.client.raw()?;
        let begin = begin(self.client.deadline());
        let mut has_begun = true;
        let both = async {
            // Both are sent when first polled, in this order.
            let (begun, answer) = join!(biased; raw.batch_execute(&begin), call);
            has_begun = begun.is_ok();
            begun.and(answer)
        };
        let answer = self.client.timed(both).await;
        if has_begun { answer } else { answer.map_err(|error| self.client.retiring(error.of_begin())) }
    }
}

/// Returns the statements that begin a transaction. The server ends it if this host does nothing in it for as long as a call may take: a
/// host that is stopped or cut off would hold its locks until the server's keepalives notice, after two hours by default.
fn begin(deadline: Duration) -> String {
    // 0 turns the timeout off.
    let idle = deadline.as_millis().clamp(1, i32::MAX.cast_unsigned().into());
    format!("{BEGIN}; SET LOCAL idle_in_transaction_session_timeout = {idle}")
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.ended || !self.begun.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(raw) = self.client.raw() {
            // A call is sent when first polled. Its answer comes before those of later calls.
            let _ = pin!(raw.batch_execute("ROLLBACK")).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}
