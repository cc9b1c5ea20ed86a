//! The error for a handler that cannot be loaded.

use std::fmt;
use std::io;
use std::path::Path;

use super::tcp::TlsError;
use super::{VERSION, WIT};

/// The error for a handler that cannot be loaded. Names the file or folder at fault, the fault and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{subject}: {what}\n  cure: {cure}")]
pub struct LoadError {
    /// The handler or the folder at fault.
    subject: String,
    what: String,
    cure: String,
}

impl LoadError {
    pub(super) fn new(source: &impl fmt::Display, what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { subject: format!("handler {source}"), what: what.into(), cure: cure.into() }
    }

    /// Creates the error for a binary that is not valid WASM.
    pub(super) fn invalid(source: &impl fmt::Display, error: &wasmtime::Error) -> Self {
        Self::new(
            source,
            format!("it is not valid WASM: {error:#}"),
            "build it again; the file may be damaged or cut short",
        )
    }

    /// Creates the error for valid WASM that exceeds a sandbox's limits.
    pub(super) fn too_large(source: &impl fmt::Display, error: &wasmtime::Error) -> Self {
        Self::new(
            source,
            format!("it needs more than a sandbox has: {error:#}"),
            "build it with smaller tables, or of fewer parts; the file is sound, and no key raises this limit",
        )
    }

    pub(super) fn grant(path: &Path, error: &io::Error) -> Self {
        Self {
            subject: format!("folder {} of allow.dirs", path.display()),
            what: format!("it cannot be opened: {error}"),
            cure: format!("create it, or let hostler's user read it{}", relative_to()),
        }
    }

    /// Creates the error for a file that cannot be read.
    pub(super) fn unreadable(source: &impl fmt::Display, error: &io::Error) -> Self {
        let cure = match error.kind() {
            io::ErrorKind::NotFound => format!("build it, or correct the path{}", relative_to()),
            _ => "name a file that exists and that hostler's user can read".to_owned(),
        };
        Self::new(source, error.to_string(), cure)
    }

    /// Creates the error for imports that do not match the host. `wit`: name of the WIT that the imports should match,
    /// or `None` for hostler's own WIT.
    pub(super) fn link(source: &impl fmt::Display, error: &wasmtime::Error, wit: Option<&str>) -> Self {
        let own = format!("{WIT} (hostler:consumer@{VERSION}, WASI 0.2 or preview 1)");
        let cure = format!("build it against {}", wit.unwrap_or(&own));
        Self::new(source, format!("its imports do not fit: {error:#}"), cure)
    }

    pub(super) fn web(source: &impl fmt::Display, error: &str) -> Self {
        let cure = "put CA certificates where OpenSSL looks for them, or name their file in SSL_CERT_FILE";
        Self::new(source, format!("what allow.http grants cannot be set up: {error}"), cure)
    }

    pub(super) fn tls(source: &impl fmt::Display, error: &TlsError) -> Self {
        Self::new(source, format!("what allow.tcp grants cannot be set up: {error}"), error.cure())
    }

    pub(super) fn needs_memory(source: &impl fmt::Display, least: u64, memory: u64) -> Self {
        let (least, memory) = (bytesize::ByteSize(least), bytesize::ByteSize(memory));
        Self::new(
            source,
            format!("it starts with {least} of memory, but limits.memory is {memory}"),
            "raise limits.memory, give the container more memory, or build it with a smaller initial memory",
        )
    }

    pub(super) fn only_hooks(source: &impl fmt::Display) -> Self {
        Self::new(source, "it exports hooks, but no handler", "name it under `hooks`, and a handler under `handler`")
    }

    /// Creates the error for a hook that is called for single messages, although the handler gets batches.
    pub(super) fn hooks_of_messages(source: &impl fmt::Display, hook: &str) -> Self {
        let cure = format!("drop the hook `{hook}`, or export hostler:consumer/handler and remove the key `batch`");
        Self::new(source, format!("it exports `{hook}`, and batches have no hooks for single messages"), cure)
    }

    /// Creates the error for a component that cannot process batches, although its consumer has some.
    pub(super) fn no_batches(source: &impl fmt::Display) -> Self {
        Self::new(
            source,
            "it processes one message at a time, and its consumer has batches",
            "export hostler:consumer/batch-handler, or remove the consumer's key `batch`",
        )
    }

    pub(super) fn no_hooks(source: &impl fmt::Display) -> Self {
        let hooks = "message-start, message-end, processing-timeout or state-changed";
        Self::new(
            source,
            "it exports no hook",
            format!("export one of hostler:consumer/{hooks}, or drop the key `hooks`"),
        )
    }
}

/// Returns a note to append to the fix in an error message: the folder at which relative paths start.
fn relative_to() -> String {
    let folder = std::env::current_dir().ok();
    folder.map_or_else(String::new, |folder| format!("; a relative path starts at {}", folder.display()))
}
