//! What a consumer's guests may reach, made into a WASI context; everything else is denied.

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

/// How many random bytes a guest may ask for at once: they are made in one go, during which it cannot be stopped, and this
/// many take less than an epoch tick.
const RANDOM: usize = 1 << 20;

/// What guests may reach. The default grants nothing.
#[derive(Clone, Default)]
pub struct Grants {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Folders.
    pub dirs: Vec<Dir>,
    /// Origins that HTTP requests may go to, as browsers write them.
    pub http: Vec<String>,
    /// Networks beside the public ones that the names of these origins may lead to.
    pub networks: Vec<IpNet>,
    /// Channels that `producer.send` may send to.
    pub send: Vec<Channel>,
    /// The channel that may be sent to in answer to a message.
    pub reply_channel: Option<Channel>,
    /// What sends such messages; without it every send is unavailable. HTTP requests have spans where it has.
    pub producer: Option<Producer>,
}

/// A folder that guests see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dir {
    /// Where it is on the host.
    pub host: PathBuf,
    /// Where guests see it.
    pub guest: String,
    /// Whether they may change it.
    pub writable: bool,
}

/// What only a command gets: the body as standard input, and the message in its environment.
#[derive(Default)]
pub(super) struct Stdin<'a> {
    pub(super) body: Bytes,
    pub(super) env: &'a [(&'static str, String)],
    /// Whether what it writes to standard output is its reply.
    pub(super) replies: bool,
}

impl fmt::Debug for Grants {
    /// Names only: the values of variables may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: Vec<_> = self.env.keys().collect();
        let mut grants = f.debug_struct("Grants");
        grants.field("env", &env).field("dirs", &self.dirs).field("http", &self.http);
        grants.field("networks", &self.networks).field("send", &self.send).finish()
    }
}

impl Grants {
    /// Makes sure that every granted folder can be opened; a writable one that is missing is made.
    ///
    /// # Errors
    /// The first folder that cannot be opened, and why.
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

    /// A builder with these grants and the guest's standard streams; neither sockets nor name look-ups.
    /// What `stdin` sets comes from the message; a granted variable cannot hide one of these.
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

    /// The same but for the folders, which alone may fail.
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
