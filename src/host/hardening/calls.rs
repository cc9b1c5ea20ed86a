//! Kernel filters (seccomp) that block system calls that no part of this process needs. The kernel refuses such a call with
//! EPERM.

use std::collections::BTreeMap;

use libc::{CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS};
use libc::{CLONE_THREAD, ENOSYS, EPERM};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// System calls that are always refused. These system calls affect other processes, the kernel, mounts or namespaces, or bypass
/// the restrictions on files.
const ALWAYS: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_perf_event_open,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_personality,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
];

/// System calls that start programs and processes.
const PROGRAMS: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

const NAMESPACES: [libc::c_int; 7] =
    [CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS];

/// Bit that marks the numbers of the x32 interface on x86-64 kernels. The x32 number of most calls is their usual number plus
/// this bit. The calls in [`X32_ALWAYS`] and [`X32_PROGRAMS`] have other x32 numbers.
#[cfg(target_arch = "x86_64")]
const X32: libc::c_long = 0x4000_0000;
#[cfg(target_arch = "x86_64")]
const X32_ALWAYS: [libc::c_long; 4] = [521, 528, 539, 540];
#[cfg(target_arch = "x86_64")]
const X32_PROGRAMS: [libc::c_long; 2] = [520, 545];

/// Filters in the order in which they are installed.
pub(super) type Filters = Vec<BpfProgram>;

/// Returns the filters for a thread. If `programs` is true, the thread may run programs.
///
/// A filter cannot see the flags of `clone3`. Therefore, `clone3` fails with ENOSYS, as on a kernel that lacks `clone3`. When
/// `clone3` fails with ENOSYS, the C library uses `clone` instead.
///
/// # Errors
/// No filter exists for this architecture.
pub(super) fn filters(programs: bool) -> Result<Filters, String> {
    let text = |error: seccompiler::BackendError| error.to_string();
    let mut denied: BTreeMap<i64, Vec<SeccompRule>> =
        numbers(programs).into_iter().map(|call| (call, Vec::new())).collect();
    for call in aliases(libc::SYS_clone) {
        denied.insert(call, clone_rules(programs).map_err(text)?);
    }
    let unknown = aliases(libc::SYS_clone3).into_iter().map(|call| (call, Vec::new())).collect();
    [(denied, EPERM), (unknown, ENOSYS)].into_iter().map(|(calls, errno)| filter(calls, errno)).collect()
}

fn filter(calls: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<BpfProgram, String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, refuse, arch).map_err(|error| error.to_string())?;
    BpfProgram::try_from(filter).map_err(|error| error.to_string())
}

/// Returns the numbers of all system calls that are refused regardless of their arguments. If `programs` is true, the calls
/// that start programs are not among them.
fn numbers(programs: bool) -> Vec<i64> {
    let more = if programs { &[][..] } else { PROGRAMS };
    #[allow(unused_mut, reason = "other architectures have one interface")]
    let mut numbers: Vec<_> = ALWAYS.iter().chain(more).flat_map(|call| aliases(*call)).collect();
    #[cfg(target_arch = "x86_64")]
    {
        numbers.extend(X32_ALWAYS.map(|call| X32 + call));
        numbers.extend(X32_PROGRAMS.iter().filter(|_| !programs).map(|call| X32 + call));
    }
    numbers
}

/// Returns the numbers of a system call in all system call interfaces of the kernel.
fn aliases(call: libc::c_long) -> Vec<i64> {
    #[cfg(target_arch = "x86_64")]
    return vec![call, X32 + call];
    #[cfg(not(target_arch = "x86_64"))]
    return vec![call];
}

/// Returns rules for `clone` that refuse new namespaces. If `programs` is false, the rules also refuse new processes.
fn clone_rules(programs: bool) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let with = |flag: libc::c_int, set: bool| {
        let flag = u64::from(flag.cast_unsigned());
        let wanted = if set { flag } else { 0 };
        let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), wanted)?;
        SeccompRule::new(vec![condition])
    };
    let namespaces = NAMESPACES.into_iter().map(|flag| with(flag, true));
    let processes = (!programs).then(|| with(CLONE_THREAD, false));
    namespaces.chain(processes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_refused_unless_they_are_run() {
        for call in [libc::SYS_execve, libc::SYS_execveat] {
            assert!(numbers(false).contains(&call) && !numbers(true).contains(&call));
        }
        for programs in [true, false] {
            assert!(numbers(programs).contains(&libc::SYS_ptrace) && numbers(programs).contains(&libc::SYS_unshare));
            assert_eq!(filters(programs).unwrap().len(), 2);
        }
    }
}
