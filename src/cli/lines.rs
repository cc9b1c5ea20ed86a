//! Input of `send --lines`. Splits an input into batches of messages, one message per line.

use std::io::{self, BufRead as _, BufReader, Read};

/// Maximum number of lines per batch. Each batch is one call to the queue. In the embedded queue, each batch is one write to the
/// disk.
pub const BATCH: usize = 1_000;

/// Total size of the bodies at which a batch is full, in bytes. The last line of a batch may exceed this size.
pub const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Maximum length of a line in bytes. A longer message would never reach a handler, because hostler does not load
/// bodies above this size from S3.
pub const LONGEST: usize = 256 * 1024 * 1024;

/// Size of the read buffer in bytes. A batch ends early if the buffer contains no further complete line. A buffer of this size is
/// large enough to fill most batches when the input is a file.
const AHEAD: usize = BATCH_BYTES;

/// Lines to send together.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Lines without their line ends. Blank lines are left out.
    pub bodies: Vec<Vec<u8>>,
    /// Line number of each body in the input, starting at 1. Blank lines count.
    pub numbers: Vec<u64>,
    /// Number of input bytes in this batch.
    pub read: u64,
}

/// Iterator over the batches of an input. After a read error, returns the lines before the error, then the error, and then
/// `None`.
#[derive(Debug)]
pub struct Lines<R> {
    input: BufReader<R>,
    longest: usize,
    /// Number of the last line read.
    number: u64,
    /// Set after a read error. `error` contains the error until the iterator has returned it.
    failed: bool,
    error: Option<io::Error>,
}

impl<R: Read> Lines<R> {
    /// Creates an iterator over this input.
    pub fn new(input: R) -> Self {
        Self::ahead(AHEAD, input)
    }

    /// Creates an iterator over this input, with a buffer of `bytes` bytes.
    pub fn ahead(bytes: usize, input: R) -> Self {
        Self { input: BufReader::with_capacity(bytes, input), longest: LONGEST, number: 0, failed: false, error: None }
    }

    /// Returns the next line, including its line end. `None`: the input has ended.
    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let most = self.longest as u64 + 1;
        if self.input.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        if line.len() > self.longest && !line.ends_with(b"\n") {
            let text = format!("line {} has more than {} bytes", self.number, self.longest);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Some(line))
    }

    /// Returns true if the buffer contains no complete line. In that case, reading the next line may block.
    fn waits(&self) -> bool {
        !self.input.buffer().contains(&b'\n')
    }
}

impl<R: Read> Iterator for Lines<R> {
    type Item = io::Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return self.error.take().map(Err);
        }
        let (mut batch, mut bytes) = (Batch::default(), 0);
        while batch.bodies.len() < BATCH && bytes < BATCH_BYTES && (batch.bodies.is_empty() || !self.waits()) {
            let mut line = match self.line() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(error) => {
                    (self.failed, self.error) = (true, Some(error));
                    break;
                }
            };
            batch.read += line.len() as u64;
            if line.pop_if(|last| *last == b'\n').is_some() {
                line.pop_if(|last| *last == b'\r');
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                bytes += line.len();
                batch.numbers.push(self.number);
                batch.bodies.push(line);
            }
        }
        match batch.read {
            0 => self.error.take().map(Err),
            _ => Some(Ok(batch)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn batches(input: &[u8]) -> Vec<Batch> {
        Lines::new(input).map(Result::unwrap).collect()
    }

    /// Input for tests. Each read returns the next piece. A piece that is `None` makes the read fail. After the last
    /// piece, the input ends.
    struct Pieces(VecDeque<Option<&'static str>>);

    impl Read for Pieces {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            match self.0.pop_front() {
                Some(Some(piece)) => {
                    into[..piece.len()].copy_from_slice(piece.as_bytes());
                    Ok(piece.len())
                }
                Some(None) => Err(io::Error::other("the disk is broken")),
                None => Ok(0),
            }
        }
    }

    /// Returns the lines of each batch of an input that consists of these pieces. In place of a batch that fails, returns the
    /// error message.
    fn in_pieces<const N: usize>(pieces: [Option<&'static str>; N]) -> Vec<Result<Vec<String>, String>> {
        let text = |body: Vec<u8>| String::from_utf8(body).unwrap();
        Lines::new(Pieces(pieces.into()))
            .map(|batch| match batch {
                Ok(batch) => Ok(batch.bodies.into_iter().map(text).collect()),
                Err(error) => Err(error.to_string()),
            })
            .collect()
    }

    fn sent(lines: &[&str]) -> Result<Vec<String>, String> {
        Ok(lines.iter().map(|line| (*line).to_owned()).collect())
    }

    #[test]
    fn blank_lines_count_and_are_not_sent() {
        let [batch] = batches(b"a\n\n \t\r\nb\r\n\xff\r\n").try_into().unwrap();
        assert_eq!(batch.bodies, [&b"a"[..], b"b", b"\xff"]);
        assert_eq!((batch.numbers, batch.read), (vec![1, 4, 5], 13));
        assert_eq!(batches(b""), []);
    }

    #[test]
    fn the_last_line_needs_no_end() {
        let bodies: Vec<_> = batches(b"a\n\xff\r").into_iter().flat_map(|batch| batch.bodies).collect();
        assert_eq!(bodies, [&b"a"[..], b"\xff\r"]);
    }

    #[test]
    fn a_batch_is_bounded_in_lines_and_in_bytes() {
        let many = batches(&b"x\n".repeat(BATCH + 1));
        assert_eq!(many.iter().map(|batch| batch.bodies.len()).collect::<Vec<_>>(), [BATCH, 1]);
        assert_eq!(many.last().unwrap().numbers, [BATCH as u64 + 1]);
        let large = [vec![b'x'; BATCH_BYTES], b"\ny\n".to_vec()].concat();
        assert_eq!(batches(&large).iter().map(|batch| batch.bodies.len()).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn no_line_that_is_whole_waits_for_one_that_is_not() {
        let said = in_pieces([Some("a\nb\nc"), Some("d\n"), Some("\n"), Some("e\nf")]);
        assert_eq!(said, [sent(&["a", "b"]), sent(&["cd"]), sent(&["e"]), sent(&["f"])]);
    }

    #[test]
    fn what_comes_before_an_error_comes_first() {
        let broken = || Err("the disk is broken".to_owned());
        assert_eq!(in_pieces([None]), [broken()]);
        assert_eq!(in_pieces([Some("a\nb"), None]), [sent(&["a"]), broken()]);
        assert_eq!(in_pieces([Some("\n"), None]), [sent(&[]), broken()]);
    }

    #[test]
    fn a_line_without_end_is_refused_by_its_number() {
        let said = |input: &'static [u8]| {
            let lines = Lines { longest: 3, ..Lines::new(input) };
            lines.map(|batch| batch.map(|batch| batch.numbers).map_err(|error| error.to_string())).collect::<Vec<_>>()
        };
        assert_eq!(said(b"abc\nabc"), [Ok(vec![1]), Ok(vec![2])]);
        let refused = Err("line 3 has more than 3 bytes".to_owned());
        assert_eq!(said(b"abc\n\nabcd\n"), [Ok(vec![1]), refused.clone()]);
        assert_eq!(said(b"a\nb\nabcd"), [Ok(vec![1, 2]), refused]);
    }
}
