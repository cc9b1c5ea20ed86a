//! Leases of the messages that a command has taken. No I/O.

use std::collections::BTreeMap;

use hostler_queue::{LeaseError, LeaseHandle, Receipt};
use tokio::time::Instant;

/// The leases of one channel at a time. A receipt is `channel:tag`: the number of the channel keeps a receipt from settling
/// another message after a reconnect.
#[derive(Debug, Default)]
pub(super) struct Leases {
    channel: u64,
    /// Ends of the leases, by the tags of the messages.
    ends: BTreeMap<u64, Instant>,
}

impl Leases {
    /// Begins the lease of a message.
    pub(super) fn begin(&mut self, tag: u64, until: Instant) -> Receipt {
        self.ends.insert(tag, until);
        Receipt::new(format!("{}:{tag}", self.channel))
    }

    /// Ends all leases, because their channel has ended.
    pub(super) fn end_all(&mut self) {
        self.ends.clear();
        self.channel += 1;
    }

    /// Removes the leases that have ended, and returns their messages.
    pub(super) fn ended(&mut self, now: Instant) -> Vec<u64> {
        self.ends.extract_if(.., |_, until| *until <= now).map(|(tag, _)| tag).collect()
    }

    /// Extends a lease.
    ///
    /// # Errors
    /// [`LeaseError::Lost`]: the lease has ended.
    pub(super) fn extend(&mut self, lease: &LeaseHandle, until: Instant, now: Instant) -> Result<(), LeaseError> {
        let tag = self.leased(lease, now)?;
        self.ends.insert(tag, until);
        Ok(())
    }

    /// Ends a lease, because its message is settled. Returns the message.
    ///
    /// # Errors
    /// [`LeaseError::Lost`]: the lease has ended.
    pub(super) fn settle(&mut self, receipt: &Receipt, now: Instant) -> Result<u64, LeaseError> {
        let tag = self.leased(&receipt.lease(), now)?;
        self.ends.remove(&tag);
        Ok(tag)
    }

    fn leased(&self, lease: &LeaseHandle, now: Instant) -> Result<u64, LeaseError> {
        let parts = lease.as_str().split_once(':');
        let tag =
            parts.filter(|(channel, _)| channel.parse() == Ok(self.channel)).and_then(|(_, tag)| tag.parse().ok());
        let is_held = |tag: &u64| self.ends.get(tag).is_some_and(|until| *until > now);
        let lost = || LeaseError::Lost("it has ended, the connection was lost, or the message was settled".to_owned());
        tag.filter(is_held).ok_or_else(lost)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    #[test]
    fn a_message_is_settled_once_and_only_while_its_lease_lasts() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        let (one, two) = (leases.begin(1, now + LEASE), leases.begin(2, now + LEASE));
        assert_eq!((leases.settle(&one, now), leases.settle(&one, now).is_err()), (Ok(1), true));
        assert_eq!(leases.extend(&two.lease(), now + 2 * LEASE, now), Ok(()));
        assert_eq!(leases.ended(now + LEASE), [0; 0]);
        assert!(leases.settle(&two, now + 2 * LEASE).is_err());
        assert_eq!(leases.ended(now + 2 * LEASE), [2]);
        assert!(leases.extend(&two.lease(), now + 3 * LEASE, now).is_err());
    }

    #[test]
    fn a_receipt_of_an_ended_channel_settles_nothing() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        let old = leases.begin(1, now + LEASE);
        leases.end_all();
        leases.begin(1, now + LEASE);
        assert!(leases.settle(&old, now).is_err());
    }
}
