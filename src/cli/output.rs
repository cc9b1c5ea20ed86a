//! Output of commands. Results go to standard output, and all other messages go to standard error.
//!
//! The functions escape all output, because names, reasons and arguments may be untrusted.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor};
use rustix::io::{Errno, ioctl_fionread};
use serde::Serialize;

use crate::exit::{Exit, Failure, Result};
use hostler_types::printable::{Printable, in_json};

/// First error that occurred when writing a result.
static UNPRINTED: OnceLock<io::Error> = OnceLock::new();

/// Interval between two checks of whether the reader of a pipe has read everything.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Prints a result. Ignores the error if standard output is a pipe that its reader has closed. Stores any other error, so that
/// the command can finish its work before [`unprinted`] returns the error.
pub(super) fn print(text: impl Display) {
    if let Err(error) = writeln!(io::stdout(), "{}", Printable(&text.to_string()))
        && error.kind() != ErrorKind::BrokenPipe
    {
        UNPRINTED.get_or_init(|| error);
    }
}

/// Formats a result as one line of JSON, for programs.
pub(super) fn json(value: &impl Serialize) -> Result<String> {
    written(serde_json::to_string(value))
}

/// Formats a result as indented JSON, which both programs and people can read.
pub(super) fn pretty_json(value: &impl Serialize) -> Result<String> {
    written(serde_json::to_string_pretty(value))
}

/// Formats a count with its noun, which takes an `s` in the plural.
pub(super) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn written(text: serde_json::Result<String>) -> Result<String> {
    text.map(|text| in_json(&text).into_owned()).map_err(|error| Failure::new(Exit::Internal, error))
}

/// Prints a message that is not a result. Unlike `eprintln!`, does not panic if the reader of standard error has closed the
/// stream.
pub(super) fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{}", Printable(&text.to_string()));
}

/// Returns the failure of the command if a result could not be written.
pub(super) fn unprinted() -> Option<Failure> {
    UNPRINTED.get().map(unwritten)
}

/// Creates the failure for an error in writing a result.
pub(super) fn unwritten(error: &io::Error) -> Failure {
    Failure::new(Exit::Internal, format!("cannot write to standard output: {error}"))
}

/// Writes a result. If standard output is a pipe, waits until its reader has read everything.
pub(super) fn hand_over(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", Printable(text))?;
    stdout.flush()?;
    let is_pipe = fstat(&stdout).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_fifo());
    // If the kernel does not report the number of unread bytes, does not wait.
    let is_unread = || is_pipe && ioctl_fionread(&stdout).is_ok_and(|unread| unread > 0);
    while is_unread() {
        let mut reader = [PollFd::new(&stdout, PollFlags::empty())];
        // The poll wakes before its timeout only if the reader closes the pipe. Bytes that are unread then are never read.
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

/// Returns true if nothing can be written to standard output. Rust's standard library does not report this condition.
///
/// The condition has two causes. Either the file is open for reading only, or standard output was closed when the
/// process started. In the second case, Rust's runtime has opened `/dev/null` in its place for reading and writing.
/// This differs from a shell's `>/dev/null`, which opens the file for writing only.
pub(super) fn is_closed() -> bool {
    let stdout = io::stdout();
    match fcntl_getfl(&stdout).map(|flags| flags & OFlags::RWMODE) {
        Ok(OFlags::RDONLY) => true,
        Ok(OFlags::RDWR) => fstat(&stdout).is_ok_and(|stat| is_null_device(stat.st_mode, stat.st_rdev)),
        _ => false,
    }
}

/// Returns true for `/dev/null`. Compares the device numbers, which are fixed on Linux.
fn is_null_device(mode: u32, device: u64) -> bool {
    FileType::from_raw_mode(mode).is_char_device() && (major(device), minor(device)) == (1, 3)
}

/// Asks the user a question, and reads the answer from standard input. An empty answer means no.
pub(super) fn confirm(question: &str) -> io::Result<bool> {
    write!(io::stderr(), "{} [y/N] ", Printable(question))?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
