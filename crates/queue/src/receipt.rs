//! The right to settle a delivery or to extend its lease.

use std::sync::Arc;

/// The right to settle one delivery. It cannot be cloned, and settling consumes it, so a delivery is settled only once.
#[derive(Debug, PartialEq, Eq)]
pub struct Receipt(LeaseHandle);

impl Receipt {
    /// Returns a receipt that holds the driver's own text.
    pub fn new(handle: impl Into<Arc<str>>) -> Self {
        Self(LeaseHandle(handle.into()))
    }

    /// Returns a handle that can only extend the lease.
    pub fn lease(&self) -> LeaseHandle {
        self.0.clone()
    }

    /// Returns the driver's own text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// A handle that can extend a lease but not settle it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseHandle(Arc<str>);

impl LeaseHandle {
    /// Returns the driver's own text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
