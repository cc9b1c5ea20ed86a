//! Reads environment variables of the form `HOSTLER_…__…`, and determines the keys that they set.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider};

use super::error::{Place, Problem};
use super::keys::{self, Key, Node};
use super::likeness::folded;
use super::suggest::{dotted, flattened, known, meant, variable};

/// Variable that names the configuration file. Sets no key.
pub(super) const FILE_VARIABLE: &str = "HOSTLER_CONFIG";

const PREFIX: &str = "HOSTLER_";
const SEPARATOR: &str = "__";

/// Environment variables with names that start with `HOSTLER_`, in any case.
#[derive(Default)]
pub(super) struct Variables {
    /// Names and values of the variables. A value is stored as the operating system provides it, so it is not
    /// necessarily valid UTF-8.
    ours: Vec<(String, OsString)>,
    warnings: Vec<Warning>,
}

/// A warning about an ignored variable.
struct Warning {
    text: String,
    /// Set if the variable is probably a misspelling. `text` then names the variable that was probably meant.
    is_slip: bool,
}

impl Variables {
    /// Selects the variables of `env` that start with `HOSTLER_`. Creates a warning for each one that is ignored.
    pub(super) fn of(env: impl Iterator<Item = (impl Into<OsString>, impl Into<OsString>)>) -> Self {
        let mut variables = Self::default();
        for (name, value) in env {
            let name = name.into();
            let start = name.as_encoded_bytes().get(..PREFIX.len());
            if !start.is_some_and(|start| start.eq_ignore_ascii_case(PREFIX.as_bytes())) {
                continue;
            }
            match name.into_string() {
                Ok(name) => {
                    variables.warnings.extend(ignored(&name));
                    variables.ours.push((name, value.into()));
                }
                Err(name) => {
                    let text = format!("variable {name:?} is ignored: its name is not UTF-8 text");
                    variables.warnings.push(Warning { text, is_slip: false });
                }
            }
        }
        variables.warnings.sort_by(|one, other| one.text.cmp(&other.text));
        variables
    }

    /// Returns a warning for each ignored variable. An ignored variable may belong to another program: a Kubernetes
    /// service named `hostler` sets `HOSTLER_PORT` and similar variables in every container.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.warnings.iter().map(|warning| warning.text.clone()).collect()
    }

    /// Returns the warnings about variables that are probably misspelt.
    pub(super) fn slips(&self) -> Vec<String> {
        self.warnings.iter().filter(|warning| warning.is_slip).map(|warning| warning.text.clone()).collect()
    }

    /// Returns the file named by [`FILE_VARIABLE`].
    pub(super) fn file(&self) -> Option<&OsStr> {
        let (_, value) = self.ours.iter().find(|(name, value)| name == FILE_VARIABLE && !value.is_empty())?;
        Some(value)
    }

    /// Returns `true` if a variable is meant to set a key, even if its name contains a mistake.
    pub(super) fn set_a_key(&self) -> bool {
        self.ours.iter().any(|(name, _)| sets_key(name))
    }

    /// Returns the value of the first variable with the name `HOSTLER_` followed by `key`, in any case.
    pub(super) fn value(&self, key: &str) -> Option<&OsStr> {
        let set = |name: &str| key_part(name).is_some_and(|rest| rest.eq_ignore_ascii_case(key));
        self.ours.iter().find(|(name, _)| set(name)).map(|(_, value)| value.as_os_str())
    }
}

/// Settings from the environment.
#[derive(Default)]
pub(super) struct Environment {
    pub(super) settings: Vec<Setting>,
    pub(super) problems: Vec<Problem>,
}

/// A key and its value, set by one variable.
pub(super) struct Setting {
    variable: String,
    path: Vec<String>,
    value: Value,
}

impl Provider for Setting {
    fn metadata(&self) -> Metadata {
        Metadata::named("environment variable").source(figment::Source::Custom(self.variable.clone()))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let nested =
            self.path.iter().rev().fold(self.value.clone(), |value, name| Dict::from([(name.clone(), value)]).into());
        Ok(Profile::Default.collect(nested.into_dict().unwrap_or_default()))
    }
}

/// Returns the part of a variable's name after `HOSTLER_`, in any case. `None`: the variable has another prefix, or it
/// names the configuration file.
fn key_part(variable: &str) -> Option<&str> {
    let (prefix, rest) = variable.split_at_checked(PREFIX.len())?;
    (prefix.eq_ignore_ascii_case(PREFIX) && !variable.eq_ignore_ascii_case(FILE_VARIABLE)).then_some(rest)
}

/// Returns a warning if a variable is ignored: it starts with `HOSTLER_` in any case, but it neither names the
/// configuration file nor contains `__`.
fn ignored(name: &str) -> Option<Warning> {
    if name == FILE_VARIABLE || sets_key(name) {
        return None;
    }
    if name.eq_ignore_ascii_case(FILE_VARIABLE) {
        let text = format!("variable {name} is ignored: write {FILE_VARIABLE} in capitals");
        return Some(Warning { text, is_slip: true });
    }
    let rest = key_part(name)?;
    let is_file = rest.trim_start_matches('_').to_ascii_lowercase().starts_with("conf");
    let meant = flattened(rest).map(|path| variable(&path)).or_else(|| is_file.then(|| FILE_VARIABLE.to_owned()));
    let hint = meant.as_ref().map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    let text = format!("variable {name} is ignored: a variable that sets a key contains `{SEPARATOR}`{hint}");
    Some(Warning { text, is_slip: meant.is_some() })
}

/// Returns `true` if a variable is meant to set a key, even if its name contains a mistake.
fn sets_key(variable: &str) -> bool {
    key_part(variable).is_some_and(|rest| rest.contains(SEPARATOR))
}

/// Names that the user chose in the file, by the table that holds them.
pub(super) type Named = BTreeMap<&'static str, Vec<String>>;

impl Environment {
    /// Reads the settings from the variables. `named`: names in the file, by the table that holds them. A variable matches a
    /// name in any case, and with `_` in place of `-`.
    pub(super) fn read(variables: &Variables, named: &Named) -> Self {
        let mut environment = Self::default();
        let mut ours: Vec<_> =
            variables.ours.iter().filter_map(|(name, raw)| Some((name, key_part(name)?, raw))).collect();
        ours.sort();
        for (name, rest, raw) in ours {
            if !sets_key(name) {
                continue;
            }
            match resolve(rest, named) {
                Ok((path, key)) => environment.set(name, path, key.kind.value_of_variable(raw)),
                Err(unknown) => environment.problems.push(unknown.problem(name, rest)),
            }
        }
        environment
    }

    fn set(&mut self, name: &str, path: Vec<String>, value: Value) {
        match self.settings.iter().find(|setting| setting.path == path) {
            Some(first) => self.problems.push(Problem {
                key: dotted(&path),
                place: Place::Variable(name.to_owned()),
                fault: format!("variable {} sets the same key", first.variable),
                cure: "unset one of the two".to_owned(),
                about: None,
            }),
            None => self.settings.push(Setting { variable: name.to_owned(), path, value }),
        }
    }
}

/// A variable that sets no known key.
struct Unknown {
    /// Names before the first unknown name. For example, `queue` if the variable is `HOSTLER_QUEUE__DRIVR`.
    path: Vec<String>,
    /// Pattern of the table that `path` leads to, with `*` for each name that the user chooses.
    table: String,
    /// First unknown name. `None`: all names are known, but the last one is the name of a table, which cannot have a
    /// value.
    name: Option<String>,
    /// Names after the first unknown name.
    after: Vec<String>,
}

impl Unknown {
    fn problem(self, name: &str, rest: &str) -> Problem {
        let place = Place::Variable(name.to_owned());
        let near = || {
            let path = meant(&self.path, &self.table, self.name.as_ref()?)?;
            // In `HOSTLER_QUEU__DRIVER`, the name after the unknown one is valid below the suggested table. In
            // `HOSTLER_QUEUE__DRIVER__X`, the suggestion is a key, so no name can follow.
            let whole: Vec<_> = path.iter().chain(&self.after).cloned().collect();
            Some(if resolve(&whole.join(SEPARATOR), &Named::new()).is_ok() { whole } else { path })
        };
        let cure = match flattened(rest).or_else(near) {
            Some(path) => format!("did you mean {}?", variable(&path)),
            None if self.name.is_none() => {
                format!("set what is in it, {}__…; {}", variable(&self.path), known(&self.table))
            }
            None => known(&self.table),
        };
        let fault = if self.name.is_none() { "a value stands where a table belongs" } else { "unknown key" };
        let path: Vec<String> = self.path.into_iter().chain(self.name).chain(self.after).collect();
        Problem { key: dotted(&path), place, fault: fault.to_owned(), cure, about: None }
    }
}

fn resolve(rest: &str, named: &Named) -> Result<(Vec<String>, &'static Key), Unknown> {
    let (mut path, mut table, mut rest) = (Vec::new(), String::new(), Some(rest));
    while let Some(names) = rest {
        let (name, after) = first_name(names, &table, named);
        match keys::child(&table, &name) {
            Node::Key(key) if after.is_none() => {
                path.push(name);
                return Ok((path, key));
            }
            Node::Table(pattern) => {
                path.push(name);
                (table, rest) = (pattern, after);
            }
            _ => {
                let after = after.into_iter().flat_map(|after| after.split(SEPARATOR)).map(str::to_lowercase).collect();
                return Err(Unknown { path, table, name: Some(name), after });
            }
        }
    }
    Err(Unknown { path, table, name: None, after: Vec::new() })
}

/// Splits the first name off `names`, which are separated by `__`. Returns this name as it is spelt in `table`, and the
/// rest of `names`.
fn first_name<'a>(names: &'a str, table: &str, named: &Named) -> (String, Option<&'a str>) {
    if matches!(keys::child(table, "*"), Node::Key(_)) {
        // Variables of the guest: case is significant, and `__` is part of the name.
        return (names.to_owned(), None);
    }
    if let Some(known) = named.get(table) {
        let rest_after = |name: &String| {
            let (start, rest) = names.split_at_checked(name.len())?;
            if folded(start) != folded(name) {
                return None;
            }
            if rest.is_empty() { Some(None) } else { rest.strip_prefix(SEPARATOR).map(Some) }
        };
        let longest =
            known.iter().filter_map(|name| Some((name, rest_after(name)?))).max_by_key(|(name, _)| name.len());
        if let Some((name, rest)) = longest {
            return (name.clone(), rest);
        }
    }
    match names.split_once(SEPARATOR) {
        Some((name, rest)) => (name.to_lowercase(), Some(rest)),
        None => (names.to_lowercase(), None),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;
    use crate::keys::NAMED;

    fn read(variables: &[(&str, &str)], consumers: &[&str]) -> Environment {
        let names: Vec<_> = consumers.iter().map(|name| name.to_string()).collect();
        let named = NAMED.map(|table| (table, names.clone())).into();
        Environment::read(&Variables::of(variables.iter().copied()), &named)
    }

    fn key_of(variable: &str, consumers: &[&str]) -> String {
        let environment = read(&[(variable, "1")], consumers);
        let Some(setting) = environment.settings.first() else {
            return format!("{:?}", environment.problems);
        };
        setting.path.join(".")
    }

    #[test]
    fn consumers_are_reached_by_any_name() {
        let file = ["order-mails", "OrderBills", "a", "a__b"];
        for (variable, wanted) in [
            ("HOSTLER_CONSUMERS__ORDER_MAILS__LEASE", "consumers.order-mails.lease"),
            ("HOSTLER_CONSUMERS__ORDER-MAILS__LEASE", "consumers.order-mails.lease"),
            ("HOSTLER_CONSUMERS__ORDERBILLS__LEASE", "consumers.OrderBills.lease"),
            ("HOSTLER_CONSUMERS__A__LEASE", "consumers.a.lease"),
            ("HOSTLER_JOBS__APPLETS__ORDER_MAILS__HANDLER", "jobs.applets.order-mails.handler"),
            ("HOSTLER_JOBS__APPLETS__A__LIMITS__MEMORY", "jobs.applets.a.limits.memory"),
            ("HOSTLER_CONSUMERS__A__B__LEASE", "consumers.a__b.lease"),
            ("hostler_consumers__New__lease", "consumers.new.lease"),
            ("HOSTLER_CONSUMERS__A__ALLOW__ENV__Some__Path", "consumers.a.allow.env.Some__Path"),
        ] {
            assert_eq!(key_of(variable, &file), wanted);
        }
    }

    #[test]
    fn without_a_separator_it_is_a_warning() {
        let others = [("HOSTLER_QUEUE_DRIVER", "sqs"), ("HOSTLER_PORT", "tcp://10.0.0.1:80")];
        let environment = read(&others, &[]);
        assert!(environment.settings.is_empty() && environment.problems.is_empty());
        let variables = Variables::of(others.into_iter());
        let warnings = variables.warnings();
        let [port, driver] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert_eq!(variables.slips(), [driver.as_str()]);
        assert!(driver.ends_with("did you mean HOSTLER_QUEUE__DRIVER?"), "{driver}");
        assert_eq!(port, "variable HOSTLER_PORT is ignored: a variable that sets a key contains `__`");
    }

    #[test]
    fn a_misspelt_name_of_the_file_is_a_warning() {
        for name in ["hostler_config", "Hostler_Config", "HOSTLER_config"] {
            let variables = Variables::of([(name, "f")].into_iter());
            assert_eq!(variables.file(), None);
            assert_eq!(variables.warnings(), [format!("variable {name} is ignored: write HOSTLER_CONFIG in capitals")]);
        }
        for name in ["HOSTLER_CONFIG_FILE", "HOSTLER_CONFIG_PATH", "HOSTLER_CONF"] {
            let variables = Variables::of([(name, "f")].into_iter());
            let warnings = variables.slips();
            let [warning] = warnings.as_slice() else { panic!("{name}") };
            assert!(warning.ends_with("; did you mean HOSTLER_CONFIG?"), "{warning}");
        }
    }

    #[test]
    fn slips_are_understood_at_every_level() {
        for (variable, key, cure) in [
            ("HOSTLER_QUEU__DRIVER", "queu.driver", "did you mean HOSTLER_QUEUE__DRIVER?"),
            ("HOSTLER_QUEUE__DRIVER__X", "queue.driver.x", "did you mean HOSTLER_QUEUE__DRIVER?"),
            ("HOSTLER_QUEUE__SQS_PREFIX", "queue.sqs_prefix", "did you mean HOSTLER_QUEUE__SQS__PREFIX?"),
            (
                "HOSTLER_CONSUMERS__A__MEMORY",
                "consumers.a.memory",
                "did you mean HOSTLER_CONSUMERS__A__LIMITS__MEMORY?",
            ),
            ("HOSTLER_PAYLOAD____BUCKET", "payload.\"\".bucket", "keys here: `bucket`, `threshold`"),
        ] {
            let environment = read(&[(variable, "1")], &[]);
            let [problem] = environment.problems.as_slice() else { panic!("{variable}") };
            assert_eq!((problem.key.as_str(), problem.cure.as_str()), (key, cure));
        }
    }

    #[test]
    fn other_variables_are_not_ours() {
        let others = [("HOSTLER_CONFIG", "f"), ("PATH", "/bin"), ("ÄÄÄÄ__X", "1"), ("HOSTLE", "")];
        let environment = read(&others, &[]);
        assert!(environment.settings.is_empty() && environment.problems.is_empty());
        assert!(Variables::of(others.into_iter()).warnings().is_empty());
    }

    #[test]
    fn what_is_not_utf_8_is_neither_read_nor_shown() {
        let odd = |text: &[u8]| OsString::from_vec(text.to_vec());
        let variables = [
            (odd(b"OTHERS"), odd(b"hunter2\xff")),
            (odd(b"\xffOTHERS"), odd(b"1")),
            (odd(b"hostler_queue\xff__driver"), odd(b"hunter2")),
            (odd(b"HOSTLER_QUEUE__DRIVER"), odd(b"hunter2\xff")),
            (odd(b"HOSTLER_CONFIG"), odd(b"f\xff.toml")),
        ];
        let variables = Variables::of(variables.into_iter());
        assert_eq!(variables.file(), Some(odd(b"f\xff.toml").as_os_str()), "a path need not be UTF-8");
        let environment = Environment::read(&variables, &Named::new());
        let warnings = variables.warnings();
        let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert_eq!(warning, r#"variable "hostler_queue\xFF__driver" is ignored: its name is not UTF-8 text"#);
        let [setting] = environment.settings.as_slice() else { panic!("{:?}", environment.problems) };
        assert_eq!(setting.path, ["queue", "driver"]);
        assert!(matches!(setting.value, Value::Empty(..)), "{:?}", setting.value);
    }

    #[test]
    fn one_key_is_set_once() {
        let pair = [("HOSTLER_QUEUE__DRIVER", "sqs"), ("hostler_queue__driver", "embedded")];
        let environment = read(&pair, &[]);
        assert_eq!((environment.settings.len(), environment.problems.len()), (1, 1));
    }
}
