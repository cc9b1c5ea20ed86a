//! Metrics of `hostler run` by its three exporters: their values after a known workload, and proof that a slow or missing
//! receiver holds up no message.

mod dashboard;
mod emf;
mod exits;
mod otlp;
mod published;
mod scraped;

use std::net::SocketAddr;
use std::process::Command;

use crate::support::hostler::{Host, World};
use crate::support::prometheus::free_address;

/// A consumer `work` whose handler does what the body says, with three attempts that follow at once.
const WORK: &str = "
    [consumers.work]
    channel = 'work'
    handler = 'guests/run-word.wat'
    concurrency = 4
    retry = { requeues = 2, requeue_delay = '10ms', delays = 0 }
";

/// A host that sends its metrics this way.
fn world(telemetry: &str) -> World {
    World::new(&format!("{telemetry}\n{WORK}"))
}

/// A host that serves its metrics at this address.
fn serving() -> (World, SocketAddr) {
    let address = free_address();
    (world(&format!("telemetry.prometheus = '{address}'")), address)
}

/// Ninety messages that are acked at once, and ten that fail three times.
const DELIVERIES: usize = 90 + 3 * 10;

/// Sends them.
fn send_hundred(world: &World) {
    world.send("work", (0..100).map(|n| if n % 10 == 0 { "x1" } else { "a" }));
}

/// Starts a host with these variables.
fn start_with(world: &World, variables: &[(&str, &str)]) -> Host {
    let mut command = world.command(&["run"]);
    command.envs(variables.iter().copied());
    Host::start(command)
}

/// A host whose standard output goes to a file, or whatever the redirection says, in its world.
fn redirected(world: &World, to: &str, variables: &[(&str, &str)]) -> Command {
    let script = format!("exec \"$0\" run {to}");
    let mut command = world.program("/bin/sh", &["-c", &script, env!("CARGO_BIN_EXE_hostler")]);
    command.envs(variables.iter().copied());
    command
}
