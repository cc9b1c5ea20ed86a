//! Output of commands: results go to standard output, everything else for people to standard error.
//!
//! Names, reasons and arguments may come from anyone, so everything printed here is escaped.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};
use std::sync::OnceLock;

use serde::Serialize;

use crate::exit::{Exit, Failure, Result};
use hostler_types::printable::{Printable, in_json};

/// The first error in writing a result.
static UNPRINTED: OnceLock<io::Error> = OnceLock::new();

/// Prints a result. A reader that has gone away is not a failure. Any other error is kept for [`unprinted`] to report at the end,
/// so that the command finishes its work.
pub(super) fn print(text: impl Display) {
    if let Err(error) = writeln!(io::stdout(), "{}", Printable(&text.to_string()))
        && error.kind() != ErrorKind::BrokenPipe
    {
        UNPRINTED.get_or_init(|| error);
    }
}

/// Formats a result for programs, on one line.
pub(super) fn json(value: &impl Serialize) -> Result<String> {
    written(serde_json::to_string(value))
}

/// Formats a result for programs, readable for people too.
pub(super) fn pretty_json(value: &impl Serialize) -> Result<String> {
    written(serde_json::to_string_pretty(value))
}

fn written(text: serde_json::Result<String>) -> Result<String> {
    text.map(|text| in_json(&text).into_owned()).map_err(|error| Failure::new(Exit::Internal, error))
}

/// Prints a message that is not a result. Unlike `eprintln!`, it does not panic if the reader is gone.
pub(super) fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{}", Printable(&text.to_string()));
}

/// Returns the failure of writing a result, if there was one.
pub(super) fn unprinted() -> Option<Failure> {
    let error = UNPRINTED.get()?;
    Some(Failure::new(Exit::Internal, format!("cannot write to standard output: {error}")))
}
