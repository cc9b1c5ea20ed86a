//! Exit codes, and the failure that leads to one.

use std::fmt;
use std::process::ExitCode;

/// The exit code of the process. The numbers follow sysexits.h where it has a fitting one; README.md documents them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success; a drain ended with nothing abandoned.
    Ok = 0,
    /// A check failed, something alarms, a consumer is unhealthy, or a handler did not ack.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The config is wrong.
    BadConfig = 64,
    /// A handler cannot be loaded.
    BadHandler = 65,
    /// A queue cannot be reached at the start, or refuses access; or the location of a handler cannot be reached.
    QueueUnreachable = 69,
    /// A fault of hostler itself, or of the machine.
    Internal = 70,
    /// A processing timeout occurred with `on_processing_timeout = "exit"`.
    ProcessingTimeout = 71,
    /// The drain deadline passed; remaining work was stopped and released.
    Abandoned = 75,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The failure of a command: its exit code and its message.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// The fault, its place and its cure.
    pub message: String,
}

impl Failure {
    /// Returns a failure with this text.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: message.to_string() }
    }
}

/// The result of a command.
pub type Result<T = Exit> = std::result::Result<T, Failure>;
