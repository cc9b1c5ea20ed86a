//! Signals: the first SIGTERM or SIGINT drains, the second ends the process at once. SIGUSR1 makes the log more talkative,
//! SIGUSR2 undoes that.

use std::io::{self, Write as _};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::thread;

use rustix::process::{Resource, getrlimit};
use signal_hook::consts::{SIGABRT, SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::Signals as Incoming;
use signal_hook::{flag, low_level};
use tokio_util::sync::CancellationToken;

use hostler_children as children;
use hostler_telemetry::Verbosity;

/// The signals of this process, from the moment it exists.
#[derive(Debug)]
pub(super) struct Signals {
    /// Cancelled by the first signal.
    pub(super) drain: CancellationToken,
    /// Unset until there is a log.
    verbosity: Arc<OnceLock<Verbosity>>,
}

/// Lets a write beyond the limit of file sizes (`ulimit -f`) fail with EFBIG. Otherwise its signal ends the process, and one guest
/// with a large file all other consumers. Programs that are started get the signal as ever.
pub(super) fn outlive_size_limit() {
    // That there is a handler is enough; without one, all is as before.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Ends the process with this code, rather than by SIGABRT, where an allocation fails. That happens only where the process has a limit
/// of memory of its own; elsewhere an abort leaves a core dump, as ever.
pub(super) fn exit_without_memory(code: u8) {
    if [Resource::As, Resource::Data].into_iter().any(|limit| getrlimit(limit).current.is_some()) {
        // Without it, all is as before.
        let _ = flag::register_conditional_shutdown(SIGABRT, code.into(), Arc::new(AtomicBool::new(true)));
    }
}

impl Signals {
    /// Installs the handlers. From here on a signal waits for whoever looks at `drain`. `notice`: what the first one writes to
    /// standard error, where no log does.
    pub(super) fn install(notice: Option<&'static str>) -> io::Result<Self> {
        let drain = CancellationToken::new();
        let verbosity = Arc::<OnceLock<Verbosity>>::default();
        let mut incoming = Incoming::new([SIGTERM, SIGINT, SIGUSR1, SIGUSR2])?;
        let is_init = std::process::id() == 1;
        if is_init {
            incoming.add_signal(SIGCHLD)?;
        }
        let (asked, log) = (drain.clone(), Arc::clone(&verbosity));
        thread::Builder::new().name("hostler-signals".into()).spawn(move || {
            if is_init {
                // Orphans may have died before the handler was there.
                children::reap_orphans();
            }
            for signal in incoming.forever() {
                match signal {
                    SIGCHLD => children::reap_orphans(),
                    SIGUSR1 => log.get().into_iter().for_each(Verbosity::raise),
                    SIGUSR2 => log.get().into_iter().for_each(Verbosity::reset),
                    // 128 + the signal's number, as shells report a death by it.
                    signal if asked.is_cancelled() => low_level::exit(128 + signal),
                    _ => {
                        if let Some(notice) = notice {
                            // Whether anybody reads it or not, the signal counts.
                            let _ = writeln!(io::stderr(), "hostler: {notice}");
                        }
                        asked.cancel();
                    }
                }
            }
        })?;
        Ok(Self { drain, verbosity })
    }

    /// From here on SIGUSR1 and SIGUSR2 change this.
    pub(super) fn change_verbosity(&self, verbosity: Option<Verbosity>) {
        if let Some(verbosity) = verbosity {
            let _ = self.verbosity.set(verbosity);
        }
    }
}
