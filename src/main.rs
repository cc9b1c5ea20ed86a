//! The binary: arguments → command → exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    hostler::cli::main().into()
}
