//! Errors of a database, distinguished by the caller's next step.

use tokio_postgres::error::{DbError, SqlState};

/// An error of a call to the database. Texts contain no passwords and no values of rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseError {
    /// There is no connection, the connection was lost, or the server is starting, stopping or read-only. The caller should try again.
    /// A statement outside of a transaction may have been executed; a transaction was not committed.
    #[error("the database cannot be reached: {reason}")]
    Unreachable {
        /// The error of the connection or the server.
        reason: String,
    },
    /// The server refused the user, the password or a permission. An operator must act.
    #[error("the database denies the request: {message} (SQLSTATE {code})")]
    Denied {
        /// SQLSTATE of the server.
        code: String,
        /// Message of the server.
        message: String,
    },
    /// A deadlock, a conflict with another transaction, or a lack of connections, memory or disk space. Nothing was changed. The caller
    /// should try again.
    #[error("the database is busy: {message} (SQLSTATE {code})")]
    Busy {
        /// SQLSTATE of the server.
        code: String,
        /// Message of the server.
        message: String,
    },
    /// The call did not end within the deadline. The connection was given up. A statement outside of a transaction may have been
    /// executed.
    #[error("the database did not answer in time")]
    Deadline,
    /// The server refused the statement. The same statement fails again.
    #[error("the database refuses the statement: {message} (SQLSTATE {code})")]
    Refused {
        /// SQLSTATE of the server.
        code: String,
        /// Message of the server.
        message: String,
    },
    /// The connection was lost, or the deadline passed, during `COMMIT`. The transaction may have been committed.
    #[error("the connection to the database was lost during a commit, which may have succeeded")]
    UnknownFate,
}

impl DatabaseError {
    /// Returns `true` if another attempt can succeed without anyone's help. After [`Self::UnknownFate`], only an operation that may be
    /// executed twice can be tried again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Busy { .. } | Self::Deadline | Self::UnknownFate)
    }

    /// Returns the SQLSTATE, if the server sent one.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Denied { code, .. } | Self::Busy { code, .. } | Self::Refused { code, .. } => Some(code),
            Self::Unreachable { .. } | Self::Deadline | Self::UnknownFate => None,
        }
    }

    /// Returns the error of a connection that ended.
    pub(crate) fn lost() -> Self {
        Self::Unreachable { reason: "the connection is closed".to_owned() }
    }

    /// Returns the error of a `COMMIT` that failed with `self`.
    pub(crate) fn of_commit(self) -> Self {
        match self {
            Self::Unreachable { .. } | Self::Deadline => Self::UnknownFate,
            known => known,
        }
    }

    /// Returns the error of a `BEGIN` that failed with `self`. A standby has no code of its own for the refusal of `READ WRITE`.
    pub(crate) fn of_begin(self) -> Self {
        match self {
            Self::Refused { code, message } if code == "0A000" => Self::Unreachable { reason: message },
            known => known,
        }
    }

    fn answered(error: &DbError) -> Self {
        let (code, message) = (error.code().code().to_owned(), error.message().to_owned());
        match class(error.code()) {
            Class::Unreachable => Self::Unreachable { reason: format!("{message} (SQLSTATE {code})") },
            Class::Denied => Self::Denied { code, message },
            Class::Busy => Self::Busy { code, message },
            Class::Deadline => Self::Deadline,
            Class::Refused => Self::Refused { code, message },
        }
    }
}

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(answer) = error.as_db_error() {
            return Self::answered(answer);
        }
        if is_caller_fault(&error) {
            return Self::Refused { code: "HY000".to_owned(), message: chain(&error) };
        }
        Self::Unreachable { reason: chain(&error) }
    }
}

/// The caller's next step after an answer of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Unreachable,
    Denied,
    Busy,
    Deadline,
    Refused,
}

/// Returns the next step for a SQLSTATE (PostgreSQL's appendix of error codes).
fn class(state: &SqlState) -> Class {
    match state.code() {
        // query_canceled: the statement's or our own timeout.
        "57014" => Class::Deadline,
        // insufficient_privilege
        "42501" => Class::Denied,
        // read_only_sql_transaction: the server was demoted. idle_in_transaction_session_timeout: this host stood still.
        "25006" | "25P03" => Class::Unreachable,
        // lock_not_available, object_in_use
        "55P03" | "55006" => Class::Busy,
        code if code.starts_with("08") || code.starts_with("57P") => Class::Unreachable,
        code if code.starts_with("28") => Class::Denied,
        // Transaction rollback, and insufficient resources.
        code if code.starts_with("40") || code.starts_with("53") => Class::Busy,
        _ => Class::Refused,
    }
}

/// Returns `true` if the client library itself refused the call, such as a parameter of the wrong type. The library does not export
/// the kinds of its errors, only their texts.
fn is_caller_fault(error: &tokio_postgres::Error) -> bool {
    let text = error.to_string();
    text.starts_with("error serializing parameter") || text.starts_with("error deserializing column")
}

/// Returns the texts of an error and its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_tell_the_next_step() {
        for (code, expected) in [
            ("40001", Class::Busy),
            ("40P01", Class::Busy),
            ("53300", Class::Busy),
            ("53100", Class::Busy),
            ("55P03", Class::Busy),
            ("57P01", Class::Unreachable),
            ("57P03", Class::Unreachable),
            ("08P01", Class::Unreachable),
            ("25006", Class::Unreachable),
            ("25P03", Class::Unreachable),
            ("28P01", Class::Denied),
            ("42501", Class::Denied),
            ("57014", Class::Deadline),
            ("23505", Class::Refused),
            ("42P01", Class::Refused),
            ("3D000", Class::Refused),
        ] {
            assert_eq!(class(&SqlState::from_code(code)), expected, "{code}");
        }
    }

    #[test]
    fn a_commit_without_an_answer_has_an_unknown_fate() {
        assert_eq!(DatabaseError::Deadline.of_commit(), DatabaseError::UnknownFate);
        assert_eq!(DatabaseError::lost().of_commit(), DatabaseError::UnknownFate);
        let busy = DatabaseError::Busy { code: "40001".into(), message: "conflict".into() };
        assert_eq!(busy.clone().of_commit(), busy);
    }
}
