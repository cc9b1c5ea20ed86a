//! For tests: records log lines.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer, Registry};

/// A writer that records lines. Clones share the lines.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// Returns the lines that `log` causes to be written. `layer` creates the layer that formats them.
    pub(crate) fn of<L: Layer<Registry> + Send + Sync>(layer: impl FnOnce(Self) -> L, log: impl FnOnce()) -> String {
        let lines = Self::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer(lines.clone())), log);
        lines.text()
    }

    /// Returns all lines written so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
