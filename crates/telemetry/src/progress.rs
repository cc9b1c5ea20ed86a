//! Progress line: a line on a terminal during a long operation, which is removed when the operation ends.

use std::io::{self, IsTerminal as _, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Delay before the line appears, and interval between two updates of the line.
const TICK: Duration = Duration::from_millis(300);

/// Maximum length of the text in characters. A longer line could wrap, and a wrapped line cannot be removed.
const LONGEST: usize = 60;

/// A line on standard error. Dropping it removes the line.
#[derive(Debug)]
#[must_use = "the line is removed when this is dropped"]
pub struct Progress(Option<(Sender<()>, JoinHandle<()>)>);

impl Progress {
    /// Shows `text` and the elapsed time. Does nothing if standard error is not a terminal.
    pub fn show(text: &str) -> Self {
        if !io::stderr().is_terminal() {
            return Self(None);
        }
        let text = shortened(text);
        let (sender, done) = channel();
        let drawing = thread::Builder::new().name("hostler-progress".into());
        // If the thread cannot be started, no line is shown, and the operation continues.
        Self(drawing.spawn(move || draw(&text, &done, io::stderr())).ok().map(|thread| (sender, thread)))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((done, thread)) = self.0.take() {
            drop(done);
            let _ = thread.join();
        }
    }
}

fn shortened(text: &str) -> String {
    let line: String = text.chars().filter(|char| !char.is_control()).collect();
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Draws the line at an interval until the sender of `done` is dropped. After each update, the cursor returns to the
/// start of the line, so that a log line overwrites it.
fn draw(text: &str, done: &Receiver<()>, mut out: impl Write) {
    let begun = Instant::now();
    let mut drawn = false;
    while done.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        drawn = true;
        let _ = write!(out, "\r\x1b[K{text}, {} s\r", begun.elapsed().as_secs()).and_then(|()| out.flush());
    }
    if drawn {
        let _ = write!(out, "\r\x1b[K").and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends each write to a channel.
    struct Drawn(Sender<String>);

    impl Write for Drawn {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_line_appears_and_is_gone_at_the_end() {
        let ((work, done), (out, drawn)) = (channel(), channel());
        let drawing = thread::spawn(move || draw("compiling", &done, Drawn(out)));
        // Read until the whole line is drawn, because one line may be several writes.
        let mut written = String::new();
        while !written.contains("compiling, 0 s\r") {
            written += &drawn.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        drop(work);
        drawing.join().unwrap();
        let rest: String = written + &drawn.iter().collect::<String>();
        assert!(rest.ends_with("\r\x1b[K") && rest.matches('\n').count() == 0, "{rest:?}");
    }

    #[test]
    fn work_that_is_done_at_once_shows_nothing() {
        let ((work, done), (out, drawn)) = (channel::<()>(), channel());
        drop(work);
        draw("compiling", &done, Drawn(out));
        assert_eq!(drawn.iter().count(), 0);
    }

    #[test]
    fn a_text_fits_on_a_line() {
        assert_eq!(shortened("a\nb\u{1b}[2J"), "ab[2J");
        assert_eq!(shortened(&"ü".repeat(LONGEST + 1)), format!("{}…", "ü".repeat(LONGEST)));
    }
}
