//! Configurations under `tests/fixtures/config`: the valid load, each invalid one prints its golden text.
//!
//! `NAME.toml` is the file, `NAME.env` (lines `VARIABLE=value`) the environment, if any; `NAME.txt` is the text. With
//! `UPDATE_GOLDEN=1` the texts are rewritten: review the difference.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::{Format as _, Toml};
use hostler_config::{self as config, Config, ConfigError};

#[path = "../fuzz/src/schema.rs"]
mod schema;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn fixtures(kind: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(here("tests/fixtures/config").join(kind)).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    files
}

fn load(file: &Path) -> Result<Config, ConfigError> {
    let env = std::fs::read_to_string(file.with_extension("env")).unwrap_or_default();
    let env = env.lines().filter_map(|line| line.split_once('='));
    config::load(Some(file), env).map(|loaded| loaded.config)
}

#[test]
fn each_invalid_config_prints_its_golden_text() {
    let files = fixtures("invalid");
    assert!(files.len() >= 25, "only {} invalid configurations", files.len());
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut differing = Vec::new();
    for file in &files {
        let error = load(file).map(drop).expect_err(&format!("{} is valid", file.display()));
        let folder = format!("{}/", file.parent().unwrap().display());
        let text = format!("{error}\n").replace(&folder, "");
        let golden = file.with_extension("txt");
        if update {
            std::fs::write(&golden, &text).unwrap();
        }
        let wanted = std::fs::read_to_string(&golden).unwrap_or_default();
        if text != wanted {
            differing.push(format!("--- {}\nwanted:\n{wanted}\ngot:\n{text}", golden.display()));
        }
    }
    assert!(differing.is_empty(), "UPDATE_GOLDEN=1 rewrites these:\n{}", differing.join("\n"));
}

#[test]
fn every_golden_text_belongs_to_a_config() {
    let files: BTreeSet<_> = fixtures("invalid").into_iter().map(|file| file.with_extension("")).collect();
    for entry in std::fs::read_dir(here("tests/fixtures/config/invalid")).unwrap() {
        let path = entry.unwrap().path();
        assert!(files.contains(&path.with_extension("")), "{} belongs to nothing", path.display());
    }
}

#[test]
fn each_valid_config_loads() {
    let files = fixtures("valid");
    assert!(files.len() >= 3, "only {} valid configurations", files.len());
    for file in &files {
        load(file).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn each_valid_config_fits_the_schema() {
    let schema = hostler_config::schema();
    for file in fixtures("valid") {
        let config: serde_json::Value = Figment::from(Toml::file(&file)).extract().unwrap();
        assert_eq!(schema::misfit(&schema, &config), None, "{}", file.display());
    }
    let misspelt = serde_json::json!({ "consumers": { "jobs": { "chanel": "jobs" } } });
    assert!(schema::misfit(&schema, &misspelt).is_some_and(|misfit| misfit.contains("chanel")));
}

/// The reference file holds every key of the table, in its section, and is itself valid.
#[test]
fn the_documented_file_has_every_key() {
    let file = here("config/hostler.toml");
    load(&file).unwrap_or_else(|error| panic!("{error}"));
    let mut section = String::new();
    let mut written = BTreeSet::new();
    for line in std::fs::read_to_string(&file).unwrap().lines() {
        // A key that is only shown counts too: `# key = value`.
        let line = line.strip_prefix("# ").unwrap_or(line);
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            section = header.replace("thumbnails", "NAME");
        } else if let Some((key, _)) = line.split_once(" = ").filter(|(key, _)| !key.trim_end().contains(' ')) {
            written.insert(format!("`{section}.{}`", key.trim()));
        }
    }
    for row in config::reference().lines().skip(2) {
        let key = row.split(" | ").next().unwrap().trim_start_matches("| ");
        // The names below `allow.env` are the user's.
        let key = key.strip_suffix(".NAME`").map_or_else(|| key.to_owned(), |table| format!("{table}`"));
        assert!(written.contains(&key), "{key} is not in config/hostler.toml");
    }
}

/// The defaults in the file are the real defaults, and the keys in its comments are valid.
#[test]
fn the_documented_file_says_the_defaults() {
    let file = here("config/hostler.toml");
    let mut least =
        load(&here("tests/fixtures/config/valid/documented.toml")).unwrap_or_else(|error| panic!("{error}"));
    // The default lies beside each config file.
    least.queue.embedded.path = here("config/hostler.db");
    assert_eq!(load(&file).unwrap_or_else(|error| panic!("{error}")), least);

    let text = std::fs::read_to_string(&file).unwrap();
    let shown =
        |line: &str| line.strip_prefix("# ").filter(|line| line.split(' ').nth(1) == Some("=")).map(str::to_owned);
    let all: Vec<_> = text.lines().map(|line| shown(line).unwrap_or_else(|| line.to_owned())).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.toml");
    std::fs::write(&file, all.join("\n")).unwrap();
    let config = load(&file).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.telemetry.prometheus, Some(([0, 0, 0, 0], 9464).into()));
}

/// A field read from another field's key would pass wherever both have the same value.
#[test]
fn every_key_reaches_its_field() {
    let files = ["every-key", "every-key-of-a-subject", "every-key-of-a-job", "every-key-of-idempotency"]
        .map(|name| here(&format!("tests/fixtures/config/valid/{name}.toml")));
    let written = files.each_ref().map(|file| Figment::from(Toml::file(file)).extract::<serde_json::Value>().unwrap());
    for row in config::reference().lines().skip(2) {
        let key = row.split('`').nth(1).unwrap();
        // The names below `allow.env` are the user's.
        let path = key
            .replace("consumers.NAME.", "consumers.a.")
            .replace("schedules.NAME.", "schedules.a.")
            .replace("applets.NAME.", "applets.a.")
            .replace(".NAME", "")
            .replace('.', "/");
        let path = format!("/{path}");
        assert!(
            written.iter().any(|written| written.pointer(&path).is_some()),
            "{key} is not in {}",
            files[0].display()
        );
    }
    for file in files {
        reaches_its_fields(&file);
    }
}

fn reaches_its_fields(file: &Path) {
    let folder = format!("{}/", file.parent().unwrap().display());
    let text = format!("{:#?}\n", load(file).unwrap_or_else(|error| panic!("{error}"))).replace(&folder, "");
    assert!(!text.contains("hunter2"), "a grant's value is shown");
    let golden = file.with_extension("txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&golden).unwrap());
}
