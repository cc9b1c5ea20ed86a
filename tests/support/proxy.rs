//! A proxy before a server: it counts the calls of AWS's JSON protocol by their name, and is as bad a line as a test wants.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::connect_unspec;

/// What names the call in the head of a request, in lower case.
const TARGET: &str = "x-amz-target:";

/// What becomes of what passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// All passes.
    Good,
    /// Answers take so much longer.
    Late(Duration),
    /// A connection is reset (RST) once so many bytes of an answer have passed.
    Reset(usize),
    /// Nothing passes, and what was on its way arrives when the line is another: packets are lost, and sent again.
    Held,
    /// Nothing passes, nor ever again on a connection of this time: both ends believe in it, and something between them
    /// does not.
    Swallowed,
    /// What is open ends; new connections are accepted, and nobody ever answers.
    HalfOpen,
    /// Each request is answered here, with this status and code of an error.
    Answer(u16, &'static str),
    /// What is open ends, and so does what is opened.
    Cut,
}

/// A proxy on a port of its own. It lives as long as the test process.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    line: Line,
    open: Vec<Arc<Connection>>,
    calls: BTreeMap<String, usize>,
}

/// A client, and the server that it believes to be connected to.
struct Connection {
    client: TcpStream,
    server: Option<TcpStream>,
    /// Whether its bytes are swallowed, for good.
    is_dead: AtomicBool,
    /// How many bytes of the last request's answer have passed.
    answered: AtomicUsize,
}

impl Proxy {
    /// A proxy before the server with this URL.
    pub fn before(endpoint: &str) -> Self {
        let server: SocketAddr = endpoint.strip_prefix("http://").unwrap().parse().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let state = Mutex::new(State { line: Line::Good, open: Vec::new(), calls: BTreeMap::new() });
        let (address, shared) = (listener.local_addr().unwrap(), Arc::new(Shared { state, changed: Condvar::new() }));
        let ours = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                connect(client, server, &ours);
            }
        });
        Self { address, shared }
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its port, on the loopback address.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Makes it this line from now on.
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

    /// Breaks all connections, and every later one until [`Self::restore`].
    pub fn cut(&self) {
        self.set(Line::Cut);
    }

    /// Connects again.
    pub fn restore(&self) {
        self.set(Line::Good);
    }

    /// How many connections were opened since all were last broken.
    pub fn connections(&self) -> usize {
        self.shared.state.lock().unwrap().open.len()
    }

    /// How often each call was made so far, by its name (`ReceiveMessage`).
    pub fn calls(&self) -> BTreeMap<String, usize> {
        self.shared.state.lock().unwrap().calls.clone()
    }
}

impl Shared {
    /// The line, once it is not one that holds.
    fn line(&self) -> Line {
        let state = self.state.lock().unwrap();
        self.changed.wait_while(state, |state| state.line == Line::Held).unwrap().line
    }

    /// Waits for so long, or until the line is another.
    fn wait(&self, line: Line, delay: Duration) {
        let (until, mut state) = (Instant::now() + delay, self.state.lock().unwrap());
        while state.line == line && Instant::now() < until {
            state = self.changed.wait_timeout(state, until.saturating_duration_since(Instant::now())).unwrap().0;
        }
    }
}

impl Connection {
    /// Closes it in order. The other end may have gone by itself.
    fn end(&self) {
        for stream in [Some(&self.client), self.server.as_ref()].into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Resets it.
    fn reset(&self) {
        // To dissolve a connection is to reset it (tcp(7)), however many descriptors there are of it.
        let _ = connect_unspec(&self.client);
        self.end();
    }
}

fn connect(client: TcpStream, server: SocketAddr, shared: &Arc<Shared>) {
    let mut state = shared.state.lock().unwrap();
    // A stream that is dropped is closed.
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

/// Passes requests on, or answers them, until the client ends.
fn pass_requests(connection: &Connection, shared: &Shared) -> Option<()> {
    let (mut client, mut server) = (&connection.client, connection.server.as_ref()?);
    let (mut buffer, mut request) = (vec![0; 64 * 1024], Request::default());
    while let Ok(read @ 1..) = client.read(&mut buffer) {
        let line = shared.line();
        if connection.is_dead.load(Ordering::SeqCst) {
            continue;
        }
        for piece in request.take(&buffer[..read]) {
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

/// Passes answers on until the server ends.
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

/// The answer of a service that does not do what was asked, to clients of its JSON and of S3's XML.
fn refusal(status: u16, code: &str) -> String {
    let body = format!(r#"{{"__type":"{code}","message":"{code}"}}"#);
    format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/x-amz-json-1.0\r\nx-amzn-errortype: {code}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Where in a stream of requests a connection is.
#[derive(Default)]
struct Request {
    /// The beginning of a head that is not complete.
    head: Vec<u8>,
    /// How much of the body is to come.
    body: usize,
    /// With what the request is answered here, if it is.
    refused: Option<(u16, &'static str)>,
}

/// A part of one request.
struct Piece {
    bytes: Vec<u8>,
    /// The call's name, if it is a head that has one.
    call: Option<String>,
    begins: bool,
    ends: bool,
}

impl Request {
    /// What has come, cut where requests begin and end. A body is as long as its head says.
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

/// The call's name as the client wrote it: `target` is that of its head in lower case.
fn name_of(head: &[u8], target: &str) -> Option<String> {
    let text = String::from_utf8_lossy(head);
    let at = text.to_ascii_lowercase().find(target)?;
    text[at..at + target.len()].rsplit('.').next().map(str::to_owned)
}
