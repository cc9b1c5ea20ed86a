//! How many files and connections the process may have open at a time, and how many of them each sandbox.

use std::fmt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use hostler_wasm::{MAX_IDLE_PER_ORIGIN, MAX_OPEN, MOST_FILES};

/// Descriptors that are kept for the host: its runtimes, log, health file and queue.
const RESERVE: u64 = 128;

/// The same for each consumer: connections of its receives, heartbeats and settlements.
const RESERVE_PER_CONSUMER: u64 = 16;

/// A sandbox with folders that may have fewer files open than this is told of at the start.
const COMFORTABLE: usize = 32;

/// A sandbox with folders may have so many files open, however scarce they are.
const LEAST: usize = 4;

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

/// What one consumer's guests may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handles {
    /// Sandboxes that exist at once.
    pub sandboxes: u64,
    /// Folders that each of them has open.
    pub folders: u64,
    /// HTTP origins that they may send to.
    pub origins: u64,
}

/// How many files each sandbox may have open, so that all of them together leave the host its reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePlan {
    /// Files that each sandbox with folders may have open.
    pub files: usize,
    /// The limit of the process.
    limit: u64,
}

impl FilePlan {
    /// The plan for these consumers by the limit of the process.
    pub fn measure(consumers: &[Handles]) -> Self {
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(ENOUGH), consumers)
    }

    fn of(limit: u64, consumers: &[Handles]) -> Self {
        let reserve = RESERVE + RESERVE_PER_CONSUMER * consumers.len() as u64;
        let taken = consumers.iter().map(|consumer| {
            let requests = if consumer.origins > 0 { MAX_OPEN } else { 0 };
            let idle = consumer.origins.saturating_mul(MAX_IDLE_PER_ORIGIN as u64);
            consumer.sandboxes.saturating_mul(consumer.folders + requests).saturating_add(idle)
        });
        let room = limit.saturating_sub(taken.fold(reserve, u64::saturating_add));
        let sharing = consumers.iter().filter(|consumer| consumer.folders > 0).map(|consumer| consumer.sandboxes);
        let share = room.checked_div(sharing.fold(0, u64::saturating_add));
        let share = share.and_then(|share| usize::try_from(share).ok());
        Self { files: share.unwrap_or(MOST_FILES).clamp(LEAST, MOST_FILES), limit }
    }

    /// What a person should know if there are few.
    pub fn warning(&self) -> Option<impl fmt::Display> {
        let Self { files, limit } = self;
        (*files < COMFORTABLE).then(|| {
            format!(
                "a sandbox may have only {files} files open, as the process may have {limit} in all: raise the limit of open files \
                 (`ulimit -n`, or `ulimits` of the container), or lower concurrency"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_shared_out_so_that_the_host_keeps_its_reserve() {
        let folders = |sandboxes| Handles { sandboxes, folders: 1, origins: 0 };
        let plain = |sandboxes| Handles { folders: 0, ..folders(sandboxes) };
        let files = |limit, consumers: &[Handles]| FilePlan::of(limit, consumers).files;
        assert_eq!(files(1024, &[plain(20), folders(7)]), 122);
        assert_eq!(files(ENOUGH, &[folders(20)]), MOST_FILES);
        assert_eq!(files(1024, &[plain(1_000)]), MOST_FILES);
        assert_eq!(files(1024, &[folders(1_000)]), LEAST);
        assert!(FilePlan::of(1024, &[folders(1_000)]).warning().unwrap().to_string().contains("only 4 files"));
        assert!(FilePlan::of(1024, &[folders(20)]).warning().is_none());
        let http = Handles { origins: 2, ..folders(4) };
        for (limit, consumers) in
            [(1024, vec![folders(20)]), (1024, vec![http, folders(7), plain(20)]), (4096, vec![folders(50); 2])]
        {
            let plan = FilePlan::of(limit, &consumers);
            let taken = |one: &Handles| match one {
                Handles { folders: 0, .. } => 0,
                one => one.sandboxes * (1 + plan.files as u64 + if one.origins > 0 { MAX_OPEN } else { 0 }),
            };
            let taken: u64 = consumers.iter().map(taken).sum();
            assert!(taken + RESERVE <= limit, "{consumers:?}");
        }
    }

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
