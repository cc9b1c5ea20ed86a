//! Open connections, and the times since which they have no request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

/// The open connections of a server. Clones share them.
#[derive(Clone, Default)]
pub(super) struct IdleConnections(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u64,
    open: HashMap<u64, Open>,
}

struct Open {
    /// `None`: a request is under way.
    idle_since: Option<Instant>,
    close: CancellationToken,
}

/// An open connection. Dropping the last clone ends it.
#[derive(Clone)]
pub(super) struct Entry {
    /// Cancelled when the connection is to end because others need its place.
    pub(super) close: CancellationToken,
    place: Arc<Place>,
}

struct Place {
    all: IdleConnections,
    number: u64,
}

/// A request under way. Dropping this value makes its connection idle.
pub(super) struct Busy(Arc<Place>);

impl IdleConnections {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection, which is idle.
    pub(super) fn enter(&self) -> Entry {
        let (mut state, close) = (self.lock(), CancellationToken::new());
        let number = state.next;
        state.next += 1;
        state.open.insert(number, Open { idle_since: Some(Instant::now()), close: close.clone() });
        drop(state);
        Entry { close, place: Arc::new(Place { all: self.clone(), number }) }
    }

    /// Asks the connection that has been idle for longest to close, unless one is closing already or none is idle.
    pub(super) fn close_longest(&self) {
        let state = self.lock();
        let idle = state.open.iter().filter_map(|(number, open)| Some((open.idle_since?, *number, &open.close)));
        if let Some((_, _, close)) = idle.min_by_key(|(since, number, close)| (!close.is_cancelled(), *since, *number))
        {
            close.cancel();
        }
    }
}

impl Entry {
    /// Begins a request.
    pub(super) fn busy(&self) -> Busy {
        self.place.set(None);
        Busy(Arc::clone(&self.place))
    }
}

impl Place {
    fn set(&self, idle_since: Option<Instant>) {
        if let Some(open) = self.all.lock().open.get_mut(&self.number) {
            open.idle_since = idle_since;
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.set(Some(Instant::now()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_connection_closes_one_at_a_time() {
        let all = IdleConnections::default();
        let (first, second, third) = (all.enter(), all.enter(), all.enter());
        let busy = first.busy();
        all.close_longest();
        all.close_longest();
        let closed = [&first, &second, &third].map(|entry| entry.close.is_cancelled());
        assert_eq!(closed, [false, true, false]);
        drop((second, third));
        all.close_longest();
        assert!(!first.close.is_cancelled(), "it has a request");
        drop(busy);
        all.close_longest();
        assert!(first.close.is_cancelled());
        drop(first);
        assert!(all.lock().open.is_empty());
    }
}
