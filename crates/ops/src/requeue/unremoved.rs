//! Messages whose copies were sent, and that could not be removed. No I/O.

use std::collections::HashSet;

/// The messages that could not be removed.
#[derive(Debug)]
pub(super) enum Unremoved {
    /// Their ids. If such a message is received again, it is removed and not sent again.
    Known(HashSet<String>),
    /// Their number, if several messages of the queue may have the same id. A removal that failed may yet have taken effect, and what is
    /// received next is then another, equal message. So every message is sent: one may be doubled, but none is lost.
    Counted(u64),
}

impl Unremoved {
    /// Creates an empty record. `ids_repeat`: several messages of the queue may have the same id.
    pub(super) fn new(ids_repeat: bool) -> Self {
        if ids_repeat { Self::Counted(0) } else { Self::Known(HashSet::new()) }
    }

    /// Adds a message, because it could not be removed.
    pub(super) fn add(&mut self, id: &str) {
        match self {
            Self::Known(ids) => drop(ids.insert(id.to_owned())),
            Self::Counted(count) => *count += 1,
        }
    }

    /// Takes a message out, because it was removed.
    pub(super) fn removed(&mut self, id: &str) {
        if let Self::Known(ids) = self {
            ids.remove(id);
        }
    }

    /// Returns `true` if this message was sent and is certainly not removed.
    pub(super) fn contains(&self, id: &str) -> bool {
        matches!(self, Self::Known(ids) if ids.contains(id))
    }

    /// Returns the number of messages.
    pub(super) fn count(&self) -> u64 {
        match self {
            Self::Known(ids) => ids.len() as u64,
            Self::Counted(count) => *count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service may deliver the message a second time before the removal is confirmed.
    #[test]
    fn a_message_stays_known_until_it_is_removed() {
        let mut unremoved = Unremoved::new(false);
        unremoved.add("a");
        unremoved.add("a");
        assert_eq!([(); 2].map(|()| unremoved.contains("a")), [true, true]);
        assert_eq!((unremoved.contains("b"), unremoved.count()), (false, 1));
        unremoved.removed("a");
        assert_eq!((unremoved.contains("a"), unremoved.count()), (false, 0));
    }

    #[test]
    fn a_message_is_never_taken_for_an_equal_one() {
        let mut unremoved = Unremoved::new(true);
        unremoved.add("a");
        unremoved.removed("a");
        assert_eq!((unremoved.contains("a"), unremoved.count()), (false, 1));
    }
}
