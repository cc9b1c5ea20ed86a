//! The binary: arguments → command → exit code.

use std::process::ExitCode;

use mimalloc::MiMalloc;

// The static binary of the image would otherwise allocate with musl's, which has one lock for all threads.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    hostler::cli::main().into()
}
