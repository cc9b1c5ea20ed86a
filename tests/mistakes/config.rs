//! Mistakes in a config, in its place, and in the variables over it.

use std::fs;

use super::Page;
use crate::support::hostler::{Said, World};

/// A consumer whose table is open, for keys of its own.
const MAILS: &str = "[consumers.mails]\nchannel = \"mails\"\nhandler = \"guests/run-tell.wat\"\n";

#[test]
fn mistakes_in_a_config() {
    let mut page = Page::new("config.md", "Mistakes in a config");
    let mut mails = |mistake: &str, keys: &str| page.config(mistake, &format!("{MAILS}{keys}"));
    mails("A key is misspelt", "concurency = 4");
    mails("A key stands in the wrong table", "memory = \"64MiB\"");
    mails("A duration has no unit", "lease = 30");
    mails("A duration has an unknown unit", "processing_timeout = \"5 mins\"");
    mails("A size has an unknown unit", "limits.memory = \"128mb\"");
    mails("A number is in quotes", "concurrency = \"8\"");
    mails("A boolean is a word", "ordered = \"yes\"");
    mails("A number is out of range", "concurrency = 5000");
    mails("An outcome is unknown", "on_processing_timeout = \"fail\"");
    mails("A rate has no period", "rate_limit = \"100\"");
    mails("A digest is cut short", "sha256 = \"e3b0c44298fc1c14\"");
    mails("A filter has nothing to filter", "filter = { type = \"prefix\", values = [\"EU.\"] }");
    mails(
        "The health check is shorter than the processing timeout",
        "processing_timeout = \"5m\"\nhealthcheck_timeout = \"2m\"",
    );
    mails("Dead letters have no queue", "dead_letter = false\non_processing_timeout = \"dead-letter\"");
    mails("Replies come back to the consumer", "reply_channel = \"mails\"");
    mails("A granted folder is relative in the guest", "allow.dirs = [{ host = \"/data\", guest = \"data\" }]");
    mails("A granted address has a path", "allow.http = [\"https://api.example.com/v1\"]");
    page.config("The channel is missing", "[consumers.mails]\nhandler = \"guests/run-tell.wat\"");
    page.config(
        "A channel has a slash",
        "[consumers.mails]\nchannel = \"mails/eu\"\nhandler = \"guests/run-tell.wat\"",
    );
    page.config("There is no consumer", "telemetry.log = \"text\"");
    page.config("The table of a consumer is misspelt", &MAILS.replace("consumers", "consumer"));
    let twice = format!("{MAILS}\n{}", MAILS.replace("consumers.mails", "consumers.more"));
    page.config("Two consumers share a channel", &twice);
    page.config("The driver is unknown", &format!("queue.driver = \"kafka\"\n{MAILS}"));
    page.config("The collector has no scheme", &format!("telemetry.otlp_endpoint = \"collector:4317\"\n{MAILS}"));
    page.config("Prometheus listens on a name", &format!("telemetry.prometheus = \"localhost:9464\"\n{MAILS}"));
    page.config("A text lacks its closing quote", &MAILS.replace("\"mails\"", "\"mails"));
    page.config("A key is written twice", &format!("{MAILS}channel = \"orders\""));
    page.compare();
}

#[test]
fn mistakes_about_the_place_of_a_config() {
    let mut page = Page::new("files.md", "Mistakes about the place of a config, and in variables");
    let world = World::new(MAILS);
    page.run("The config is not where --config says", &world, &["check", "--config", "hostler.tml"]);
    page.run("The config is a folder", &world, &["check", "--config", "guests"]);
    fs::write(world.path("hostler.yaml"), "consumers:\n  jobs:\n    channel: jobs\n").unwrap();
    page.run("The config is YAML", &world, &["check", "--config", "hostler.yaml"]);
    fs::write(world.path("latin.toml"), b"# caf\xe9\n").unwrap();
    page.run("The config is not UTF-8", &world, &["check", "--config", "latin.toml"]);
    let mut with = |mistake: &str, variable: &str, value: &str, args: &[&str]| {
        let said = Said::new(world.command(args).env(variable, value).output().unwrap());
        page.add(&format!("{mistake}: {variable}={value}"), &world, args, &said);
    };
    with("A variable names no config", "HOSTLER_CONFIG", "/nowhere.toml", &["check"]);
    with("The variable of the config is in small letters", "hostler_config", "other.toml", &["queues"]);
    with("The variable of the config has another name", "HOSTLER_CONFIG_FILE", "other.toml", &["queues"]);
    with("A variable has one underscore", "HOSTLER_CONSUMERS__MAILS_LEASE", "20s", &["check"]);
    with("A variable has only single underscores", "HOSTLER_QUEUE_DRIVER", "sqs", &["queues"]);
    with("A variable is misspelt", "HOSTLER_CONSUMERS__MAILS__CONCURENCY", "8", &["check"]);
    with("A variable names an unknown consumer", "HOSTLER_CONSUMERS__MIALS__CONCURRENCY", "8", &["check"]);
    with("A variable has a value of another type", "HOSTLER_CONSUMERS__MAILS__CONCURRENCY", "many", &["check"]);
    fs::remove_file(world.path("hostler.toml")).unwrap();
    page.run("There is no config", &world, &["run"]);
    let said = Said::new(world.command(&["check"]).env("hostler_config", "other.toml").output().unwrap());
    page.add("There is no config, as its variable is in small letters", &world, &["check"], &said);
    page.compare();
}
