//! A client of HTTP/1.1 that costs little CPU: one kept connection, calls one after another, bodies with a length.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Maximum time between two reads of an answer. A long poll takes less.
const PATIENCE: Duration = Duration::from_secs(120);

/// The answer to a call.
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// A connection to the service.
pub struct Connection {
    stream: BufReader<TcpStream>,
    host: String,
    line: Vec<u8>,
}

impl Connection {
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn open(host: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(host)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::with_capacity(64 * 1024, stream), host: host.to_owned(), line: Vec::new() })
    }

    /// Makes a call, and reads the whole answer.
    ///
    /// # Errors
    /// If the connection is lost, or the answer has no length.
    pub fn call(&mut self, method: &str, path: &str, body: &str) -> io::Result<Answer> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let status = status(self.line()?).ok_or_else(|| invalid("the answer has no status"))?;
        let mut length = None;
        loop {
            match header(self.line()?) {
                Header::End => break,
                Header::Length(bytes) => length = Some(bytes),
                Header::Other => {}
            }
        }
        let mut body = vec![0; length.ok_or_else(|| invalid("the answer has no length"))?];
        self.stream.read_exact(&mut body)?;
        Ok(Answer { status, body })
    }

    /// Reads a line of the head.
    fn line(&mut self) -> io::Result<&[u8]> {
        self.line.clear();
        if self.stream.read_until(b'\n', &mut self.line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(self.line.trim_ascii())
    }
}

/// A line of an answer's head.
#[derive(Debug, PartialEq)]
enum Header {
    End,
    Length(usize),
    Other,
}

fn header(line: &[u8]) -> Header {
    if line.is_empty() {
        return Header::End;
    }
    let Some((name, value)) = str::from_utf8(line).ok().and_then(|line| line.split_once(':')) else {
        return Header::Other;
    };
    match value.trim().parse() {
        Ok(bytes) if name.eq_ignore_ascii_case("content-length") => Header::Length(bytes),
        _ => Header::Other,
    }
}

fn status(line: &[u8]) -> Option<u16> {
    str::from_utf8(line).ok()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

fn invalid(fault: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_head_are_told_apart() {
        assert_eq!(status(b"HTTP/1.1 201 Created"), Some(201));
        assert_eq!(status(b"HTTP/2 200"), None);
        assert_eq!(header(b"Content-length: 12"), Header::Length(12));
        assert_eq!(header(b"content-type: application/json"), Header::Other);
        assert_eq!(header(b""), Header::End);
    }
}
