//! `examples/webhooks`, run whole with few views and a short trouble.

use std::process::Command;

use crate::support::nats::Version;
use crate::support::toolchains::{built, here, run, with_toolchains};

#[test]
fn webhooks() {
    let handler = built("examples/webhooks", &["sdk/rust", "wit"]);
    let mut tests = with_toolchains("cargo");
    tests.args(["test", "--locked"]).current_dir(here("examples/webhooks"));
    tests.env("CARGO_TARGET_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/examples"));
    run("cargo test in examples/webhooks", tests);

    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    command.arg(here("examples/webhooks/run.sh")).args(["--views", "40", "--down", "3", "--rate", "15", "--handler"]);
    command.arg(&handler.wasm).current_dir(folder.path());
    let hostler = here(env!("CARGO_BIN_EXE_hostler"));
    let path = std::env::var("PATH").unwrap();
    let programs =
        [hostler.parent().unwrap().to_owned(), Version::Oldest.folder()].map(|path| path.display().to_string());
    command.env("PATH", format!("{}:{path}", programs.join(":"))).env("HOSTLER_HOST__CACHE_DIR", &handler.cache);
    let said = run("run.sh", command);
    for line in ["handed to the retry service, 0 failed", "every view was delivered to both webhooks"] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
    let row = |webhook: &str| {
        let row = said.lines().find(|line| line.starts_with(webhook) && line.split_whitespace().count() == 7);
        row.unwrap_or_else(|| panic!("{said}")).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for webhook in ["archive", "counter"] {
        let [_, views, delivered, _, attempts, ..] = &row(webhook)[..] else { panic!("{said}") };
        assert_eq!((&**views, &**delivered), ("40", "40"), "{said}");
        assert!(attempts.parse::<u32>().unwrap() > 40, "there was trouble\n{said}");
    }
    let plot = std::fs::read_to_string(folder.path().join("backlog.svg")).unwrap();
    assert!(plot.starts_with("<svg") && plot.ends_with("</svg>\n"));
}
