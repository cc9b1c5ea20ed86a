//! Finds and reads the configuration file, and merges the environment into it. Does not check values.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use figment::providers::{Format, Toml};
use figment::value::{Dict, Value};
use figment::{Figment, Profile, Provider};
use toml_edit::{ImDocument, TableLike};

use super::environment::{Environment, Variables};
use super::error::{ConfigError, Place, Problem};
use super::keys::NAMED;
use super::suggest::dotted;

/// Configuration file that belongs to a machine or a container image, and not to a project. A relative path of a data
/// file in it is resolved from the working directory.
const SYSTEM_FILE: &str = "/etc/hostler/hostler.toml";

/// Paths to try if no file is named, in order of precedence.
pub const USUAL_PLACES: [&str; 2] = [SYSTEM_FILE, "./hostler.toml"];

/// Maximum size of the file in bytes.
const LARGEST: u64 = 16 << 20;

/// Maximum time to wait for the whole configuration from a pipe.
const PATIENCE: Duration = Duration::from_secs(30);

/// Values from the file and from the environment.
pub(super) struct Source {
    /// Path of the file. `None`: there is no file.
    pub(super) file: Option<PathBuf>,
    /// Faults of variables that set no key. These variables add no values.
    pub(super) problems: Vec<Problem>,
    figment: Figment,
    lines: BTreeMap<String, usize>,
}

impl Source {
    /// Reads the file and then the variables. The file is `file`, otherwise the file named by `HOSTLER_CONFIG`, otherwise
    /// the first existing file of the usual places.
    pub(super) fn read(file: Option<&Path>, env: &Variables) -> Result<Self, ConfigError> {
        let found = find(file, env, &USUAL_PLACES)?;
        let (figment, lines) = match &found {
            Some((path, text)) => (Figment::from(Toml::string(text)), lines(path, text)?),
            None => (Figment::new(), BTreeMap::new()),
        };
        let names = |table: &str| figment.find_value(table).ok().and_then(Value::into_dict).unwrap_or_default();
        let named = NAMED.map(|table| (table, names(table).into_keys().collect())).into();
        let Environment { settings, problems } = Environment::read(env, &named);
        let figment = settings.into_iter().fold(figment, |figment, setting| figment.merge(setting));
        Ok(Self { file: found.map(|(path, _)| path), problems, figment, lines })
    }

    /// Returns the root table. Values of variables override values of the file.
    pub(super) fn root(&self) -> Dict {
        self.figment.data().ok().and_then(|mut data| data.remove(&Profile::Default)).unwrap_or_default()
    }

    /// Resolves the path of a data file that was set at `place`. A relative path is resolved from the folder of the
    /// configuration file, so that commands find the same data file from any directory. There are three exceptions, in
    /// which the path remains relative to the working directory: a variable sets the path, there is no configuration
    /// file, or the configuration file is [`SYSTEM_FILE`].
    pub(super) fn beside(&self, place: &Place, path: &Path) -> PathBuf {
        let folder = self.file.as_deref().filter(|file| *file != Path::new(SYSTEM_FILE)).and_then(Path::parent);
        match folder {
            Some(folder) if !matches!(place, Place::Variable(_)) && folder != Path::new(".") => {
                folder.join(path.strip_prefix(".").unwrap_or(path))
            }
            _ => path.to_owned(),
        }
    }

    /// Returns the place where a value was written.
    pub(super) fn place(&self, path: &str, value: &Value) -> Place {
        let metadata = self.figment.get_metadata(value.tag());
        match metadata.and_then(|metadata| metadata.source.as_ref()?.custom()) {
            Some(variable) => Place::Variable(variable.to_owned()),
            None => self.near(path),
        }
    }

    /// Returns the place of a table: its line in the file. If the file does not have the table, returns the variable
    /// that sets a key in the table.
    pub(super) fn table(&self, path: &str, table: &Value) -> Place {
        if self.lines.contains_key(path) { self.near(path) } else { self.place(path, table) }
    }

    /// Returns the place of a missing key: the line of the nearest table in the file. If there is no such table,
    /// returns the file. If there is no file, returns [`Place::Environment`].
    pub(super) fn near(&self, path: &str) -> Place {
        let Some(file) = &self.file else { return Place::Environment };
        let tables = std::iter::successors(Some(path), |path| path.rsplit_once('.').map(|(table, _)| table));
        Place::File { path: file.clone(), line: tables.filter_map(|table| self.lines.get(table).copied()).next() }
    }
}

/// Returns the path and text of the file to use. `None`: there is no file, but a variable sets a key.
pub(super) fn find(
    file: Option<&Path>,
    env: &Variables,
    usual_places: &[&str],
) -> Result<Option<(PathBuf, String)>, ConfigError> {
    let named = match (file, env.file()) {
        (Some(file), _) => Some((file.to_owned(), " (named by --config)")),
        (None, Some(value)) => Some((PathBuf::from(value), " (named by variable HOSTLER_CONFIG)")),
        (None, None) => None,
    };
    if let Some((path, named_by)) = named {
        return read(&path, named_by).map(|text| Some((path, text)));
    }
    for place in usual_places {
        match read(Path::new(place), "") {
            Ok(text) => return Ok(Some((place.into(), text))),
            Err(ConfigError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    if env.set_a_key() {
        return Ok(None);
    }
    Err(ConfigError::NotFound { tried: usual_places.iter().map(PathBuf::from).collect() })
}

fn read(path: &Path, named_by: &'static str) -> Result<String, ConfigError> {
    text_of(path, PATIENCE).map_err(|error| match error.kind() {
        ErrorKind::NotFound => ConfigError::Missing { path: path.to_owned(), named_by },
        ErrorKind::InvalidData => {
            ConfigError::Unreadable { path: path.to_owned(), named_by, reason: "not UTF-8 text".to_owned() }
        }
        _ => ConfigError::Unreadable { path: path.to_owned(), named_by, reason: error.to_string() },
    })
}

/// Reads a file, or a pipe that a shell writes a configuration to. `patience`: maximum time to wait for a pipe.
fn text_of(path: &Path, patience: Duration) -> io::Result<String> {
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_dir() {
        return text_within(File::open(path)?);
    }
    let (sender, text) = mpsc::channel();
    let path = path.to_owned();
    let reader = thread::Builder::new().name("hostler-config".to_owned()).spawn(move || {
        // If sending fails, the process is ending and no longer waits for the text.
        let _ = sender.send(File::open(path).and_then(text_within));
    })?;
    let text = text.recv_timeout(patience).unwrap_or_else(|_| {
        let text =
            format!("it is a pipe, and no whole configuration was written to it within {} s", patience.as_secs());
        Err(io::Error::new(ErrorKind::TimedOut, text))
    });
    if text.is_ok() {
        // Wait for the thread to end, because only one thread may exist when the process later drops its privileges.
        let _ = reader.join();
    }
    text
}

fn text_within(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(LARGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LARGEST {
        Err(io::Error::other(format!("it has more than the {} MiB that a configuration may have", LARGEST >> 20)))
    } else {
        Ok(text)
    }
}

/// Reads `host.health_file` from the variables or from the file. `None`: the key is not set, or its value is not text.
/// Does not use figment, because its code would take up much of the health check's small memory budget.
pub(super) fn health_file(file: Option<&Path>, env: &Variables) -> Option<PathBuf> {
    let path = match env.value("host__health_file") {
        Some(path) => path.to_str()?.to_owned(),
        None => {
            let (_, text) = find(file, env, &USUAL_PLACES).ok()??;
            let document = ImDocument::parse(&text).ok()?;
            document.as_table().get("host")?.get("health_file")?.as_str()?.to_owned()
        }
    };
    Some(path).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns the line of each key and table by path, counted from 1.
fn lines(path: &Path, text: &str) -> Result<BTreeMap<String, usize>, ConfigError> {
    let document = ImDocument::parse(text).map_err(|error| {
        if let Some(language) = other_language(text) {
            return ConfigError::OtherLanguage { path: path.to_owned(), language };
        }
        let before = text.get(..error.span().map_or(0, |span| span.start)).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        ConfigError::Syntax {
            path: path.to_owned(),
            line: line_of(before),
            column: before.get(line_start..).unwrap_or_default().chars().count() + 1,
            reason: error.message().trim().replace('\n', "; "),
        }
    })?;
    let mut lines = BTreeMap::new();
    collect_lines(document.as_table(), &mut Vec::new(), text, &mut lines);
    Ok(lines)
}

/// Guesses the language of a file that is not TOML from its text. Examines the first line that is neither blank nor a
/// comment.
fn other_language(text: &str) -> Option<&'static str> {
    let first = text.lines().map(str::trim_end).find(|line| !line.is_empty() && !line.trim_start().starts_with('#'))?;
    let key = first.split_once(':').filter(|(_, rest)| rest.is_empty() || rest.starts_with(' ')).map(|(key, _)| key);
    let is_word = |key: &str| key.chars().all(|char| char.is_alphanumeric() || matches!(char, '_' | '-' | '"'));
    match first.trim_start() {
        start if start.starts_with('{') => Some("JSON"),
        "---" => Some("YAML"),
        _ => key.is_some_and(is_word).then_some("YAML"),
    }
}

fn collect_lines(table: &dyn TableLike, path: &mut Vec<String>, text: &str, lines: &mut BTreeMap<String, usize>) {
    for (name, item) in table.iter() {
        path.push(name.to_owned());
        // Missing keys are better reported at a `[header]` than where the table's name first occurs.
        let header = item.as_table().filter(|table| !table.is_implicit()).and_then(|table| table.span());
        let span = header.or_else(|| table.key(name).and_then(|key| key.span()));
        if let Some(before) = span.and_then(|span| text.get(..span.start)) {
            lines.insert(dotted(path), line_of(before));
        }
        if let Some(table) = item.as_table_like() {
            collect_lines(table, path, text, lines);
        }
        path.pop();
    }
}

fn line_of(before: &str) -> usize {
    before.matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Variables {
        Variables::of([(name, "1")].into_iter())
    }

    #[test]
    fn the_first_usual_place_wins() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["a.toml", "b.toml"].map(|name| folder.path().join(name));
        let places = [first.to_str().unwrap(), second.to_str().unwrap()];
        std::fs::write(&second, "").unwrap();
        assert_eq!(find(None, &Variables::default(), &places).unwrap().unwrap().0, second);
        std::fs::write(&first, "").unwrap();
        assert_eq!(find(None, &Variables::default(), &places).unwrap().unwrap().0, first);
    }

    #[test]
    fn a_pipe_is_read_and_one_that_nobody_writes_to_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let error = text_of(&pipe, Duration::from_millis(20)).unwrap_err();
        assert!(error.kind() == ErrorKind::TimedOut && error.to_string().contains("pipe"), "{error}");
        // A thread is still waiting for the first pipe.
        let pipe = folder.path().join("another");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let writer = thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::write(pipe, "a = 1").unwrap()
        });
        assert_eq!(text_of(&pipe, PATIENCE).unwrap(), "a = 1");
        writer.join().unwrap();
    }

    #[test]
    fn a_file_that_is_no_configuration_by_its_size_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = read(&path, "").unwrap_err().to_string();
        assert!(error.contains("more than the 16 MiB"), "{error}");
    }

    #[test]
    fn without_a_file_a_variable_must_set_a_key() {
        assert!(find(None, &variable("HOSTLER_QUEUE__DRIVER"), &["no-such.toml"]).unwrap().is_none());
        let error = find(None, &variable("HOSTLER_PORT"), &["no-such.toml", "nor-this.toml"]).unwrap_err().to_string();
        assert!(error.contains("tried  no-such.toml\n  tried  nor-this.toml\n  cure"), "{error}");
    }

    #[test]
    fn lines_are_those_of_keys_and_headers() {
        let text = "a.b = 1\n[c]\n\nd = { e = 2 }\n[c.f]\n[[c.g]]\nh = 1\n[c.\"x.y\"]\n";
        let lines = lines(Path::new("f"), text).unwrap();
        for (path, line) in [("a.b", 1), ("c", 2), ("c.d", 4), ("c.d.e", 4), ("c.f", 5), ("c.g", 6), ("c.\"x.y\"", 8)] {
            assert_eq!(lines.get(path), Some(&line), "{path}");
        }
    }

    #[test]
    fn yaml_and_json_are_named() {
        for (text, expected) in [
            ("# orders\n\nconsumers:\n  orders:\n    channel: orders\n", Some("YAML")),
            ("---\nhost: {}\n", Some("YAML")),
            ("driver: sqs", Some("YAML")),
            ("{\n  \"host\": {}\n}", Some("JSON")),
            ("[host\nhealth_file = 'a'", None),
            ("a = 1\nb: 2", None),
            ("url = http://a: b", None),
            ("", None),
        ] {
            assert_eq!(other_language(text), expected, "{text}");
        }
        let error = lines(Path::new("hostler.yaml"), "queue:\n  password: hunter2").unwrap_err().to_string();
        assert!(error.contains("looks like YAML") && error.contains("[consumers.orders]"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_syntax_error_has_its_place_and_no_text() {
        let error = lines(Path::new("f"), "a = 1\nä = \"hunter2").unwrap_err();
        assert!(matches!(error, ConfigError::Syntax { line: 2, .. }), "{error:?}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
