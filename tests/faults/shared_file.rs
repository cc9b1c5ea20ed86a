//! Two containers that share one health file by mistake, each with processes of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};

use super::WORK;
use crate::support::hostler::{Host, PATIENCE, World, announce, until};

/// Arguments of `unshare` for a view of processes as in a container.
const UNSHARE: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];

/// A host beside a shell, which does what each line says in the same container, and prints the exit code.
const SHELL: &str = r#""$0" run 2>/dev/null & host=$!; while read -r line; do eval "$line" 2>&1; echo "code $?"; done"#;

struct Container {
    shell: Child,
    said: BufReader<ChildStdout>,
}

impl Container {
    fn start(world: &World) -> Self {
        let hostler = env!("CARGO_BIN_EXE_hostler");
        let mut command = world.program("unshare", &[&UNSHARE[..], &["sh", "-c", SHELL, hostler]].concat());
        let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(shell.stdout.take().unwrap());
        Self { shell, said }
    }

    /// Output of a command, and its exit code.
    fn run(&mut self, line: &str) -> (String, i32) {
        writeln!(self.shell.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut text = String::new();
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "the shell has ended: {text}");
            match line.strip_prefix("code ") {
                Some(code) => return (text, code.trim().parse().unwrap()),
                None => text += &line,
            }
        }
    }

    fn check(&mut self) -> (String, i32) {
        self.run(r#""$0" check-consumer-health"#)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[test]
fn a_frozen_host_is_not_healthy_because_another_container_writes_its_file() {
    let world = World::new(WORK);
    let permitted = world.program("unshare", &[&UNSHARE[..], &["true"]].concat()).output();
    if !permitted.is_ok_and(|output| output.status.success()) {
        return announce("NOT RUN, two containers on one health file: a process namespace cannot be made here");
    }
    let mut one = Container::start(&world);
    until("the first host is healthy", PATIENCE, || (one.check() == ("healthy: 1 consumer\n".into(), 0)).then_some(()));
    let other =
        Host::start(world.program("unshare", &[&UNSHARE[..], &[env!("CARGO_BIN_EXE_hostler"), "run"]].concat()));
    other.wait_for(PATIENCE, |line| line["message"] == "consuming");
    assert_eq!(one.check(), ("healthy: 1 consumer\n".into(), 0), "both write");
    assert_eq!(one.run("kill -STOP $host").1, 0);
    // The last report of its own is not stale yet where the other has not written since.
    let (said, _) = until("an unhealthy verdict", PATIENCE, || Some(one.check()).filter(|(_, code)| *code == 1));
    assert!(said.contains("is written by a host in another container"), "{said}");
    assert!(said.contains("host.health_file"), "{said}");
    assert_eq!(one.run("kill -CONT $host").1, 0);
    until("it is healthy again", PATIENCE, || (one.check().1 == 0).then_some(()));
}
