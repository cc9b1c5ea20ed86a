//! Configurations: TOML and, after a line `### environment`, variables `NAME=value`. Whatever they are, there is a
//! configuration or a list of faults that names keys and cures, and no secret is shown. What is accepted fits the schema,
//! reads the same when it is written in another way, and the same out of variables alone.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use hostler_config::{self as config, Config, ConfigError, Loaded};
use hostler_fuzz::{schema, scratch};
use libfuzzer_sys::fuzz_target;
use toml::{Table, Value};

const SEPARATOR: &str = "### environment\n";
const SECRET: &str = "zQ7-not-to-be-shown";

static FILE: LazyLock<PathBuf> = LazyLock::new(|| scratch("hostler.toml"));
static SCHEMA: LazyLock<serde_json::Value> = LazyLock::new(config::schema);

type Variables = Vec<(String, String)>;

fuzz_target!(|text: &str| {
    let (toml, variables) = text.split_once(SEPARATOR).unwrap_or((text, ""));
    let variables: Variables = variables.lines().filter_map(|line| line.split_once('=')).map(owned).collect();
    let without_variables = variables.is_empty();
    let _ = config::health_file(Some(&FILE), variables.clone().into_iter());
    match load(toml, variables.clone()) {
        Err(error) => explained(&error),
        Ok(loaded) => {
            let table = toml.parse::<Table>().expect("TOML that was accepted");
            shows_no_secret(toml, variables, &loaded);
            if without_variables {
                as_the_schema_says(&table, toml);
                as_written_otherwise(&table, &loaded.config);
                as_variables(&table, &loaded.config);
            }
        }
    }
});

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn load(toml: &str, variables: Variables) -> Result<Loaded, ConfigError> {
    std::fs::write(&*FILE, toml).expect("a file for the text");
    config::load(Some(&FILE), variables.into_iter())
}

/// Each fault says what and how to mend it.
fn explained(error: &ConfigError) {
    let text = error.to_string();
    assert!(text.contains("\n  cure   "), "{text}");
    for problem in error.problems() {
        assert!(!problem.key.is_empty() && !problem.fault.is_empty() && !problem.cure.is_empty(), "{problem:?}");
        assert!(!problem.cure.contains("a fault of hostler"), "the table of keys and the code differ: {problem}");
    }
}

/// No text contains the variables that a consumer grants, even if something else is wrong.
fn shows_no_secret(toml: &str, mut variables: Variables, loaded: &Loaded) {
    let Some(consumer) = loaded.config.consumers.first() else { return };
    let granted = format!("HOSTLER_CONSUMERS__{}__ALLOW__ENV__FUZZ_TOKEN", consumer.name);
    variables.retain(|(name, _)| !name.eq_ignore_ascii_case(&granted));
    variables.push((granted, SECRET.to_owned()));
    if let Ok(loaded) = load(toml, variables.clone()) {
        assert!(!format!("{loaded:?}").contains(SECRET));
    }
    variables.push(("HOSTLER_QUEUE__DRIVER".to_owned(), "none".to_owned()));
    let error = load(toml, variables).expect_err("there is no such driver");
    assert!(!format!("{error} {error:?}").contains(SECRET), "{error}");
}

fn as_the_schema_says(table: &Table, toml: &str) {
    let json = serde_json::to_value(table).expect("JSON");
    if let Some(misfit) = schema::misfit(&SCHEMA, &json) {
        panic!("accepted, but not by the schema{misfit}\n{toml}");
    }
}

fn as_written_otherwise(table: &Table, config: &Config) {
    let text = toml::to_string(table).expect("TOML");
    let again = load(&text, Vec::new()).unwrap_or_else(|error| panic!("{error}\n{text}")).config;
    assert_eq!(again, *config, "{text}");
}

/// Every value that a variable can carry as it is, set by a variable.
fn as_variables(table: &Table, config: &Config) {
    let mut variables = Vec::new();
    if spell("HOSTLER_", &Value::Table(table.clone()), &mut variables).is_none() {
        return;
    }
    let again = load("", variables.clone()).unwrap_or_else(|error| panic!("{error}\n{variables:#?}")).config;
    assert_eq!(again, *config, "{variables:#?}");
}

/// `None`: there is a value or a name that a variable does not carry as it is.
fn spell(name: &str, value: &Value, variables: &mut Variables) -> Option<()> {
    let text = match value {
        Value::Table(table) => {
            let guests = name.ends_with("__env");
            for (key, below) in table {
                let plain = |byte: u8| byte.is_ascii_digit() || byte.is_ascii_lowercase() || b"-_".contains(&byte);
                let apart = !key.contains("__") && !key.starts_with('_') && !key.ends_with('_');
                let spelled = guests || (apart && key.bytes().all(plain));
                if !spelled {
                    return None;
                }
                let separator = if name.ends_with('_') { "" } else { "__" };
                spell(&format!("{name}{separator}{key}"), below, variables)?;
            }
            return Some(());
        }
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let plain = |text: &&str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:/-_".contains(&byte));
            let plain = |item: &Value| item.as_str().filter(plain).filter(|text| !text.is_empty()).map(str::to_owned);
            format!("[{}]", items.iter().map(plain).collect::<Option<Vec<_>>>()?.join(","))
        }
        Value::Integer(_) | Value::Boolean(_) => value.to_string(),
        Value::Float(_) | Value::Datetime(_) => return None,
    };
    variables.push((name.to_owned(), text));
    Some(())
}
