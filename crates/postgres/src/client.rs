//! A connection of the pool, whose calls all have a deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::Object;
use tokio::join;
use tokio::runtime::Handle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{CancelToken, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::DatabaseError;

/// Statement that begins the transaction of a single statement, which a standby may execute.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// SQLSTATE of a statement that met the changes of another transaction. At READ COMMITTED, the server never fails a statement by it.
const CONFLICT: &str = "40001";

/// A parameter of a statement, with its type: statements are sent with their parameters, without a round trip to prepare them.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A connection of the pool. Dropping this value gives it back, unless one of its calls passed the deadline or was dropped before its
/// answer, or the server answered that it cannot serve.
pub struct Client {
    /// `None` only while being dropped.
    object: Option<Object>,
    deadline: Duration,
    tls: MakeRustlsConnect,
    given_up: AtomicBool,
    /// Set once the server's default is known to be another level than READ COMMITTED. Shared by the pool.
    begins: Arc<AtomicBool>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("given_up", &self.given_up).finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(object: Object, deadline: Duration, tls: MakeRustlsConnect, begins: Arc<AtomicBool>) -> Self {
        Self { object: Some(object), deadline, tls, given_up: AtomicBool::new(false), begins }
    }

    /// Gives the calls of this connection another deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Executes a statement (READ COMMITTED), and returns its rows.
    ///
    /// # Errors
    /// [`DatabaseError`], at the latest when the deadline has passed.
    pub async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, DatabaseError> {
        if !self.begins.load(Ordering::Relaxed) {
            let answer = self.timed(self.raw()?.query_typed(sql, params)).await;
            if !self.is_of_the_level(answer.as_ref().err()).await {
                return answer;
            }
        }
        self.begun(self.raw()?.query_typed(sql, params)).await
    }

    /// Executes a statement (READ COMMITTED), and returns the number of rows that it changed.
    ///
    /// # Errors
    /// [`DatabaseError`], at the latest when the deadline has passed.
    pub async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, DatabaseError> {
        if !self.begins.load(Ordering::Relaxed) {
            let answer = self.timed(self.raw()?.execute_typed(sql, params)).await;
            if !self.is_of_the_level(answer.as_ref().err()).await {
                return answer;
            }
        }
        self.begun(self.raw()?.execute_typed(sql, params)).await
    }

    /// Executes statements without parameters, separated by semicolons.
    ///
    /// # Errors
    /// [`DatabaseError`], at the latest when the deadline has passed.
    pub async fn batch(&self, sql: &str) -> Result<(), DatabaseError> {
        self.timed(self.raw()?.batch_execute(sql)).await
    }

    /// Returns `true` if a statement failed only because the server's default is another level than READ COMMITTED. The statement has
    /// changed nothing. From then on, statements of the pool begin a transaction of their own.
    async fn is_of_the_level(&self, error: Option<&DatabaseError>) -> bool {
        if error.and_then(DatabaseError::code) != Some(CONFLICT) {
            return false;
        }
        let Ok(raw) = self.raw() else { return false };
        let level = self.timed(raw.query_typed("SELECT current_setting('transaction_isolation')", &[])).await;
        let is_other =
            level.is_ok_and(|rows| rows.first().is_some_and(|row| row.get::<_, &str>(0) != "read committed"));
        if is_other {
            self.begins.store(true, Ordering::Relaxed);
        }
        is_other
    }

    /// Awaits a call in a transaction of its own. All is sent together, so it takes one round trip.
    async fn begun<T>(&self, call: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, DatabaseError> {
        let raw = self.raw()?;
        let all = async {
            // Sent when first polled, in this order. After a call that failed, the server takes COMMIT as ROLLBACK.
            let (begun, answer, committed) = join!(biased; raw.batch_execute(BEGIN), call, raw.batch_execute("COMMIT"));
            begun?;
            let answer = answer?;
            committed.map(|()| answer)
        };
        self.timed(all).await
    }

    /// Returns the connection, unless it was given up or is closed.
    pub(crate) fn raw(&self) -> Result<&tokio_postgres::Client, DatabaseError> {
        let usable = !self.given_up.load(Ordering::Relaxed);
        let object = self.object.as_ref().filter(|object| usable && !object.is_closed());
        object.map(|object| &***object).ok_or_else(DatabaseError::lost)
    }

    /// Awaits a call. Gives the connection up if the deadline passes first, or the caller drops the future.
    pub(crate) async fn timed<T>(
        &self,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, DatabaseError> {
        self.timed_within(self.deadline, call).await
    }

    /// Awaits a call, as [`Self::timed`] does, with another deadline.
    pub(crate) async fn timed_within<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, DatabaseError> {
        let unanswered = Unanswered(self);
        let answered = tokio::time::timeout(deadline, call).await;
        if answered.is_ok() {
            std::mem::forget(unanswered);
        }
        match answered {
            Ok(Err(error)) if error.is_closed() => Err(DatabaseError::lost()),
            Ok(answer) => answer.map_err(|error| self.retiring(error.into())),
            Err(_) => Err(DatabaseError::Deadline),
        }
    }

    /// Lets no other call use the connection if the server answered that it cannot serve: it may only answer reads from now on, while
    /// another server of the address accepts writes.
    pub(crate) fn retiring(&self, error: DatabaseError) -> DatabaseError {
        if matches!(error, DatabaseError::Unreachable { .. }) {
            self.given_up.store(true, Ordering::Relaxed);
        }
        error
    }

    /// Returns the maximum duration of each call.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Lets no other call use the connection, and asks the server to cancel the statement.
    pub(crate) fn give_up(&self) {
        let is_first = !self.given_up.swap(true, Ordering::Relaxed);
        if let (true, Some(object), Ok(runtime)) = (is_first, &self.object, Handle::try_current()) {
            runtime.spawn(cancel(object.cancel_token(), self.tls.clone(), self.deadline));
        }
    }
}

/// A call without an answer. Dropping this value gives the connection up, so that the statement does not run on in the pool.
struct Unanswered<'c>(&'c Client);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let (true, Some(object)) = (self.given_up.load(Ordering::Relaxed), self.object.take()) {
            // Taken out of the pool, the connection ends at once, without waiting for the server.
            drop(Object::take(object));
        }
    }
}

/// Asks the server to cancel a statement, on a connection of its own. The server may be frozen, so the answer is not awaited for long.
async fn cancel(token: CancelToken, tls: MakeRustlsConnect, deadline: Duration) {
    let _ = tokio::time::timeout(deadline, token.cancel_query(tls)).await;
}
