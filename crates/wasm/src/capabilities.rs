//! Converts a consumer's grants into a WASI context. Denies everything that is not granted.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ipnet::IpNet;
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};

use super::limits::Limits;
use super::lines::Lines;
use super::output::{GuestStream, Sink};
use super::secret_variables::SecretVariables;
use hostler_handler::Stream;
use hostler_queue::request::Terms;
use hostler_queue_telemetry::Producer;
use hostler_types::channel::Channel;
use hostler_types::tcp_grant::TcpGrant;

/// Maximum number of random bytes that a guest may request at once. A guest cannot be stopped while the host generates
/// the bytes. Generating the maximum number takes less than 10 ms, the interval at which running guests are
/// interrupted.
const RANDOM: usize = 1 << 20;

/// Resources that the guests of a consumer may use. By default, they may use none.
#[derive(Clone, Default)]
pub struct Grants {
    /// Environment variables, by name.
    pub env: BTreeMap<String, String>,
    /// Environment variables whose values can change while the host runs. Their names differ from those in `env`. `None`: there
    /// are none.
    pub secrets: Option<SecretVariables>,
    /// Folders that guests may access.
    pub dirs: Vec<Dir>,
    /// Origins that guests may send HTTP requests to, in the form that browsers use (`https://host:port`).
    pub http: Vec<String>,
    /// Networks that guests may reach although they are not public. A guest may connect to a granted origin or server if
    /// its name resolves to a public address or to an address in one of these networks.
    pub networks: Vec<IpNet>,
    /// TCP servers that guests may connect to.
    pub tcp: Vec<TcpGrant>,
    /// Maximum number of TCP sockets in each sandbox, with `tcp`.
    pub connections: u32,
    /// Channels that guests may send to.
    pub send: Vec<Channel>,
    /// Subjects that guests may send to, with wildcards. A channel in `send` goes before them.
    pub subjects: Vec<String>,
    /// Way in which messages to subjects are acknowledged.
    pub terms: Terms,
    /// The channel that receives the handler's replies.
    pub reply_channel: Option<Channel>,
    /// The producer that sends the guests' messages. `None`: every attempt to send fails with `unavailable`. The
    /// producer's traces also record the spans of the guests' HTTP requests.
    pub producer: Option<Producer>,
}

/// A folder that guests may access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dir {
    /// Path of the folder outside the sandbox.
    pub host: PathBuf,
    /// Path that guests see.
    pub guest: String,
    /// Set if guests may change the folder.
    pub writable: bool,
}

/// Input for a command: the message body as standard input, and the message's metadata as environment variables.
#[derive(Default)]
pub(super) struct Stdin<'a> {
    pub(super) body: Bytes,
    pub(super) env: &'a [(&'static str, String)],
    /// Set if the command's standard output is the reply.
    pub(super) replies: bool,
    /// Receiver of the answers in the command's standard output. `None`: the command gets one message.
    pub(super) answers: Option<Lines>,
}

impl fmt::Debug for Grants {
    /// Prints the names of environment variables without their values, because the values may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: Vec<_> = self.env.keys().collect();
        let mut grants = f.debug_struct("Grants");
        grants.field("env", &env).field("secrets", &self.secrets).field("dirs", &self.dirs).field("http", &self.http);
        grants
            .field("networks", &self.networks)
            .field("tcp", &self.tcp)
            .field("send", &self.send)
            .field("subjects", &self.subjects)
            .finish()
    }
}

impl Grants {
    /// Checks that every granted folder can be opened. Creates missing folders that are writable.
    ///
    /// # Errors
    /// The path of the first folder that cannot be opened, and the reason.
    pub(super) fn prepare(&self) -> Result<(), (&Path, std::io::Error)> {
        for dir in &self.dirs {
            let prepared = if dir.writable { std::fs::create_dir_all(&dir.host) } else { Ok(()) };
            prepared
                .and_then(|()| std::fs::read_dir(&dir.host).map(drop))
                .map_err(|error| (dir.host.as_path(), error))?;
        }
        Ok(())
    }

    /// Returns a builder for a WASI context with these grants and the guest's standard streams. The context denies
    /// sockets and name look-ups. `stdin`: the message as input for a command. Its environment variables take
    /// precedence over granted variables of the same name.
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

    /// Returns the same builder as [`Self::wasi`], but without the folders. Cannot fail.
    pub(super) fn wasi_without_folders(&self, stdin: Stdin<'_>, sink: &Sink, limits: &Limits) -> WasiCtxBuilder {
        let mut wasi = WasiCtxBuilder::new();
        let stdout = match stdin.answers {
            Some(lines) => GuestStream::answers(lines),
            None => sink.stream(if stdin.replies { Stream::Reply } else { Stream::Stdout }),
        };
        wasi.stdin(MemoryInputPipe::new(stdin.body))
            .stdout(stdout)
            .stderr(sink.stream(Stream::Stderr))
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .max_random_size(limits.transfer.min(RANDOM) as u64);
        let is_free = |name: &str| !stdin.env.iter().any(|(taken, _)| *taken == name);
        for (name, value) in self.env.iter().filter(|(name, _)| is_free(name)) {
            wasi.env(name, value);
        }
        if let Some(secrets) = &self.secrets {
            for (name, value) in secrets.now().iter().filter(|(name, _)| is_free(name)) {
                wasi.env(name, value.expose());
            }
        }
        for (name, value) in stdin.env {
            wasi.env(name, value);
        }
        wasi
    }
}
