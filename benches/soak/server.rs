//! SQS server of the soak: fauxqs, in a process that can be frozen.
//!
//! The server stores its queues in memory and is never restarted. A restart would lose messages without a fault of hostler.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;
use crate::clock::pause;

/// Script that starts fauxqs on one interface. The command of fauxqs itself listens on all interfaces. The script ends with its
/// standard input, and thus with this process.
const FAUXQS: &str = "
    import { buildApp } from 'fauxqs';
    const [host, port] = process.argv.slice(1);
    process.stdin.on('end', () => process.exit()).resume();
    await buildApp({ logger: false, host, defaultRegion: 'eu-west-1' }).listen({ host, port: Number(port) });
";

/// Maximum time until the server listens.
const START: Duration = Duration::from_secs(60);

/// A running server on a separate port. Dropping this value kills the server.
pub struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts a server. Waits until it listens.
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

    /// Returns the process id that receives signals.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the URL of the server.
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
