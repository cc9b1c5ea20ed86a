//! Configuration: reads TOML and environment variables, and validates all values. Returns a typed [`Config`], or all
//! faults.
//!
//! One table, in `keys.rs`, defines all keys. A value passes through these stages: `source` finds and merges values,
//! `settings` checks each value against its key, `cross` checks values against each other, and [`Config`] contains the
//! typed result. An empty string unsets an optional key, so a variable can remove a value that the file sets.

mod amqp;
mod applets;
mod choice;
mod consumer;
mod cross;
mod environment;
mod error;
mod grants;
mod guest_variable;
mod hosts;
mod jobs;
mod keys;
mod kind;
mod likeness;
mod paths;
mod postgres;
mod read;
mod reference;
mod retry;
mod schedules;
mod schema;
mod servers;
mod settings;
mod source;
mod suggest;
mod units;
mod valid;

pub use amqp::amqp_fault;
pub use applets::Applet;
pub use choice::{
    DirMode, Driver, Expired, Fanout, HardeningMode, LogFormat, OnProcessingTimeout, OnTrap, OnUnknown, Provision,
    RecordStore, Reply, RetryBackoff, TaskProtection,
};
pub use consumer::{Allow, Batch, Breaker, Consumer, Idempotency, Limits, Retry, Subject, Tags};
pub use error::{ConfigError, Place, Problem};
pub use grants::{AmqpUrl, DirGrant, HandlerRef, NatsUrl, PostgresUrl, SecretUrl, Token};
pub use jobs::{JobService, JobTokens};
pub use likeness::alike;
pub use postgres::postgres_fault;
pub use reference::reference;
pub use retry::RetryService;
pub use schedules::Schedule;
pub use schema::schema;
pub use source::USUAL_PLACES;
pub use units::{Share, duration as parse_duration, duration_text};
// Type of a public field.
pub use hostler_types::Rate;
pub use valid::{Alarms, Config, Dev, Embedded, Host, Nats, Payload, Postgres, QueueConfig, RabbitMq, Sqs, Telemetry};

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A configuration with its warnings.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Warnings for the log about variables that start with `HOSTLER_` but are ignored.
    pub warnings: Vec<String>,
    /// Path of the file that was read. `None`: the configuration consists of variables only.
    pub file: Option<PathBuf>,
}

/// Reads the configuration from a TOML file and from environment variables, which override the file.
///
/// The file is `file`, otherwise the file named by `HOSTLER_CONFIG`, otherwise `/etc/hostler/hostler.toml`, otherwise
/// `./hostler.toml`. `env`: the result of [`std::env::vars_os`]. [`std::env::vars`] is not suitable, because it panics
/// if any variable is not UTF-8, even a variable of another program. Only variables of the form `HOSTLER_…__…` set
/// keys.
///
/// # Errors
/// [`ConfigError`]: there is neither a file nor a variable that sets a key, the file cannot be read, the file is not
/// TOML, or keys are faulty. All faulty keys are reported together. Every error leads to exit code 64.
pub fn load(
    file: Option<&Path>,
    env: impl Iterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
) -> Result<Loaded, ConfigError> {
    let variables = environment::Variables::of(env);
    load_over(file, &variables).map_err(|error| error.beside(variables.slips()))
}

fn load_over(file: Option<&Path>, variables: &environment::Variables) -> Result<Loaded, ConfigError> {
    let mut source = source::Source::read(file, variables)?;
    let mut problems = std::mem::take(&mut source.problems);
    let settings = settings::Settings::check(&source, &mut problems);
    cross::check(&settings, &source, &mut problems);
    if !problems.is_empty() {
        problems.sort_by(|a, b| (&a.key, &a.place).cmp(&(&b.key, &b.place)));
        return Err(ConfigError::Invalid(problems));
    }
    let mut config = Config::read(&settings)?;
    let path = &mut config.queue.embedded.path;
    *path = source.beside(&settings.root().place("queue.embedded.path"), path);
    if let Some(retry) = &mut config.retry {
        retry.store = source.beside(&settings.root().place("retry.store"), &retry.store);
    }
    Ok(Loaded { config, warnings: variables.warnings(), file: source.file })
}

/// Returns the warnings of [`Loaded`] without loading a configuration: one for each variable that starts with
/// `HOSTLER_` but is ignored. Used by callers that have no configuration.
pub fn ignored_variables(env: impl Iterator<Item = (impl Into<OsString>, impl Into<OsString>)>) -> Vec<String> {
    environment::Variables::of(env).warnings()
}

/// Returns the path of the health file from the same sources as [`load`]. Does not check other keys. If the file is
/// unreadable or sets no path, returns the default.
pub fn health_file(
    file: Option<&Path>,
    env: impl Iterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
) -> PathBuf {
    source::health_file(file, &environment::Variables::of(env)).unwrap_or_else(|| keys::HEALTH_FILE_DEFAULT.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;
    use std::time::Duration;

    use super::*;
    use hostler_types::channel::Filter;

    const LEAST: [(&str, &str); 2] =
        [("HOSTLER_CONSUMERS__MAILS__CHANNEL", "news.mails"), ("HOSTLER_CONSUMERS__MAILS__HANDLER", "mails.wasm")];

    fn env(variables: &[(&str, &str)]) -> std::vec::IntoIter<(String, String)> {
        let owned: Vec<_> = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        owned.into_iter()
    }

    /// Loads `text` from a temporary file, overridden by `variables`.
    fn load_text(text: &str, variables: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hostler.toml");
        std::fs::write(&file, text).unwrap();
        load(Some(&file), env(variables))
    }

    #[test]
    fn the_embedded_queue_lies_beside_the_file_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hostler.toml");
        let path = |text: &str, variables: &[(&'static str, &'static str)]| {
            std::fs::write(&file, text).unwrap();
            let variables = LEAST.iter().chain(variables).copied().collect::<Vec<_>>();
            load(Some(&file), env(&variables)).unwrap().config.queue.embedded.path
        };
        assert_eq!(path("", &[]), folder.path().join("hostler.db"));
        assert_eq!(path("queue.embedded.path = '../q/a.db'", &[]), folder.path().join("../q/a.db"));
        assert_eq!(path("queue.embedded.path = '/q/a.db'", &[]), Path::new("/q/a.db"));
        let variable = [("HOSTLER_QUEUE__EMBEDDED__PATH", "a.db")];
        assert_eq!(path("queue.embedded.path = 'b.db'", &variable), Path::new("a.db"), "as the shell has it");
        let alone = load(None, env(&LEAST)).unwrap().config.queue.embedded.path;
        assert_eq!(alone, Path::new("./hostler.db"), "no file, no folder");
    }

    #[test]
    fn settings_of_the_retry_service_without_its_server_name_the_missing_key() {
        let told = |text: &str, variables: &[(&str, &str)]| load_text(text, variables).unwrap_err().to_string();
        let file = told("\n[retry]\nstore = '/data/retry'", &[]);
        assert!(file.contains("\nretry.nats\n") && file.contains("hostler.toml:2\n"), "{file}");
        assert!(file.contains("HOSTLER_RETRY__NATS") && !file.contains("there is no consumer"), "{file}");
        let emptied = told("[retry]", &[("HOSTLER_RETRY__NATS", "")]);
        assert!(emptied.contains("\nretry.nats\n"), "{emptied}");
        let variable = load(None, env(&[("HOSTLER_RETRY__STORE", "/data/retry")])).unwrap_err().to_string();
        assert!(variable.contains("\nretry.nats\n"), "{variable}");
        let none = told("host.health_file = '/h'", &[]);
        assert!(none.contains("there is no consumer") && !none.contains("retry.nats"), "{none}");
        assert!(load(None, env(&[&LEAST[..], &[("HOSTLER_RETRY__STORE", "/data/retry")]].concat())).is_ok());
    }

    #[test]
    fn the_health_file_is_no_file_of_the_queue() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hostler.toml");
        let load_with = |health: &str, queue: &str| {
            let health = folder.path().join(health).display().to_string();
            std::fs::write(&file, format!("host.health_file = {health:?}\nqueue.{queue}")).unwrap();
            load(Some(&file), env(&LEAST)).map(drop)
        };
        for queue in ["embedded.path = 'q.db'", "embedded.path = './x/../q.db'"] {
            std::fs::create_dir_all(folder.path().join("x")).unwrap();
            for health in ["q.db", "q.db-wal"] {
                let error = load_with(health, queue).unwrap_err();
                let keys: Vec<_> = error.problems().iter().map(|problem| problem.key.as_str()).collect();
                assert_eq!(keys, ["host.health_file"], "{health} {queue}: {error}");
                assert!(error.to_string().contains("would overwrite the queue in "), "{error}");
            }
        }
        load_with("q.json", "embedded.path = 'q.db'").unwrap();
        load_with("hostler.db", "driver = 'sqs'").unwrap();
    }

    #[test]
    fn defaults_are_as_documented() {
        let config = load_text("", &LEAST).unwrap().config;
        let [mails] = config.consumers.as_slice() else { panic!("{:?}", config.consumers) };
        assert_eq!((mails.name.as_str(), mails.channel.to_string().as_str()), ("mails", "news.mails"));
        assert_eq!((mails.concurrency, mails.messages_per_instance, mails.dead_letter), (None, 1, true));
        assert_eq!((mails.lease, mails.processing_timeout), (Duration::from_secs(30), Duration::from_secs(60)));
        assert_eq!(mails.healthcheck_timeout, Duration::from_secs(90));
        assert_eq!(mails.on_processing_timeout, OnProcessingTimeout::DeadLetter);
        assert_eq!((mails.retry.requeues, mails.retry.delays), (1, 1));
        assert_eq!((&mails.filter, &mails.allow), (&Filter::All, &Allow::default()));
        assert_eq!(mails.limits, Limits { memory: None, connections: 8, output: 64 << 10 });
        assert_eq!(config.host.shutdown_grace, Duration::from_secs(25));
        assert_eq!(config.queue.driver, Driver::Embedded);
        assert_eq!(config.queue.embedded.path.file_name(), Some("hostler.db".as_ref()));
        assert_eq!((config.payload.bucket, config.payload.threshold), (None, 256 << 10));
        assert_eq!((config.telemetry.log, config.telemetry.prometheus), (None, None));
    }

    #[test]
    fn derived_defaults_follow_their_keys() {
        let config = load_text("consumers.mails = { processing_timeout = \"5m\", dead_letter = false }", &LEAST);
        let mails = config.unwrap().config.consumers.remove(0);
        assert_eq!(mails.healthcheck_timeout, Duration::from_secs(330));
        assert_eq!(mails.on_processing_timeout, OnProcessingTimeout::Exit);
    }

    #[test]
    fn variables_win_over_the_file() {
        let text = "[consumers.order-Mails]\nchannel = \"x.a\"\nhandler = \"a.wasm\"\nrate_limit = \"1/s\"\nlease = 5";
        let variables = [
            ("HOSTLER_CONSUMERS__ORDER_MAILS__LEASE", "10s"),
            ("HOSTLER_CONSUMERS__ORDER_MAILS__RATE_LIMIT", ""),
            ("HOSTLER_CONSUMERS__ORDER_MAILS__TAGS__OWNER", "007"),
            ("HOSTLER_CONSUMERS__ORDER_MAILS__FILTER__TYPE", "prefix"),
            ("HOSTLER_CONSUMERS__ORDER_MAILS__FILTER__VALUES", "[1.50, true]"),
            ("HOSTLER_CONSUMERS__ORDER_MAILS__ALLOW__ENV__Mixed__Case", "false"),
            ("HOSTLER_CONSUMERS__ORDER_MAILS__ALLOW__DIRS", "[{host=a,guest=\"/a\",mode=rw}]"),
            ("HOSTLER_CONSUMERS__ORDER_MAILS__ORDERED", "true"),
            ("HOSTLER_QUEUE_DRIVER", "sqs"),
        ];
        let loaded = load_text(text, &variables).unwrap();
        let [mails] = loaded.config.consumers.as_slice() else { panic!("{:?}", loaded.config.consumers) };
        assert_eq!(
            (mails.name.as_str(), mails.lease, mails.rate_limit),
            ("order-Mails", Duration::from_secs(10), None)
        );
        assert_eq!((mails.tags.owner.as_deref(), mails.ordered), (Some("007"), true));
        assert_eq!(mails.filter, Filter::Prefix(vec!["1.50".to_owned(), "true".to_owned()]));
        assert_eq!(mails.allow.env.get("Mixed__Case").map(String::as_str), Some("false"));
        let dir = DirGrant { host: "a".into(), guest: "/a".into(), mode: DirMode::ReadWrite };
        assert_eq!(mails.allow.dirs, [dir]);
        assert_eq!((loaded.warnings.len(), loaded.config.queue.driver), (1, Driver::Embedded));
        assert!(!format!("{:?}", mails.allow).contains("false"), "Debug shows a grant's value");
    }

    #[test]
    fn a_variable_switches_off_what_the_file_switches_on() {
        let text = "consumers.mails.breaker = { failures = 0.5, over = \"2m\", min = 5, pause = \"10s\" }
            consumers.mails.filter = { type = \"prefix\", values = [\"EU.\"] }";
        let on = load_text(text, &LEAST).unwrap().config.consumers.remove(0);
        assert!(on.breaker.is_some() && on.filter == Filter::Prefix(vec!["EU.".to_owned()]), "{on:?}");
        let emptied =
            [("HOSTLER_CONSUMERS__MAILS__BREAKER__FAILURES", ""), ("HOSTLER_CONSUMERS__MAILS__FILTER__TYPE", "")];
        let off = load_text(text, &[LEAST, emptied].concat()).unwrap().config.consumers.remove(0);
        assert_eq!((off.breaker, off.filter), (None, Filter::All));
    }

    #[test]
    fn replies_go_anywhere_but_back() {
        let listening = |more: &str| {
            let letters = "consumers.letters = { channel = \"letters\", handler = \"l.wasm\" }";
            load_text(&format!("{letters}\nconsumers.mails.{more}"), &LEAST).map(drop)
        };
        // `mails` consumes from `news.mails`.
        for fine in ["done", "letters", "other.done", "other", "news-done"] {
            listening(&format!("reply_channel = \"{fine}\"")).unwrap_or_else(|error| panic!("{error}"));
        }
        for looping in ["mails", "news.mails", "news.done", "news"] {
            let error = listening(&format!("reply_channel = \"{looping}\"")).unwrap_err();
            assert!(error.to_string().contains("would come back"), "{looping}: {error}");
        }
        // Replies have no routing key, so they pass no filter. If a queue and an exchange have the same name, the name
        // means the queue.
        let filter = "filter = { type = \"exclude\", values = [\"X\"] }\nconsumers.mails.reply_channel = \"news.done\"";
        listening(filter).unwrap_or_else(|error| panic!("{error}"));
        let queue = "reply_channel = \"news\"\nconsumers.news = { channel = \"news\", handler = \"n.wasm\" }";
        listening(queue).unwrap_or_else(|error| panic!("{error}"));
    }

    #[test]
    fn a_value_that_is_not_utf_8_is_a_fault_of_its_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hostler.toml");
        std::fs::write(&file, "consumers.mails = { channel = \"mails\", lease = \"20s\" }").unwrap();
        let secret = OsString::from_vec(b"hunter2\xff".to_vec());
        let variables = [
            ("DATABASE_PASSWORD", secret.clone()),
            ("HOSTLER_PORT", secret.clone()),
            ("HOSTLER_CONSUMERS__MAILS__ALLOW__ENV__TOKEN", secret.clone()),
            ("HOSTLER_CONSUMERS__MAILS__HANDLER", secret.clone()),
            ("HOSTLER_CONSUMERS__MAILS__LEASE", secret),
        ];
        let error = load(Some(&file), variables.into_iter()).unwrap_err();
        let faults: Vec<_> =
            error.problems().iter().map(|problem| (problem.key.as_str(), problem.fault.as_str())).collect();
        let keys = ["allow.env.TOKEN", "handler", "lease"].map(|key| format!("consumers.mails.{key}"));
        assert_eq!(faults, keys.each_ref().map(|key| (key.as_str(), "the value is not UTF-8 text")), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("where  variable HOSTLER_CONSUMERS__MAILS__LEASE") && !text.contains("hunter2"),
            "{text}"
        );
    }

    #[test]
    fn a_file_that_was_asked_for_must_be_there() {
        let error = load(Some(Path::new("no-such.toml")), env(&LEAST)).unwrap_err().to_string();
        assert!(
            error.starts_with("the configuration file no-such.toml (named by --config) does not exist\n  cure   "),
            "{error}"
        );
        let error = load(None, env(&[("HOSTLER_CONFIG", "no-such.toml")])).unwrap_err().to_string();
        assert!(
            error
                .starts_with("the configuration file no-such.toml (named by variable HOSTLER_CONFIG) does not exist\n"),
            "{error}"
        );
    }

    #[test]
    fn a_failure_names_the_misspelt_variables() {
        let [hint, others] = [("hostler_config", "mails.toml"), ("HOSTLER_PORT", "80")];
        let error = load(Some(Path::new("no-such.toml")), env(&[hint, others])).unwrap_err().to_string();
        assert!(
            error.ends_with("\n  note   variable hostler_config is ignored: write HOSTLER_CONFIG in capitals"),
            "{error}"
        );
        assert!(!error.contains("HOSTLER_PORT"), "{error}");
        let error = load_text("consumers.mails.lease = '1'", &[LEAST[0], LEAST[1], hint]).unwrap_err();
        assert!(error.problems().len() == 1 && error.to_string().ends_with("in capitals"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_text_is_told_from_a_missing_one() {
        let folder = tempfile::tempdir().unwrap();
        let error = load(Some(folder.path()), env(&[])).unwrap_err();
        assert!(matches!(error, ConfigError::Unreadable { .. }), "{error:?}");
        let file = folder.path().join("latin.toml");
        std::fs::write(&file, b"# \xe4").unwrap();
        let error = load(Some(&file), env(&[])).unwrap_err().to_string();
        assert!(error.contains("not UTF-8") && error.contains("cure"), "{error}");
    }

    #[test]
    fn the_health_file_is_found_without_judging_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hostler.toml");
        std::fs::write(&file, "queue = 1\n[host]\nhealth_file = \"/run/h.json\"").unwrap();
        assert_eq!(health_file(Some(&file), env(&[])), Path::new("/run/h.json"));
        assert_eq!(health_file(None, env(&[("HOSTLER_CONFIG", file.to_str().unwrap())])), Path::new("/run/h.json"));
        let variable = [("HOSTLER_HOST__HEALTH_FILE", "/dev/shm/h.json")];
        assert_eq!(health_file(Some(&file), env(&variable)), Path::new("/dev/shm/h.json"));
        let others =
            [("PASSWORD", OsString::from_vec(vec![0xff])), ("HOSTLER_QUEUE__DRIVER", OsString::from_vec(vec![0xff]))];
        assert_eq!(health_file(Some(&file), others.into_iter()), Path::new("/run/h.json"));
        let default = Path::new(keys::HEALTH_FILE_DEFAULT);
        let odd = [("HOSTLER_HOST__HEALTH_FILE", OsString::from_vec(b"/run/\xff".to_vec()))];
        assert_eq!(health_file(Some(&file), odd.into_iter()), default, "the host refuses it");
        assert_eq!(health_file(Some(Path::new("no-such.toml")), env(&[])), default);
        for text in ["[host", "host.health_file = 5", "host.health_file = \"\"", ""] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(health_file(Some(&file), env(&[])), default, "{text}");
        }
    }

    #[test]
    fn schema_and_reference_know_every_key() {
        let (schema, reference) = (schema(), reference());
        for key in keys::keys() {
            let at = |schema: &serde_json::Value, name: &str| {
                let table = if name == "*" { "additionalProperties" } else { "properties" };
                let below = schema.get(table)?;
                if name == "*" { Some(below.clone()) } else { below.get(name).cloned() }
            };
            let found = key.path.split('.').try_fold(schema.clone(), |schema, name| at(&schema, name));
            let found = found.unwrap_or_else(|| panic!("{} is not in the schema", key.path));
            assert!(found["description"].as_str().is_some_and(|text| text.starts_with(key.meaning)), "{}", key.path);
            assert!(reference.contains(&format!("| `{}` |", key.path.replace('*', "NAME"))), "{}", key.path);
        }
        assert_eq!(
            schema["properties"]["consumers"]["additionalProperties"]["required"],
            serde_json::json!(["handler"])
        );
        assert_eq!(schema["properties"]["host"]["additionalProperties"], serde_json::json!(false));
        let consumer = &schema["properties"]["consumers"]["additionalProperties"]["properties"];
        assert!(consumer["sha256"]["pattern"].as_str().unwrap().starts_with("^$|"), "empty is unset");
        assert!(!consumer["lease"]["pattern"].as_str().unwrap().starts_with("^$|"), "empty is a fault");
    }
}
