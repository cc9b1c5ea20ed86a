//! A guest's standard output and error: stored up to a limit. Further bytes are counted and dropped.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use super::call::Outcome;
use super::last_words::last_words;

/// Maximum number of lines to log for one call. The limit on the bytes of output is not sufficient, because a guest
/// could write tens of thousands of short lines.
pub const MAX_LINES: usize = 100;

/// A stream that a guest writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Standard output of a command whose reply is its standard output. The reply is stored separately, because it
    /// becomes a message body and message bodies are never logged.
    Reply,
}

/// The captured output of a guest. All streams share one limit. A write never fails, because bytes beyond the limit are
/// dropped.
#[derive(Debug, Clone)]
pub struct Output {
    limit: usize,
    kept: Arc<Mutex<Captured>>,
}

/// The stored part of a guest's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Standard output of a command whose reply is its standard output. Not part of [`Self::lines`].
    pub reply: Vec<u8>,
    /// Number of bytes that were dropped.
    pub dropped: u64,
}

/// The lines of a guest's output that are written to the log.
#[derive(Debug)]
pub struct Excerpt<'a> {
    /// The first lines, each with the name of its stream.
    pub first: Vec<(&'static str, Cow<'a, str>)>,
    /// Number of lines that are left out between `first` and `last`.
    pub left_out: usize,
    /// The last lines, each with the name of its stream. The last lines of standard error usually give the reason for a
    /// failure.
    pub last: Vec<(&'static str, Cow<'a, str>)>,
}

/// A position in an output. Used to select the part of the output after the position.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    stderr: usize,
    dropped: u64,
}

impl Captured {
    /// Returns the lines to log. If there are more than [`MAX_LINES`] lines, returns the first fifty and the last fifty
    /// lines. Omits blank lines.
    pub fn excerpt(&self) -> Excerpt<'_> {
        // Counts first, because most guests write nothing.
        let left_out = (count_lines(&self.stdout) + count_lines(&self.stderr)).saturating_sub(MAX_LINES);
        let mut lines = self.lines();
        let is_blank = |line: &(&str, Cow<'_, str>)| line.1.trim().is_empty();
        let mut last: Vec<_> = match left_out {
            0 => Vec::new(),
            _ => lines.by_ref().rev().take(MAX_LINES / 2).filter(|line| !is_blank(line)).collect(),
        };
        last.reverse();
        let first = if left_out == 0 { MAX_LINES } else { MAX_LINES / 2 };
        Excerpt { first: lines.take(first).filter(|line| !is_blank(line)).collect(), left_out, last }
    }

    /// Returns all lines, each with the name of its stream. The lines of standard output come first.
    pub fn lines(&self) -> impl DoubleEndedIterator<Item = (&'static str, Cow<'_, str>)> {
        let streams = [("stdout", &self.stdout), ("stderr", &self.stderr)];
        streams.into_iter().flat_map(|(name, bytes)| {
            bytes.split_inclusive(|byte| *byte == b'\n').map(move |line| {
                let line = line.strip_suffix(b"\n").map_or(line, |line| line.strip_suffix(b"\r").unwrap_or(line));
                (name, String::from_utf8_lossy(line))
            })
        })
    }
}

/// Returns the number of lines. The last line may lack a newline.
fn count_lines(bytes: &[u8]) -> usize {
    let ends = bytes.iter().filter(|byte| **byte == b'\n').count();
    ends + usize::from(bytes.last().is_some_and(|byte| *byte != b'\n'))
}

impl Output {
    /// Creates an empty output that stores up to `limit` bytes of all streams together.
    pub fn new(limit: usize) -> Self {
        Self { limit, kept: Arc::default() }
    }

    /// Returns the maximum number of bytes that are stored.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the stored output and resets the output to empty.
    pub fn take(&self) -> Captured {
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the current position in the output.
    pub fn mark(&self) -> Mark {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Mark { stderr: kept.stderr.len(), dropped: kept.dropped }
    }

    /// Removes a command's reply from the output and returns the reply. `None`: the reply may be incomplete, because
    /// output that the guest wrote after `mark` was dropped.
    pub fn take_reply(&self, mark: Mark) -> Option<Vec<u8>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.dropped == mark.dropped).then(|| std::mem::take(&mut kept.reply))
    }

    /// Returns the reason for a failure from the standard error after the mark. `None`: the guest wrote no text after
    /// the mark.
    pub fn last_words_since(&self, mark: Mark) -> Option<String> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        last_words(&String::from_utf8_lossy(kept.stderr.get(mark.stderr..).unwrap_or_default()))
    }

    /// If `outcome` is a trap, appends the reason that the guest wrote to standard error after `mark`. Returns any
    /// other outcome unchanged.
    pub fn explain(&self, outcome: Outcome, mark: Mark) -> Outcome {
        match (outcome, self.last_words_since(mark)) {
            (Outcome::Trapped(fault), Some(words)) => Outcome::Trapped(format!("{fault}: {words}")),
            (outcome, _) => outcome,
        }
    }

    /// Stores a guest's output. Bytes beyond the limit are counted and dropped.
    pub fn write(&self, stream: Stream, bytes: &[u8]) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.limit.saturating_sub(kept.stdout.len() + kept.stderr.len() + kept.reply.len());
        let (keep, drop) = bytes.split_at(bytes.len().min(room));
        match stream {
            Stream::Stdout => kept.stdout.extend_from_slice(keep),
            Stream::Stderr => kept.stderr.extend_from_slice(keep),
            Stream::Reply => kept.reply.extend_from_slice(keep),
        }
        kept.dropped += drop.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_share_the_limit_and_the_rest_is_counted() {
        let output = Output::new(8);
        output.write(Stream::Stdout, b"12345");
        output.write(Stream::Stderr, b"abcdef");
        let kept = output.take();
        assert_eq!((kept.stdout.as_slice(), kept.stderr.as_slice(), kept.dropped), (&b"12345"[..], &b"abc"[..], 3));
        assert_eq!(output.take(), Captured::default());
    }

    #[test]
    fn lines_are_told_with_their_stream() {
        let captured = Captured { stdout: b"a\r\n\n\xff".to_vec(), stderr: b"b\n".to_vec(), ..Captured::default() };
        let lines: Vec<_> = captured.lines().map(|(stream, line)| format!("{stream} {line}")).collect();
        assert_eq!(lines, ["stdout a", "stdout ", "stdout \u{fffd}", "stderr b"]);
    }

    #[test]
    fn many_lines_are_cut_down_to_the_first_and_the_last() {
        let text = |from: usize, to: usize| (from..to).map(|n| format!("{n}\n")).collect::<String>();
        let excerpt = |out: String, err: String| {
            let captured = Captured { stdout: out.into_bytes(), stderr: err.into_bytes(), ..Captured::default() };
            let Excerpt { first, left_out, last } = captured.excerpt();
            let texts = |lines: Vec<(_, Cow<'_, str>)>| lines.into_iter().map(|line| line.1.into_owned()).collect();
            (texts(first), left_out, texts(last))
        };
        let numbers = |from: usize, to: usize| (from..to).map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(excerpt(String::new(), String::new()), (vec![], 0, vec![]));
        assert_eq!(excerpt(text(0, 60), text(60, 100)), (numbers(0, 100), 0, vec![]));
        assert_eq!(excerpt(text(0, 60), text(60, 101)), (numbers(0, 50), 1, numbers(51, 101)));
        let open = excerpt(text(0, 1_000), text(1_000, 1_010) + "why");
        assert_eq!((open.0, open.1), (numbers(0, 50), 911));
        assert_eq!(open.2[39..].join(" "), format!("{} why", numbers(1_000, 1_010).join(" ")));
        assert_eq!(excerpt("\n".repeat(200), "x\n".into()), (vec![], 101, vec!["x".to_owned()]));
    }

    #[test]
    fn what_was_there_before_is_not_told_as_the_program_s_own() {
        let output = Output::new(20);
        output.write(Stream::Stdout, b"before");
        output.write(Stream::Stderr, b"hook\n");
        let mark = output.mark();
        assert_eq!(output.last_words_since(mark), None);
        output.write(Stream::Reply, b"reply");
        assert_eq!(output.take_reply(mark).as_deref(), Some(&b"reply"[..]));
        output.write(Stream::Reply, b"too much");
        output.write(Stream::Reply, b"dropped");
        assert_eq!(output.take_reply(mark), None);
        let kept = output.take();
        assert_eq!((kept.stdout.as_slice(), kept.reply.as_slice()), (&b"before"[..], &b"too muchd"[..]));
        assert!(kept.lines().all(|(_, line)| line == "before" || line == "hook"), "{kept:?}");
    }
}
