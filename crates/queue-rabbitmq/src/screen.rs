//! Repairs what the client library cannot read in the frames of the server. No I/O.
//!
//! AMQP does not say how text is encoded, and RabbitMQ passes on what producers send. Yet the client library ends the connection
//! over a short string that is not UTF-8, and the server then delivers the message again. It also parses values in values by
//! recursion, so that the headers of one message can exceed the stack of its thread, which ends the process. So a byte that is
//! not UTF-8 becomes a question mark, and an array or a table at a great depth becomes a byte array with the same content. Both
//! have the same length as before. The server's limit to the size of frames is raised on the way: see `tuning`.

use std::io;

use super::tuning;

/// Size of the buffer. It grows for a longer frame.
const ROOM: usize = 64 * 1024;

/// Longest frame that is repaired. The client library takes no longer one.
const LONGEST: usize = (tuning::MOST + tuning::SPARE) as usize;

/// Number of arrays and tables in each other that are left as they are. The history of dead-lettering has two.
const DEEPEST: usize = 32;

/// Bytes of a frame before its content: the type, the channel, and the length.
const HEAD: usize = 7;

/// Types of frames that contain text.
const METHOD: u8 = 1;
const HEADER: u8 = 2;

/// Type of a byte array.
const BYTES: u8 = b'x';

/// The method by which the server says how large frames may be, with its class.
const TUNE: (usize, usize) = (10, 30);

/// Methods whose texts others than hostler choose, each with its class.
const CONNECTION_CLOSE: (usize, usize) = (10, 50);
const CHANNEL_CLOSE: (usize, usize) = (20, 40);
const RETURN: (usize, usize) = (60, 50);
const DELIVER: (usize, usize) = (60, 60);
const GET_OK: (usize, usize) = (60, 71);

/// The bytes that the server has sent and the client library has not yet taken.
#[derive(Debug)]
pub(super) struct Screen {
    bytes: Vec<u8>,
    /// Bytes up to here are taken.
    taken: usize,
    /// Bytes up to here may be taken.
    ready: usize,
    /// Bytes up to here are from the server.
    filled: usize,
    /// Number of bytes that belong to a frame without text and have not come.
    passing: usize,
    /// Number of repairs.
    repairs: usize,
    /// Bytes by which the server's limit to the size of frames is raised.
    spare: u32,
}

impl Screen {
    /// `spare`: bytes by which the server's limit to the size of frames is raised.
    pub(super) fn new(spare: u32) -> Self {
        Self { bytes: vec![0; ROOM], taken: 0, ready: 0, filled: 0, passing: 0, repairs: 0, spare }
    }

    /// Moves bytes to `target`. Returns their number.
    pub(super) fn take(&mut self, target: &mut [u8]) -> usize {
        let count = target.len().min(self.ready - self.taken);
        target[..count].copy_from_slice(&self.bytes[self.taken..self.taken + count]);
        self.taken += count;
        count
    }

    /// Returns `true` if there are bytes to take.
    pub(super) fn has_some(&self) -> bool {
        self.taken < self.ready
    }

    /// Returns the place for bytes of the server. It is not empty.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.filled == self.bytes.len() || self.taken == self.filled {
            self.bytes.copy_within(self.taken..self.filled, 0);
            (self.ready, self.filled) = (self.ready - self.taken, self.filled - self.taken);
            self.taken = 0;
        }
        if self.filled == self.bytes.len() {
            self.bytes.resize(2 * self.filled, 0);
        }
        &mut self.bytes[self.filled..]
    }

    /// Notes that this number of bytes has come, and repairs the frames that are complete. Returns the number of repairs.
    ///
    /// # Errors
    /// A frame is too long.
    pub(super) fn fill(&mut self, count: usize) -> io::Result<usize> {
        self.filled += count;
        let before = self.repairs;
        loop {
            let passed = self.passing.min(self.filled - self.ready);
            (self.passing, self.ready) = (self.passing - passed, self.ready + passed);
            let rest = &mut self.bytes[self.ready..self.filled];
            let [kind, _, _, length @ ..] = rest.first_chunk::<HEAD>().copied().unwrap_or_default();
            if rest.len() < HEAD {
                break;
            }
            let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            let whole = length.saturating_add(HEAD + 1);
            if kind != METHOD && kind != HEADER {
                self.passing = whole;
                continue;
            }
            if whole > LONGEST {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes")));
            }
            let Some(frame) = rest.get_mut(..whole) else { break };
            let mut content = Content { bytes: &mut frame[HEAD..HEAD + length], at: 0, repairs: 0 };
            // The client library has its own error for a frame in another form.
            let _ = if kind == METHOD { content.method(self.spare) } else { content.header() };
            self.repairs += content.repairs;
            self.ready += whole;
        }
        Ok(self.repairs - before)
    }
}

/// The content of a frame, or of an array or a table in it. Each step is `None` if the content ends too early.
struct Content<'a> {
    bytes: &'a mut [u8],
    at: usize,
    repairs: usize,
}

impl Content<'_> {
    fn skip(&mut self, count: usize) -> Option<&mut [u8]> {
        let skipped = self.bytes.get_mut(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(skipped)
    }

    fn number(&mut self, size: usize) -> Option<usize> {
        Some(self.skip(size)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// Repairs the texts of a method, or raises the limit that it contains.
    fn method(&mut self, spare: u32) -> Option<()> {
        match (self.number(2)?, self.number(2)?) {
            TUNE => {
                tuning::raise(self.bytes, spare);
                Some(())
            }
            CONNECTION_CLOSE | CHANNEL_CLOSE => {
                self.skip(2)?;
                self.text()
            }
            RETURN => {
                self.skip(2)?;
                self.texts(3)
            }
            DELIVER => {
                self.text()?;
                self.skip(9)?;
                self.texts(2)
            }
            GET_OK => {
                self.skip(9)?;
                self.texts(2)
            }
            _ => Some(()),
        }
    }

    /// Repairs the properties of a message.
    fn header(&mut self) -> Option<()> {
        self.skip(12)?;
        let flags = self.number(2)?;
        // Two texts, the headers, two small numbers, four texts, the time, and four texts.
        for (n, kind) in b"sstbbssssTssss".iter().enumerate() {
            if flags >> (15 - n) & 1 == 0 {
                continue;
            }
            match kind {
                b's' => self.text()?,
                b't' => self.nested(true, 1)?,
                b'b' => drop(self.skip(1)?),
                _ => drop(self.skip(8)?),
            }
        }
        Some(())
    }

    fn texts(&mut self, count: usize) -> Option<()> {
        (0..count).try_for_each(|_| self.text())
    }

    /// Repairs a short string.
    fn text(&mut self) -> Option<()> {
        let length = self.number(1)?;
        let text = self.skip(length)?;
        let is_wrong = str::from_utf8(text).is_err();
        if is_wrong {
            let chunks =
                text.utf8_chunks().flat_map(|chunk| [(chunk.valid().len(), false), (chunk.invalid().len(), true)]);
            let mut at = 0;
            for (length, is_wrong) in chunks.collect::<Vec<_>>() {
                if is_wrong {
                    text[at..at + length].fill(b'?');
                }
                at += length;
            }
        }
        self.repairs += usize::from(is_wrong);
        Some(())
    }

    /// Repairs the values of an array, or of a table, in which they have names.
    fn nested(&mut self, named: bool, depth: usize) -> Option<()> {
        let length = self.number(4)?;
        let mut inner = Content { bytes: self.skip(length)?, at: 0, repairs: 0 };
        let mut walked = Some(());
        while walked.is_some() && inner.at < inner.bytes.len() {
            walked = if named { inner.text() } else { Some(()) }.and_then(|()| inner.value(depth));
        }
        let repairs = inner.repairs;
        self.repairs += repairs;
        walked
    }

    /// Repairs a value that is in this number of arrays and tables.
    fn value(&mut self, depth: usize) -> Option<()> {
        let kind = self.skip(1)?;
        let nests = matches!(kind, [b'A' | b'F']);
        if nests && depth >= DEEPEST {
            kind.fill(BYTES);
            self.repairs += 1;
        }
        match self.bytes.get(self.at - 1)? {
            b'V' => Some(()),
            b't' | b'b' | b'B' => self.skip(1).map(drop),
            b's' | b'U' | b'u' => self.skip(2).map(drop),
            b'I' | b'i' | b'f' => self.skip(4).map(drop),
            b'D' => self.skip(5).map(drop),
            b'L' | b'l' | b'd' | b'T' => self.skip(8).map(drop),
            b'S' | b'x' => {
                let length = self.number(4)?;
                self.skip(length).map(drop)
            }
            b'A' => self.nested(false, depth + 1),
            b'F' => self.nested(true, depth + 1),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
