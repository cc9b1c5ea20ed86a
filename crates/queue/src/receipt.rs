//! The right to settle a delivery, and to extend its lease.

use std::sync::Arc;

/// The right to settle one delivery. It cannot be cloned and settling consumes it, so nothing is settled twice.
#[derive(Debug, PartialEq, Eq)]
pub struct Receipt(LeaseHandle);

impl Receipt {
    /// A receipt from a driver's own text for it.
    pub fn new(handle: impl Into<Arc<str>>) -> Self {
        Self(LeaseHandle(handle.into()))
    }

    /// What is needed to extend the lease, and no more.
    pub fn lease(&self) -> LeaseHandle {
        self.0.clone()
    }

    /// The driver's own text for it.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// Names a lease in order to extend it; it does not allow settling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseHandle(Arc<str>);

impl LeaseHandle {
    /// The driver's own text for it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
