//! The lines that wait for a slow reader of standard error, bounded in bytes: beyond, lines are dropped. A blocked log must
//! neither block heartbeats nor take the memory that sandboxes were promised.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// The most bytes that may wait.
const BYTES: usize = 4 * 1024 * 1024;

/// What a line counts for at least, in bytes: its place in the queue, and its allocation.
const LEAST: usize = 256;

/// More lines than can ever wait, so that the queue itself refuses none: what it refused would stay counted.
pub(super) const LINES: usize = BYTES / LEAST + 1;

/// How many bytes of lines are written together at most, give or take a line.
const TOGETHER: usize = 64 * 1024;

/// How long lines are let gather after some were written: the latest that a line may come out.
const PAUSE: Duration = Duration::from_millis(1);

/// What a line of so many bytes counts for.
fn weight(bytes: usize) -> usize {
    bytes.max(LEAST)
}

/// Counts what waits.
#[derive(Debug, Clone, Default)]
pub(super) struct Backlog(Arc<AtomicUsize>);

impl Backlog {
    /// Passes on to `queue` what fits.
    pub(super) fn bounded<M>(&self, queue: M) -> Bounded<M> {
        Bounded { backlog: self.clone(), queue }
    }

    /// Writes to `writer` what comes out of the queue, as often as it is flushed.
    pub(super) fn drain<W>(&self, writer: W) -> Drain<W> {
        Drain { backlog: self.clone(), writer, gathered: Vec::new(), weight: 0 }
    }

    fn admit(&self, bytes: usize) -> bool {
        let weight = weight(bytes);
        let admitted = |waiting: usize| Some(waiting + weight).filter(|sum| *sum <= BYTES);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, admitted).is_ok()
    }

    fn leave(&self, weight: usize) {
        self.0.fetch_sub(weight, Ordering::AcqRel);
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
        Line { backlog: self.backlog.clone(), queue: self.queue.make_writer() }
    }
}

/// One line on its way in. The log writes each with one call.
#[derive(Debug)]
pub(super) struct Line<W> {
    backlog: Backlog,
    queue: W,
}

impl<W: Write> Write for Line<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.backlog.admit(line.len()) {
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
}

impl<W: Write> Write for Drain<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.gathered.extend_from_slice(line);
        self.weight += weight(line.len());
        if self.gathered.len() >= TOGETHER {
            self.write_gathered()?;
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
        #[allow(clippy::disallowed_methods, reason = "lines gather meanwhile")]
        std::thread::sleep(PAUSE);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wait_up_to_a_number_of_bytes_and_leave_room_when_written() {
        let backlog = Backlog::default();
        let mut queue = Vec::new();
        let mut bounded = Line { backlog: backlog.clone(), queue: &mut queue };
        let long = vec![b'x'; BYTES / 4];
        for _ in 0..5 {
            bounded.write_all(&long).unwrap();
        }
        bounded.write_all(b"short").unwrap();
        assert_eq!(bounded.queue.len(), BYTES, "the fifth and the short line are dropped");
        let mut drain = backlog.drain(io::sink());
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
        assert!(backlog.admit(2) && backlog.admit(2));
        let mut drain = backlog.drain(Writes::default());
        drain.write_all(b"a\n").unwrap();
        drain.write_all(b"b\n").unwrap();
        assert!(drain.writer.0.is_empty());
        drain.flush().unwrap();
        drain.flush().unwrap();
        assert_eq!(drain.writer.0, ["a\nb\n"]);
        assert_eq!(backlog.0.load(Ordering::Acquire), 0, "none of them waits");
    }

    #[test]
    fn the_queue_is_longer_than_the_shortest_lines_fill_it() {
        let backlog = Backlog::default();
        let admitted = (0..LINES).filter(|_| backlog.admit(1)).count();
        assert!(admitted < LINES);
    }
}
