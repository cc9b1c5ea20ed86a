//! Granted folders that guests may write to and that overlap with what hostler itself reads: refused at the start.
//!
//! Compiled code runs outside of the sandbox, the config says what guests may do, and a file beside the health file pauses a
//! consumer. A guest that can write to any of these can do all that hostler can, so such a grant is never a warning.

use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure, Result};
use hostler_config::{Config, DirMode, HandlerRef, Loaded};
use hostler_health::Pauses;

/// A file or folder that no guest may replace.
struct Protected {
    /// The key that names it, or a description where no key does.
    key: String,
    path: PathBuf,
    /// Whether the content matters too: then no granted folder may lie within it.
    is_whole: bool,
    /// The consequence of a guest's write.
    harm: &'static str,
}

impl Protected {
    fn new(key: impl Into<String>, path: impl Into<PathBuf>, harm: &'static str) -> Self {
        Self { key: key.into(), path: path.into(), is_whole: false, harm }
    }

    fn whole(self) -> Self {
        Self { is_whole: true, ..self }
    }

    fn overlaps(&self, folder: &Path) -> bool {
        may_be_replaced(&self.path, folder) || self.is_whole && folder.starts_with(real(&self.path))
    }
}

/// A folder that a consumer grants with `mode = "rw"`.
struct Writable<'a> {
    consumer: &'a str,
    host: &'a Path,
    /// Where `host` leads.
    real: PathBuf,
}

/// Refuses a config that lets a guest write to what hostler reads.
///
/// # Errors
/// With 64, naming each grant and the key of each path that it overlaps with.
pub fn check_grants(loaded: &Loaded) -> Result<()> {
    let protected = protected(&loaded.config, loaded.file.as_deref(), |name| std::env::var_os(name).map(PathBuf::from));
    let mut conflicts = Vec::new();
    for folder in writable(&loaded.config) {
        let overlaps = protected.iter().filter(|protected| protected.overlaps(&folder.real));
        conflicts.extend(overlaps.map(|protected| overlap(&folder, protected)));
        conflicts.extend(grants_within(&loaded.config, &folder));
    }
    match conflicts.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(Exit::BadConfig, conflicts.join("\nhostler: "))),
    }
}

fn writable(config: &Config) -> impl Iterator<Item = Writable<'_>> {
    config.consumers.iter().flat_map(|consumer| {
        let writable = consumer.allow.dirs.iter().filter(|dir| dir.mode == DirMode::ReadWrite);
        writable.map(|dir| Writable { consumer: &consumer.name, host: &dir.host, real: real(&dir.host) })
    })
}

fn overlap(folder: &Writable<'_>, Protected { key, path, harm, .. }: &Protected) -> String {
    let (consumer, host, path) = (folder.consumer, folder.host.display(), path.display());
    let pin = if key.ends_with(".handler") { ", or pin the handler by sha256" } else { "" };
    format!(
        "consumers.{consumer}.allow.dirs lets guests write to `{host}`, which overlaps with `{path}` of {key}: {harm}\n  \
         cure: grant a folder that holds nothing else, grant it with mode = \"ro\", or move what {key} names elsewhere{pin}"
    )
}

/// Folders whose path a guest could turn into a link to anywhere, since it may write to a folder above.
fn grants_within(config: &Config, folder: &Writable<'_>) -> Vec<String> {
    let granted =
        config.consumers.iter().flat_map(|consumer| consumer.allow.dirs.iter().map(move |dir| (consumer, dir)));
    let within = granted.filter(|(_, dir)| leads_through(&dir.host, &folder.real));
    let text = |(consumer, dir): (&hostler_config::Consumer, &hostler_config::DirGrant)| {
        let (writer, host, name, inner) = (folder.consumer, folder.host.display(), &consumer.name, dir.host.display());
        format!(
            "consumers.{writer}.allow.dirs lets guests write to `{host}`, which holds `{inner}` of consumers.{name}.allow.dirs: \
             a guest could put a link to any folder in its place\n  cure: grant folders of which none lies within another, or \
             the outer one with mode = \"ro\""
        )
    };
    within.map(text).collect()
}

const CODE: &str =
    "code that a guest puts there would be loaded at the next start, outside of the sandbox if it is compiled";
const CONFIG: &str = "a guest could grant itself anything for the next start";
const HEALTH: &str = "a guest could forge the health of every consumer, and pause it";
const QUEUE: &str = "a guest could read, change and remove every message";

/// All that hostler reads and trusts. `variable` looks up the environment.
fn protected(config: &Config, file: Option<&Path>, variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<Protected> {
    let health_file = &config.host.health_file;
    let mut all = vec![
        Protected::new("host.health_file (its folder)", folder_of(health_file), HEALTH),
        Protected::new("host.health_file (the pauses)", Pauses::beside(health_file).folder(), HEALTH).whole(),
    ];
    all.extend(config.host.cache_dir.iter().map(|path| Protected::new("host.cache_dir", path, CODE).whole()));
    all.extend(file.map(|file| Protected::new("--config", file, CONFIG)));
    if config.queue.driver == hostler_config::Driver::Embedded {
        all.push(Protected::new("queue.embedded.path", &config.queue.embedded.path, QUEUE));
    }
    // A guest that could write to the SDK's files would name a program in them, by `credential_process`.
    all.extend(
        aws_files(&variable).map(|(name, path)| Protected::new(name, path, "the AWS SDK runs programs named there")),
    );
    all.extend(std::env::current_exe().ok().map(|path| Protected::new("hostler's own program", path, CODE)));
    all.extend(code(config));
    all
}

/// The handlers and hooks that are read from files. A handler that is pinned is not replaced unnoticed.
fn code(config: &Config) -> impl Iterator<Item = Protected> + '_ {
    config.consumers.iter().flat_map(|consumer| {
        let handler = consumer.sha256.is_none().then_some(&consumer.handler);
        let hooks = consumer.hooks.as_ref().filter(|_| consumer.hooks_sha256.is_none());
        [("handler", handler), ("hooks", hooks)].into_iter().filter_map(|(key, file)| match file {
            Some(HandlerRef::Path(path)) => {
                Some(Protected::new(format!("consumers.{}.{key}", consumer.name), path, CODE))
            }
            _ => None,
        })
    })
}

/// The AWS SDK's own files that exist.
fn aws_files(variable: &impl Fn(&str) -> Option<PathBuf>) -> impl Iterator<Item = (&'static str, PathBuf)> {
    let file = |name: &'static str, of_home: &str| {
        let path = variable(name).or_else(|| Some(variable("HOME")?.join(".aws").join(of_home)))?;
        path.exists().then_some((name, path))
    };
    [file("AWS_CONFIG_FILE", "config"), file("AWS_SHARED_CREDENTIALS_FILE", "credentials")].into_iter().flatten()
}

/// The folder that a file lies in.
fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Whether who may write to the folder may decide what is found under the path: it, or a link on the way to it, is in there.
fn may_be_replaced(path: &Path, folder: &Path) -> bool {
    real(path).starts_with(folder) || leads_through(path, folder)
}

/// Whether the path, as it is written, has an entry in the folder: one that who may write there may replace by a link.
fn leads_through(path: &Path, folder: &Path) -> bool {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let is_within = |entry: PathBuf| entry != folder && entry.starts_with(folder);
    path.ancestors().filter(|part| part.file_name().is_some()).map(entry).any(is_within)
}

/// Where a path leads, as far as there is anything.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| entry(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned())))
}

/// The real place of the entry that an absolute path names, which may be a link to elsewhere.
fn entry(path: &Path) -> PathBuf {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_in_a_folder_is_found_however_it_is_named() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for folder in ["open/deep", "shut", "opener"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        for file in ["open/a.wasm", "open/deep/b.wasm", "shut/c.wasm"] {
            fs::write(at(file), "").unwrap();
        }
        symlink(at("open"), at("link")).unwrap();
        symlink(at("open/a.wasm"), at("shut/in.wasm")).unwrap();
        symlink(at("shut"), at("open/out")).unwrap();
        for folder in [at("open"), at("link"), at("shut/../open/deep/..")] {
            let folder = real(&folder);
            for inside in [
                "open",
                "open/a.wasm",
                "open/deep/b.wasm",
                "open/missing/cache",
                "link/a.wasm",
                "link/missing.wasm",
                "shut/in.wasm",
                "shut/../open/a.wasm",
                // These are elsewhere, but the link to there can be replaced.
                "open/out/c.wasm",
                "link/out",
            ] {
                assert!(may_be_replaced(&at(inside), &folder), "{inside} in {}", folder.display());
            }
            for outside in ["shut/c.wasm", "opener/d.wasm", "missing/e.wasm", "open/../shut/c.wasm"] {
                assert!(!may_be_replaced(&at(outside), &folder), "{outside} in {}", folder.display());
            }
        }
        // A folder that is made only when it is needed.
        assert!(may_be_replaced(&at("later/cache"), &real(&at("later"))));
    }
}
