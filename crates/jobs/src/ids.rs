//! The ids of items and assignments, as text and as numbers.
//!
//! An id is written in one way only, so that two ids are equal exactly if their texts are.

use std::fmt;

/// An item's place: the day of its tree, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ItemRef {
    /// Days since 1970-01-01, UTC.
    pub day: i32,
    /// The item's number.
    pub seq: i64,
}

/// The bits of an item's number below the number of its database.
const SHARD_BITS: u32 = 48;

impl ItemRef {
    /// The number of the item's database, where there are several: 0 otherwise.
    pub fn shard(self) -> usize {
        usize::try_from(self.seq >> SHARD_BITS).unwrap_or_default()
    }

    /// Reads `i-<day>-<number>`, both in hexadecimal digits.
    pub fn parse(id: &str) -> Option<ItemRef> {
        let (day, seq) = id.strip_prefix("i-")?.split_once('-')?;
        Some(ItemRef { day: i32::try_from(hex(day)?).ok()?, seq: i64::try_from(hex(seq)?).ok()? })
    }
}

impl fmt::Display for ItemRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "i-{:x}-{:x}", self.day, self.seq)
    }
}

/// An assignment: an item, and a number that no other assignment of the item has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AssignmentRef {
    /// The item.
    pub item: ItemRef,
    /// The number.
    pub token: i64,
}

impl AssignmentRef {
    /// Reads `a-<day>-<number>-<token>`, all in hexadecimal digits.
    pub fn parse(id: &str) -> Option<AssignmentRef> {
        let (day, rest) = id.strip_prefix("a-")?.split_once('-')?;
        let (seq, token) = rest.split_once('-')?;
        let item = ItemRef { day: i32::try_from(hex(day)?).ok()?, seq: i64::try_from(hex(seq)?).ok()? };
        Some(AssignmentRef { item, token: hex(token)?.cast_signed() })
    }
}

impl fmt::Display for AssignmentRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a-{:x}-{:x}-{:x}", self.item.day, self.item.seq, self.token)
    }
}

/// Reads lower-case hexadecimal digits without leading zeros.
fn hex(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let shortest = digits == "0" || !digits.starts_with('0');
    if plain && shortest { u64::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        for (day, seq, token) in [(0, 1, 0), (20_783, 5_000_000_000, -1), (i32::MAX, i64::MAX, i64::MIN)] {
            let item = ItemRef { day, seq };
            let assignment = AssignmentRef { item, token };
            assert_eq!(ItemRef::parse(&item.to_string()), Some(item));
            assert_eq!(AssignmentRef::parse(&assignment.to_string()), Some(assignment));
        }
    }

    #[test]
    fn other_texts_are_not_ids() {
        for text in ["", "i-", "i-1", "i-1-", "i--1", "i-01-1", "i-1-A", "i-+1-1", "i-1-1-1", "i-80000000-1", "j-1-1"] {
            assert_eq!(ItemRef::parse(text), None, "{text}");
        }
        for text in ["a-1-1", "a-1-1-", "a-1-1-1-1", "a-1-1-10000000000000000", "i-1-1-1"] {
            assert_eq!(AssignmentRef::parse(text), None, "{text}");
        }
    }
}
