//! The rights to settle a delivery and to extend its lease.

use std::sync::Arc;
use std::time::Duration;

use crate::commit::Commit;

/// The right to settle a delivery. A delivery is settled only once: a receipt cannot be cloned, and settling consumes
/// the receipt.
#[derive(Debug, PartialEq, Eq)]
pub struct Receipt {
    lease: LeaseHandle,
    report: Option<Box<Report>>,
}

/// The end of a handler's work, for a service that does more with it than to settle the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The handler has succeeded, and the ack makes these changes in its transaction. Only for queues whose broker has
    /// [`records`](crate::Broker::records).
    Commit(Arc<Commit>),
    /// The handler has succeeded with this result. Only for a service that decides about retries itself
    /// ([`Queue::decides_retries`](crate::Queue::decides_retries)), as is [`Self::Failure`].
    Result(Vec<u8>),
    /// The handler has failed.
    Failure {
        /// The reason.
        reason: String,
        /// Delay that the handler asks for. `None`: the service chooses the delay.
        retry_in: Option<Duration>,
    },
}

impl Receipt {
    /// Creates a receipt from the driver's handle.
    pub fn new(handle: impl Into<Arc<str>>) -> Self {
        Self { lease: LeaseHandle(handle.into()), report: None }
    }

    /// Adds the report that the settlement carries to the service.
    #[must_use]
    pub fn with_report(self, report: Report) -> Self {
        Self { report: Some(Box::new(report)), ..self }
    }

    /// Returns the report that the settlement carries. `None`: the settlement says all.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_deref()
    }

    /// Returns a handle that can only extend the lease.
    pub fn lease(&self) -> LeaseHandle {
        self.lease.clone()
    }

    /// Returns the driver's handle.
    pub fn as_str(&self) -> &str {
        self.lease.as_str()
    }
}

/// A handle that can extend a lease but cannot settle the delivery.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseHandle(Arc<str>);

impl LeaseHandle {
    /// Returns the driver's handle.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
