//! Panics as lines of the log: by themselves they would break a log of JSON, and block whoever panics where nobody reads standard
//! error.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::io::{self, Write as _};
use std::panic::{self, PanicHookInfo};
use std::thread;

thread_local! {
    /// Whether who called this thread's code contains its panics, and tells of them.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Memory that must be free before a backtrace is made, in bytes. The standard library makes one while it holds a lock, which the
/// report of an allocation that fails takes again: without memory for it, the thread that panics would wait for itself.
const FOR_BACKTRACE: usize = 64 << 20;

/// Prints panics without a backtrace from now on where there is no memory for one; all others as before.
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

/// Has panics logged from now on, on all threads.
pub(super) fn log() {
    panic::set_hook(Box::new(tell));
}

/// Has expected panics told by nobody else from now on; all others as before.
pub(super) fn hush() {
    let others = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !EXPECTED.get() {
            others(panic);
        }
    }));
}

/// Runs this, whose panics the caller contains and tells of. It does not unwind.
pub(super) fn expecting<T>(work: impl FnOnce() -> T) -> T {
    let before = EXPECTED.replace(true);
    let result = work();
    EXPECTED.set(before);
    result
}

fn tell(panic: &PanicHookInfo<'_>) {
    if EXPECTED.get() {
        return;
    }
    let location = panic.location().map(tracing::field::display);
    let message = panic.payload_as_str().unwrap_or("no text");
    // There is one if `RUST_BACKTRACE` wants it.
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
        // Other tests panic as before.
        panic::set_hook(Box::new(
            move |panic| if thread::current().id() == this { tell(panic) } else { before(panic) },
        ));
        let layer = |lines| tracing_subscriber::fmt::layer().event_format(Json).with_writer(lines);
        let lines = Lines::of(layer, || drop(panic::catch_unwind(|| panic!("no\n{}", "way")).unwrap_err()));
        // The standard library's own again.
        drop(panic::take_hook());
        assert_eq!(lines.lines().count(), 1, "{lines}");
        let line: Value = serde_json::from_str(&lines).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"ERROR".into(), &"panicked: no\nway".into()));
        assert!(line["location"].as_str().unwrap().contains("panics.rs:"), "{line}");
    }
}
