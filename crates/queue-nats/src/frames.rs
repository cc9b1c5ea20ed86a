//! Messages that the client library cannot read. No I/O.
//!
//! Servers store and deliver what producers send, in any encoding and form. Yet the client library ends its connection over a subject
//! or headers that are not UTF-8, or not lines of names and values, and over a line end inside of a value it ends for good. The server
//! then delivers the message again. So such messages have to be recognized elsewhere: see `screening`.

use std::fmt;

use async_nats::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// First line of the headers, which a status may follow.
const VERSION: &str = "NATS/1.0";

/// Header for a line of the original that is not a name with a value.
const UNREADABLE: &str = "Unreadable-Header";

/// Reason why the client library cannot read a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The subject is not UTF-8.
    Subject,
    /// The subject of a message with headers contains white space.
    Space,
    /// The headers are not UTF-8.
    Encoding,
    /// The headers do not begin with the version, or with a status that is no number.
    Version,
    /// A line of the headers has no colon.
    Colon,
    /// The name of a header contains a space, or something other than ASCII.
    Name,
    /// The value of a header contains a carriage return.
    LineEnd,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Subject => "its subject is not UTF-8",
            Self::Space => "its subject contains white space",
            Self::Encoding => "its headers are not UTF-8",
            Self::Version => "its headers do not begin with `NATS/1.0`",
            Self::Colon => "a line of its headers has no colon",
            Self::Name => "the name of a header contains a character that is not allowed",
            Self::LineEnd => "the value of a header contains a carriage return",
        })
    }
}

/// Checks if the client library reads a message with this subject and these headers. Empty headers: the message has none.
///
/// # Errors
/// The reason why it does not.
pub(crate) fn check(subject: &str, headers: &[u8]) -> Result<(), Unreadable> {
    if headers.is_empty() {
        return Ok(());
    }
    // At its end, the client library takes it for the end of the word.
    if subject.trim_end().contains(char::is_whitespace) {
        return Err(Unreadable::Space);
    }
    let headers = str::from_utf8(headers).map_err(|_| Unreadable::Encoding)?;
    let mut lines = headers.lines();
    let status = lines.next().and_then(|line| line.strip_prefix(VERSION)).ok_or(Unreadable::Version)?.trim();
    let status = status.split_once(' ').map_or(status, |(status, _)| status.trim());
    if !status.is_empty() && status.parse::<StatusCode>().is_err() {
        return Err(Unreadable::Version);
    }
    for (name, value) in entries(lines) {
        let value = value.ok_or(Unreadable::Colon)?;
        name.parse::<HeaderName>().map_err(|_| Unreadable::Name)?;
        value.parse::<HeaderValue>().map_err(|_| Unreadable::LineEnd)?;
    }
    Ok(())
}

/// Returns the headers in a form that can be read: as they are, if the client library reads them. Otherwise, characters that are not
/// allowed are replaced, and a line without a name is the value of a header of its own.
pub(crate) fn readable(headers: &[u8]) -> HeaderMap {
    let text = String::from_utf8_lossy(headers);
    let mut lines = text.lines().peekable();
    lines.next_if(|line| line.starts_with(VERSION));
    let mut readable = HeaderMap::new();
    for (name, value) in entries(lines) {
        let (name, value) = match value {
            Some(value) => (name.replace(|char: char| !char.is_ascii_graphic(), "_"), value),
            None => (UNREADABLE.to_owned(), name.trim().to_owned()),
        };
        let value = value.replace(['\r', '\n'], " ");
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            readable.append(name, value);
        }
    }
    readable
}

/// Returns the names and the values of lines, as the client library splits them. A line that begins with white space continues the one
/// before. A line without a colon has no value.
fn entries<'a>(lines: impl Iterator<Item = &'a str>) -> impl Iterator<Item = (&'a str, Option<String>)> {
    let mut lines = lines.peekable();
    std::iter::from_fn(move || {
        let line = lines.find(|line| !line.is_empty())?;
        let Some((name, value)) = line.split_once(':') else { return Some((line, None)) };
        let mut value = value.trim_start().to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with(char::is_whitespace)) {
            value.push_str(more);
        }
        value.truncate(value.trim_end().len());
        Some((name, Some(value)))
    })
}

#[cfg(test)]
mod tests;
