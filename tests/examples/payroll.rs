//! `examples/payroll`, run whole with few employees.

use std::process::Command;

use crate::support::toolchains::{built, here, run, with_toolchains};

/// Longest run, in seconds. Before, the script gives up by itself.
const DEADLINE: &str = "600";

#[test]
fn payroll() {
    let handler = built("examples/payroll", &["sdk/rust", "wit"]);
    let mut tests = with_toolchains("cargo");
    tests.args(["test", "--locked"]).current_dir(here("examples/payroll"));
    tests.env("CARGO_TARGET_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/examples"));
    run("cargo test in examples/payroll", tests);

    let mut command = Command::new("timeout");
    command.args([DEADLINE, "bash"]).arg(here("examples/payroll/run.sh"));
    command.args(["--employees", "40", "--checks", "3", "--handler"]).arg(&handler.wasm);
    let hostler = here(env!("CARGO_BIN_EXE_hostler"));
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", hostler.parent().unwrap().display()));
    command.env("HOSTLER_HOST__CACHE_DIR", &handler.cache);
    let said = run("run.sh", command);
    for line in [
        "20 of 40 employees are still to come",
        "server 1 is killed",
        "host 2 is killed",
        "274 succeeded, 3 failed, 0 pending; the tree is complete",
        "3 items of sendCheck failed:",
        "the bank said 503",
        "ok    every check that was sent is paid once, and no other",
        "the books balance",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
    assert!(!said.contains("WRONG"), "{said}");
    let row = |level: &str| -> Vec<u32> {
        let row =
            said.lines().find(|line| line.trim_start().starts_with(level) && line.split_whitespace().count() == 5);
        row.unwrap_or_else(|| panic!("{said}"))
            .split_whitespace()
            .skip(1)
            .map(|cell| cell.parse::<u32>().unwrap())
            .collect()
    };
    for (level, expected) in
        [("calculatePayroll", [40, 40, 0]), ("sendCheck", [120, 117, 3]), ("notify", [117, 117, 0])]
    {
        let counts = row(level);
        assert_eq!(counts[..3], expected, "{level}\n{said}");
    }
}
