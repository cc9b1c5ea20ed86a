//! Folders that guests may write to where code is loaded from: compiled code runs outside of the sandbox, so whatever a guest
//! leaves in its place would run as us at the next start.

use std::path::{Path, PathBuf};

use crate::config::{Config, Consumer, DirMode, HandlerRef};
use crate::exit::{Exit, Failure, Result};

/// Refuses a consumer with such a folder where compiled code lies; warns where it is a handler to be compiled, which somebody
/// may have beside what it writes, and which is found out from its content alone.
///
/// # Errors
/// With 64, naming the grant and the key of what lies there.
pub(super) fn judge(config: &Config, consumer: &Consumer) -> Result<()> {
    for dir in consumer.allow.dirs.iter().filter(|dir| dir.mode == DirMode::ReadWrite) {
        let folder = real(&dir.host);
        for (key, path) in loaded(config).into_iter().filter(|(_, path)| may_be_replaced(path, &folder)) {
            let is_compiled = key == "host.cache_dir" || path.extension().is_some_and(|extension| extension == "cwasm");
            let (name, folder, path) = (&consumer.name, dir.host.display(), path.display());
            let text = format!(
                "consumers.{name}.allow.dirs lets guests write to `{folder}`, where `{path}` of {key} is: what they put in its \
                 place would be loaded at the next start, outside of the sandbox if it is compiled\n  cure: grant another \
                 folder, grant it with mode = \"ro\", or move what {key} names out of it (or pin it by sha256, \
                 hooks by hooks_sha256)"
            );
            if is_compiled {
                return Err(Failure::new(Exit::BadConfig, text));
            }
            tracing::warn!("{text}");
        }
    }
    Ok(())
}

/// The files and the folder that code is loaded from unseen, each with its key. What is pinned is not replaced unnoticed.
fn loaded(config: &Config) -> Vec<(String, &Path)> {
    let cache = config.host.cache_dir.iter().map(|path| ("host.cache_dir".to_owned(), path.as_path()));
    let files = config.consumers.iter().flat_map(|consumer| {
        let handler = consumer.sha256.is_none().then_some(&consumer.handler);
        let hooks = consumer.hooks.as_ref().filter(|_| consumer.hooks_sha256.is_none());
        [("handler", handler), ("hooks", hooks)].into_iter().filter_map(|(key, file)| match file {
            Some(HandlerRef::Path(path)) => Some((format!("consumers.{}.{key}", consumer.name), path.as_path())),
            _ => None,
        })
    });
    cache.chain(files).collect()
}

/// Whether who may write to the folder may decide what is found under the path: it, or a link on the way to it, is in there.
fn may_be_replaced(path: &Path, folder: &Path) -> bool {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let is_within = |entry: PathBuf| entry != folder && entry.starts_with(folder);
    let mut entries = path.ancestors().filter(|part| part.file_name().is_some()).map(entry);
    real(&path).starts_with(folder) || entries.any(is_within)
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
