//! What commands print: results on standard output, and on standard error whatever else people are told.
//!
//! Names, reasons and arguments may be anybody's: nothing that is printed here makes a terminal do anything but show it.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};
use std::sync::OnceLock;

use serde::Serialize;

use crate::exit::{Exit, Failure, Result};
use hostler_types::printable::{Printable, in_json};

/// Why a result could not be written, the first time.
static UNPRINTED: OnceLock<io::Error> = OnceLock::new();

/// Prints a result. A reader that has gone away is no failure; whatever else keeps it from being written is one, which
/// [`unprinted`] tells at the end: what a command has begun, it finishes.
pub(super) fn print(text: impl Display) {
    if let Err(error) = writeln!(io::stdout(), "{}", Printable(&text.to_string()))
        && error.kind() != ErrorKind::BrokenPipe
    {
        UNPRINTED.get_or_init(|| error);
    }
}

/// A result for programs, on one line.
pub(super) fn json(value: &impl Serialize) -> Result<String> {
    written(serde_json::to_string(value))
}

/// A result for programs, laid out for people too.
pub(super) fn pretty_json(value: &impl Serialize) -> Result<String> {
    written(serde_json::to_string_pretty(value))
}

fn written(text: serde_json::Result<String>) -> Result<String> {
    text.map(|text| in_json(&text).into_owned()).map_err(|error| Failure::new(Exit::Internal, error))
}

/// Tells people something that is no result. Unlike `eprintln!`, which panics, it does without readers.
pub(super) fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{}", Printable(&text.to_string()));
}

/// The failure that some result was not written, if so.
pub(super) fn unprinted() -> Option<Failure> {
    let error = UNPRINTED.get()?;
    Some(Failure::new(Exit::Internal, format!("cannot write to standard output: {error}")))
}
