//! The lines that wait for a slow reader of standard error, bounded in bytes: beyond, lines are dropped. A blocked log must
//! neither block heartbeats nor take the memory that sandboxes were promised.
//!
//! What is dropped is counted, and told once there is room again, by a line like any other: it goes through the queue, for which
//! nobody waits, and room is kept for it.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

/// The most bytes that may wait.
pub(super) const BYTES: usize = 4 * 1024 * 1024;

/// How many more may, of lines that tell of dropped ones.
const RESERVE: usize = 64 * 1024;

/// Where those lines come from.
const TARGET: &str = module_path!();

/// How long is waited between two of them while more lines are dropped.
const BETWEEN: Duration = Duration::from_secs(1);

/// What a line counts for at least, in bytes: its place in the queue, and its allocation.
const LEAST: usize = 256;

/// More lines than can ever wait, so that the queue itself refuses none: what it refused would stay counted.
pub(super) const LINES: usize = (BYTES + RESERVE) / LEAST + 1;

/// How many bytes of lines are written together at most, give or take a line.
const TOGETHER: usize = 64 * 1024;

/// How long lines are let gather after some were written: the latest that a line may come out.
const PAUSE: Duration = Duration::from_millis(1);

/// What a line of so many bytes counts for.
fn weight(bytes: usize) -> usize {
    bytes.max(LEAST)
}

/// Counts what waits, and what was dropped.
#[derive(Debug, Clone, Default)]
pub(super) struct Backlog(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// In bytes.
    waiting: AtomicUsize,
    /// Lines that nobody was told of yet.
    dropped: AtomicU64,
}

impl Backlog {
    /// Passes on to `queue` what fits.
    pub(super) fn bounded<M>(&self, queue: M) -> Bounded<M> {
        Bounded { backlog: self.clone(), queue }
    }

    /// Writes to `writer` what comes out of the queue, as often as it is flushed, and then `tells` how many lines were dropped.
    pub(super) fn drain<W>(&self, writer: W, tells: fn(u64)) -> Drain<W> {
        Drain { backlog: self.clone(), writer, tells, told: None, gathered: Vec::new(), weight: 0 }
    }

    /// Takes in a line, up to so many bytes in all.
    fn admit(&self, bytes: usize, limit: usize) -> bool {
        let weight = weight(bytes);
        let admitted = |waiting: usize| Some(waiting + weight).filter(|sum| *sum <= limit);
        let is_admitted = self.0.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, admitted).is_ok();
        if !is_admitted {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_admitted
    }

    fn leave(&self, weight: usize) {
        self.0.waiting.fetch_sub(weight, Ordering::AcqRel);
    }

    /// Tells how many lines were dropped since that was told last, if any were.
    pub(super) fn tell(&self, tells: fn(u64)) {
        // Nearly never are there any, and this is asked often.
        if self.0.dropped.load(Ordering::Relaxed) > 0 {
            tells(self.0.dropped.swap(0, Ordering::Relaxed));
        }
    }
}

/// Logs that so many lines were dropped.
pub(super) fn warn(dropped: u64) {
    tracing::warn!(target: TARGET, dropped, "log lines were dropped: standard error is read too slowly, or a line was too long");
}

/// The way into the queue.
#[derive(Debug)]
pub(super) struct Bounded<M> {
    backlog: Backlog,
    queue: M,
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Bounded<M> {
    type Writer = Line<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Line { backlog: self.backlog.clone(), queue: self.queue.make_writer(), limit: BYTES }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        let limit = if metadata.target() == TARGET { BYTES + RESERVE } else { BYTES };
        Line { limit, ..self.make_writer() }
    }
}

/// One line on its way in. The log writes each with one call.
#[derive(Debug)]
pub(super) struct Line<W> {
    backlog: Backlog,
    queue: W,
    /// How many bytes may wait with it.
    limit: usize,
}

impl<W: Write> Write for Line<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.backlog.admit(line.len(), self.limit) {
            self.queue.write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.queue.flush()
    }
}

/// The way out of the queue: lines are gathered, and written together when no more of them wait.
#[derive(Debug)]
pub(super) struct Drain<W> {
    backlog: Backlog,
    writer: W,
    tells: fn(u64),
    /// When it last told of dropped lines.
    told: Option<Instant>,
    gathered: Vec<u8>,
    /// What the gathered lines count for.
    weight: usize,
}

impl<W: Write> Drain<W> {
    fn write_gathered(&mut self) -> io::Result<()> {
        let written = self.writer.write_all(&self.gathered);
        self.gathered.clear();
        self.backlog.leave(std::mem::take(&mut self.weight));
        written
    }

    fn tell(&mut self) {
        self.told = Some(Instant::now());
        self.backlog.tell(self.tells);
    }
}

impl<W: Write> Write for Drain<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.gathered.extend_from_slice(line);
        self.weight += weight(line.len());
        if self.gathered.len() >= TOGETHER {
            self.write_gathered()?;
            // More lines wait, and may go on to be too many: then this is told now and then, and not each time.
            if self.told.is_none_or(|told| told.elapsed() >= BETWEEN) {
                self.tell();
            }
        }
        Ok(line.len())
    }

    /// Called when no line waits, before the thread that writes goes to sleep: to wake it for each line costs more than the line.
    fn flush(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        self.write_gathered()?;
        self.writer.flush()?;
        self.tell();
        #[allow(clippy::disallowed_methods, reason = "lines gather meanwhile")]
        std::thread::sleep(PAUSE);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Mutex;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// A line of the log itself, or one that tells of dropped lines.
    fn line<W>(backlog: &Backlog, queue: W, limit: usize) -> Line<W> {
        Line { backlog: backlog.clone(), queue, limit }
    }

    #[test]
    fn lines_wait_up_to_a_number_of_bytes_and_leave_room_when_written() {
        let backlog = Backlog::default();
        let mut queue = Vec::new();
        let mut bounded = line(&backlog, &mut queue, BYTES);
        let long = vec![b'x'; BYTES / 4];
        for _ in 0..5 {
            bounded.write_all(&long).unwrap();
        }
        bounded.write_all(b"short").unwrap();
        assert_eq!(bounded.queue.len(), BYTES, "the fifth and the short line are dropped");
        let mut drain = backlog.drain(io::sink(), |_| ());
        drain.write_all(&long).unwrap();
        drain.write_all(b"kept").unwrap();
        bounded.write_all(b"short").unwrap();
        assert_eq!(bounded.queue.len(), BYTES + 5);
    }

    #[derive(Default)]
    struct Writes(Vec<String>);

    impl Write for Writes {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            self.0.push(String::from_utf8(lines.to_vec()).unwrap());
            Ok(lines.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_come_together_are_written_together() {
        let backlog = Backlog::default();
        assert!(backlog.admit(2, BYTES) && backlog.admit(2, BYTES));
        let mut drain = backlog.drain(Writes::default(), |_| ());
        drain.write_all(b"a\n").unwrap();
        drain.write_all(b"b\n").unwrap();
        assert!(drain.writer.0.is_empty());
        drain.flush().unwrap();
        drain.flush().unwrap();
        assert_eq!(drain.writer.0, ["a\nb\n"]);
        assert_eq!(backlog.0.waiting.load(Ordering::Acquire), 0, "none of them waits");
    }

    #[test]
    fn the_queue_is_longer_than_the_shortest_lines_fill_it() {
        let backlog = Backlog::default();
        let admitted = (0..LINES).filter(|_| backlog.admit(1, BYTES + RESERVE)).count();
        assert!(admitted < LINES);
    }

    thread_local! {
        static TOLD: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }

    fn told() -> Vec<u64> {
        TOLD.take()
    }

    #[test]
    fn what_was_dropped_is_told_once_something_was_written() {
        let backlog = Backlog::default();
        let mut queue = line(&backlog, io::sink(), BYTES);
        let mut drain = backlog.drain(io::sink(), |dropped| TOLD.with_borrow_mut(|told| told.push(dropped)));
        let long = vec![b'x'; BYTES];
        for _ in 0..4 {
            queue.write_all(&long).unwrap();
        }
        assert!(told().is_empty());
        // More lines wait, so it is told as soon as there is room.
        drain.write_all(&long).unwrap();
        assert_eq!(told(), [3]);
        // Not for each line that is written while there are too many, but when none waits any more.
        drain.told = Some(Instant::now() + 3_600 * BETWEEN);
        for _ in 0..2 {
            queue.write_all(&long).unwrap();
        }
        drain.write_all(&long).unwrap();
        assert!(told().is_empty());
        queue.write_all(b"last").unwrap();
        drain.write_all(b"last").unwrap();
        drain.flush().unwrap();
        assert_eq!(told(), [1]);
        drain.flush().unwrap();
        backlog.tell(|dropped| TOLD.with_borrow_mut(|told| told.push(dropped)));
        assert!(told().is_empty(), "all is told");
        // A line that never fits is told of as well.
        queue.write_all(&vec![b'x'; BYTES + 1]).unwrap();
        queue.write_all(b"next").unwrap();
        drain.write_all(b"next").unwrap();
        drain.flush().unwrap();
        assert_eq!(told(), [1]);
    }

    #[test]
    fn the_line_that_tells_finds_room_where_others_do_not() {
        let (backlog, queue) = (Backlog::default(), Arc::<Mutex<Vec<u8>>>::default());
        let writer = Arc::clone(&queue);
        let bounded = backlog.bounded(move || Shared(Arc::clone(&writer)));
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(bounded);
        assert!(backlog.admit(BYTES, BYTES));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!("of others");
            backlog.tell(warn);
        });
        let lines = String::from_utf8(queue.lock().unwrap().clone()).unwrap();
        assert!(lines.contains("dropped=1") && !lines.contains("of others"), "{lines}");
        assert_eq!(backlog.0.dropped.load(Ordering::Relaxed), 0);
    }

    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
