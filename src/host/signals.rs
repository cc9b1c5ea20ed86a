//! Signals: the first SIGTERM or SIGINT drains, the second ends the process at once.

use std::io;
use std::thread;

use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals as Incoming;
use signal_hook::low_level;
use tokio_util::sync::CancellationToken;

use super::reap;

/// The signals of this process, from the moment it exists.
#[derive(Debug)]
pub(super) struct Signals {
    /// Cancelled by the first signal.
    pub(super) drain: CancellationToken,
}

impl Signals {
    /// Installs the handlers. From here on a signal waits for whoever looks at `drain`.
    pub(super) fn install() -> io::Result<Self> {
        let drain = CancellationToken::new();
        let mut incoming = Incoming::new([SIGTERM, SIGINT])?;
        let is_init = std::process::id() == 1;
        if is_init {
            incoming.add_signal(SIGCHLD)?;
        }
        let asked = drain.clone();
        thread::Builder::new().name("hostler-signals".into()).spawn(move || {
            if is_init {
                // Orphans may have died before the handler was there.
                reap::orphans();
            }
            for signal in incoming.forever() {
                match signal {
                    SIGCHLD => reap::orphans(),
                    // 128 + the signal's number, as shells report a death by it.
                    signal if asked.is_cancelled() => low_level::exit(128 + signal),
                    _ => asked.cancel(),
                }
            }
        })?;
        Ok(Self { drain })
    }
}
