//! For tests: log lines that are kept.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// A writer whose clones all write to the same lines.
#[derive(Clone, Default)]
pub(crate) struct Lines(pub(crate) Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
