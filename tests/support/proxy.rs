//! A proxy before a server: it counts the calls of AWS's JSON protocol by their name, and can be cut.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What names the call in the head of a request.
const TARGET: &[u8] = b"x-amz-target: ";

/// A proxy on a port of its own. It lives as long as the test process.
pub struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    is_cut: bool,
    /// Both ends of what is connected, to break it.
    open: Vec<TcpStream>,
    calls: BTreeMap<String, usize>,
}

impl Proxy {
    /// A proxy before the server with this URL.
    pub fn before(endpoint: &str) -> Self {
        let server: SocketAddr = endpoint.strip_prefix("http://").unwrap().parse().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::<Mutex<State>>::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                connect(client, server, &shared);
            }
        });
        Self { address, state }
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Breaks all connections, and every later one until [`Self::restore`].
    pub fn cut(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_cut = true;
        for stream in state.open.drain(..) {
            // The other end may have gone by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Connects again.
    pub fn restore(&self) {
        self.state.lock().unwrap().is_cut = false;
    }

    /// How often each call was made so far, by its name (`ReceiveMessage`).
    pub fn calls(&self) -> BTreeMap<String, usize> {
        self.state.lock().unwrap().calls.clone()
    }
}

fn connect(client: TcpStream, server: SocketAddr, shared: &Arc<Mutex<State>>) {
    let mut state = shared.lock().unwrap();
    // Dropping it closes it.
    let Some(server) = (!state.is_cut).then(|| TcpStream::connect(server).ok()).flatten() else { return };
    let end = |stream: &TcpStream| stream.try_clone().unwrap();
    state.open.extend([end(&client), end(&server)]);
    let (requests, answers) = ((end(&client), end(&server)), (server, client));
    let shared = Arc::clone(shared);
    thread::spawn(move || pass(requests, |chunk, names| count(chunk, names, &shared)));
    thread::spawn(move || pass(answers, |_, _| {}));
}

/// Passes everything on, and shows `look` each chunk after what it left of the one before.
fn pass((mut from, mut to): (TcpStream, TcpStream), mut look: impl FnMut(&[u8], &mut Vec<u8>)) {
    let (mut buffer, mut rest) = (vec![0; 64 * 1024], Vec::new());
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        look(&buffer[..read], &mut rest);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Counts the calls whose name is complete; `rest` keeps the beginning of the next.
fn count(chunk: &[u8], rest: &mut Vec<u8>, shared: &Mutex<State>) {
    rest.extend_from_slice(chunk);
    let find = |text: &[u8], what: &[u8]| text.windows(what.len()).position(|window| window.eq_ignore_ascii_case(what));
    while let Some(start) = find(rest, TARGET) {
        let name = start + TARGET.len();
        let Some(length) = find(&rest[name..], b"\r\n") else { return };
        let target = String::from_utf8_lossy(&rest[name..name + length]).into_owned();
        let call = target.rsplit('.').next().unwrap_or_default().to_owned();
        *shared.lock().unwrap().calls.entry(call).or_default() += 1;
        rest.drain(..name + length);
    }
    rest.drain(..rest.len().saturating_sub(TARGET.len()));
}
