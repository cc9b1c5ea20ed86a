//! The lines that wait for a slow reader of standard error, bounded in bytes: beyond, lines are dropped. A blocked log must
//! neither block heartbeats nor take the memory that sandboxes were promised.
//!
//! What is dropped is counted, and told once there is room again, by a line like any other: it goes through the queue, for which
//! nobody waits, and room is kept for it.
//!
//! Lines of guests, and those about what guests tried, fit only while less than half of the room is taken. So they are dropped first,
//! and what a guest does never displaces another line of hostler's own, such as that of a settled message.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::{BY_GUEST, GUEST};

/// The most bytes that may wait.
pub(super) const BYTES: usize = 4 * 1024 * 1024;

/// How many may wait for a line of a guest to be let in.
const OF_GUESTS: usize = BYTES / 2;

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
    /// Lines of hostler's own that nobody was told of yet.
    own: AtomicU64,
    /// The same of lines of guests.
    of_guests: AtomicU64,
}

/// Numbers of lines that were dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    own: u64,
    of_guests: u64,
}

impl Backlog {
    /// Passes on to `queue` what fits.
    pub(super) fn bounded<M>(&self, queue: M) -> Bounded<M> {
        Bounded { backlog: self.clone(), queue }
    }

    /// Writes to `writer` what comes out of the queue, as often as it is flushed, and then `tells` how many lines were dropped.
    pub(super) fn drain<W>(&self, writer: W, tells: fn(Dropped)) -> Drain<W> {
        Drain { backlog: self.clone(), writer, tells, told: None, gathered: Vec::new(), weight: 0 }
    }

    /// Takes in a line, as long as no more bytes wait than its origin allows.
    fn admit(&self, bytes: usize, origin: Origin) -> bool {
        let weight = weight(bytes);
        let limit = origin.limit();
        let admitted = |waiting: usize| Some(waiting + weight).filter(|sum| *sum <= limit);
        let is_admitted = self.0.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, admitted).is_ok();
        if !is_admitted {
            let dropped = if origin == Origin::Guest { &self.0.of_guests } else { &self.0.own };
            dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_admitted
    }

    fn leave(&self, weight: usize) {
        self.0.waiting.fetch_sub(weight, Ordering::AcqRel);
    }

    /// Tells how many lines were dropped since that was told last, if any were.
    pub(super) fn tell(&self, tells: fn(Dropped)) {
        // Nearly never are there any, and this is asked often.
        let counts = [&self.0.own, &self.0.of_guests];
        if counts.iter().any(|count| count.load(Ordering::Relaxed) > 0) {
            let [own, of_guests] = counts.map(|count| count.swap(0, Ordering::Relaxed));
            tells(Dropped { own, of_guests });
        }
    }
}

/// Logs that so many lines were dropped.
pub(super) fn warn(dropped: Dropped) {
    let Dropped { own, of_guests } = dropped;
    tracing::warn!(
        target: TARGET,
        dropped = own + of_guests,
        of_guests,
        "log lines were dropped: standard error is read too slowly, or a line was too long"
    );
}

/// Whose line it is, by which it is decided how full the backlog may be for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Output of a guest, or a line that it caused.
    Guest,
    /// A line of hostler's own.
    Own,
    /// The line that tells of dropped ones.
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

    /// How many bytes may wait with a line of it.
    fn limit(self) -> usize {
        match self {
            Self::Guest => OF_GUESTS,
            Self::Own => BYTES,
            Self::Telling => BYTES + RESERVE,
        }
    }
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
        Line { backlog: self.backlog.clone(), queue: self.queue.make_writer(), origin: Origin::Own }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        Line { origin: Origin::of(metadata), ..self.make_writer() }
    }
}

/// One line on its way in. The log writes each with one call.
#[derive(Debug)]
pub(super) struct Line<W> {
    backlog: Backlog,
    queue: W,
    origin: Origin,
}

impl<W: Write> Write for Line<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.backlog.admit(line.len(), self.origin) {
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
    tells: fn(Dropped),
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
    use crate::lines::Lines;

    fn line<W>(backlog: &Backlog, queue: W, origin: Origin) -> Line<W> {
        Line { backlog: backlog.clone(), queue, origin }
    }

    #[test]
    fn lines_wait_up_to_a_number_of_bytes_and_leave_room_when_written() {
        let backlog = Backlog::default();
        let mut queue = Vec::new();
        let mut bounded = line(&backlog, &mut queue, Origin::Own);
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

    #[test]
    fn lines_of_guests_are_dropped_first_and_counted_apart() {
        let backlog = Backlog::default();
        let long = vec![b'x'; OF_GUESTS / 2];
        let mut queue = Vec::new();
        let mut guest = line(&backlog, &mut queue, Origin::Guest);
        for _ in 0..5 {
            guest.write_all(&long).unwrap();
        }
        assert_eq!(guest.queue.len(), OF_GUESTS, "two of five fit");
        let mut own = line(&backlog, Vec::new(), Origin::Own);
        own.write_all(&long).unwrap();
        assert_eq!(own.queue.len(), long.len(), "they leave room for others");
        // Where hostler's own lines fill it, no guest's gets in.
        let mut drain = backlog.drain(io::sink(), |_| ());
        drain.write_all(&long).unwrap();
        drain.flush().unwrap();
        line(&backlog, io::sink(), Origin::Guest).write_all(b"short").unwrap();
        assert_eq!(backlog.0.of_guests.load(Ordering::Relaxed), 1, "three were told of when lines were written");
        assert_eq!(backlog.0.own.load(Ordering::Relaxed), 0);
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
        assert!(backlog.admit(2, Origin::Own) && backlog.admit(2, Origin::Own));
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
        let admitted = (0..LINES).filter(|_| backlog.admit(1, Origin::Telling)).count();
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
        let mut queue = line(&backlog, io::sink(), Origin::Own);
        let mut drain = backlog.drain(io::sink(), |dropped| TOLD.with_borrow_mut(|told| told.push(dropped.own)));
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
        backlog.tell(|dropped| TOLD.with_borrow_mut(|told| told.push(dropped.own)));
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
        let bounded = backlog.bounded(move || Lines(Arc::clone(&writer)));
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(bounded);
        assert!(backlog.admit(BYTES, Origin::Own));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!("of others");
            backlog.tell(warn);
        });
        let lines = String::from_utf8(queue.lock().unwrap().clone()).unwrap();
        assert!(lines.contains("dropped=1") && !lines.contains("of others"), "{lines}");
        assert_eq!(backlog.0.own.load(Ordering::Relaxed), 0);
    }
}
