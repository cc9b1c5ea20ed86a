//! A Redis server for tests, which `tests/packages.sh` installs.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command};

use tempfile::TempDir;

use super::hostler::{PATIENCE, until};
use super::servers::{keeper, tail};

/// Line in the server's output once clients may connect.
const READY: &str = "Ready to accept connections";

/// A running server on a port of its own. Stores nothing on disk. Dropping this value kills the server. The end of this process also
/// kills it.
pub struct Redis {
    keeper: Child,
    port: u16,
    _folder: TempDir,
}

impl Redis {
    /// Starts a server. Waits until it answers.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
        let mut keeper = keeper(folder.path(), command.current_dir(folder.path()));
        until("Redis listens", PATIENCE, || {
            let output = fs::read_to_string(folder.path().join("output")).unwrap_or_default();
            let has_ended = keeper.try_wait().unwrap().is_some();
            assert!(!has_ended, "Redis did not start:\n{}", tail(folder.path()));
            output.contains(READY).then_some(())
        });
        Self { keeper, port, _folder: folder }
    }

    /// Returns the server's address.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the value of a key, which must be a text without line ends.
    pub fn get(&self, key: &str) -> String {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {key}\r\n").unwrap();
        // The length of the value is on the line before it.
        BufReader::new(stream).lines().nth(1).unwrap().unwrap()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // `wait` first closes the keeper's standard input, which ends the keeper.
        let _ = self.keeper.wait();
    }
}
