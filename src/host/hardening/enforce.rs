//! Enforces restrictions through the kernel. Landlock restricts access to files, and seccomp restricts system calls. Both apply
//! to the calling thread and to all threads that it starts later. Both can also apply to threads that already exist in the
//! process, but Landlock needs a recent kernel for that.

use landlock::{
    ABI, Access as _, AccessFs, LandlockStatus, RestrictSelf, RestrictSelfAttr as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use super::calls::Filters;
use super::files::Rule;

/// Newest Landlock ABI that hostler uses. On a kernel with an older ABI, the restrictions that the kernel does not support have
/// no effect.
const NEWEST: ABI = ABI::V6;

/// Oldest Landlock ABI that protects files fully. Older versions cannot prevent a thread from truncating files.
pub(super) const LEAST: ABI = ABI::V3;

/// Threads to restrict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Threads {
    /// All threads of the process. On kernels where Landlock cannot restrict all threads, it restricts the calling thread only.
    All,
    /// Calling thread only.
    This,
}

/// Returns the Landlock ABI of this kernel. `None`: the kernel has no Landlock.
pub(super) fn landlock_here() -> Option<ABI> {
    // Without a flag and without a ruleset, this call changes nothing. It returns the Landlock status of the kernel.
    let status = RestrictSelf::default().no_new_privs(false).apply().ok()?;
    match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Some(effective_abi),
        _ => None,
    }
}

/// Returns true if this kernel supports seccomp filters, according to `/proc`.
pub(super) fn seccomp_here() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Seccomp_filters:") || line.starts_with("Seccomp:"))
}

/// Restricts file access to what these rules allow. Returns true if the kernel enforces at least a part of the rules.
///
/// # Errors
/// The kernel supports Landlock, but refuses the rules.
pub(super) fn restrict_files(rules: &[Rule], threads: Threads) -> Result<bool, RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut write = AccessFs::from_all(NEWEST);
    write.remove(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let paths =
        |writable: bool| rules.iter().filter(move |rule| rule.writable == writable).map(|rule| rule.path.as_path());
    let restricted = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(paths(false), read))?
        .add_rules(path_beneath_rules(paths(true), write))?
        .all_threads(threads == Threads::All)?
        .restrict_self()?;
    Ok(restricted.ruleset != RulesetStatus::NotEnforced)
}

/// Installs these system call filters. Also sets `no_new_privs`. After this call, running a program can no longer give the
/// process more rights.
///
/// # Errors
/// The kernel does not support seccomp filters, or does not permit their installation.
pub(super) fn restrict_calls(filters: &Filters, threads: Threads) -> Result<(), seccompiler::Error> {
    filters.iter().try_for_each(|filter| match threads {
        Threads::All => seccompiler::apply_filter_all_threads(filter),
        Threads::This => seccompiler::apply_filter(filter),
    })
}
