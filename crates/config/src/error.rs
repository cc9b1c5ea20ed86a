//! Faults of a configuration, each with its key, its place and its cure.

use std::fmt;
use std::path::PathBuf;

/// The reason why there is no configuration. Each variant is exit code 64.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is no file at any of the usual places, and no variable sets a key.
    #[error("no configuration found{}", Tried(tried))]
    NotFound {
        /// The places looked at, in order.
        tried: Vec<PathBuf>,
    },
    /// The file that was asked for does not exist.
    #[error(
        "no file {}{named_by}\n  cure   correct the path, or name none to use /etc/hostler/hostler.toml or \
        ./hostler.toml",
        path.display()
    )]
    Missing {
        /// The file as given.
        path: PathBuf,
        /// ` (named by …)`, or nothing for one of the usual places.
        named_by: &'static str,
    },
    /// The file exists, but its text cannot be read.
    #[error(
        "cannot read {}{named_by}: {reason}\n  cure   name a TOML file in UTF-8 that this user may read",
        path.display()
    )]
    Unreadable {
        /// The file as given.
        path: PathBuf,
        /// ` (named by …)`, or nothing for one of the usual places.
        named_by: &'static str,
        /// The error of the operating system.
        reason: String,
    },
    /// The file is not valid TOML; none of its values is known. The line is never quoted, because it may hold a secret.
    #[error(
        "{}:{line}:{column}: not valid TOML: {reason}\n  cure   correct line {line}, or close what is open before \
        it; no value was read",
        path.display()
    )]
    Syntax {
        /// The file as given.
        path: PathBuf,
        /// Line of the fault, from 1.
        line: usize,
        /// Column of the fault in characters, from 1.
        column: usize,
        /// The parser's message, on one line.
        reason: String,
    },
    /// The file is in another language than TOML. The line is never quoted, because it may hold a secret.
    #[error(
        "{}: not valid TOML: it looks like {language}, and the configuration is TOML\n  cure   write tables in brackets, and \
        values after `=`, texts in quotes:\n           [consumers.orders]\n           channel = \"orders\"\n           \
        handler = \"handler.wasm\"\n           concurrency = 4",
        path.display()
    )]
    OtherLanguage {
        /// The file as given.
        path: PathBuf,
        /// The language that it looks like.
        language: &'static str,
    },
    /// Values or keys are wrong. Holds all of them, sorted by key.
    #[error("{}", Listed(.0))]
    Invalid(Vec<Problem>),
}

impl ConfigError {
    /// Returns `true` if there is no configuration at all. A command that does not need one may accept that.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Returns each fault of a configuration that could be read; empty for one that could not.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Invalid(problems) => problems,
            _ => &[],
        }
    }
}

/// One fault of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the key, such as `consumers.thumbnails.lease`.
    pub key: String,
    /// The place where it is set.
    pub place: Place,
    /// The fault, with the value as written unless it may be a secret.
    pub fault: String,
    /// The cure: the text to write instead.
    pub cure: String,
    /// The meaning of the key, if its own value is wrong.
    pub about: Option<&'static str>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, place, fault, cure, about } = self;
        write!(f, "{key}\n  where  {place}\n  fault  {fault}\n  cure   {cure}")?;
        about.map_or(Ok(()), |about| write!(f, "\n  about  {about}"))
    }
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The file.
    File {
        /// The file as given.
        path: PathBuf,
        /// Line of the key, from 1, if the place is one key.
        line: Option<usize>,
    },
    /// An environment variable, by its name as set.
    Variable(String),
    /// The environment as a whole, if there is no file.
    Environment,
    /// A default: the key is not set.
    Default,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line: Some(line) } => write!(f, "{}:{line}", path.display()),
            Self::File { path, line: None } => write!(f, "{}", path.display()),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Environment => f.write_str("the environment"),
            Self::Default => f.write_str("default"),
        }
    }
}

struct Tried<'a>(&'a [PathBuf]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for path in self.0 {
            write!(f, "\n  tried  {}", path.display())?;
        }
        f.write_str("\n  cure   name a file with --config or HOSTLER_CONFIG, or set HOSTLER_…__… variables")
    }
}

struct Listed<'a>(&'a [Problem]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0.len() == 1 { "" } else { "s" };
        write!(f, "{} error{plural} in the configuration", self.0.len())?;
        self.0.iter().try_for_each(|problem| write!(f, "\n\n{problem}"))
    }
}
