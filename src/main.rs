//! Binary: parses the arguments, runs the command, and returns the exit code.

use std::process::ExitCode;

use mimalloc::MiMalloc;

// Guests and settlements allocate on several threads at once. mimalloc has no lock that all threads share.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    hostler::cli::main().into()
}
