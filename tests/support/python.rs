//! Python scripts against a server, by boto3: a client of others, to set up what hostler meets and to see what it did.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

use super::servers::{Server, installed};

const PRELUDE: &str = include_str!("prelude.py");

/// Runs a script that begins with `prelude.py`; `args` are its `sys.argv[1:]`. Returns what it printed.
pub fn python(server: &Server, script: &str, args: &[&str]) -> String {
    python_with_input(server, script, args, "")
}

/// The same, with this on its standard input.
pub fn python_with_input(server: &Server, script: &str, args: &[&str], input: impl AsRef<[u8]>) -> String {
    let mut command = Command::new(installed("clients").join("bin/python"));
    command.arg("-c").arg(format!("{PRELUDE}\n{script}")).args(args).env_clear().envs(server.env());
    // Whatever AWS account the machine is set up for is not this one.
    command.envs(["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"].map(|name| (name, "/dev/null")));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.as_ref());
    let output = thread::scope(|scope| {
        // A script may print before it has read it all, or read none of it.
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{}\n{script}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
