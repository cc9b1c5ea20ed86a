//! The grants of a consumer's guests, as a WASI context. Everything else is denied.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ipnet::IpNet;
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};

use super::limits::Limits;
use super::output::Sink;
use hostler_handler::Stream;
use hostler_queue_telemetry::Producer;
use hostler_types::channel::Channel;

/// The most random bytes that a guest may ask for at once. They are made in one go, during which the guest cannot be stopped;
/// this many take less than an epoch tick.
const RANDOM: usize = 1 << 20;

/// The grants of guests. The default grants nothing.
#[derive(Clone, Default)]
pub struct Grants {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Folders.
    pub dirs: Vec<Dir>,
    /// Origins that HTTP requests may go to, as browsers write them.
    pub http: Vec<String>,
    /// Networks, in addition to public ones, to which the names of these origins may resolve.
    pub networks: Vec<IpNet>,
    /// Channels that `producer.send` may send to.
    pub send: Vec<Channel>,
    /// The channel for replies to a message.
    pub reply_channel: Option<Channel>,
    /// The producer of these messages; without it, every send is unavailable. Its traces also get the spans of HTTP requests.
    pub producer: Option<Producer>,
}

/// A folder that guests may access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dir {
    /// Its path on the host.
    pub host: PathBuf,
    /// Its path for guests.
    pub guest: String,
    /// Lets guests change it.
    pub writable: bool,
}

/// The input that only a command gets: the body as standard input, and the message in its environment.
#[derive(Default)]
pub(super) struct Stdin<'a> {
    pub(super) body: Bytes,
    pub(super) env: &'a [(&'static str, String)],
    /// Makes its standard output its reply.
    pub(super) replies: bool,
}

impl fmt::Debug for Grants {
    /// Shows names only, because the values of variables may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: Vec<_> = self.env.keys().collect();
        let mut grants = f.debug_struct("Grants");
        grants.field("env", &env).field("dirs", &self.dirs).field("http", &self.http);
        grants.field("networks", &self.networks).field("send", &self.send).finish()
    }
}

impl Grants {
    /// Checks that every granted folder can be opened. Creates a writable one that is missing.
    ///
    /// # Errors
    /// The first folder that cannot be opened, with the reason.
    pub(super) fn prepare(&self) -> Result<(), (&Path, std::io::Error)> {
        for dir in &self.dirs {
            let prepared = match dir.writable {
                true => std::fs::create_dir_all(&dir.host),
                false => Ok(()),
            };
            prepared
                .and_then(|()| std::fs::read_dir(&dir.host).map(drop))
                .map_err(|error| (dir.host.as_path(), error))?;
        }
        Ok(())
    }

    /// Returns a builder with these grants and the guest's standard streams, but without sockets and name look-ups. The
    /// variables in `stdin` come from the message; a granted variable cannot hide them.
    ///
    /// # Errors
    /// A granted folder cannot be opened.
    pub(super) fn wasi(&self, stdin: Stdin<'_>, sink: &Sink, limits: &Limits) -> wasmtime::Result<WasiCtxBuilder> {
        let mut wasi = self.wasi_without_folders(stdin, sink, limits);
        for dir in &self.dirs {
            let permissions = if dir.writable { FsPerms::ReadWrite } else { FsPerms::ReadOnly };
            wasi.preopened_dir(&dir.host, &dir.guest, permissions)?;
        }
        Ok(wasi)
    }

    /// As [`Self::wasi`], but without the folders, which alone may fail.
    pub(super) fn wasi_without_folders(&self, stdin: Stdin<'_>, sink: &Sink, limits: &Limits) -> WasiCtxBuilder {
        let mut wasi = WasiCtxBuilder::new();
        wasi.stdin(MemoryInputPipe::new(stdin.body))
            .stdout(sink.stream(if stdin.replies { Stream::Reply } else { Stream::Stdout }))
            .stderr(sink.stream(Stream::Stderr))
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .max_random_size(limits.transfer.min(RANDOM) as u64);
        for (name, value) in self.env.iter().filter(|(name, _)| !stdin.env.iter().any(|(taken, _)| taken == name)) {
            wasi.env(name, value);
        }
        for (name, value) in stdin.env {
            wasi.env(name, value);
        }
        wasi
    }
}
