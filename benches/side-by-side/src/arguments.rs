//! Command-line arguments: an optional command, followed by `--key value` and `--flag`.

use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;

use crate::Result;

/// Parsed arguments.
pub struct Arguments {
    command: Option<String>,
    said: HashMap<String, Option<String>>,
}

impl Arguments {
    /// Parses all arguments. An argument without `--` is the value of the preceding key, or the command.
    pub fn new(arguments: impl Iterator<Item = String>) -> Self {
        let mut read = Self { command: None, said: HashMap::new() };
        let mut last = None;
        for argument in arguments {
            match (argument.strip_prefix("--"), last.take()) {
                (Some(key), _) => {
                    read.said.insert(key.to_owned(), None);
                    last = Some(key.to_owned());
                }
                (None, Some(key)) => {
                    read.said.insert(key, Some(argument));
                }
                (None, None) => read.command = Some(argument),
            }
        }
        read
    }

    /// Returns the command.
    pub fn command(&self) -> Option<String> {
        self.command.clone()
    }

    /// Returns true if `--key` was given.
    pub fn has(&self, key: &str) -> bool {
        self.said.contains_key(key)
    }

    /// Returns the value of `--key`.
    pub fn text(&self, key: &str) -> Option<String> {
        self.said.get(key).cloned().flatten()
    }

    /// Returns the value of `--key` as a number.
    pub fn number<T: FromStr<Err: Display>>(&self, key: &str) -> Result<Option<T>> {
        self.text(key).map(|text| text.parse().map_err(|error| format!("--{key} {text}: {error}").into())).transpose()
    }

    /// Returns the values of `--key a,b,c`.
    pub fn list(&self, key: &str) -> Option<Vec<String>> {
        Some(self.text(key)?.split(',').map(str::to_owned).collect())
    }
}
