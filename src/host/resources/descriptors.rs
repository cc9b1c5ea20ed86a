//! Limits on open files and connections, for the process and for each sandbox.

use std::fmt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use hostler_wasm::{MAX_IDLE_PER_ORIGIN, MAX_OPEN, MOST_FILES};

/// Number of descriptors in the host's reserve: for its runtimes, log, health file and queue. The plan for sandboxes leaves this
/// reserve free.
const RESERVE: u64 = 128;

/// Minimum number of descriptors that the host needs besides those of its consumers: for standard streams, log, health file and
/// queue.
const LEAST_RESERVE: u64 = 32;

/// Number of descriptors for each set of guest runtimes.
const RESERVE_PER_SET: u64 = 12;

/// Number of descriptors that each consumer needs for its connections: for receive calls, heartbeats and settlements.
const RESERVE_PER_CONSUMER: u64 = 16;

/// Threshold for a warning: if a sandbox with folders may have fewer files open than this number, the host logs a warning at
/// startup.
const COMFORTABLE: usize = 32;

/// Number of open files that every sandbox with folders is allowed in any case. The plan never allows fewer, even if
/// the limit of the process is very low.
const LEAST: usize = 4;

/// Highest limit on open files that hostler sets. Some systems would permit an unlimited number, but no config needs
/// more than this value.
const ENOUGH: u64 = 1 << 20;

/// Raises the limit on open files as far as the process itself may raise it.
///
/// Most systems set a low limit (1024) for programs that call select(2), because select(2) cannot handle higher descriptors.
/// hostler does not call select(2). Guests with folders, HTTP requests and TCP connections share the limit. Under a low limit, a
/// guest that opens many files could make the messages of other guests fail.
pub(super) fn raise_descriptors() {
    let now = getrlimit(Resource::Nofile);
    let Some(raised) = raised(&now) else { return };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::debug!(from = now.current, to = raised.current, "limit of open files raised"),
        Err(error) => tracing::debug!(%error, "cannot raise the limit of open files"),
    }
}

/// Returns the limit to set instead of the current limit. `None`: the current limit cannot or need not be raised.
fn raised(now: &Rlimit) -> Option<Rlimit> {
    let to = now.maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    let is_lower = now.current.is_some_and(|current| current < to);
    is_lower.then_some(Rlimit { current: Some(to), maximum: now.maximum })
}

/// Files and connections that the guests of one consumer may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handles {
    /// Maximum number of concurrent sandboxes.
    pub sandboxes: u64,
    /// Number of folders that each sandbox has open.
    pub folders: u64,
    /// Number of HTTP origins to which the guests may send requests.
    pub origins: u64,
    /// Maximum number of TCP connections of each sandbox. 0 if the guests may connect to no server.
    pub connections: u64,
}

/// Plan that limits the number of open files per sandbox. If no sandbox exceeds its limit, enough descriptors remain
/// for the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePlan {
    /// Maximum number of open files per sandbox with folders.
    pub files: usize,
    /// The process's limit on open files.
    limit: u64,
}

impl FilePlan {
    /// Computes the plan for these consumers from the process's limit on open files. `sets` is the number of sets of guest
    /// runtimes.
    ///
    /// # Errors
    /// The limit is too low: guests could use descriptors that the host itself needs.
    pub fn measure(consumers: &[Handles], sets: usize) -> Result<Self, TooFewFiles> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(ENOUGH);
        TooFewFiles::of(limit, consumers, sets).map_or(Ok(Self::of(limit, consumers)), Err)
    }

    fn of(limit: u64, consumers: &[Handles]) -> Self {
        let reserve = RESERVE + RESERVE_PER_CONSUMER * consumers.len() as u64;
        let taken = consumers.iter().map(|consumer| consumer.taken(0));
        let room = limit.saturating_sub(taken.fold(reserve, u64::saturating_add));
        let sharing = consumers.iter().filter(|consumer| consumer.folders > 0).map(|consumer| consumer.sandboxes);
        let share = room.checked_div(sharing.fold(0, u64::saturating_add));
        let share = share.and_then(|share| usize::try_from(share).ok());
        Self { files: share.unwrap_or(MOST_FILES).clamp(LEAST, MOST_FILES), limit }
    }

    /// Returns a warning if each sandbox may have only a few files open.
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

impl Handles {
    /// Returns the maximum number of descriptors that the consumer's sandboxes and their connections use. `files` is the number
    /// of open files per sandbox with folders.
    fn taken(&self, files: u64) -> u64 {
        let requests = if self.origins > 0 { MAX_OPEN } else { 0 };
        let files = if self.folders > 0 { files } else { 0 };
        let idle = self.origins.saturating_mul(MAX_IDLE_PER_ORIGIN as u64);
        let each = requests.saturating_add(files).saturating_add(self.connections);
        self.sandboxes.saturating_mul(self.folders.saturating_add(each)).saturating_add(idle)
    }
}

/// Error for a limit on open files that is too low. Guests could use the descriptors that the health file and the queue need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooFewFiles {
    limit: u64,
    /// Number of descriptors that the host needs.
    host: u64,
    /// Minimum number of descriptors that all sandboxes together need.
    guests: u64,
    /// Set if guests of any consumer may send HTTP requests.
    http: bool,
    /// Set if guests of any consumer may connect to servers.
    tcp: bool,
}

impl TooFewFiles {
    fn of(limit: u64, consumers: &[Handles], sets: usize) -> Option<Self> {
        let host = LEAST_RESERVE + RESERVE_PER_CONSUMER * consumers.len() as u64 + RESERVE_PER_SET * sets as u64;
        let guests = consumers.iter().map(|consumer| consumer.taken(LEAST as u64)).fold(0, u64::saturating_add);
        let http = consumers.iter().any(|consumer| consumer.origins > 0);
        let tcp = consumers.iter().any(|consumer| consumer.connections > 0);
        (limit < host.saturating_add(guests)).then_some(Self { limit, host, guests, http, tcp })
    }
}

impl fmt::Display for TooFewFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, host, guests, http, tcp } = self;
        let http = http.then(|| format!("{MAX_OPEN} requests at once for each with allow.http"));
        let tcp = tcp.then(|| "limits.connections for each with allow.tcp".to_owned());
        let each: Vec<_> = http.into_iter().chain(tcp).collect();
        let each = if each.is_empty() { String::new() } else { format!(" ({})", each.join(", ")) };
        let needed = host.saturating_add(*guests);
        write!(
            f,
            "the process may have {limit} files open, and needs {needed}: {host} for hostler itself, and {guests} for what all \
             sandboxes may open{each}\n  cure: raise the limit of open files to {needed} or more (`ulimit -n`, or `ulimits` of the container)"
        )?;
        // If the limit is too low for the host itself, fewer slots do not help.
        if limit > host { f.write_str(", or lower concurrency") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_shared_out_so_that_the_host_keeps_its_reserve() {
        let folders = |sandboxes| Handles { sandboxes, folders: 1, origins: 0, connections: 0 };
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
    fn a_limit_that_guests_could_use_up_is_refused() {
        let folders = |sandboxes| Handles { sandboxes, folders: 1, origins: 0, connections: 0 };
        let refused = |limit, consumers: &[Handles]| TooFewFiles::of(limit, consumers, 1).map(|few| few.to_string());
        for limit in (40..=200).step_by(10) {
            for sandboxes in [1, 4, 8, 20] {
                let taken = folders(sandboxes).taken(FilePlan::of(limit, &[folders(sandboxes)]).files as u64);
                let leaves = limit.checked_sub(taken).is_some_and(|left| left >= 60);
                assert_eq!(refused(limit, &[folders(sandboxes)]).is_none(), leaves, "{limit} {sandboxes}");
            }
        }
        assert_eq!(refused(60, &[Handles { folders: 0, ..folders(20) }]), None, "guests open nothing");
        let text = refused(90, &[folders(20)]).unwrap();
        assert!(text.contains("may have 90 files open, and needs 160: 60 for hostler itself, and 100 for"), "{text}");
        assert!(text.ends_with("or lower concurrency"), "{text}");
        assert!(!refused(59, &[folders(1)]).unwrap().contains("concurrency"));
        let http = Handles { sandboxes: 1, folders: 0, origins: 1, connections: 0 };
        assert!(refused(60 + MAX_OPEN, &[http]).is_some());
        let tcp = Handles { sandboxes: 10, folders: 0, origins: 0, connections: 8 };
        assert!(refused(60 + 80, &[tcp]).is_none());
        assert!(refused(60 + 79, &[tcp]).unwrap().contains("(limits.connections for each with allow.tcp)"));
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
