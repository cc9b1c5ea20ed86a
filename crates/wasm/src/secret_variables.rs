//! Environment variables whose values change while the host runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;

use hostler_types::secret::SecretValue;

/// Values of secrets, by the names of their environment variables.
pub type SecretValues = BTreeMap<String, SecretValue>;

/// Environment variables whose values change while the host runs. A sandbox gets the values of the moment at which its
/// environment is made, and keeps them. Clones share the values. Reading them takes no lock.
#[derive(Clone)]
pub struct SecretVariables(Arc<ArcSwap<SecretValues>>);

impl SecretVariables {
    /// Creates variables with these values.
    pub fn new(values: SecretValues) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(values)))
    }

    /// Gives these values to new sandboxes.
    pub fn set(&self, values: SecretValues) {
        self.0.store(Arc::new(values));
    }

    /// Returns the values for a new sandbox.
    pub(super) fn now(&self) -> Arc<SecretValues> {
        self.0.load_full()
    }
}

impl fmt::Debug for SecretVariables {
    /// Prints the names of the variables without their values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.now().keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(value: &str) -> SecretValues {
        [("TOKEN".to_owned(), SecretValue::from(value))].into()
    }

    #[test]
    fn clones_see_new_values_and_what_was_read_stays() {
        let variables = SecretVariables::new(values("hunter1"));
        let (other, before) = (variables.clone(), variables.now());
        variables.set(values("hunter2"));
        assert_eq!((&*before, &*other.now()), (&values("hunter1"), &values("hunter2")));
        assert_eq!(format!("{variables:?}"), "{\"TOKEN\"}");
    }
}
