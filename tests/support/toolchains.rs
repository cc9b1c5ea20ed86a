//! Guests in several languages. A folder's `build.sh` builds each guest with the programs that `tests/toolchains.sh` installs.
//! Builds are cached in the user's cache folder until their sources change.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{Context, SHA256};
use hostler_types::digest::hex;

/// Minimum age at which an outdated build is removed. Until then, another checkout of the repository may use it.
const UNUSED: Duration = Duration::from_secs(3600);

/// Build outputs in a folder of sources.
const OUTPUTS: [&str; 4] = ["target", "node_modules", "__pycache__", ".venv"];

/// A built guest.
pub struct Guest {
    /// Path of the WASM file.
    pub wasm: PathBuf,
    /// Folder for `host.cache_dir`. The folder is reused, because compiling some guests takes long.
    pub cache: PathBuf,
}

/// Builds the guest of a folder with its `build.sh OUT.wasm`. `needs` lists further files and folders on which the guest depends.
/// All paths are relative to the root of the repository.
pub fn built(folder: &str, needs: &[&str]) -> Guest {
    let home = home().join(".cache/hostler/guests").join(folder.replace('/', "-"));
    fs::create_dir_all(&home).unwrap();
    // Only one build runs at a time, across all processes. Closing the file releases the lock.
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

/// Returns the folder in which `tests/toolchains.sh` installed the programs.
pub fn programs() -> PathBuf {
    let root = std::env::var_os("HOSTLER_TEST_TOOLCHAINS").map(PathBuf::from);
    root.unwrap_or_else(|| home().join(".cache/hostler/toolchains")).join("bin")
}

/// Creates a command in the environment of a user who has the toolchains.
pub fn with_toolchains(program: &str) -> Command {
    let tools = programs();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(tools).chain(std::env::split_paths(&path))).unwrap();
    let mut command = Command::new(program);
    command.env("PATH", path);
    without_own_flags(&mut command);
    command
}

/// Removes compiler flags of this test build, which do not apply to guests.
pub fn without_own_flags(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_of_target = text.starts_with("CARGO_TARGET_") && text.ends_with("_RUSTFLAGS");
        if is_of_target || ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"].contains(&&*text) {
            command.env_remove(name);
        }
    }
}

/// Runs a command that must succeed. Returns its output. `what` names the command in the error.
pub fn run(what: &str, mut command: Command) -> String {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{what} failed; if a tool is missing, run tests/toolchains.sh\n{said}");
    said
}

/// Returns a path relative to the root of the repository.
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

/// Returns one digest of all files, in the order of their names.
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
