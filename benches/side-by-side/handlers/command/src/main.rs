//! The work as a WASI command: the body comes on standard input.

use std::io::{self, Read as _};
use std::process::ExitCode;

fn main() -> io::Result<ExitCode> {
    let mut body = Vec::new();
    io::stdin().read_to_end(&mut body)?;
    // 65 (EX_DATAERR): to the dead-letter queue.
    Ok(if work::holds(&body) { ExitCode::SUCCESS } else { ExitCode::from(65) })
}
