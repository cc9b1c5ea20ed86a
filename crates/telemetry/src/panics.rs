//! Logs each panic as a line. The standard hook would write text into a JSON log, and would block the panicking thread
//! if standard error were not read.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::io::{self, Write as _};
use std::panic::{self, PanicHookInfo};
use std::thread;

thread_local! {
    /// Set while this thread runs work in [`expecting`], whose caller catches and reports panics.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Minimum number of free bytes for capturing a backtrace. The standard library captures a backtrace under a lock, and
/// takes the same lock to report a failed allocation. If the allocation for the backtrace failed, the panicking thread
/// would wait for its own lock.
const FOR_BACKTRACE: usize = 64 << 20;

/// Installs a hook that prints a panic without a backtrace if there is too little memory for one. Otherwise, the panic
/// goes to the previous hook.
pub(super) fn bound() {
    let others = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if has_room() {
            others(panic);
        } else {
            let _ = writeln!(io::stderr(), "{panic}");
        }
    }));
}

fn has_room() -> bool {
    Vec::<u8>::new().try_reserve_exact(FOR_BACKTRACE).is_ok()
}

/// Installs a hook that logs the panics of all threads.
pub(super) fn log() {
    panic::set_hook(Box::new(tell));
}

/// Installs a hook that silences expected panics. Other panics go to the previous hook.
pub(super) fn hush() {
    let others = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !EXPECTED.get() {
            others(panic);
        }
    }));
}

/// Runs `work` without logging its panics, because the caller catches and reports them.
pub(super) fn expecting<T>(work: impl FnOnce() -> T) -> T {
    let _before = Before(EXPECTED.replace(true));
    work()
}

/// Restores [`EXPECTED`] when dropped, even during a panic.
struct Before(bool);

impl Drop for Before {
    fn drop(&mut self) {
        EXPECTED.set(self.0);
    }
}

fn tell(panic: &PanicHookInfo<'_>) {
    if EXPECTED.get() {
        return;
    }
    let location = panic.location().map(tracing::field::display);
    let message = panic.payload_as_str().unwrap_or("no text");
    // Captured only if `RUST_BACKTRACE` is set.
    let backtrace = if has_room() { Backtrace::capture() } else { Backtrace::disabled() };
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| tracing::field::display(&backtrace));
    tracing::error!(thread = thread::current().name(), location, backtrace, "panicked: {message}");
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::json::Json;
    use super::*;
    use crate::lines::Lines;

    #[test]
    fn a_panic_is_one_line_of_json_that_says_where_and_why() {
        let (this, before) = (thread::current().id(), panic::take_hook());
        // Panics of other tests go to the previous hook.
        panic::set_hook(Box::new(
            move |panic| if thread::current().id() == this { tell(panic) } else { before(panic) },
        ));
        let layer = |lines| tracing_subscriber::fmt::layer().event_format(Json).with_writer(lines);
        let lines = Lines::of(layer, || drop(panic::catch_unwind(|| panic!("no\n{}", "way")).unwrap_err()));
        // Restores the hook of the standard library.
        drop(panic::take_hook());
        assert_eq!(lines.lines().count(), 1, "{lines}");
        let line: Value = serde_json::from_str(&lines).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"ERROR".into(), &"panicked: no\nway".into()));
        assert!(line["location"].as_str().unwrap().contains("panics.rs:"), "{line}");
    }
}
