//! The rights to settle a delivery and to extend its lease.

use std::sync::Arc;

/// The right to settle a delivery. A delivery is settled only once: a receipt cannot be cloned, and settling consumes
/// the receipt.
#[derive(Debug, PartialEq, Eq)]
pub struct Receipt(LeaseHandle);

impl Receipt {
    /// Creates a receipt from the driver's handle.
    pub fn new(handle: impl Into<Arc<str>>) -> Self {
        Self(LeaseHandle(handle.into()))
    }

    /// Returns a handle that can only extend the lease.
    pub fn lease(&self) -> LeaseHandle {
        self.0.clone()
    }

    /// Returns the driver's handle.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
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
