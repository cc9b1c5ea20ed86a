//! `send --lines`: an input as batches of messages, a line each.

use std::io::{self, BufRead};

/// How many lines are sent in one call; each call is one write to the disk.
pub const BATCH: usize = 1_000;

/// How many bytes of bodies are gathered for one call at most, but for the last one's.
pub const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Lines that are sent together.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The lines without their ends. Blank ones are not here.
    pub bodies: Vec<Vec<u8>>,
    /// The number of each in the input, from 1; blank lines count.
    pub numbers: Vec<u64>,
    /// The bytes of input that it was made of.
    pub read: u64,
}

impl Batch {
    /// Reads the next lines of an input; `number`, the lines read before, moves on with them. `None` after the last.
    ///
    /// # Errors
    /// What the input says.
    pub fn next(input: &mut dyn BufRead, number: &mut u64) -> io::Result<Option<Self>> {
        let (mut batch, mut bytes) = (Self::default(), 0);
        while batch.bodies.len() < BATCH && bytes < BATCH_BYTES {
            let mut line = Vec::new();
            let read = input.read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            *number += 1;
            batch.read += read as u64;
            if line.last() == Some(&b'\n') {
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                bytes += line.len();
                batch.numbers.push(*number);
                batch.bodies.push(line);
            }
        }
        Ok((batch.read > 0).then_some(batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(mut input: &[u8]) -> Vec<Batch> {
        let mut number = 0;
        std::iter::from_fn(|| Batch::next(&mut input, &mut number).unwrap()).collect()
    }

    #[test]
    fn blank_lines_count_and_are_not_sent() {
        let [batch] = batches(b"a\n\n \t\r\nb\r\n\xff\r").try_into().unwrap();
        assert_eq!(batch.bodies, [&b"a"[..], b"b", b"\xff\r"]);
        assert_eq!((batch.numbers, batch.read), (vec![1, 4, 5], 12));
        assert_eq!(batches(b""), []);
    }

    #[test]
    fn a_batch_is_bounded_in_lines_and_in_bytes() {
        let many = batches(&b"x\n".repeat(BATCH + 1));
        assert_eq!(many.iter().map(|batch| batch.bodies.len()).collect::<Vec<_>>(), [BATCH, 1]);
        assert_eq!(many.last().unwrap().numbers, [BATCH as u64 + 1]);
        let large = [vec![b'x'; BATCH_BYTES], b"\ny\n".to_vec()].concat();
        assert_eq!(batches(&large).iter().map(|batch| batch.bodies.len()).collect::<Vec<_>>(), [1, 1]);
    }
}
