//! Buffers log lines for a slow reader of standard error. The buffer is limited in bytes, and lines beyond the limit
//! are dropped. Otherwise, a blocked log could block heartbeats, or take the memory that is reserved for sandboxes.
//!
//! Dropped lines are counted. As soon as there is room, a log line reports their number. Room is reserved for this
//! line.
//!
//! Guest lines, and lines about actions of guests, are accepted only up to half of the limit. They are dropped first,
//! so a guest's output never displaces hostler's own lines, for example the line of a settled message.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::{BY_GUEST, GUEST};

/// Maximum number of buffered bytes.
pub(super) const BYTES: usize = 4 * 1024 * 1024;

/// Maximum number of buffered bytes, including a guest's line that is to be added. If there would be more, the line is
/// dropped.
const OF_GUESTS: usize = BYTES / 2;

/// Number of additional bytes, beyond [`BYTES`], that are reserved for reports of dropped lines.
const RESERVE: usize = 64 * 1024;

/// `tracing` target of the reports of dropped lines.
const TARGET: &str = module_path!();

/// Interval between two reports of dropped lines while more lines are dropped.
const BETWEEN: Duration = Duration::from_secs(1);

/// Maximum number of bytes per write. A write exceeds it only to complete a line.
const TOGETHER: usize = 64 * 1024;

/// Maximum number of bytes to remove from the buffer at once, exceeded only to complete a line. The removed bytes stay
/// in memory until all of them are written, but the written ones already make room for new lines. All lines together
/// therefore take at most this much memory beyond [`BYTES`].
const AT_ONCE: usize = 512 * 1024;

/// Pause after each write, during which lines accumulate. Waking the writing thread for each line would cost more than
/// writing the line. If the reader keeps up, a line is delayed by at most this time.
const PAUSE: Duration = Duration::from_millis(1);

/// Maximum time to wait for buffered lines to be written when the log ends.
pub const LAST_LINES: Duration = Duration::from_secs(1);

/// Accepts lines and passes them to a writing thread.
#[derive(Debug, Clone, Default)]
pub(super) struct Backlog(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    waiting: Vec<u8>,
    /// Number of bytes that the thread has removed from the buffer but not yet written.
    taken: usize,
    dropped: Dropped,
    /// Set while the thread waits for a line.
    sleeps: bool,
    /// Set when the log ends.
    ended: bool,
    /// Set when the thread has ended.
    over: bool,
    /// Set if there is no thread. Each line is then written immediately.
    direct: bool,
}

/// Numbers of dropped lines that have not been reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    own: u64,
    of_guests: u64,
}

impl Backlog {
    /// Starts a thread that writes the lines to `writer`, and that calls `tells` to report dropped lines. If the thread
    /// cannot be started, lines are written to standard error immediately.
    pub(super) fn start<W: Write + Send + 'static>(&self, writer: W, tells: fn(Dropped)) {
        let mut drain = Drain { backlog: self.clone(), writer, tells, told: None };
        let run = move || {
            while drain.turn() {}
            drain.backlog.lock().over = true;
            drain.backlog.0.changed.notify_all();
        };
        if thread::Builder::new().name("hostler-log".into()).spawn(run).is_err() {
            let mut lines = self.lock();
            (lines.over, lines.direct) = (true, true);
        }
    }

    /// Waits until all lines are written, but at most for [`LAST_LINES`].
    pub(super) fn end(&self) {
        let mut lines = self.lock();
        lines.ended = true;
        self.0.changed.notify_all();
        drop(self.0.changed.wait_timeout_while(lines, LAST_LINES, |lines| !lines.over));
    }

    /// Adds a line to the buffer if the limit for the line's origin allows it. Otherwise, drops and counts the line.
    fn put(&self, line: &[u8], origin: Origin) {
        let mut lines = self.lock();
        if lines.direct {
            return drop(io::stderr().write_all(line));
        }
        if lines.waiting.len() + lines.taken + line.len() > origin.limit() {
            let Dropped { own, of_guests } = &mut lines.dropped;
            *if origin == Origin::Guest { of_guests } else { own } += 1;
            return;
        }
        lines.waiting.extend_from_slice(line);
        if std::mem::take(&mut lines.sleeps) {
            drop(lines);
            self.0.changed.notify_all();
        }
    }

    /// Waits for lines. Removes the next lines to write from the buffer and returns them. `None`: the log has ended.
    fn take(&self) -> Option<Vec<u8>> {
        let mut lines = self.lock();
        while lines.waiting.is_empty() {
            if lines.ended {
                return None;
            }
            lines.sleeps = true;
            lines = self.0.changed.wait(lines).unwrap_or_else(PoisonError::into_inner);
        }
        let line_end = lines.waiting.iter().skip(AT_ONCE).position(|byte| *byte == b'\n').map(|at| AT_ONCE + at + 1);
        let taken = match line_end.filter(|end| *end < lines.waiting.len()) {
            Some(end) => {
                let taken = lines.waiting[..end].to_vec();
                lines.waiting.drain(..end);
                taken
            }
            // Reserves room for the usual number of lines.
            None => {
                let next = Vec::with_capacity(lines.waiting.len().min(TOGETHER));
                let mut taken = std::mem::replace(&mut lines.waiting, next);
                if taken.capacity() > 2 * AT_ONCE {
                    taken.shrink_to_fit();
                }
                taken
            }
        };
        lines.taken = taken.len();
        Some(taken)
    }

    /// Calls `tells` with the numbers of lines dropped since the last report, if any.
    pub(super) fn tell(&self, tells: fn(Dropped)) {
        let dropped = std::mem::take(&mut self.lock().dropped);
        if dropped != Dropped::default() {
            tells(dropped);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Logs the numbers of dropped lines.
pub(super) fn warn(dropped: Dropped) {
    let Dropped { own, of_guests } = dropped;
    tracing::warn!(
        target: TARGET,
        dropped = own + of_guests,
        of_guests,
        "log lines were dropped: standard error is read too slowly, or a line was too long"
    );
}

/// Origin of a log line. Determines how full the buffer may be for the line to be accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Output of a guest, or a line caused by a guest.
    Guest,
    /// One of hostler's own lines.
    Own,
    /// A line that reports dropped lines.
    Telling,
}

impl Origin {
    fn of(metadata: &Metadata<'_>) -> Self {
        match metadata.target() {
            GUEST | BY_GUEST => Self::Guest,
            TARGET => Self::Telling,
            _ => Self::Own,
        }
    }

    /// Returns the maximum number of buffered bytes, including a line of this origin that is to be added. If there
    /// would be more, the line is dropped.
    fn limit(self) -> usize {
        match self {
            Self::Guest => OF_GUESTS,
            Self::Own => BYTES,
            Self::Telling => BYTES + RESERVE,
        }
    }
}

impl<'a> MakeWriter<'a> for Backlog {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self, Origin::Own)
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line<'a> {
        Line(self, Origin::of(metadata))
    }
}

/// A writer for one line. The log writes each line in a single call.
#[derive(Debug)]
pub(super) struct Line<'a>(&'a Backlog, Origin);

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line, self.1);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the buffered lines.
struct Drain<W> {
    backlog: Backlog,
    writer: W,
    tells: fn(Dropped),
    /// Time of the last report of dropped lines.
    told: Option<Instant>,
}

impl<W: Write> Drain<W> {
    /// Waits for lines, and writes all buffered lines. Returns `false` at the end of the log.
    fn turn(&mut self) -> bool {
        let Some(lines) = self.backlog.take() else { return false };
        let mut rest = &*lines;
        while !rest.is_empty() {
            let line_end = rest.iter().skip(TOGETHER).position(|byte| *byte == b'\n');
            let (part, others) = rest.split_at(line_end.map_or(rest.len(), |at| TOGETHER + at + 1));
            // If a write to standard error fails, the failure cannot be reported either.
            let _ = self.writer.write_all(part);
            rest = others;
            let is_more = {
                let mut lines = self.backlog.lock();
                lines.taken -= part.len();
                lines.taken + lines.waiting.len() > 0
            };
            // While lines are still buffered, more lines may be dropped. Therefore, reports are made at intervals and
            // not after each part.
            if !is_more || self.told.is_none_or(|told| told.elapsed() >= BETWEEN) {
                self.told = Some(Instant::now());
                self.backlog.tell(self.tells);
            }
        }
        #[allow(clippy::disallowed_methods, reason = "lines gather meanwhile")]
        thread::sleep(PAUSE);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    thread_local! {
        static TOLD: RefCell<Vec<Dropped>> = const { RefCell::new(Vec::new()) };
    }

    fn told() -> Vec<(u64, u64)> {
        TOLD.take().into_iter().map(|dropped| (dropped.own, dropped.of_guests)).collect()
    }

    fn drain<W: Write>(backlog: &Backlog, writer: W) -> Drain<W> {
        let tells = |dropped| TOLD.with_borrow_mut(|told| told.push(dropped));
        Drain { backlog: backlog.clone(), writer, tells, told: None }
    }

    fn waiting(backlog: &Backlog) -> usize {
        backlog.lock().waiting.len()
    }

    #[test]
    fn lines_wait_up_to_a_number_of_bytes_and_leave_room_when_written() {
        let (backlog, long) = (Backlog::default(), vec![b'x'; BYTES / 4]);
        (0..5).for_each(|_| backlog.put(&long, Origin::Own));
        backlog.put(b"short", Origin::Own);
        assert_eq!(waiting(&backlog), BYTES, "the fifth and the short line are dropped");
        // The bytes that are being written take room as well.
        let taken = backlog.take().unwrap();
        backlog.put(b"short", Origin::Own);
        assert_eq!((taken.len(), waiting(&backlog)), (BYTES, 0));
        backlog.lock().taken -= 5;
        backlog.put(b"short", Origin::Own);
        assert_eq!(waiting(&backlog), 5);
    }

    #[test]
    fn little_is_taken_out_at_once_whatever_waits() {
        let (backlog, line) = (Backlog::default(), "x".repeat(1023) + "\n");
        (0..BYTES / 1024).for_each(|_| backlog.put(line.as_bytes(), Origin::Own));
        let mut written = 0;
        while waiting(&backlog) > 0 {
            let taken = backlog.take().unwrap();
            assert!(taken.len() <= AT_ONCE + line.len() && taken.capacity() <= 2 * AT_ONCE, "{}", taken.capacity());
            assert!(taken.ends_with(b"\n") && waiting(&backlog) + taken.len() + written == BYTES);
            written += taken.len();
        }
    }

    #[test]
    fn lines_of_guests_are_dropped_first_and_counted_apart() {
        let (backlog, long) = (Backlog::default(), vec![b'x'; OF_GUESTS / 2]);
        (0..5).for_each(|_| backlog.put(&long, Origin::Guest));
        assert_eq!(waiting(&backlog), OF_GUESTS, "two of five fit");
        backlog.put(&long, Origin::Own);
        assert_eq!(waiting(&backlog), OF_GUESTS + long.len(), "they leave room for others");
        drain(&backlog, io::sink()).turn();
        assert_eq!(told(), [(0, 3)]);
        // If hostler's own lines fill the room, no line of a guest is accepted.
        (0..2).for_each(|_| backlog.put(&long, Origin::Own));
        backlog.put(b"short", Origin::Guest);
        assert_eq!(backlog.lock().dropped, Dropped { own: 0, of_guests: 1 });
    }

    /// Records each write. During the first write, adds a line to the backlog.
    #[derive(Default)]
    struct Writes(Vec<String>, Option<(Backlog, Vec<u8>)>);

    impl Write for Writes {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            self.0.push(String::from_utf8(lines.to_vec()).unwrap());
            if let Some((backlog, line)) = self.1.take() {
                backlog.put(&line, Origin::Own);
            }
            Ok(lines.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_come_together_are_written_together_and_none_is_cut() {
        let backlog = Backlog::default();
        let mut drain = drain(&backlog, Writes::default());
        backlog.put(b"a\n", Origin::Own);
        backlog.put(b"b\n", Origin::Own);
        assert!(drain.turn());
        assert_eq!(drain.writer.0, ["a\nb\n"]);
        let line = "x".repeat(TOGETHER / 4 * 3) + "\n";
        (0..3).for_each(|_| backlog.put(line.as_bytes(), Origin::Own));
        assert!(drain.turn());
        assert_eq!(drain.writer.0[1..], [line.repeat(2), line]);
        assert_eq!(backlog.lock().taken, 0, "none of them waits");
    }

    #[test]
    fn what_was_dropped_is_told_once_something_was_written() {
        let (backlog, long) = (Backlog::default(), vec![b'x'; BYTES]);
        let mut drain = drain(&backlog, Writes::default());
        (0..4).for_each(|_| backlog.put(&long, Origin::Own));
        assert!(told().is_empty());
        drain.turn();
        assert_eq!(told(), [(3, 0)], "as soon as there is room");
        // While lines are buffered, reports are made at intervals. The last report follows when no line is left.
        drain.told = Some(Instant::now() + 3_600 * BETWEEN);
        (0..2).for_each(|_| backlog.put(&long[1..], Origin::Own));
        drain.writer.1 = Some((backlog.clone(), b"x".to_vec()));
        drain.turn();
        assert!(told().is_empty());
        drain.turn();
        assert_eq!(told(), [(1, 0)]);
        // A line that can never fit is reported too.
        backlog.put(&vec![b'x'; BYTES + 1], Origin::Own);
        backlog.put(b"next", Origin::Own);
        drain.turn();
        assert_eq!(told(), [(1, 0)]);
    }

    #[test]
    fn the_line_that_tells_finds_room_where_others_do_not() {
        let backlog = Backlog::default();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(backlog.clone());
        backlog.put(&vec![b'x'; BYTES], Origin::Own);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!("of others");
            backlog.tell(warn);
        });
        let lines = String::from_utf8(backlog.take().unwrap()).unwrap();
        assert!(lines.contains("dropped=1") && !lines.contains("of others"));
        assert_eq!(backlog.lock().dropped, Dropped::default());
    }

    #[test]
    fn the_end_waits_for_what_is_there() {
        let (backlog, lines) = (Backlog::default(), crate::lines::Lines::default());
        backlog.put(b"last\n", Origin::Own);
        backlog.start(lines.clone(), |_| ());
        backlog.end();
        assert_eq!(lines.text(), "last\n");
    }
}
