//! Code of compiled functions, for engines that compile many variants of a handler.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use wasmtime::CacheStore;

/// Code by a digest of the function and of all settings that it depends on.
#[derive(Default)]
pub(super) struct Functions(Mutex<HashMap<Vec<u8>, Vec<u8>>>);

impl CacheStore for Functions {
    fn get(&self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned().map(Cow::Owned)
    }

    fn insert(&self, key: &[u8], value: Vec<u8>) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_vec(), value);
        true
    }
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Functions").finish_non_exhaustive()
    }
}
