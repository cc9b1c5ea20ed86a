//! A web server that answers what a test says: for faults that no real server shows.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What the server does with one request.
pub enum Reply {
    /// This status, these headers, this body.
    Of(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Status 200 and a body without end.
    Endless,
    /// Status 200 and only half of this body; then the connection closes.
    Half(Vec<u8>),
    /// No answer at all.
    Silence,
}

impl Reply {
    /// Status 200 and this body.
    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self::Of(200, Vec::new(), body.into())
    }

    /// This status, with nothing more.
    pub fn status(status: u16) -> Self {
        Self::Of(status, Vec::new(), Vec::new())
    }
}

/// A request. Names of headers are in lower case.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub headers: BTreeMap<String, String>,
    /// As long as its `Content-Length` says.
    pub body: Vec<u8>,
}

type Script = dyn Fn(&Request, usize) -> Reply + Send + Sync;

/// The server. Its threads end with the process.
pub struct Web {
    /// Host and port.
    pub address: String,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Web {
    /// A server that answers by this script, which sees a request, and how often its path was asked for before.
    pub fn start(script: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", script)
    }

    /// The same at this address.
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

    /// All requests so far whose path ends so.
    pub fn requests(&self, end: &str) -> Vec<Request> {
        self.seen.lock().unwrap().iter().filter(|request| request.path.ends_with(end)).cloned().collect()
    }
}

/// Answers the requests of one connection, one after the other.
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
                    // It ends when the other side has had enough.
                    stream.write_all(&chunk).ok()?;
                }
            }
            // The next request never comes, so this waits until the other side closes.
            Reply::Silence => {}
        }
    }
}
