//! Enforcement by the kernel: Landlock for files, seccomp for system calls. Both hold for the calling thread and all that it
//! starts from then on; seccomp, and Landlock where the kernel can, for the threads that there are as well.

use landlock::{
    ABI, Access as _, AccessFs, LandlockStatus, RestrictSelf, RestrictSelfAttr as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use super::calls::Filters;
use super::files::Rule;

/// The newest interface that is used; what an older kernel lacks of it is left out.
const NEWEST: ABI = ABI::V6;

/// The oldest that covers files whole: the ones before let anybody truncate them.
pub(super) const LEAST: ABI = ABI::V3;

/// Which threads are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Threads {
    /// Every one of the process, as far as the kernel can.
    All,
    /// The calling one.
    This,
}

/// The interface of Landlock that this kernel has. `None`: no Landlock.
pub(super) fn landlock_here() -> Option<ABI> {
    // Without a flag and without a ruleset this changes nothing, and tells what there is.
    let status = RestrictSelf::default().no_new_privs(false).apply().ok()?;
    match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Some(effective_abi),
        _ => None,
    }
}

/// Whether this kernel has seccomp filters, as `/proc` tells.
pub(super) fn seccomp_here() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Seccomp_filters:") || line.starts_with("Seccomp:"))
}

/// Leaves these files and folders.
///
/// # Errors
/// Landlock is there and refuses.
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

/// Refuses these system calls; no program can give the process more rights any more.
///
/// # Errors
/// The kernel has no seccomp filters, or does not let them be installed.
pub(super) fn restrict_calls(filters: &Filters, threads: Threads) -> Result<(), seccompiler::Error> {
    filters.iter().try_for_each(|filter| match threads {
        Threads::All => seccompiler::apply_filter_all_threads(filter),
        Threads::This => seccompiler::apply_filter(filter),
    })
}
