//! Life as PID 1 with credentials from a program: its status is the AWS SDK's, not the reaper's.

use std::fs;

use super::WORK;
use crate::support::hostler::{Host, PATIENCE, announce};
use crate::support::servers::Kind;
use crate::support::sqs::Aws;

/// Prints credentials and ends at once, after children of its own have ended.
const PROGRAM: &str = r#"
for n in 1 2 3; do true & done
echo '{"Version": 1, "AccessKeyId": "test", "SecretAccessKey": "test"}'
"#;

/// Enough starts for a status that is taken away to show: one start in three to six then fails.
const STARTS: usize = 12;

#[test]
fn as_pid_1_it_gets_credentials_from_a_program() {
    let world = Aws::new(Kind::Fauxqs, WORK);
    let unshare = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let permitted = world.program("unshare", &[&unshare[..], &["true"]].concat()).output();
    if !permitted.is_ok_and(|output| output.status.success()) {
        announce("NOT RUN, hostler as PID 1: a process namespace cannot be made here");
        return;
    }
    fs::write(world.path("credentials.sh"), PROGRAM).unwrap();
    let program = world.path("credentials.sh");
    fs::write(world.path("aws"), format!("[default]\ncredential_process = sh {}\n", program.display())).unwrap();
    for start in 0..STARTS {
        let mut command = world.program("unshare", &[&unshare[..], &[env!("CARGO_BIN_EXE_hostler"), "run"]].concat());
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
        command.env("AWS_CONFIG_FILE", world.path("aws"));
        let host = Host::start(command);
        let line = host.wait_for(PATIENCE, |line| line["message"] == "consuming" || line["level"] == "ERROR");
        assert_eq!(line["message"], "consuming", "start {start}");
        host.kill();
    }
}
