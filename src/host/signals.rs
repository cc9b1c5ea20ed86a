//! Signal handling. The first SIGTERM or SIGINT starts the drain. The second of these signals ends the process immediately.
//! SIGHUP starts the drain of a host that was started in a terminal, unless the host was started with SIGHUP ignored. Any other
//! host looks its secrets up again. SIGUSR1 raises the log level, and SIGUSR2 restores it.

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::mem;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::thread;

use rustix::process::{Resource, Signal, getppid, getrlimit, set_parent_process_death_signal};
use signal_hook::consts::{SIGABRT, SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::Signals as Incoming;
use signal_hook::{flag, low_level};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use hostler_children as children;
use hostler_telemetry::Verbosity;

/// Installed signal handlers of this process.
#[derive(Debug)]
pub(super) struct Signals {
    /// Cancelled by the first signal that starts the drain.
    pub(super) drain: CancellationToken,
    /// Handle through which signals change the log level. Unset until logging is set up.
    verbosity: Arc<OnceLock<Verbosity>>,
    /// Notified by SIGHUP, if that means [`HangUp::Reload`]. Unset until there is something to reload.
    reload: Arc<OnceLock<Arc<Notify>>>,
}

/// Reaction of a host to SIGHUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HangUp {
    /// The host drains. The signal means that its terminal was closed, so nobody sees the host any more.
    Drain,
    /// The host looks its secrets up again, or logs that it has none, and continues. A host without a terminal receives
    /// SIGHUP only if somebody sends the signal by hand. A host that was started with SIGHUP ignored, as by `nohup`,
    /// shall outlive its terminal.
    Reload,
}

impl HangUp {
    /// Returns the reaction of this process. A process has a terminal if its standard input or standard error is one.
    /// Must be called before [`Signals::install`], whose handler replaces an inherited disposition.
    pub(super) fn of_process() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self::of(io::stdin().is_terminal() || io::stderr().is_terminal(), ignores(&status, SIGHUP))
    }

    fn of(has_terminal: bool, is_ignored: bool) -> Self {
        if has_terminal && !is_ignored { Self::Drain } else { Self::Reload }
    }
}

/// Returns `true` if a process ignores `signal`. `status` is the content of `/proc/<pid>/status`, in which bit n - 1 of
/// `SigIgn` stands for signal n (proc(5)).
fn ignores(status: &str, signal: i32) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let bits = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> (signal - 1) & 1 == 1)
}

/// End of a process, as far as signals have asked for it.
#[derive(Debug, Default)]
pub struct Ending {
    has_begun: bool,
    /// Set by the first SIGTERM or SIGINT.
    was_asked: bool,
}

/// Effect of a signal that asks a process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndStep {
    /// The process finishes what is under way, and ends.
    Begin,
    /// The process ends without finishing anything.
    AtOnce,
    /// The process goes on ending as before.
    Nothing,
}

impl Ending {
    /// Returns the effect of a SIGTERM, SIGINT or SIGHUP. The first signal begins the end. The second SIGTERM or SIGINT ends the
    /// process at once.
    ///
    /// SIGHUP does not count as one of these two. systemd may send it with SIGTERM, and the kernel then delivers SIGHUP
    /// first. When a terminal is closed, the kernel and a shell may both send it.
    pub fn step(&mut self, signal: i32) -> EndStep {
        let is_second = signal != SIGHUP && mem::replace(&mut self.was_asked, true);
        let is_first = !mem::replace(&mut self.has_begun, true);
        match (is_first, is_second) {
            (true, _) => EndStep::Begin,
            (false, true) => EndStep::AtOnce,
            (false, false) => EndStep::Nothing,
        }
    }
}

/// Makes a write beyond the file size limit (`ulimit -f`) fail with EFBIG. Without a handler, SIGXFSZ would end the process. In
/// that case, a guest that writes a large file would stop all consumers. Child programs keep the default action.
pub(super) fn outlive_size_limit() {
    // Any handler prevents the default action. If the handler cannot be installed, the default action remains.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Makes the process exit with this code when an allocation fails. By default, SIGABRT would end the process. Applies only if the
/// process itself has a memory limit (`ulimit -v` or `ulimit -d`). Without a limit, an abort still produces a core dump.
pub(super) fn exit_without_memory(code: u8) {
    if [Resource::As, Resource::Data].into_iter().any(|limit| getrlimit(limit).current.is_some()) {
        // If the handler cannot be installed, the default action remains.
        let _ = flag::register_conditional_shutdown(SIGABRT, code.into(), Arc::new(AtomicBool::new(true)));
    }
}

/// Makes the kernel send SIGTERM to this process when the thread that started this process ends for any reason. The host then
/// drains. `parent` is the process id of the parent.
///
/// # Errors
/// The process `parent` has already ended, or the kernel cannot report its end.
pub fn end_with(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // The parent may have ended before the call above.
    match getppid() {
        Some(pid) if pid.as_raw_nonzero().get() == parent => Ok(()),
        _ => Err(io::Error::other("the process that started this one is gone")),
    }
}

impl Signals {
    /// Installs the handlers, and starts the signal thread. After this call, SIGTERM and SIGINT cancel `drain`.
    ///
    /// The first of these signals also writes `notice` to standard error, for commands that have no log. If `hang_up`
    /// is `None`, SIGHUP keeps its default action, which ends the process.
    pub(super) fn install(notice: Option<&'static str>, hang_up: Option<HangUp>) -> io::Result<Self> {
        let drain = CancellationToken::new();
        let verbosity = Arc::<OnceLock<Verbosity>>::default();
        let mut incoming = Incoming::new([SIGTERM, SIGINT, SIGUSR1, SIGUSR2])?;
        let is_init = std::process::id() == 1;
        if is_init {
            incoming.add_signal(SIGCHLD)?;
        }
        if hang_up.is_some() {
            incoming.add_signal(SIGHUP)?;
        }
        let reload = Arc::<OnceLock<Arc<Notify>>>::default();
        let (asked, log, again) = (drain.clone(), Arc::clone(&verbosity), Arc::clone(&reload));
        let mut ending = Ending::default();
        thread::Builder::new().name("hostler-signals".into()).spawn(move || {
            if is_init {
                // Orphans may have ended before the handler was installed.
                children::reap_orphans();
            }
            for signal in incoming.forever() {
                match signal {
                    SIGCHLD => children::reap_orphans(),
                    SIGUSR1 => log.get().into_iter().for_each(Verbosity::raise),
                    SIGUSR2 => log.get().into_iter().for_each(Verbosity::reset),
                    SIGHUP if hang_up == Some(HangUp::Reload) => look_up_again(again.get().map(|again| &**again)),
                    signal => match ending.step(signal) {
                        EndStep::Begin => {
                            if let Some(notice) = notice {
                                // The signal takes effect even if the notice cannot be written.
                                let _ = writeln!(io::stderr(), "hostler: {notice}");
                            }
                            asked.cancel();
                        }
                        // Exits with code 128 + signal number. Shells report the same code for a process that a signal ended.
                        EndStep::AtOnce => low_level::exit(128 + signal),
                        EndStep::Nothing => {}
                    },
                }
            }
        })?;
        Ok(Self { drain, verbosity, reload })
    }

    /// Returns a handle that SIGHUP notifies from now on. A host in a terminal drains instead.
    pub(super) fn reload(&self) -> Arc<Notify> {
        Arc::clone(self.reload.get_or_init(Arc::default))
    }

    /// Lets SIGUSR1 and SIGUSR2 change this log level from now on.
    pub(super) fn change_verbosity(&self, verbosity: Option<Verbosity>) {
        if let Some(verbosity) = verbosity {
            let _ = self.verbosity.set(verbosity);
        }
    }
}

/// Carries out a SIGHUP that does not drain. `None`: the host has nothing to reload.
fn look_up_again(reload: Option<&Notify>) {
    match reload {
        Some(reload) => {
            tracing::info!("SIGHUP: looking up the secrets again");
            reload.notify_one();
        }
        None => tracing::info!("SIGHUP has no effect: there is nothing to reload; SIGTERM drains"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_up_drains_only_where_the_terminal_was_to_end_the_host() {
        for (has_terminal, is_ignored, expected) in [
            (true, false, HangUp::Drain),
            (true, true, HangUp::Reload),
            (false, false, HangUp::Reload),
            (false, true, HangUp::Reload),
        ] {
            assert_eq!(HangUp::of(has_terminal, is_ignored), expected, "{has_terminal} {is_ignored}");
        }
    }

    #[test]
    fn the_second_signal_ends_the_process_and_a_hang_up_does_not_count() {
        let steps = |signals: &[i32]| {
            let mut ending = Ending::default();
            signals.iter().map(|signal| ending.step(*signal)).collect::<Vec<_>>()
        };
        let (begin, nothing, at_once) = (EndStep::Begin, EndStep::Nothing, EndStep::AtOnce);
        assert_eq!(steps(&[SIGTERM, SIGINT]), [begin, at_once]);
        assert_eq!(steps(&[SIGINT, SIGINT]), [begin, at_once]);
        assert_eq!(steps(&[SIGHUP, SIGTERM, SIGTERM]), [begin, nothing, at_once]);
        assert_eq!(steps(&[SIGHUP, SIGHUP, SIGINT, SIGHUP, SIGTERM]), [begin, nothing, nothing, nothing, at_once]);
        assert_eq!(steps(&[SIGTERM, SIGHUP, SIGINT]), [begin, nothing, at_once]);
    }

    #[test]
    fn an_ignored_signal_is_found_in_the_status() {
        let status = |bits: &str| {
            format!("Name:\thostler\nSigBlk:\t0000000000000001\nSigIgn:\t{bits}\nSigCgt:\t0000000000000001\n")
        };
        assert!(ignores(&status("0000000000000001"), SIGHUP) && ignores(&status("0000000000001001"), SIGHUP));
        assert!(!ignores(&status("0000000000001000"), SIGHUP));
        assert!(ignores(&status("8000000000000000"), 64));
        assert!(!ignores("", SIGHUP) && !ignores(&status("x"), SIGHUP));
    }
}
