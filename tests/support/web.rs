//! A web server with answers defined by a test. Simulates faults that no real server produces.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Answer of the server to one request.
pub enum Reply {
    /// This status, these headers and this body.
    Of(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Status 200 and an endless body.
    Endless,
    /// Status 200 and only half of this body. Then the connection closes.
    Half(Vec<u8>),
    /// No answer.
    Silence,
}

impl Reply {
    /// Creates an answer with status 200 and this body.
    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self::Of(200, Vec::new(), body.into())
    }

    /// Creates an answer with this status and an empty body.
    pub fn status(status: u16) -> Self {
        Self::Of(status, Vec::new(), Vec::new())
    }
}

/// A request. Header names are in lower case.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// Body, with the length in `Content-Length`.
    pub body: Vec<u8>,
}

type Script = dyn Fn(&Request, usize) -> Reply + Send + Sync;

/// A running server. Its threads end with the process.
pub struct Web {
    /// Host and port.
    pub address: String,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Web {
    /// Starts a server that answers with this script, which gets each request and the number of earlier requests with the same
    /// path.
    pub fn start(script: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", script)
    }

    /// Starts a server at this address.
    pub fn at(address: &str, script: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::<Mutex<Vec<Request>>>::default();
        let (script, shared): (Arc<Script>, _) = (Arc::new(script), Arc::clone(&seen));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (script, seen) = (Arc::clone(&script), Arc::clone(&shared));
                thread::spawn(move || serve(&stream, &seen, &*script));
            }
        });
        Self { address, seen }
    }

    /// Returns all requests so far whose path has this end.
    pub fn requests(&self, end: &str) -> Vec<Request> {
        self.seen.lock().unwrap().iter().filter(|request| request.path.ends_with(end)).cloned().collect()
    }
}

/// Answers the requests of one connection, one after another.
fn serve(mut stream: &TcpStream, seen: &Mutex<Vec<Request>>, script: &Script) -> Option<()> {
    let mut from = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut lines = from.by_ref().lines().map_while(Result::ok);
        let path = lines.next()?.split(' ').nth(1)?.to_owned();
        let head = lines.take_while(|line| !line.is_empty());
        let headers = head.filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_ascii_lowercase(), value.to_owned()))
        });
        let headers: BTreeMap<_, _> = headers.collect();
        let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
        from.read_exact(&mut body).ok()?;
        let request = Request { path, headers, body };
        let before = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            seen.iter().filter(|other| other.path == request.path).count() - 1
        };
        match script(&request, before) {
            Reply::Of(status, headers, body) => {
                let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                let length = body.len();
                let head = format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\n\r\n");
                stream.write_all(&[head.as_bytes(), &body].concat()).ok()?;
            }
            Reply::Half(body) => {
                let head = format!("HTTP/1.1 200 X\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.write_all(&[head.as_bytes(), &body[..body.len() / 2]].concat()).ok()?;
                return None;
            }
            Reply::Endless => {
                stream.write_all(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
                let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
                loop {
                    // The write fails when the client closes the connection.
                    stream.write_all(&chunk).ok()?;
                }
            }
            // No further request arrives. The loop waits until the client closes the connection.
            Reply::Silence => {}
        }
    }
}
