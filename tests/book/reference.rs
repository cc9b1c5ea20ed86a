//! The reference of the book is made of the code: commands, config, metrics, exit codes, the handler contract.
//! `UPDATE_GOLDEN=1 cargo test --workspace --test all book::reference` writes it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use hostler_telemetry::metrics::names::{ALL, Kind, Metric};

use super::{ROOT, read};

/// Renders a page from the code.
type Render = fn() -> String;

/// The pages, by their names in `book/src/reference`.
const PAGES: [(&str, Render); 5] =
    [("cli", commands), ("config", config), ("metrics", metrics), ("exit-codes", exit_codes), ("wit", contract)];

/// The help of a command. Lines are as long as in a wide terminal.
fn help(command: &[&str]) -> String {
    let mut hostler = Command::new(env!("CARGO_BIN_EXE_hostler"));
    let output = hostler.args(command).arg("--help").env("COLUMNS", "100").output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that a help text lists.
fn listed(help: &str) -> Vec<&str> {
    let Some((_, rest)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let rows = rest.lines().take_while(|line| line.starts_with("  "));
    let names = rows.filter_map(|row| row.strip_prefix("  ").filter(|row| !row.starts_with(' '))?.split(' ').next());
    names.filter(|name| *name != "help").collect()
}

fn commands() -> String {
    let mut page = "# Commands\n\nThe text of `hostler COMMAND --help`. Results go to standard output, and everything else to standard \
                    error.\n[Exit codes](exit-codes.md) are the same for all commands.\n"
        .to_owned();
    describe(&mut page, &[]);
    page
}

fn describe(page: &mut String, command: &[&str]) {
    let text = help(command);
    if !command.is_empty() {
        let _ = write!(page, "\n## hostler {}\n", command.join(" "));
    }
    let _ = write!(page, "\n```text\n{}\n```\n", text.trim_end());
    for name in listed(&text) {
        describe(page, &[command, &[name]].concat());
    }
}

const CONFIG: &str = "# Config

hostler reads TOML from `--config`, else `HOSTLER_CONFIG`, else `/etc/hostler/hostler.toml`, else `./hostler.toml`.
Variables override it, with `__` between levels: `HOSTLER_CONSUMERS__ORDERS__CONCURRENCY=8`. `config/hostler.toml` in
the repository shows every key with a comment, and `hostler schema` prints the JSON Schema.

All errors are reported at once, each with its place and its cure. Durations and sizes carry their unit. Relative paths
count from the current directory, unless the key says otherwise.

A **channel** is `<queue>`, or `<exchange>.<queue>` for fan-out: what is sent to the exchange reaches every subscribed
queue whose `filter` matches the routing key. A message without a routing key passes no filter.

";

fn config() -> String {
    CONFIG.to_owned() + &hostler_config::reference()
}

/// The name that Prometheus shows: the exporter appends the unit, and `_total` to counters.
fn in_prometheus(metric: &Metric) -> String {
    let unit = match metric.unit {
        "s" => "_seconds",
        "By" => "_bytes",
        _ => "",
    };
    let total = if metric.kind == Kind::Counter { "_total" } else { "" };
    format!("{}{unit}{total}", metric.name.replace('.', "_"))
}

fn metrics() -> String {
    let mut page = "# Metrics\n\nEvery metric, with its name in Prometheus. [Metrics](../metrics.md) says what to do when one is high, and \
                    which attributes each has.\n\n| metric | in Prometheus | kind | unit | meaning |\n|---|---|---|---|---|\n"
        .to_owned();
    for metric in ALL {
        let (name, kind) = (in_prometheus(metric), metric.kind.name());
        let unit = if metric.unit.is_empty() { String::new() } else { format!("`{}`", metric.unit) };
        let _ = writeln!(page, "| `{}` | `{name}` | {kind} | {unit} | {} |", metric.name, metric.meaning);
    }
    page
}

/// The codes are those of `src/exit.rs`: a doc comment, then `Name = code,`.
fn exit_codes() -> String {
    let mut page = "# Exit codes\n\nThe numbers follow `sysexits.h` where it has a fitting one. [Operating](../operating.md#exit-codes) says \
                    what to do about each.\n\n| code | name | means |\n|---|---|---|\n"
        .to_owned();
    let source = read("src/exit.rs");
    let (_, rest) = source.split_once("pub enum Exit {").unwrap();
    let mut meaning = String::new();
    for line in rest.lines().map(str::trim).take_while(|line| *line != "}") {
        if let Some(text) = line.strip_prefix("/// ") {
            meaning = if meaning.is_empty() { text.to_owned() } else { format!("{meaning} {text}") };
        } else if let Some((name, code)) = line.trim_end_matches(',').split_once(" = ") {
            let _ = writeln!(page, "| {code} | `{name}` | {meaning} |");
            meaning.clear();
        }
    }
    page + "| 128 + n | | A second signal n ended the process at once. |\n"
}

fn contract() -> String {
    let head = "# The handler contract\n\n`wit/consumer.wit` in the repository. `hostler new` puts a copy into each project that needs it.\n";
    format!("{head}\n```wit\n{}\n```\n", read("wit/consumer.wit").trim_end())
}

#[test]
fn the_reference_is_that_of_the_code() {
    for (name, page) in PAGES {
        let (path, page) = (format!("book/src/reference/{name}.md"), page());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(Path::new(ROOT).join("book/src/reference")).unwrap();
            fs::write(Path::new(ROOT).join(&path), page).unwrap();
            continue;
        }
        assert_eq!(
            read(&path),
            page,
            "{path} is stale: UPDATE_GOLDEN=1 cargo test --workspace --test all book::reference"
        );
    }
}

#[test]
fn every_command_is_found() {
    let page = commands();
    for name in ["run", "check-consumer-health", "dlq ls", "dlq drop", "completions"] {
        assert!(page.contains(&format!("\n## hostler {name}\n")), "{name}");
    }
    assert!(!page.contains("## hostler help"));
}

/// A real Prometheus answers the queries of the dashboard and the alert rules; so their names are right.
#[test]
fn names_in_prometheus_are_those_of_the_dashboard() {
    let mut known: BTreeSet<String> = BTreeSet::new();
    for metric in ALL {
        let name = in_prometheus(metric);
        if metric.kind == Kind::Histogram {
            known.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")));
        }
        known.insert(name);
    }
    let text = read("config/grafana-dashboard.json") + &read("config/alert-rules.yaml");
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let of_metrics = ["hostler_", "messaging_"];
    let suffixes = ["_total", "_seconds", "_bytes", "_bucket", "_sum", "_count"];
    let queried: BTreeSet<&str> = words
        .filter(|word| of_metrics.iter().any(|prefix| word.starts_with(prefix)))
        .filter(|word| suffixes.iter().any(|suffix| word.ends_with(suffix)))
        .collect();
    assert!(queried.len() >= 10, "{queried:?}");
    for name in queried {
        assert!(known.contains(name), "{name} is not in the reference");
    }
}
