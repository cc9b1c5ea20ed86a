//! The lines that wait for a slow reader of standard error, bounded in bytes: beyond, lines are dropped. A blocked log must
//! neither block heartbeats nor take the memory that sandboxes were promised.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing_subscriber::fmt::MakeWriter;

/// The most bytes that may wait.
const BYTES: usize = 4 * 1024 * 1024;

/// What a line counts for at least, in bytes: its place in the queue, and its allocation.
const LEAST: usize = 256;

/// More lines than can ever wait, so that the queue itself refuses none: what it refused would stay counted.
pub(super) const LINES: usize = BYTES / LEAST + 1;

/// Counts what waits.
#[derive(Debug, Clone, Default)]
pub(super) struct Backlog(Arc<AtomicUsize>);

impl Backlog {
    /// Passes on to `queue` what fits.
    pub(super) fn bounded<M>(&self, queue: M) -> Bounded<M> {
        Bounded { backlog: self.clone(), queue }
    }

    /// Writes to `writer` what comes out of the queue, a line a call.
    pub(super) fn drain<W>(&self, writer: W) -> Drain<W> {
        Drain { backlog: self.clone(), writer }
    }

    fn admit(&self, bytes: usize) -> bool {
        let weight = bytes.max(LEAST);
        let admitted = |waiting: usize| Some(waiting + weight).filter(|sum| *sum <= BYTES);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, admitted).is_ok()
    }

    fn leave(&self, bytes: usize) {
        self.0.fetch_sub(bytes.max(LEAST), Ordering::AcqRel);
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

/// The way out of the queue.
#[derive(Debug)]
pub(super) struct Drain<W> {
    backlog: Backlog,
    writer: W,
}

impl<W: Write> Write for Drain<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let written = self.writer.write_all(line);
        self.backlog.leave(line.len());
        written.map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
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
        backlog.drain(io::sink()).write_all(&long).unwrap();
        bounded.write_all(b"short").unwrap();
        assert_eq!(bounded.queue.len(), BYTES + 5);
    }

    #[test]
    fn the_queue_is_longer_than_the_shortest_lines_fill_it() {
        let backlog = Backlog::default();
        let admitted = (0..LINES).filter(|_| backlog.admit(1)).count();
        assert!(admitted < LINES);
    }
}
