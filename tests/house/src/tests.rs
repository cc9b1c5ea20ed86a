use std::process::Command;

use super::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_files_of_a_crate_use_each_other_in_no_circle() {
    let mut circles = Vec::new();
    for package in packages(&root()).unwrap() {
        let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let arrows = Arrows::of(&package.join("src")).unwrap();
        assert!(!arrows.0.is_empty(), "{name} has no files");
        circles.extend(arrows.circles().into_iter().map(|circle| format!("{name}: {circle}")));
    }
    assert!(circles.is_empty(), "these files use each other:\n{}", circles.join("\n"));
}

#[test]
fn a_circle_is_found_through_a_third_file_and_in_nested_modules() {
    let folder = std::env::temp_dir().join(format!("house-{}", std::process::id()));
    fs::create_dir_all(folder.join("b")).unwrap();
    fs::write(folder.join("lib.rs"), "mod a; mod b; mod c;").unwrap();
    fs::write(folder.join("a.rs"), "use crate::b::{self, inner::Thing as Other};").unwrap();
    fs::write(folder.join("b/mod.rs"), "mod inner; #[cfg(test)] mod tests { use crate::c::X; }").unwrap();
    fs::write(folder.join("b/inner.rs"), "fn f() -> super::super::c::X { todo!() }").unwrap();
    fs::write(folder.join("c.rs"), "mod deeper { fn g(_: &super::super::a::Y) {} }").unwrap();
    let circles = Arrows::of(&folder).unwrap().circles();
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(circles, ["a → b::inner", "b::inner → c", "c → a"]);
}

/// The crates that one needs in a release, its own included.
fn needs(package: &str) -> BTreeSet<String> {
    let tree = [
        "tree",
        "--locked",
        "--offline",
        "--package",
        package,
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{lib}",
    ];
    let output = Command::new(env!("CARGO")).args(tree).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn crates_need_only_what_the_map_says() {
    let denied: [(&str, &[&str]); 6] = [
        ("hostler-health", &["tokio", "wasmtime", "hostler_queue", "hostler_telemetry"]),
        ("hostler-config", &["tokio", "wasmtime", "hostler_queue", "hostler_telemetry"]),
        ("hostler-telemetry", &["wasmtime", "hostler_config", "hostler_health", "hostler_queue"]),
        ("hostler-handler", &["wasmtime", "hostler_queue", "hostler_health"]),
        (
            "hostler-consumer",
            &["wasmtime", "hostler_wasm", "aws_sdk_sqs", "rusqlite", "hostler_queue_sqs", "hostler_queue_embedded"],
        ),
        ("hostler-ops", &["wasmtime", "hostler_wasm", "aws_sdk_sqs", "rusqlite", "hostler_consumer"]),
    ];
    for (package, denied) in denied {
        let needed = needs(package);
        assert!(needed.contains(&package.replace('-', "_")), "{package}: {needed:?}");
        let wrong: Vec<_> = denied.iter().filter(|name| needed.contains(**name)).collect();
        assert!(wrong.is_empty(), "{package} needs {wrong:?}");
    }
}
