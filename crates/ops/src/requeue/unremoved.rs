//! Messages whose copies were sent, and that could not be removed. No I/O.

use std::collections::HashMap;

/// The messages, counted by identity. If such a message is received again, it must not be sent again.
#[derive(Debug, Default)]
pub(super) struct Unremoved(HashMap<String, u64>);

impl Unremoved {
    /// Adds a message.
    pub(super) fn add(&mut self, identity: String) {
        *self.0.entry(identity).or_default() += 1;
    }

    /// Takes a message out, because it was received again. Returns `false` if none with this identity is among them.
    pub(super) fn take(&mut self, identity: &str) -> bool {
        let Some(count) = self.0.get_mut(identity) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(identity);
        }
        true
    }

    /// Returns the number of messages.
    pub(super) fn count(&self) -> u64 {
        self.0.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A third one with the same identity is another message, which was not sent.
    #[test]
    fn equal_messages_are_counted_one_by_one() {
        let mut unremoved = Unremoved::default();
        for identity in ["a", "a", "b"] {
            unremoved.add(identity.to_owned());
        }
        assert_eq!([(); 3].map(|()| unremoved.take("a")), [true, true, false]);
        assert_eq!((unremoved.count(), unremoved.take("b"), unremoved.count()), (1, true, 0));
    }
}
