//! The exit codes, and a failure on its way to one of them.

use std::fmt;
use std::process::ExitCode;

/// How the process ends. The numbers follow sysexits.h where it has a fitting one; README.md documents them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All went well; a drain ended with nothing abandoned.
    Ok = 0,
    /// A check failed, a consumer is unhealthy, or a handler did not ack.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The config is wrong.
    BadConfig = 64,
    /// A handler cannot be loaded.
    BadHandler = 65,
    /// A queue cannot be reached at the start, or refuses us; or the place that a handler is fetched from cannot be reached.
    QueueUnreachable = 69,
    /// A fault of hostler's own, or of the machine.
    Internal = 70,
    /// A processing timeout with `on_processing_timeout = "exit"`.
    ProcessingTimeout = 71,
    /// The drain deadline passed; work was stopped and released.
    Abandoned = 75,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A command that did not succeed: the exit code, and what to tell the user.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What failed, where, and what to do.
    pub message: String,
}

impl Failure {
    /// A failure with this text.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: message.to_string() }
    }
}

/// What a command comes to.
pub type Result<T = Exit> = std::result::Result<T, Failure>;
