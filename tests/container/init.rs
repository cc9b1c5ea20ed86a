//! Life as PID 1, and behind an init of the engine's: orphans, signals.

use std::collections::BTreeSet;
use std::fs;

use super::work;
use crate::support::engine::{Container, Engine};
use crate::support::hostler::{PATIENCE, until};

/// The image with a Debian under it, whose shell leaves orphans behind: the Dockerfile's other build argument.
const WITH_SHELL: &str = "hostler:test-debian";

/// Leaves three processes behind that end soon after.
const ORPHANS: &str = "for n in 1 2 3; do (sleep 0.3 & echo $! ) ; done";

#[test]
fn orphans_of_an_exec_are_reaped() {
    let Some(engine) = Engine::get() else { return };
    for init in [&[][..], &["--init"]] {
        let container = Container::of(engine, WITH_SHELL, init, &work("host.shutdown_grace = '1s'", "")).consuming();
        let said = container.exec(&["sh", "-c", ORPHANS]);
        assert_eq!(said.code, 0, "{said:?}");
        let orphans: BTreeSet<&str> = said.stdout.lines().collect();
        assert_eq!(orphans.len(), 3);
        // One that nobody waits for stays there as a zombie.
        let proc = format!("/proc/{}/root/proc", container.state()["Pid"]);
        until("the orphans are gone", PATIENCE, || {
            let left: BTreeSet<_> = fs::read_dir(&proc).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            orphans.iter().all(|orphan| !left.iter().any(|name| name == orphan)).then_some(())
        });
        // It has noticed nothing, and works on.
        container.send("work", ["ack"]);
        assert_eq!(container.settled(1)[0]["outcome"], "ack");
        container.health("healthy");
        container.send("work", ["w60000"]);
        container.in_flight("work", 1);
        assert_eq!(container.stop().0, 75, "{init:?}");
    }
}
