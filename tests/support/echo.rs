//! A TCP server that returns what it receives.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// A running server on loopback. Its threads end with the process.
pub struct Echo {
    /// Address of the server.
    pub address: SocketAddr,
}

impl Echo {
    /// Starts a server.
    pub fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // A client that goes away is served no further.
                thread::spawn(move || serve(stream));
            }
        });
        Self { address }
    }
}

/// Reads until the client has said all, and then says it again.
fn serve(mut stream: TcpStream) -> io::Result<()> {
    let mut said = Vec::new();
    stream.read_to_end(&mut said)?;
    stream.write_all(&said)
}
