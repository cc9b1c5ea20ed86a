//! The binary: arguments → command → exit code.

use std::process::ExitCode;

use mimalloc::MiMalloc;

// Guests and settlements allocate on several threads at once; mimalloc has no lock that they share.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    hostler::cli::main().into()
}
