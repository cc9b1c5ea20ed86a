//! Python scripts with boto3, an independent client. They prepare the server for hostler, and check the results.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

use super::servers::{Server, installed};

const PRELUDE: &str = include_str!("prelude.py");

/// Runs a script after `prelude.py`. `args` are its `sys.argv[1:]`. Returns its output.
pub fn python(server: &Server, script: &str, args: &[&str]) -> String {
    python_with_input(server, script, args, "")
}

/// Runs a script with this standard input.
pub fn python_with_input(server: &Server, script: &str, args: &[&str], input: impl AsRef<[u8]>) -> String {
    let mut command = Command::new(installed("clients").join("bin/python"));
    command.arg("-c").arg(format!("{PRELUDE}\n{script}")).args(args).env_clear().envs(server.env());
    // The script must not use an AWS account that is configured on the machine.
    command.envs(["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"].map(|name| (name, "/dev/null")));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.as_ref());
    let output = thread::scope(|scope| {
        // A script may print before it has read its whole input, or may read nothing.
        scope.spawn(move || stdin.write_all(input));
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{}\n{script}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
