//! Faults of a configuration, each with its key, its place and a fix.

use std::fmt;
use std::path::PathBuf;

/// Reason why there is no configuration. Every variant leads to exit code 64.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// None of the usual places has a file, and no variable sets a key.
    #[error("no configuration found{}", Tried(tried))]
    NotFound {
        /// Paths that were tried, in order.
        tried: Vec<PathBuf>,
    },
    /// The named file does not exist.
    #[error(
        "the configuration file {}{named_by} does not exist\n  cure   correct the path, or name none to use /etc/hostler/hostler.toml or \
        ./hostler.toml",
        path.display()
    )]
    Missing {
        /// Path as given.
        path: PathBuf,
        /// Suffix of the path in the error text: ` (named by …)`. Empty if the path is one of the usual places.
        named_by: &'static str,
    },
    /// The file exists, but it cannot be read or is not text in UTF-8.
    #[error(
        "cannot read {}{named_by}: {reason}\n  cure   name a TOML file in UTF-8 that this user may read",
        path.display()
    )]
    Unreadable {
        /// Path as given.
        path: PathBuf,
        /// Suffix of the path in the error text: ` (named by …)`. Empty if the path is one of the usual places.
        named_by: &'static str,
        /// Error of the operating system.
        reason: String,
    },
    /// The file is not valid TOML, so none of its values is known. The line is not quoted, because it may contain a
    /// secret.
    #[error(
        "{}:{line}:{column}: not valid TOML: {reason}\n  cure   correct line {line}, or close what is open before \
        it; no value was read",
        path.display()
    )]
    Syntax {
        /// Path as given.
        path: PathBuf,
        /// Line of the fault, counted from 1.
        line: usize,
        /// Column of the fault in characters, counted from 1.
        column: usize,
        /// Message of the parser, on one line.
        reason: String,
    },
    /// The file is in a language other than TOML. Its lines are not quoted, because they may contain a secret.
    #[error(
        "{}: not valid TOML: it looks like {language}, and the configuration is TOML\n  cure   write tables in brackets, and \
        values after `=`, texts in quotes:\n           [consumers.orders]\n           channel = \"orders\"\n           \
        handler = \"handler.wasm\"\n           concurrency = 4",
        path.display()
    )]
    OtherLanguage {
        /// Path as given.
        path: PathBuf,
        /// Name of the language that the file seems to be in.
        language: &'static str,
    },
    /// Values or keys are wrong. Contains all faults, sorted by key.
    #[error("{}", Listed(.0))]
    Invalid(Vec<Problem>),
    /// Another error, possibly caused by misspelt variables, which were ignored.
    #[error("{error}{}", Notes(slips))]
    Misspelt {
        /// The other error.
        error: Box<ConfigError>,
        /// One warning for each misspelt variable.
        slips: Vec<String>,
    },
}

impl ConfigError {
    /// Adds a note about each misspelt variable to the error. `slips`: warnings about these variables.
    pub(super) fn beside(self, slips: Vec<String>) -> Self {
        if slips.is_empty() { self } else { Self::Misspelt { error: Box::new(self), slips } }
    }

    /// Returns `true` if there is neither a file nor a variable that sets a key. A command that needs no configuration
    /// may ignore this error.
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Misspelt { error, .. } => error.is_not_found(),
            _ => matches!(self, Self::NotFound { .. }),
        }
    }

    /// Returns the faults of a configuration that could be read. Returns an empty slice for other errors.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Invalid(problems) => problems,
            Self::Misspelt { error, .. } => error.problems(),
            _ => &[],
        }
    }
}

/// One fault of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the key, for example `consumers.thumbnails.lease`.
    pub key: String,
    /// Place where the key is set.
    pub place: Place,
    /// Description of the fault. Quotes the value as written, unless the value may be a secret.
    pub fault: String,
    /// Fix: the text to write instead.
    pub cure: String,
    /// Description of the key. Set if the value of this key itself is at fault.
    pub about: Option<&'static str>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, place, fault, cure, about } = self;
        write!(f, "{key}\n  where  {place}\n  fault  {fault}\n  cure   {cure}")?;
        about.map_or(Ok(()), |about| write!(f, "\n  about  {about}"))
    }
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The file.
    File {
        /// Path as given.
        path: PathBuf,
        /// Line of the key, counted from 1. `None`: no line is known.
        line: Option<usize>,
    },
    /// An environment variable, by its name.
    Variable(String),
    /// The environment as a whole, because there is no file.
    Environment,
    /// The default, because the key is not set.
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

struct Notes<'a>(&'a [String]);

impl fmt::Display for Notes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|note| write!(f, "\n  note   {note}"))
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
