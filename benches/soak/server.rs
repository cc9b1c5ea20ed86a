//! The SQS server of the soak: fauxqs, in a process that can be frozen.
//!
//! It keeps its queues in memory, so it is never restarted: that would lose messages which hostler never had.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;
use crate::clock::pause;

/// Its own command listens on every interface. It ends with its standard input, and
/// so with this process, however that ends.
const FAUXQS: &str = "
    import { buildApp } from 'fauxqs';
    const [host, port] = process.argv.slice(1);
    process.stdin.on('end', () => process.exit()).resume();
    await buildApp({ logger: false, host, defaultRegion: 'eu-west-1' }).listen({ host, port: Number(port) });
";

/// How long it may take to listen.
const START: Duration = Duration::from_secs(60);

/// A running server on a port of its own; dropping it kills it.
pub struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts one, and waits until it listens.
    pub fn start() -> Result<Self> {
        let root = std::env::var_os("HOSTLER_TEST_SERVERS").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/hostler/servers"));
        let folder = root.or(home).ok_or("neither HOSTLER_TEST_SERVERS nor HOME is set")?.join("node");
        if !folder.join("pins").exists() {
            return Err(format!("{} is not installed: run tests/servers.sh", folder.display()).into());
        }
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = Command::new(folder.join("node"));
        command.args(["--input-type=module", "-e", FAUXQS, &address.ip().to_string(), &address.port().to_string()]);
        let child = command.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let mut server = Self { child, address };
        let deadline = Instant::now() + START;
        while TcpStream::connect(address).is_err() {
            if server.child.try_wait()?.is_some() || Instant::now() > deadline {
                return Err("the SQS server did not start".into());
            }
            pause(0.05);
        }
        Ok(server)
    }

    /// Whom signals go to.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
