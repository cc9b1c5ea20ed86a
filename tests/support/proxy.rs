//! A proxy for a server. Counts the calls of AWS's JSON protocol by name, and simulates faults of the network, also for servers of
//! other protocols.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::connect_unspec;

/// Header that names the call, in lower case.
const TARGET: &str = "x-amz-target:";

/// Behaviour of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// All bytes pass.
    Good,
    /// Answers are delayed by this duration.
    Late(Duration),
    /// A connection is reset (RST) after this number of bytes of an answer.
    Reset(usize),
    /// No bytes pass. Delayed bytes arrive after the next change of the behaviour, as after lost and repeated packets.
    Held,
    /// No bytes pass, and connections that were open meanwhile never pass bytes again. Both ends consider the connection open, as
    /// after a fault of a network device between them.
    Swallowed,
    /// Open connections are closed. New connections are accepted and never answered.
    HalfOpen,
    /// The proxy answers each request with this status and error code.
    Answer(u16, &'static str),
    /// Open connections are closed, and new connections too.
    Cut,
}

/// A proxy on a separate port. Lives as long as the test process.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Set if the clients speak HTTP.
    is_http: bool,
}

struct State {
    line: Line,
    open: Vec<Arc<Connection>>,
    calls: BTreeMap<String, usize>,
}

/// A client connection and the matching server connection.
struct Connection {
    client: TcpStream,
    server: Option<TcpStream>,
    /// Set if the bytes of this connection are dropped permanently.
    is_dead: AtomicBool,
    /// Number of bytes of the last answer that have passed.
    answered: AtomicUsize,
}

impl Proxy {
    /// Starts a proxy for the server with this URL.
    pub fn before(endpoint: &str) -> Self {
        Self::listen(0, endpoint.strip_prefix("http://").unwrap().parse().unwrap(), true)
    }

    /// Starts a proxy for the server at this port of the loopback address, whose protocol is not HTTP. `port`: the proxy's own; 0
    /// for any. Knows no requests: an answer begins whenever the client has sent something. [`Line::Answer`] is only for HTTP.
    pub fn of_bytes(port: u16, server: u16) -> Self {
        Self::listen(port, (Ipv4Addr::LOCALHOST, server).into(), false)
    }

    fn listen(port: u16, server: SocketAddr, is_http: bool) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        let state = Mutex::new(State { line: Line::Good, open: Vec::new(), calls: BTreeMap::new() });
        let shared = Arc::new(Shared { state, changed: Condvar::new(), is_http });
        let address = listener.local_addr().unwrap();
        let ours = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                connect(client, server, &ours);
            }
        });
        Self { address, shared }
    }

    /// Returns the URL of the proxy.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the port of the proxy on the loopback address.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Changes the behaviour of the network from now on.
    pub fn set(&self, line: Line) {
        let mut state = self.shared.state.lock().unwrap();
        state.line = line;
        match line {
            Line::Cut | Line::HalfOpen => state.open.drain(..).for_each(|connection| connection.end()),
            Line::Swallowed => {
                state.open.iter().for_each(|connection| connection.is_dead.store(true, Ordering::SeqCst))
            }
            _ => {}
        }
        self.shared.changed.notify_all();
    }

    /// Closes all connections, including new ones until [`Self::restore`].
    pub fn cut(&self) {
        self.set(Line::Cut);
    }

    /// Lets all bytes pass again.
    pub fn restore(&self) {
        self.set(Line::Good);
    }

    /// Returns the number of connections opened since all were last closed.
    pub fn connections(&self) -> usize {
        self.shared.state.lock().unwrap().open.len()
    }

    /// Returns the number of calls so far, by name (`ReceiveMessage`).
    pub fn calls(&self) -> BTreeMap<String, usize> {
        self.shared.state.lock().unwrap().calls.clone()
    }
}

impl Shared {
    /// Returns the behaviour. Waits while it is [`Line::Held`].
    fn line(&self) -> Line {
        let state = self.state.lock().unwrap();
        self.changed.wait_while(state, |state| state.line == Line::Held).unwrap().line
    }

    /// Waits for this duration, or until the behaviour changes.
    fn wait(&self, line: Line, delay: Duration) {
        let (until, mut state) = (Instant::now() + delay, self.state.lock().unwrap());
        while state.line == line && Instant::now() < until {
            state = self.changed.wait_timeout(state, until.saturating_duration_since(Instant::now())).unwrap().0;
        }
    }
}

impl Connection {
    /// Closes the connection in order. The other end may already have closed it.
    fn end(&self) {
        for stream in [Some(&self.client), self.server.as_ref()].into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Resets the connection.
    fn reset(&self) {
        // Dissolving the association resets the connection (tcp(7)), even if several descriptors refer to it.
        let _ = connect_unspec(&self.client);
        self.end();
    }
}

fn connect(client: TcpStream, server: SocketAddr, shared: &Arc<Shared>) {
    let mut state = shared.state.lock().unwrap();
    // Dropping a stream closes it.
    let server = match state.line {
        Line::Cut => return,
        Line::HalfOpen => None,
        _ => match TcpStream::connect(server) {
            Ok(server) => Some(server),
            Err(_) => return,
        },
    };
    let is_dead = AtomicBool::new(state.line == Line::Swallowed);
    let connection = Arc::new(Connection { client, server, is_dead, answered: AtomicUsize::new(0) });
    state.open.push(Arc::clone(&connection));
    if connection.server.is_none() {
        return;
    }
    let (requests, answers) = ((Arc::clone(&connection), Arc::clone(shared)), (connection, Arc::clone(shared)));
    thread::spawn(move || pass_requests(&requests.0, &requests.1));
    thread::spawn(move || pass_answers(&answers.0, &answers.1));
}

/// Forwards or answers requests until the client closes the connection.
fn pass_requests(connection: &Connection, shared: &Shared) -> Option<()> {
    let (mut client, mut server) = (&connection.client, connection.server.as_ref()?);
    let (mut buffer, mut request) = (vec![0; 64 * 1024], Request::default());
    while let Ok(read @ 1..) = client.read(&mut buffer) {
        let line = shared.line();
        if connection.is_dead.load(Ordering::SeqCst) {
            continue;
        }
        let chunk = &buffer[..read];
        for piece in if shared.is_http { request.take(chunk) } else { Piece::whole(chunk) } {
            if let Some(call) = piece.call {
                *shared.state.lock().unwrap().calls.entry(call).or_default() += 1;
            }
            if piece.begins {
                connection.answered.store(0, Ordering::SeqCst);
                request.refused = if let Line::Answer(status, code) = line { Some((status, code)) } else { None };
            }
            match request.refused {
                None => server.write_all(&piece.bytes).ok()?,
                Some((status, code)) if piece.ends => client.write_all(refusal(status, code).as_bytes()).ok()?,
                Some(_) => {}
            }
        }
    }
    let _ = server.shutdown(Shutdown::Write);
    Some(())
}

/// Forwards answers until the server closes the connection.
fn pass_answers(connection: &Connection, shared: &Shared) -> Option<()> {
    let (mut client, mut server) = (&connection.client, connection.server.as_ref()?);
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = server.read(&mut buffer) {
        let line = shared.line();
        if let Line::Late(delay) = line {
            shared.wait(line, delay);
        }
        if connection.is_dead.load(Ordering::SeqCst) {
            continue;
        }
        let mut bytes = &buffer[..read];
        let before = connection.answered.fetch_add(read, Ordering::SeqCst);
        if let Line::Reset(most) = line
            && before + read > most
        {
            bytes = &bytes[..most.saturating_sub(before)];
            let _ = client.write_all(bytes);
            connection.reset();
            return None;
        }
        client.write_all(bytes).ok()?;
    }
    if !connection.is_dead.load(Ordering::SeqCst) {
        let _ = client.shutdown(Shutdown::Write);
    }
    Some(())
}

/// Returns the error answer of a service, for clients of the JSON protocol and of S3's XML.
fn refusal(status: u16, code: &str) -> String {
    let body = format!(r#"{{"__type":"{code}","message":"{code}"}}"#);
    format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/x-amz-json-1.0\r\nx-amzn-errortype: {code}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Position in the request stream of a connection.
#[derive(Default)]
struct Request {
    /// Beginning of an incomplete head.
    head: Vec<u8>,
    /// Number of body bytes still expected.
    body: usize,
    /// Status and error code with which the proxy answers the request, if any.
    refused: Option<(u16, &'static str)>,
}

/// A part of one request.
struct Piece {
    bytes: Vec<u8>,
    /// Name of the call, if the piece is a head with a name.
    call: Option<String>,
    begins: bool,
    ends: bool,
}

impl Piece {
    /// Returns bytes of another protocol as a piece of their own.
    fn whole(bytes: &[u8]) -> Vec<Self> {
        vec![Self { bytes: bytes.to_vec(), call: None, begins: true, ends: true }]
    }
}

impl Request {
    /// Splits the received bytes at the boundaries of heads and bodies. The head defines the length of the body.
    fn take(&mut self, mut chunk: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while !chunk.is_empty() {
            if self.body > 0 {
                let (bytes, rest) = chunk.split_at(self.body.min(chunk.len()));
                self.body -= bytes.len();
                pieces.push(Piece { bytes: bytes.to_vec(), call: None, begins: false, ends: self.body == 0 });
                chunk = rest;
                continue;
            }
            self.head.push(chunk[0]);
            chunk = &chunk[1..];
            if self.head.ends_with(b"\r\n\r\n") {
                let bytes = std::mem::take(&mut self.head);
                let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
                let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                self.body = field("content-length:").map_or(0, |length| length.parse().unwrap());
                let call = field(TARGET).and_then(|target| name_of(&bytes, target));
                pieces.push(Piece { bytes, call, begins: true, ends: self.body == 0 });
            }
        }
        pieces
    }
}

/// Returns the name of the call as the client wrote it. `target` is the header's value in lower case.
fn name_of(head: &[u8], target: &str) -> Option<String> {
    let text = String::from_utf8_lossy(head);
    let at = text.to_ascii_lowercase().find(target)?;
    text[at..at + target.len()].rsplit('.').next().map(str::to_owned)
}
