//! `[jobs.applets.NAME]`: settings of the applets of `hostler jobs serve`.

use std::time::Duration;

use super::consumer::Limits;
use super::grants::HandlerRef;
use super::read::Bytes;
use super::settings::{Mismatch, Settings};

/// An applet: a handler in the job service, which makes the items of a child out of a result. It is granted nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applet {
    /// Name by which feeds refer to it: 1 to 71 characters from `A-Z a-z 0-9 _ -`.
    pub name: String,
    /// WASM handler.
    pub handler: HandlerRef,
    /// Expected SHA-256 of the handler. A handler with another hash is refused. `None`: the hash is not checked.
    pub sha256: Option<[u8; 32]>,
    /// Maximum number of results processed at the same time: 1 to 64.
    pub concurrency: usize,
    /// Maximum run time for one result: 1 s to 8 s, because hostler's own consumers wait 10 s for the answer to their results.
    pub processing_timeout: Duration,
    /// Resource limits of the guest. A command's reply counts as output.
    pub limits: Limits,
}

impl Applet {
    /// Converts the checked settings of the applet `name`. Returns an error if the table of keys does not match this code.
    pub(super) fn read(name: &str, settings: &Settings) -> Result<Self, Mismatch> {
        let at = settings.applet(name);
        Ok(Self {
            name: name.to_owned(),
            handler: at.need("handler")?,
            sha256: at.maybe("sha256")?,
            concurrency: at.need("concurrency")?,
            processing_timeout: at.need("processing_timeout")?,
            limits: Limits {
                memory: at.maybe::<Bytes>("limits.memory")?.map(|bytes| bytes.0),
                // Applets have no grants, and so no sockets.
                connections: 0,
                output: at.need::<Bytes>("limits.output")?.0,
            },
        })
    }
}
