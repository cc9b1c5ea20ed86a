//! How many files and connections the process may have open at a time.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Nobody needs more, and some systems have no limit at all.
const ENOUGH: u64 = 1 << 20;

/// Raises the limit as far as the process itself may.
///
/// What most systems set is low (1024) for the sake of programs that call select(2), which knows no descriptor beyond; hostler
/// does not. Guests with folders and requests share it: one that opens all it can would make its neighbours' messages fail.
pub fn raise_descriptors() {
    let now = getrlimit(Resource::Nofile);
    let Some(raised) = raised(&now) else { return };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::debug!(from = now.current, to = raised.current, "limit of open files raised"),
        Err(error) => tracing::debug!(%error, "the limit of open files cannot be raised"),
    }
}

/// The limit as it should be, if it is lower.
fn raised(now: &Rlimit) -> Option<Rlimit> {
    let to = now.maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    let is_lower = now.current.is_some_and(|current| current < to);
    is_lower.then_some(Rlimit { current: Some(to), maximum: now.maximum })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_as_far_as_it_may_and_never_lowered() {
        let to = |current, maximum| raised(&Rlimit { current, maximum }).map(|limit| (limit.current, limit.maximum));
        assert_eq!(to(Some(1024), Some(4096)), Some((Some(4096), Some(4096))));
        assert_eq!(to(Some(1024), Some(1 << 30)), Some((Some(ENOUGH), Some(1 << 30))));
        assert_eq!(to(Some(1024), None), Some((Some(ENOUGH), None)));
        assert_eq!(to(Some(4096), Some(4096)), None);
        assert_eq!(to(Some(1 << 30), Some(1 << 30)), None);
        assert_eq!(to(None, None), None);
    }
}
