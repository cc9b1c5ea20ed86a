//! Enforcement by the kernel: Landlock for files, seccomp for system calls. Both apply to the calling thread and all threads it
//! starts from then on; seccomp, and Landlock where the kernel supports it, also to existing threads.

use landlock::{
    ABI, Access as _, AccessFs, LandlockStatus, RestrictSelf, RestrictSelfAttr as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use super::calls::Filters;
use super::files::Rule;

/// The newest interface that is used; parts that an older kernel lacks are left out.
const NEWEST: ABI = ABI::V6;

/// The oldest interface that protects files fully: with earlier ones anyone can truncate them.
pub(super) const LEAST: ABI = ABI::V3;

/// The threads to restrict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Threads {
    /// All threads of the process, as far as the kernel supports it.
    All,
    /// The calling thread.
    This,
}

/// Returns the Landlock interface of this kernel; `None` without Landlock.
pub(super) fn landlock_here() -> Option<ABI> {
    // Without a flag and a ruleset this changes nothing, and returns the kernel's status.
    let status = RestrictSelf::default().no_new_privs(false).apply().ok()?;
    match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Some(effective_abi),
        _ => None,
    }
}

/// Returns true if this kernel has seccomp filters, according to `/proc`.
pub(super) fn seccomp_here() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Seccomp_filters:") || line.starts_with("Seccomp:"))
}

/// Restricts access to these files and folders. Returns true if Landlock enforces it at least in part.
///
/// # Errors
/// Landlock is available but refuses.
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

/// Refuses these system calls. From then on, no program can give the process more rights.
///
/// # Errors
/// The kernel has no seccomp filters, or does not allow installing them.
pub(super) fn restrict_calls(filters: &Filters, threads: Threads) -> Result<(), seccompiler::Error> {
    filters.iter().try_for_each(|filter| match threads {
        Threads::All => seccompiler::apply_filter_all_threads(filter),
        Threads::This => seccompiler::apply_filter(filter),
    })
}
