//! Checks each value against its key, and fills in the defaults.

use std::collections::{BTreeMap, BTreeSet};

use figment::value::{Dict, Value};

use super::error::{ConfigError, Place, Problem};
use super::keys::{self, APPLETS, CONSUMER_NAME, CONSUMERS, DefaultValue, Key, Node, SCHEDULES};
use super::kind::Kind;
use super::likeness::{alike, folded};
use super::read::Read;
use super::source::Source;
use super::suggest::{dotted, known, meant};

/// Names that lead from the root to a key.
type Path = Vec<String>;

/// Checked values. Faulty values are left out, so a check that needs a faulty value is skipped.
#[derive(Default)]
pub(super) struct Settings {
    values: BTreeMap<Path, (Value, Place)>,
    /// All keys that are set, valid or not.
    set: BTreeSet<Path>,
    /// Optional keys that are unset by an empty string.
    emptied: BTreeSet<Path>,
    /// Consumers by name, each with the place of its table.
    pub(super) consumers: BTreeMap<String, Place>,
    /// Schedules by name, each with the place of its table.
    pub(super) schedules: BTreeMap<String, Place>,
    /// Applets by name, each with the place of its table.
    pub(super) applets: BTreeMap<String, Place>,
}

impl Settings {
    /// Checks all values in `source` against the table of keys. Adds the faults to `problems`.
    pub(super) fn check(source: &Source, problems: &mut Vec<Problem>) -> Self {
        let root = source.root();
        let mut check = Check { source, problems, settings: Self::default() };
        check.table("", &[], &root);
        let below = |dict: &Dict, name: &str| dict.get(name).and_then(Value::as_dict).cloned();
        if let Some(consumers) = below(&root, "consumers") {
            check.settings.consumers = check.names("consumer", &[CONSUMERS], &consumers);
        }
        if let Some(schedules) = below(&root, SCHEDULES) {
            check.settings.schedules = check.names("schedule", &[SCHEDULES], &schedules);
        }
        if let Some(applets) = below(&root, "jobs").and_then(|jobs| below(&jobs, "applets")) {
            check.settings.applets = check.names("applet", &["jobs", "applets"], &applets);
        }
        check.fill();
        check.settings
    }

    /// Returns the settings of the root table.
    pub(super) fn root(&self) -> Section<'_> {
        Section { settings: self, path: Vec::new() }
    }

    /// Returns the settings of an applet.
    pub(super) fn applet(&self, name: &str) -> Section<'_> {
        Section { settings: self, path: vec!["jobs".to_owned(), "applets".to_owned(), name.to_owned()] }
    }

    /// Returns the settings of a schedule.
    pub(super) fn schedule(&self, name: &str) -> Section<'_> {
        Section { settings: self, path: vec![SCHEDULES.to_owned(), name.to_owned()] }
    }

    /// Returns the settings of a consumer.
    pub(super) fn consumer(&self, name: &str) -> Section<'_> {
        Section { settings: self, path: vec!["consumers".to_owned(), name.to_owned()] }
    }
}

/// A mismatch between the table of keys and the code that uses it. A mismatch is a bug in hostler. Tests ensure that
/// there is none.
pub(super) struct Mismatch {
    path: String,
    fault: String,
}

impl From<Mismatch> for ConfigError {
    fn from(Mismatch { path: key, fault }: Mismatch) -> Self {
        let cure = "report this as a bug in hostler".to_owned();
        Self::Invalid(vec![Problem { key, place: Place::Default, fault, cure, about: None }])
    }
}

/// Settings of one table, for example of one consumer. Keys are dotted paths below the table.
pub(super) struct Section<'a> {
    settings: &'a Settings,
    path: Path,
}

impl Section<'_> {
    fn below(&self, key: &str) -> Path {
        self.path.iter().cloned().chain(key.split('.').map(str::to_owned)).collect()
    }

    /// Returns the full path of a key for display.
    pub(super) fn path(&self, key: &str) -> String {
        dotted(&self.below(key))
    }

    /// Returns the place where a key is set. Returns [`Place::Default`] if the key is not set.
    pub(super) fn place(&self, key: &str) -> Place {
        self.settings.values.get(&self.below(key)).map_or(Place::Default, |(_, place)| place.clone())
    }

    /// Returns `true` if a key is set, valid or not.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.settings.set.contains(&self.below(key))
    }

    /// Returns `true` if the key is unset by an empty string.
    pub(super) fn is_emptied(&self, key: &str) -> bool {
        self.settings.emptied.contains(&self.below(key))
    }

    /// Returns a value. `None`: the value is faulty, or it is unset and has no default.
    pub(super) fn get<T: Read>(&self, key: &str) -> Option<T> {
        self.maybe(key).ok().flatten()
    }

    /// Returns a value that may be unset. Returns an error only if its type differs from the type in the table of keys.
    pub(super) fn maybe<T: Read>(&self, key: &str) -> Result<Option<T>, Mismatch> {
        let value = self.settings.values.get(&self.below(key));
        value.map(|(value, _)| T::read(value).map_err(|fault| self.mismatch(key, fault))).transpose()
    }

    /// Returns a value that is set or has a default. Returns an error only if its type differs from the type in the
    /// table of keys, or if it has no default.
    pub(super) fn need<T: Read>(&self, key: &str) -> Result<T, Mismatch> {
        self.maybe(key)?.ok_or_else(|| self.mismatch(key, "has no value".to_owned()))
    }

    /// Returns the values of a table whose names the user chooses, for example `retry.priorities`.
    pub(super) fn values<T: Read>(&self, table: &str) -> BTreeMap<String, T> {
        let table = self.below(table);
        let value = |(path, (value, _)): (&Path, &(Value, Place))| match path.strip_prefix(table.as_slice())? {
            [name] => Some((name.clone(), T::read(value).ok()?)),
            _ => None,
        };
        let below = self.settings.values.range(table.clone()..).take_while(|(path, _)| path.starts_with(&table));
        below.filter_map(value).collect()
    }

    /// Returns the error of a value that this code does not expect.
    pub(super) fn mismatch(&self, key: &str, fault: String) -> Mismatch {
        Mismatch { path: self.path(key), fault }
    }
}

/// Returns the fix for a faulty or missing value.
fn cure(key: &Key, value: Option<&Value>) -> String {
    let without_quotes = value.is_some_and(|value| key.kind.is_quoted(value));
    let write = if without_quotes { "write it without quotes: " } else { "write " }.to_owned() + &key.kind.accepts();
    match key.preset {
        DefaultValue::Value("") => format!("{write}; default: empty"),
        DefaultValue::Value(text) => format!("{write}; default: `{text}`"),
        DefaultValue::Derived(text) => format!("{write}; default: {text}"),
        DefaultValue::Unset | DefaultValue::Required | DefaultValue::RequiredUnless(_) => write,
    }
}

struct Check<'a> {
    source: &'a Source,
    problems: &'a mut Vec<Problem>,
    settings: Settings,
}

impl Check<'_> {
    fn table(&mut self, pattern: &str, above: &[String], table: &Dict) {
        for (name, value) in table {
            let path: Path = above.iter().cloned().chain([name.clone()]).collect();
            match (keys::child(pattern, name), value) {
                (Node::Key(key), _) => self.key(key, path, value),
                (Node::Table(pattern), Value::Dict(_, table)) => self.table(&pattern, &path, table),
                (Node::Table(pattern), _) => {
                    let cure = format!("write a table, `[{}]`; {}", dotted(&path), known(&pattern));
                    self.fault(&path, value, "a value stands where a table belongs", cure);
                }
                (Node::Unknown, _) => {
                    let cure = match meant(above, pattern, name) {
                        Some(path) => format!("did you mean `{}`?", dotted(&path)),
                        None => known(pattern),
                    };
                    self.fault(&path, value, "unknown key", cure);
                }
            }
        }
    }

    fn key(&mut self, key: &Key, path: Path, value: &Value) {
        let secret = matches!(key.kind, Kind::Variable);
        if secret && path.last().is_some_and(|name| name.is_empty() || name.contains(['=', '\0'])) {
            // The path would display text that was meant as a value.
            let (table, fault) =
                (path.split_last().map_or(&[][..], |(_, table)| table), "a name in it is empty or contains `=`");
            return self.fault(table, value, fault, "write `NAME = \"text\"`".to_owned());
        }
        // An empty text unsets the key, so a variable can remove a value that the file sets.
        let optional = matches!(key.preset, DefaultValue::Unset | DefaultValue::Derived(_)) && !secret;
        if optional && value.as_str() == Some("") {
            self.settings.emptied.insert(path);
            return;
        }
        self.settings.set.insert(path.clone());
        match key.kind.check(value) {
            Ok(()) => {
                let place = self.source.place(&dotted(&path), value);
                self.settings.values.insert(path, (value.clone(), place));
            }
            Err(fault) => {
                let place = self.source.place(&dotted(&path), value);
                self.judge(key, &path, place, fault, cure(key, Some(value)));
            }
        }
    }

    /// Adds a fault in the value of a key.
    fn judge(&mut self, key: &Key, path: &[String], place: Place, fault: String, cure: String) {
        self.problems.push(Problem { key: dotted(path), place, fault, cure, about: Some(key.meaning) });
    }

    /// Adds a fault that does not concern the value of a key, for example an unknown key.
    fn fault(&mut self, path: &[String], value: &Value, fault: &str, cure: String) {
        let key = dotted(path);
        let (place, fault) = (self.source.place(&key, value), fault.to_owned());
        self.problems.push(Problem { key, place, fault, cure, about: None });
    }

    /// Returns the names in a table, each with its place. `what`: a word for the named things. Reports invalid names. Also
    /// reports two names that variables cannot tell apart, for example `my-mails` and `MY_MAILS`.
    fn names(&mut self, what: &str, above: &[&str], named: &Dict) -> BTreeMap<String, Place> {
        let (mut taken, mut places): (BTreeMap<String, &str>, _) = (BTreeMap::new(), BTreeMap::new());
        for (name, table) in named.iter().filter(|(_, table)| table.as_dict().is_some()) {
            let path_of = |name: &str| above.iter().copied().chain([name]).map(str::to_owned).collect::<Path>();
            let path = path_of(name);
            if CONSUMER_NAME.check(&Value::from(name.as_str())).is_err() {
                let cure = format!("name the {what} with {}", CONSUMER_NAME.accepts());
                let article = if what.starts_with('a') { "an" } else { "a" };
                self.fault(&path, table, &format!("{name:?} is not a name for {article} {what}"), cure);
            } else if let Some(other) = taken.insert(folded(name), name) {
                let other = dotted(&path_of(other));
                let fault =
                    format!("differs from {other} only in case or `-` and `_`, which variables cannot tell apart");
                self.fault(&path, table, &fault, "rename one of the two".to_owned());
            }
            places.insert(name.clone(), self.source.table(&dotted(&path), table));
        }
        places
    }

    /// Adds the defaults of unset keys. Adds a fault for each unset required key.
    fn fill(&mut self) {
        for key in keys::keys() {
            let parts: Path = key.path.split('.').map(str::to_owned).collect();
            if parts.last().is_some_and(|last| last == "*") {
                continue;
            }
            if !parts.iter().any(|part| part == "*") {
                self.preset(key, parts, Place::Default);
                continue;
            }
            let named = match key.path.split_once(".*") {
                Some((APPLETS, _)) => &self.settings.applets,
                Some((SCHEDULES, _)) => &self.settings.schedules,
                _ => &self.settings.consumers,
            };
            for (name, place) in named.clone() {
                let path = parts.iter().map(|part| if part == "*" { &name } else { part }.clone()).collect();
                self.preset(key, path, place);
            }
        }
    }

    /// Adds the default of a key if the key is unset. `home`: place of the key's table, for the description of a fault.
    fn preset(&mut self, key: &Key, path: Path, home: Place) {
        if self.settings.set.contains(&path) {
            return;
        }
        match key.preset {
            DefaultValue::Value(text) => {
                self.settings.values.insert(path, (key.kind.value(text), Place::Default));
            }
            DefaultValue::RequiredUnless(others) if others.iter().any(|other| self.has_beside(&path, other)) => {}
            DefaultValue::Required | DefaultValue::RequiredUnless(_) => {
                let fault = match (&home, self.misspelt(&path)) {
                    (Place::Variable(_), Some((what, other))) => {
                        format!("is missing, as there is no such {what}; did you mean `{other}`?")
                    }
                    _ => "is missing".to_owned(),
                };
                self.judge(key, &path, home, fault, cure(key, None));
            }
            DefaultValue::Derived(_) | DefaultValue::Unset => {}
        }
    }

    /// Returns `true` if another key of the same table is set, valid or not.
    fn has_beside(&self, path: &[String], other: &str) -> bool {
        let table = path.split_last().map_or(&[][..], |(_, table)| table);
        let other: Path = table.iter().cloned().chain([other.to_owned()]).collect();
        self.settings.set.contains(&other)
    }

    /// Returns another consumer, schedule or applet, with a word for it, if the name in the path of a key may be a misspelling of it.
    fn misspelt(&self, path: &[String]) -> Option<(&'static str, &str)> {
        let (what, name, named) = match path {
            [table, name, ..] if table == CONSUMERS => ("consumer", name, &self.settings.consumers),
            [table, name, ..] if table == SCHEDULES => ("schedule", name, &self.settings.schedules),
            [_, table, name, ..] if table == "applets" => ("applet", name, &self.settings.applets),
            _ => return None,
        };
        Some((what, alike(name, named.keys().map(String::as_str).filter(|other| other != name))?))
    }
}
