//! Guests in languages: built by a folder's `build.sh` with what `tests/toolchains.sh` has installed, and kept under the
//! user's cache for as long as what they are made of stays the same.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{Context, SHA256};
use hostler_types::digest::hex;

/// When a build that is of no use any more goes; another checkout of the repository may use it still.
const UNUSED: Duration = Duration::from_secs(3600);

/// What builds leave in a folder of sources.
const OUTPUTS: [&str; 4] = ["target", "node_modules", "__pycache__", ".venv"];

/// A guest that was built.
pub struct Guest {
    /// The file.
    pub wasm: PathBuf,
    /// A folder of its own for `host.cache_dir`, which stays, as compiling some guests takes long.
    pub cache: PathBuf,
}

/// The guest of a folder, which its `build.sh OUT.wasm` makes; `needs` are further files and folders that it is made of.
/// All are named from the root of the repository.
pub fn built(folder: &str, needs: &[&str]) -> Guest {
    let home = home().join(".cache/hostler/guests").join(folder.replace('/', "-"));
    fs::create_dir_all(&home).unwrap();
    // One build at a time, other processes' included; the end of the file's life unlocks it.
    let lock = File::create(home.join("lock")).unwrap();
    lock.lock().unwrap();
    let entry = home.join(digest(&[&[folder, "tests/toolchains.sh"], needs].concat()));
    if !entry.exists() {
        let made = tempfile::tempdir_in(&home).unwrap();
        build(folder, &made.path().join("guest.wasm"), &home.join("target"));
        fs::rename(made.path(), &entry).unwrap();
    }
    File::open(&entry).unwrap().set_modified(SystemTime::now()).unwrap();
    for old in fs::read_dir(&home).unwrap().map(|entry| entry.unwrap()) {
        let is_entry = old.file_type().unwrap().is_dir() && old.file_name() != "target";
        let unused = old.metadata().unwrap().modified().unwrap().elapsed().unwrap_or_default();
        if is_entry && unused > UNUSED {
            fs::remove_dir_all(old.path()).unwrap();
        }
    }
    Guest { wasm: entry.join("guest.wasm"), cache: entry.join("compiled") }
}

/// Where `tests/toolchains.sh` has put the programs.
pub fn programs() -> PathBuf {
    let root = std::env::var_os("HOSTLER_TEST_TOOLCHAINS").map(PathBuf::from);
    root.unwrap_or_else(|| home().join(".cache/hostler/toolchains")).join("bin")
}

/// Runs a command as a user would who has the toolchains.
pub fn with_toolchains(program: &str) -> Command {
    let tools = programs();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(tools).chain(std::env::split_paths(&path))).unwrap();
    let mut command = Command::new(program);
    command.env("PATH", path);
    without_own_flags(&mut command);
    command
}

/// Removes the flags that these tests are built with: they are not for guests.
pub fn without_own_flags(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_of_target = text.starts_with("CARGO_TARGET_") && text.ends_with("_RUSTFLAGS");
        if is_of_target || ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"].contains(&&*text) {
            command.env_remove(name);
        }
    }
}

/// Runs `script` in a folder of the repository, and gives its output; `what` failed if it does.
pub fn run(what: &str, mut command: Command) -> String {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{what} failed; if a tool is missing, run tests/toolchains.sh\n{said}");
    said
}

/// A path from the root of the repository.
pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn build(folder: &str, out: &Path, target: &Path) {
    let mut command = with_toolchains("bash");
    command.arg(here(folder).join("build.sh")).arg(out).env("CARGO_TARGET_DIR", target);
    run(&format!("{folder}/build.sh"), command);
    assert!(out.exists(), "{folder}/build.sh did not write its file");
}

fn home() -> PathBuf {
    std::env::var_os("HOME").unwrap().into()
}

/// One for all files, in the order of their names.
fn digest(roots: &[&str]) -> String {
    let mut files = Vec::new();
    let mut left: Vec<PathBuf> = roots.iter().map(|root| here(root)).collect();
    while let Some(path) = left.pop() {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !OUTPUTS.contains(&name) {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        } else if !name.ends_with("wasm") {
            files.push(path);
        }
    }
    files.sort();
    let mut digest = Context::new(&SHA256);
    for path in files {
        let contents = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = format!("{}\0{}\0", path.strip_prefix(here("")).unwrap().display(), contents.len());
        digest.update(name.as_bytes());
        digest.update(&contents);
    }
    hex(&digest.finish().as_ref()[..16])
}
