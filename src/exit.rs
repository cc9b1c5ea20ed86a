//! Exit codes, and the failure type that carries an exit code.

use std::fmt;
use std::process::ExitCode;

/// Exit code of the process. Uses the code of sysexits.h if one fits. `book/src/reference/exit-codes.md` lists all codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success. A drain completed without abandoned work.
    Ok = 0,
    /// A check failed, an alarm is active, a consumer is unhealthy, a handler did not ack, or something could not be sent or removed.
    Failed = 1,
    /// The command line is invalid.
    Usage = 2,
    /// The config is invalid or does not fit the memory, or a secret that it refers to cannot be had.
    BadConfig = 64,
    /// A handler cannot be loaded.
    BadHandler = 65,
    /// At startup, a queue cannot be reached or denies access, or the location of a handler or a secret cannot be reached.
    QueueUnreachable = 69,
    /// A bug in hostler, or a failure of the machine. Also used if a result could not be written to standard output, or if a
    /// limit of the process (`ulimit`) is too low.
    Internal = 70,
    /// A processing timeout occurred with `on_processing_timeout = "exit"`.
    ProcessingTimeout = 71,
    /// The drain deadline passed, or the dead-letter queue refused messages during the drain. hostler stopped the
    /// remaining work, and released its messages.
    Abandoned = 75,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Failure of a command: the exit code and the message.
#[derive(Debug)]
pub struct Failure {
    /// Exit code of the process.
    pub exit: Exit,
    /// Error message for the user: the problem, the place, and the fix.
    pub message: String,
}

impl Failure {
    /// Creates a failure that ends the command with this exit code and message.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: message.to_string() }
    }
}

/// The result of a command.
pub type Result<T = Exit> = std::result::Result<T, Failure>;
