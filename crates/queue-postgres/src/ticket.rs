//! Receipts: a message, and the lease under which it was taken.

use hostler_queue::{LeaseError, Receipt};

/// Identifies a message and a lease. A later receive replaces the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) queue: i32,
    pub(super) seq: i64,
    pub(super) lease: i64,
}

impl Ticket {
    /// Reads a receipt.
    ///
    /// # Errors
    /// [`LeaseError::Lost`] if the receipt is not from this driver.
    pub(super) fn parse(text: &str) -> Result<Self, LeaseError> {
        let read = |text: &str| {
            let mut parts = text.splitn(3, '.');
            let (queue, seq, lease) = (parts.next()?, parts.next()?, parts.next()?);
            Some(Self { queue: queue.parse().ok()?, seq: seq.parse().ok()?, lease: lease.parse().ok()? })
        };
        read(text).ok_or_else(lost)
    }

    pub(super) fn receipt(&self) -> Receipt {
        Receipt::new(format!("{}.{}.{}", self.queue, self.seq, self.lease))
    }
}

/// Returns the error of a lease that is no longer valid.
pub(super) fn lost() -> LeaseError {
    LeaseError::Lost("it has ended, or the message was settled".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_survive() {
        let ticket = Ticket { queue: 1, seq: 2, lease: -3 };
        assert_eq!(Ticket::parse(ticket.receipt().as_str()), Ok(ticket));
        for wrong in ["", "1.2", "a.2.3", "no receipt of this queue"] {
            assert!(Ticket::parse(wrong).is_err(), "{wrong}");
        }
    }
}
