//! Decides what a look-up of secrets changes. Performs no I/O.

use std::collections::{BTreeMap, BTreeSet};

use hostler_secrets::{Found, LookupError};
use hostler_types::secret::{SecretRef, SecretValue};

/// The last known values of secrets, and the secrets whose last look-up failed.
#[derive(Debug, Default)]
pub(super) struct Known {
    values: BTreeMap<SecretRef, SecretValue>,
    failing: BTreeSet<SecretRef>,
}

/// Change that a look-up brings to one secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// The secret has another value.
    Renewed,
    /// The look-up fails, after one that did not. The last value stays.
    Failing(LookupError),
    /// The look-up succeeds, after one that failed.
    Recovered,
}

impl Known {
    /// Returns the last known value of a secret.
    pub(super) fn value(&self, reference: &SecretRef) -> Option<&SecretValue> {
        self.values.get(reference)
    }

    /// Takes over the values of a look-up. Keeps the last value of a secret that has none in it. Returns the changes by secret, in
    /// their order. A first value is no change.
    pub(super) fn update(&mut self, found: Found) -> Vec<(SecretRef, Change)> {
        let mut changes = Vec::new();
        for (reference, found) in found {
            match found {
                Ok(value) => {
                    if self.failing.remove(&reference) {
                        changes.push((reference.clone(), Change::Recovered));
                    }
                    let before = self.values.insert(reference.clone(), value.clone());
                    if before.is_some_and(|before| before != value) {
                        changes.push((reference, Change::Renewed));
                    }
                }
                Err(error) => {
                    if self.failing.insert(reference.clone()) {
                        changes.push((reference, Change::Failing(error)));
                    }
                }
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference() -> SecretRef {
        "file:/a".parse().unwrap()
    }

    #[test]
    fn the_last_value_stays_and_each_change_is_told_once() {
        let mut known = Known::default();
        let mut update = |found: Result<&str, LookupError>| {
            let changes = known.update([(reference(), found.map(SecretValue::from))].into());
            let changes: Vec<_> = changes.into_iter().map(|(_, change)| change).collect();
            (known.value(&reference()).map(|value| value.expose().to_owned()), changes)
        };
        let broken = LookupError::Lasting { fault: "no".into(), cure: "mount it" };
        let value = |text: &str| Some(text.to_owned());
        assert_eq!(update(Ok("1")), (value("1"), vec![]));
        assert_eq!(update(Ok("1")), (value("1"), vec![]));
        assert_eq!(update(Ok("2")), (value("2"), vec![Change::Renewed]));
        assert_eq!(update(Err(broken.clone())), (value("2"), vec![Change::Failing(broken.clone())]));
        assert_eq!(update(Err(broken.clone())), (value("2"), vec![]));
        assert_eq!(update(Ok("2")), (value("2"), vec![Change::Recovered]));
        assert_eq!(update(Err(broken.clone())), (value("2"), vec![Change::Failing(broken)]));
        assert_eq!(update(Ok("3")), (value("3"), vec![Change::Recovered, Change::Renewed]));
    }
}
