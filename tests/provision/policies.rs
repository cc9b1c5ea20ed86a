//! `iam` prints policies, and asks nobody for them.

use std::fs;
use std::path::Path;

use super::CONSUMERS;
use crate::support::hostler::World;

/// A policy in `tests/fixtures/iam`; with `UPDATE_GOLDEN=1` it is rewritten: review the difference.
fn is_golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/iam").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(&file).unwrap_or_default(), "UPDATE_GOLDEN=1 rewrites {}", file.display());
}

#[test]
fn iam_prints_the_least_policy_without_asking_anybody() {
    let more = "
        payload.bucket = 'large-bodies'
        queue.driver = 'sqs'
        queue.sqs.prefix = 'prod-'
        queue.sqs.kms_key = 'alias/queues'
        ";
    let consumers = CONSUMERS.replace(
        "channel = \"orders\"",
        "channel = \"orders\"\n reply_channel = \"done\"\n allow.send = [\"uploads.any\", \"ledger\"]",
    );
    let world = World::new(&format!("{more}{consumers}"));
    let said = world.output(&["iam"]);
    assert_eq!(said.code, 0, "{said:?}");
    is_golden("run.json", &said.stdout);
    let mut command = world.command(&["iam", "--account", "123456789012", "--with-provision"]);
    let output = command.env("AWS_REGION", "eu-west-1").output().unwrap();
    is_golden("provision.json", &String::from_utf8(output.stdout).unwrap());
    let mut command = world.command(&["iam", "--account", "123456789012", "--with-requeue"]);
    let output = command.env("AWS_REGION", "eu-west-1").output().unwrap();
    is_golden("requeue.json", &String::from_utf8(output.stdout).unwrap());
    let mut command = world.command(&["iam", "--account", "123456789012", "--with-alarms", "--with-clean"]);
    let output = command.env("AWS_REGION", "eu-west-1").output().unwrap();
    is_golden("upkeep.json", &String::from_utf8(output.stdout).unwrap());
}
