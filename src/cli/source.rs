//! Inputs of commands: a string, a file, or standard input.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read};
use std::path::PathBuf;

use super::lines::{Batch, LONGEST, Lines};
use crate::exit::{Exit, Failure, Result};
use hostler_types::message::{AttributeValue, Attributes};

/// The body of a message, as an argument.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(super) struct BodyArgs {
    /// The body as text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    body: Option<String>,
    /// A file that holds the body; `-` is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// `-` reads the body from standard input; so does a pipe when nothing else is given
    #[arg(value_name = "-", value_parser = ["-"])]
    stdin: Option<String>,
}

/// An open input.
pub(super) struct Input {
    reader: Box<dyn Read + Send>,
    /// Size in bytes, if known.
    pub(super) size: Option<u64>,
    is_stdin: bool,
    name: String,
}

impl BodyArgs {
    /// Opens the input.
    pub(super) fn open(&self) -> Result<Input> {
        let file = self.file.as_ref().filter(|path| path.as_os_str() != "-");
        let asks_for_stdin = self.stdin.is_some() || self.file.is_some();
        match (&self.body, file) {
            (Some(text), _) => {
                let bytes = text.clone().into_bytes();
                Ok(Input {
                    size: Some(bytes.len() as u64),
                    reader: Box::new(io::Cursor::new(bytes)),
                    is_stdin: false,
                    name: "--body".into(),
                })
            }
            (None, Some(path)) => {
                let cannot = |error| {
                    let text =
                        format!("cannot read {}: {error}\n  cure: correct the path that --file names", path.display());
                    Failure::new(Exit::Usage, text)
                };
                let file = File::open(path).map_err(cannot)?;
                let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
                Ok(Input { size, reader: Box::new(file), is_stdin: false, name: path.display().to_string() })
            }
            (None, None) if !asks_for_stdin && io::stdin().is_terminal() => Err(Failure::new(
                Exit::Usage,
                "there is no body: give --body TEXT, --file FILE, or `-` for standard input",
            )),
            (None, None) => {
                let reader = Box::new(io::stdin());
                Ok(Input { size: None, reader, is_stdin: true, name: "standard input".into() })
            }
        }
    }
}

impl Input {
    /// Reads the whole input. Fails if the input is longer than the longest possible message, because an input such as a device
    /// may never end.
    pub(super) fn read_all(self) -> Result<Vec<u8>> {
        self.read_up_to(LONGEST)
    }

    fn read_up_to(mut self, most: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.reader.by_ref().take(most as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| cannot_read(&self.name, &error))?;
        if bytes.len() > most {
            let text = format!(
                "{} has more than {most} bytes, which is the longest body of a message: send a reference to the data",
                self.name
            );
            return Err(Failure::new(Exit::Usage, text));
        }
        Ok(bytes)
    }

    /// Reads the whole input as one message. Refuses empty standard input, because the usual cause is a failed command earlier in
    /// the pipe.
    pub(super) fn read_message(self) -> Result<Vec<u8>> {
        let is_stdin = self.is_stdin;
        let bytes = self.read_all()?;
        if is_stdin && bytes.is_empty() {
            let text = "standard input is empty, so nothing was sent: give --body TEXT or --file FILE (--body \"\" sends an \
                        empty message)";
            return Err(Failure::new(Exit::Usage, text));
        }
        Ok(bytes)
    }

    /// Returns the lines of the input in batches, as [`Lines`] does.
    pub(super) fn lines(self) -> impl Iterator<Item = Result<Batch>> {
        let Self { reader, name, .. } = self;
        Lines::new(reader).map(move |batch| batch.map_err(|error| cannot_read(&name, &error)))
    }
}

fn cannot_read(name: &str, error: &io::Error) -> Failure {
    Failure::new(Exit::Usage, format!("cannot read {name}: {error}"))
}

/// Parses a number of messages. The number must be at least 1.
pub(super) fn count(text: &str) -> std::result::Result<u64, &'static str> {
    text.parse().ok().filter(|count| *count > 0).ok_or("write a whole number of at least 1")
}

/// Parses `name=value`, for `--attr`.
pub(super) fn attribute(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write name=value".into()),
    }
}

/// Returns text attributes by name. If a name is repeated, the last value is used.
pub(super) fn attributes(pairs: &[(String, String)]) -> Attributes {
    pairs.iter().map(|(name, value)| (name.clone(), AttributeValue::Text(value.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_without_end_is_refused() {
        let input = || Input { reader: Box::new(io::repeat(0)), size: None, is_stdin: false, name: "/dev/zero".into() };
        let refused = input().read_up_to(1000).unwrap_err();
        assert_eq!(refused.exit, Exit::Usage);
        assert!(refused.message.starts_with("/dev/zero has more than 1000 bytes"), "{}", refused.message);
        let whole = Input { reader: Box::new(io::Cursor::new(vec![b'x'; 1000])), ..input() };
        assert_eq!(whole.read_up_to(1000).map(|bytes| bytes.len()).ok(), Some(1000));
    }
}
