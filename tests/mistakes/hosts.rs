//! Mistakes with hosts and their health.

use std::fs;
use std::net::TcpListener;

use serde_json::Value;

use super::Page;
use crate::support::hostler::{PATIENCE, Said, World};

const MAILS: &str = "
    [consumers.mails]
    channel = 'mails'
    handler = 'guests/run-tell.wat'
";

/// The options of a health check that waits for no start.
const CHECK: [&str; 3] = ["check-consumer-health", "--start-period", "0s"];

#[test]
fn mistakes_with_hosts() {
    let mut page = Page::new("hosts.md", "Mistakes with hosts and their health")
        .hiding(r"for \d+m?s\b", "for AGE")
        .hiding(r"\d+(days|day|h|m|s)( \d+(h|m|s|ms|us|ns))* ", "AGE ");
    let world = World::new(MAILS);
    world.provision();
    page.run("No host has run", &world, &CHECK);
    page.run("top finds no host", &world, &["top", "--once"]);
    fs::write(world.path("health.json"), "{\"schema\": 1, ").unwrap();
    page.run("The health file is torn", &world, &CHECK);
    fs::remove_file(world.path("health.json")).unwrap();
    fs::create_dir(world.path("health.json")).unwrap();
    page.run("The health file is a folder", &world, &CHECK);
    let mut host = world.start();
    let line = host.wait_for(PATIENCE, |line| line["message"] == "cannot write the health file");
    page.add("The health file cannot be written", &world, &["run"], &logged(&line, host.stop()));
    fs::remove_dir(world.path("health.json")).unwrap();

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = World::new(&format!("telemetry.prometheus = '{}'\n{MAILS}", taken.local_addr().unwrap()));
    port.provision();
    run(&mut page, "The port for Prometheus is taken", &port);

    let host = world.started();
    let mut second = world.start();
    let line =
        second.wait_for(PATIENCE, |line| line["message"].as_str().is_some_and(|text| text.contains("another host")));
    page.add("Two hosts write one health file", &world, &["run"], &logged(&line, second.stop()));
    host.kill();
    page.run("The host is gone", &world, &CHECK);
    page.compare();
}

/// Runs a host that fails, with a log for people.
fn run(page: &mut Page, mistake: &str, world: &World) {
    let said = Said::new(world.command(&["run"]).env("HOSTLER_TELEMETRY__LOG", "text").output().unwrap());
    page.add(mistake, world, &["run"], &said);
}

/// A line of a host's log, with its error, and how the host ended.
fn logged(line: &Value, code: i32) -> Said {
    let field = |name: &str| line[name].as_str().unwrap_or_default();
    let stderr = format!("{} {} {}", field("level"), field("message"), field("error"));
    Said { code, stdout: String::new(), stderr }
}
