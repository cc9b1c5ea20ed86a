//! The work as a WASI command. The body arrives on standard input.

use std::io::{self, Read as _};
use std::process::ExitCode;

fn main() -> io::Result<ExitCode> {
    let mut body = Vec::new();
    io::stdin().read_to_end(&mut body)?;
    // Exit code 65 (EX_DATAERR) dead-letters the message.
    Ok(if work::holds(&body) { ExitCode::SUCCESS } else { ExitCode::from(65) })
}
