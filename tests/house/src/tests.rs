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

/// Returns the crates that a package needs in a release build, including the package itself.
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
    let denied: [(&str, &[&str]); 8] = [
        ("hostler-health", &["tokio", "wasmtime", "hostler_queue", "hostler_telemetry"]),
        ("hostler-config", &["tokio", "wasmtime", "hostler_queue", "hostler_telemetry"]),
        ("hostler-telemetry", &["wasmtime", "hostler_config", "hostler_health", "hostler_queue"]),
        ("hostler-handler", &["wasmtime", "hostler_queue", "hostler_health"]),
        (
            "hostler-consumer",
            &[
                "wasmtime",
                "hostler_wasm",
                "aws_sdk_sqs",
                "rusqlite",
                "hostler_queue_sqs",
                "hostler_queue_embedded",
                "lapin",
                "async_nats",
                "tokio_postgres",
            ],
        ),
        ("hostler-jobs", &["wasmtime", "hostler_config", "hostler_queue", "hostler_consumer", "rusqlite"]),
        ("hostler-ops", &["wasmtime", "hostler_wasm", "aws_sdk_sqs", "rusqlite", "hostler_consumer", "tokio_postgres"]),
        ("hostler-postgres", &["wasmtime", "hostler_types", "hostler_config", "hostler_queue"]),
    ];
    for (package, denied) in denied {
        let needed = needs(package);
        assert!(needed.contains(&package.replace('-', "_")), "{package}: {needed:?}");
        let wrong: Vec<_> = denied.iter().filter(|name| needed.contains(**name)).collect();
        assert!(wrong.is_empty(), "{package} needs {wrong:?}");
    }
}

/// Lists the Rust files in a folder and its subfolders.
fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Counts the doc comments of a text, and the doc comments that open with a clause.
fn openings(text: &str) -> (usize, usize) {
    let (mut all, mut clauses, mut within) = (0, 0, false);
    for line in text.lines().map(str::trim_start) {
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if let Some(doc) = doc.filter(|_| !within) {
            let word = doc.split_whitespace().next().unwrap_or_default();
            all += 1;
            clauses += usize::from(["What", "Whether", "How", "Who", "That", "Where", "Why", "When"].contains(&word));
        }
        within = doc.is_some();
    }
    (all, clauses)
}

#[test]
fn few_doc_comments_open_with_a_clause() {
    let mut files = Vec::new();
    packages(&root()).unwrap().iter().for_each(|package| rust_files(&package.join("src"), &mut files));
    let counts = files.iter().map(|file| openings(&fs::read_to_string(file).unwrap()));
    let (all, clauses) = counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(
        all > 1_000 && 20 * clauses < all,
        "{clauses} of {all} doc comments open with What, Whether, How and the like"
    );
    assert_eq!(openings("/// What a thing is.\n/// How\nfn f() {}\n//! A noun\n//!\n"), (2, 1));
}

#[test]
fn the_image_is_built_from_every_member_of_the_workspace() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata = String::from_utf8(output.stdout).unwrap();
    let workspace = root().canonicalize().unwrap();
    // Each package has its manifest path here. No other part of the output has this key.
    let manifests: Vec<&Path> = metadata
        .split("\"manifest_path\":\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .map(|path| Path::new(path).strip_prefix(&workspace).unwrap())
        .collect();
    assert!(manifests.len() > 10, "{manifests:?}");
    let ignore = fs::read_to_string(root().join(".dockerignore")).unwrap();
    let sent: Vec<&str> = ignore.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let missing: Vec<_> =
        manifests.into_iter().filter(|path| !sent.iter().any(|folder| path.starts_with(folder))).collect();
    assert!(missing.is_empty(), ".dockerignore keeps {missing:?} from the image");
}
