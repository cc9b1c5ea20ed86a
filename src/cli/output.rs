//! What commands print: results on standard output, and on standard error whatever else people are told.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};
use std::sync::OnceLock;

use crate::exit::{Exit, Failure};

/// Why a result could not be written, the first time.
static UNPRINTED: OnceLock<io::Error> = OnceLock::new();

/// Prints a result. A reader that has gone away is no failure; whatever else keeps it from being written is one, which
/// [`unprinted`] tells at the end: what a command has begun, it finishes.
pub(super) fn print(text: impl Display) {
    if let Err(error) = writeln!(io::stdout(), "{text}")
        && error.kind() != ErrorKind::BrokenPipe
    {
        UNPRINTED.get_or_init(|| error);
    }
}

/// Tells people something that is no result. Unlike `eprintln!`, which panics, it does without readers.
pub(super) fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// The failure that some result was not written, if so.
pub(super) fn unprinted() -> Option<Failure> {
    let error = UNPRINTED.get()?;
    Some(Failure::new(Exit::Internal, format!("cannot write to standard output: {error}")))
}
