//! Lets the client library accept larger frames than the server allows it to send. No I/O.
//!
//! A server adds headers to a message after its producer has sent it: the counts of its deliveries, and the history of
//! dead-lettering. It sends the frame with them even if the frame is larger than both sides agreed on. The client library ends the
//! connection over such a frame, the server counts one more delivery, and the next connection ends in the same way. So the library
//! is told of a larger limit than the server's, and its answer is changed back on its way to the server. A connection with such a
//! spare must not publish, as the library would fill frames up to its own limit.

/// Bytes that a frame with headers may have beyond the limit.
pub(super) const SPARE: u32 = 16 * 1024;

/// Maximum limit that the library is told of, without the spare. Its two buffers have 32 times that size each, on each connection.
pub(super) const MOST: u32 = 256 * 1024;

/// Limit that stands for none. A server without a limit says zero.
const UNLIMITED: u32 = 128 * 1024;

/// Bytes with which a client begins.
const PROTOCOL: &[u8] = b"AMQP";

/// Class and method of the library's answer, and of the server's proposal before, as they begin the content of a frame.
const TUNE_OK: [u8; 4] = [0, 10, 0, 31];

/// Place of the limit in the content of both.
const LIMIT: std::ops::Range<usize> = 6..10;

/// Bytes of a frame before its content.
const HEAD: usize = 7;

/// Returns the way out for a message whose headers are too large for a frame.
pub(super) fn cure() -> String {
    format!("raise `frame_max` in rabbitmq.conf, of which hostler uses at most {} KiB", MOST / 1024)
}

/// Changes the server's limit for the library. `content`: that of the server's proposal.
pub(super) fn raise(content: &mut [u8], spare: u32) {
    change(content, |limit| for_library(if limit == 0 { UNLIMITED } else { limit }, spare));
}

/// Returns the limit of the URL, if there is one, as the library is told of it. Zero stands for the server's limit.
pub(super) fn raise_own(limit: Option<u32>, spare: u32) -> Option<u32> {
    limit.map(|limit| if limit == 0 { 0 } else { for_library(limit, spare) })
}

/// Returns the limit that the library gets for one of the server or the URL.
fn for_library(limit: u32, spare: u32) -> u32 {
    limit.min(MOST) + spare
}

fn change(content: &mut [u8], change: impl FnOnce(u32) -> u32) {
    if let Some(limit) = content.get_mut(LIMIT).and_then(<[u8]>::first_chunk_mut::<4>) {
        *limit = change(u32::from_be_bytes(*limit)).to_be_bytes();
    }
}

/// The bytes with which the library opens a connection, up to its answer to the server's proposal.
#[derive(Debug)]
pub(super) struct Opening {
    spare: u32,
    bytes: Vec<u8>,
    /// Number of bytes that may be sent.
    ready: usize,
    /// Set once the answer is among them. Everything after it is ready as it comes.
    is_answered: bool,
}

impl Opening {
    pub(super) fn new(spare: u32) -> Self {
        Self { spare, bytes: Vec::new(), ready: 0, is_answered: false }
    }

    /// Adds bytes of the library.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        while !self.is_answered {
            let rest = &mut self.bytes[self.ready..];
            let Some(frame) = whole(rest).and_then(|whole| rest.get_mut(..whole)) else { return };
            self.ready += frame.len();
            if let Some(content) = frame.get_mut(HEAD..).filter(|content| content.starts_with(&TUNE_OK)) {
                change(content, |limit| limit.saturating_sub(self.spare));
                self.is_answered = true;
            }
        }
        self.ready = self.bytes.len();
    }

    /// Returns the bytes to send.
    pub(super) fn ready(&self) -> &[u8] {
        &self.bytes[..self.ready]
    }

    /// Notes that this number of bytes was sent.
    pub(super) fn sent(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.ready -= count;
    }

    /// Returns `true` once the answer and everything up to now is sent.
    pub(super) fn is_over(&self) -> bool {
        self.is_answered && self.bytes.is_empty()
    }
}

/// Returns the length of the frame with which the bytes begin, or of the header of the protocol. `None`: it is not yet known.
fn whole(bytes: &[u8]) -> Option<usize> {
    let [_, _, _, length @ ..] = *bytes.first_chunk::<HEAD>()?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    Some(if bytes.starts_with(PROTOCOL) { HEAD + 1 } else { length.saturating_add(HEAD + 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&[1, 0, 0][..], &length, content, &[0xCE]].concat()
    }

    fn answer(limit: u32) -> Vec<u8> {
        frame(&[&TUNE_OK[..], &[7, 255], &limit.to_be_bytes(), &[0, 10]].concat())
    }

    #[test]
    fn the_library_is_told_of_a_larger_limit_and_the_server_of_its_own() {
        let raised = |limit: u32, spare: u32| {
            let mut content = [&[0, 10, 0, 30, 7, 255][..], &limit.to_be_bytes(), &[0, 60]].concat();
            raise(&mut content, spare);
            assert_eq!((content.len(), content[5], content[11]), (12, 255, 60));
            u32::from_be_bytes(content[LIMIT].try_into().unwrap())
        };
        assert_eq!(raised(131_072, SPARE), 131_072 + SPARE);
        assert_eq!([raised(131_072, 0), raised(0, 0), raised(0, SPARE)], [131_072, UNLIMITED, UNLIMITED + SPARE]);
        assert_eq!([raised(MOST, 0), raised(MOST + 1, 0), raised(u32::MAX, SPARE)], [MOST, MOST, MOST + SPARE]);
        let own = [None, Some(0), Some(4096), Some(u32::MAX)].map(|limit| raise_own(limit, SPARE));
        assert_eq!(own, [None, Some(0), Some(4096 + SPARE), Some(MOST + SPARE)]);
        raise(&mut [0, 10, 0, 30], SPARE);

        let before = [b"AMQP\x00\x00\x09\x01".to_vec(), frame(&[0, 10, 0, 11, 5, 5])].concat();
        let after = [frame(&[0, 10, 0, 40]), frame(b"\x00\x0a\x00\x1f likewise")].concat();
        let given = [&before[..], &answer(131_072 + SPARE), &after].concat();
        let expected = [&before[..], &answer(131_072), &after].concat();
        for at_a_time in [1, 3, 20, 1000] {
            let (mut opening, mut sent) = (Opening::new(SPARE), Vec::new());
            for part in given.chunks(at_a_time) {
                opening.add(part);
                // The connection takes some of it.
                let count = opening.ready().len().div_ceil(2);
                sent.extend_from_slice(&opening.ready()[..count]);
                opening.sent(count);
            }
            assert!(opening.is_answered && opening.is_over() == opening.ready().is_empty(), "{at_a_time}");
            sent.extend_from_slice(opening.ready());
            assert_eq!(sent, expected, "{at_a_time}");
        }
    }
}
