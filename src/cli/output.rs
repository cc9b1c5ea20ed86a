//! Output of commands: results go to standard output, everything else for people to standard error.
//!
//! Names, reasons and arguments may come from anyone, so everything printed here is escaped.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ioctl_fionread};
use serde::Serialize;

use crate::exit::{Exit, Failure, Result};
use hostler_types::printable::{Printable, in_json};

/// The first error in writing a result.
static UNPRINTED: OnceLock<io::Error> = OnceLock::new();

/// The pause between two checks of a reader's progress.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

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
    UNPRINTED.get().map(unwritten)
}

/// Returns the failure of writing a result.
pub(super) fn unwritten(error: &io::Error) -> Failure {
    Failure::new(Exit::Internal, format!("cannot write to standard output: {error}"))
}

/// Writes a result, and returns once it has arrived: where standard output is a pipe, once its reader has taken all of it.
pub(super) fn hand_over(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", Printable(text))?;
    stdout.flush()?;
    let is_pipe = fstat(&stdout).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_fifo());
    // Where the kernel does not tell how much is unread, written has to be enough.
    let is_unread = || is_pipe && ioctl_fionread(&stdout).is_ok_and(|unread| unread > 0);
    while is_unread() {
        let mut reader = [PollFd::new(&stdout, PollFlags::empty())];
        // Only the end of the reader wakes it. What is unread then is so for good.
        match poll(&mut reader, Some(&GLANCE)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if reader.iter().any(|reader| reader.revents().contains(PollFlags::ERR)) && is_unread() {
            return Err(ErrorKind::BrokenPipe.into());
        }
    }
    Ok(())
}

/// Asks a person, and reads the answer from standard input. An empty answer means no.
pub(super) fn confirm(question: &str) -> io::Result<bool> {
    write!(io::stderr(), "{} [y/N] ", Printable(question))?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
