//! Mistakes on the command line.

use std::fs;

use super::Page;
use crate::support::hostler::World;

const MAILS: &str = "
    [consumers.mails]
    channel = 'mails'
    handler = 'guests/run-tell.wat'
    [consumers.bills]
    channel = 'bills'
    ordered = true
    handler = 'guests/run-tell.wat'
";

#[test]
fn mistakes_on_the_command_line() {
    let mut page = Page::new("commands.md", "Mistakes on the command line");
    let world = World::new(MAILS);
    let mut run = |mistake: &str, args: &[&str]| page.run(mistake, &world, args);
    run("The command is unknown", &["start"]);
    run("The option is misspelt", &["run", "--confg", "hostler.toml"]);
    run("peek names no channel", &["peek"]);
    run("The channel on the command line has a slash", &["queues", "mails/eu"]);
    run("A number is zero", &["peek", "mails", "--max", "0"]);
    run("A duration on the command line has no unit", &["alarms", "--every", "15"]);
    run("A filter has another form", &["requeue", "--from", "mails-dlq", "--filter", "older=1h"]);
    run("requeue lacks its source", &["requeue", "--to", "mails"]);
    run("requeue leads back to its source", &["requeue", "--from", "mails", "--to", "mails"]);
    run("purge is not confirmed", &["purge", "mails"]);
    run("drop selects no dead letters", &["dlq", "drop", "mails", "--yes"]);
    run("drop is not confirmed", &["dlq", "drop", "mails", "--filter", "older:1h"]);
    run("pause names no consumer", &["pause"]);
    run("pause names an unknown consumer", &["pause", "mial"]);
    run("The queue has no permissions to print", &["provision", "--permissions"]);
    run("The account is not 12 digits", &["iam", "--account", "123"]);
    run("The shell is unknown", &["completions", "sh"]);
    run("alarms has no webhook", &["alarms", "--webhook"]);
    run("clean needs SQS", &["clean"]);
    run("top has no terminal", &["top"]);
    page.compare();
}

#[test]
fn mistakes_with_messages() {
    let mut page = Page::new("messages.md", "Mistakes with messages");
    let world = World::new(MAILS);
    world.provision();
    fs::File::create(world.path("large")).unwrap().set_len(1 << 30).unwrap();
    let attrs: Vec<String> = (0..11).map(|n| format!("a{n}=1")).collect();
    let many: Vec<&str> =
        ["send", "mails", "--body", "x"].into_iter().chain(attrs.iter().flat_map(|attr| ["--attr", attr])).collect();
    let mut run = |mistake: &str, args: &[&str]| page.run(mistake, &world, args);
    run("A message goes to a misspelt channel", &["send", "mials", "--body", "x"]);
    run("A message goes to an unknown exchange", &["send", "news.mails", "--body", "x"]);
    run("The standard input of send is empty", &["send", "mails"]);
    run("A message has two bodies", &["send", "mails", "--body", "x", "--file", "large"]);
    run("The file of a message is missing", &["send", "mails", "--file", "message.json"]);
    run("A message is too large", &["send", "mails", "--file", "large"]);
    run("An attribute has no value", &["send", "mails", "--body", "x", "--attr", "locale"]);
    run("An attribute has a wrong name", &["send", "mails", "--body", "x", "--attr", "my locale=de"]);
    run("A message has too many attributes", &many);
    run("A delay has no unit", &["send", "mails", "--body", "x", "--delay", "20"]);
    page.compare();
}
