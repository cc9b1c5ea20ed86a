//! The reasons for which a measurement ends without a figure.

/// A measurement that failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The service cannot be reached, or hung up.
    #[error("the job service: {0}")]
    Connection(#[from] std::io::Error),
    /// The service refused a call.
    #[error("{call} was answered {status}: {body}")]
    Refused { call: String, status: u16, body: String },
    /// The answer has another shape than the API says.
    #[error("an answer has another shape: {0}")]
    Shape(#[from] serde_json::Error),
    /// The database cannot be asked.
    #[error("the database: {0}")]
    Database(#[from] tokio_postgres::Error),
    /// The command or a variable makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Items were lost, or took longer than the measurement waits.
    #[error("{0}")]
    Lost(String),
}
