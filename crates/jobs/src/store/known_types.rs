//! The numbers of types that this process has asked the database for. No I/O.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The most types that are remembered. Beyond it, all are forgotten, and asked for again.
const MOST: usize = 10_000;

/// Time for which a type that no job has is not asked for again.
const UNKNOWN: Duration = Duration::from_millis(250);

/// The types, whose numbers never change.
#[derive(Debug, Default)]
pub(crate) struct KnownTypes {
    numbers: HashMap<String, i32>,
    /// Types that the database did not know, with the time at which it was asked.
    unknown: HashMap<String, Instant>,
}

impl KnownTypes {
    /// Returns the number of a type.
    pub(crate) fn number(&self, name: &str) -> Option<i32> {
        self.numbers.get(name).copied()
    }

    /// Tells whether the database has just said that it does not know a type.
    pub(crate) fn is_unknown(&self, name: &str, now: Instant) -> bool {
        self.unknown.get(name).is_some_and(|asked| now.saturating_duration_since(*asked) < UNKNOWN)
    }

    /// Adds numbers of types.
    pub(crate) fn learn(&mut self, numbers: &[(String, i32)]) {
        if self.numbers.len() + numbers.len() > MOST {
            self.numbers.clear();
        }
        for (name, number) in numbers {
            self.unknown.remove(name);
            self.numbers.insert(name.clone(), *number);
        }
    }

    /// Notes that the database does not know a type.
    pub(crate) fn miss(&mut self, name: &str, now: Instant) {
        if self.unknown.len() >= MOST {
            self.unknown.clear();
        }
        self.unknown.insert(name.to_owned(), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_remembered_within_a_bound() {
        let mut types = KnownTypes::default();
        for number in 0..25_000 {
            types.learn(&[(number.to_string(), number)]);
            types.miss(&format!("x{number}"), Instant::now());
        }
        assert_eq!(types.number("24999"), Some(24_999));
        assert!(types.numbers.len() <= MOST && types.unknown.len() <= MOST);
    }

    #[test]
    fn an_unknown_type_is_asked_for_again_after_a_while() {
        let (mut types, now) = (KnownTypes::default(), Instant::now());
        assert!(!types.is_unknown("a", now));
        types.miss("a", now);
        assert!(types.is_unknown("a", now) && !types.is_unknown("a", now + UNKNOWN));
        types.learn(&[("a".to_owned(), 1)]);
        assert!(!types.is_unknown("a", now));
    }
}
