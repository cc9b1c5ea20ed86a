//! Writes metrics to standard output in CloudWatch's embedded metric format: one line per consumer and interval, with
//! the changes in that interval. If a log driver sends standard output to CloudWatch Logs, no further setup is needed.
//!
//! Standard output may be a pipe that blocks. Therefore, a separate thread writes the lines. If there is no room for a
//! line, it is dropped.

mod line;
mod quantile;

use std::io::{self, Write as _};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use super::reader::Reader;

/// Maximum number of intervals to buffer for a slow reader of standard output.
const WAITING: usize = 2;

/// Maximum time to wait for the last lines to be written.
const LAST: Duration = Duration::from_secs(1);

/// Lines of one interval, with a channel that signals that the lines have been written.
struct Minute {
    lines: String,
    written: Option<oneshot::Sender<()>>,
}

/// Writes the metrics of each interval as lines.
pub(super) struct Lines {
    reader: Reader,
    every: Duration,
    writer: SyncSender<Minute>,
    /// Set if the last lines were dropped, so that each gap is logged once.
    dropping: bool,
}

impl Lines {
    /// Creates a writer and starts its thread. `reader` must be a delta reader.
    pub(super) fn new(reader: Reader, every: Duration) -> io::Result<Self> {
        let (writer, minutes) = sync_channel(WAITING);
        thread::Builder::new().name("hostler-emf".into()).spawn(move || write_all(&minutes))?;
        Ok(Self { reader, every, writer, dropping: false })
    }

    /// Writes lines until `stop` is cancelled, and then once more.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval_at(tokio::time::Instant::now() + self.every, self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = ticks.tick() => self.write(None),
            }
        }
        let (written, done) = oneshot::channel();
        self.write(Some(written));
        let _ = timeout(LAST, done).await;
    }

    fn write(&mut self, written: Option<oneshot::Sender<()>>) {
        let Some(metrics) = self.reader.read() else { return };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut lines = String::new();
        for line in line::lines(&metrics, u64::try_from(now.as_millis()).unwrap_or(u64::MAX)) {
            lines.push_str(&line);
            lines.push('\n');
        }
        let dropped = self.writer.try_send(Minute { lines, written }).is_err();
        if dropped && !self.dropping {
            tracing::warn!("metrics for CloudWatch are dropped: standard output is closed, or not read");
        }
        self.dropping = dropped;
    }
}

/// Writes lines until all senders are dropped or writing fails.
fn write_all(minutes: &Receiver<Minute>) {
    for Minute { lines, written } in minutes {
        let mut out = io::stdout().lock();
        if let Err(error) = out.write_all(lines.as_bytes()).and_then(|()| out.flush()) {
            return tracing::warn!(%error, "cannot write metrics for CloudWatch to standard output");
        }
        written.into_iter().for_each(|written| _ = written.send(()));
    }
}
