//! Hostler on SQS, SNS and S3: the real binary against servers of others, with clients of others.

mod drain;
mod fan_out;
mod fifo;
mod init;
mod interop;
mod large;
mod leases;
mod not_before;
mod operations;
mod refused;
mod settings;
mod transport;

use std::fs;

use serde_json::Value;

use crate::support::hostler::{Host, World};
use crate::support::sqs::Aws;

/// A consumer `work` whose handler does what the body says. Further keys of it follow.
const WORK: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
";

/// A consumer `keep` whose handler keeps every message that it gets; its polls are short, and so is its end. Further keys
/// of it follow.
pub const KEEP: &str = "
    [consumers.keep]
    channel = 'keep'
    handler = 'guests/main-keeps.wat'
    lease = '3s'
    allow.dirs = [{ host = 'kept', guest = '/kept', mode = 'rw' }]
";

/// Body of a message that the handler of [`KEEP`] received.
pub fn kept(world: &World, id: &str) -> Vec<u8> {
    fs::read(world.path("kept").join(id)).unwrap()
}

/// Attributes of a message that the handler of [`KEEP`] received.
pub fn kept_attributes(world: &World, id: &str) -> Value {
    let env = fs::read_to_string(world.path("kept").join(format!("{id}.env"))).unwrap();
    let attributes = env.lines().find_map(|line| line.strip_prefix("MESSAGE_ATTRIBUTES=")).unwrap();
    serde_json::from_str(attributes).unwrap()
}

/// The text of a field.
fn text<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap_or_else(|| panic!("no text `{field}` in {line}"))
}

/// The lines of everything that a host has settled so far.
fn settlements(host: &Host) -> Vec<Value> {
    host.lines().into_iter().filter(|line| line.get("outcome").is_some()).collect()
}

/// Sends one message, given its body by a file or by arguments; its id.
fn send(world: &Aws, args: &[&str]) -> String {
    let said = world.output(&[&["send"], args].concat());
    assert_eq!(said.code, 0, "{said:?}");
    said.stdout.trim().to_owned()
}
