//! Uploads of guests that are gone before they finished them: no server takes a part for the whole.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use rusqlite::Connection;

use crate::http::HOSTILE;
use crate::support::hostler::{Host, PATIENCE, World};

/// Number of bytes that a guest writes of each body.
const WRITTEN: usize = 16 * 1024;

/// Minimum number of bytes that the server has received of each body before its guest has finished it.
const SEEN: usize = 12 * 1024;

/// Kinds of body lengths: chunked; a length of which half is missing; a complete length, but without the guest's call that finishes
/// the body.
const FRAMINGS: [(&str, Option<usize>); 3] =
    [("chunked", None), ("half", Some(2 * WRITTEN)), ("unfinished", Some(WRITTEN))];

/// One upload as the server saw it.
#[derive(Debug, Default, Clone)]
struct Upload {
    path: String,
    /// Bytes of the body that have come.
    bytes: usize,
    /// Set if the request was complete by the rules of HTTP.
    whole: bool,
    /// Set if the connection or the request has ended.
    over: bool,
}

/// The received bytes, and the tasks that wait for more.
#[derive(Default)]
struct Record {
    uploads: Mutex<Vec<Upload>>,
    grown: Condvar,
}

impl Record {
    fn change(&self, number: usize, change: impl FnOnce(&mut Upload)) {
        change(&mut self.uploads.lock().unwrap()[number]);
        self.grown.notify_all();
    }

    /// All uploads, once this holds.
    fn wait(&self, holds: impl Fn(&[Upload]) -> bool) -> Vec<Upload> {
        let uploads = self.uploads.lock().unwrap();
        let (uploads, late) = self.grown.wait_timeout_while(uploads, PATIENCE, |all| !holds(all)).unwrap();
        assert!(!late.timed_out(), "the server waits in vain: {uploads:?}");
        uploads.clone()
    }
}

/// A server that records raw uploads (`POST`) and answers those that are whole. `GET …/seen` is answered once the upload of that
/// path has come, as far as it can while its guest has not finished it.
struct Server {
    address: String,
    record: Arc<Record>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let record = Arc::<Record>::default();
        let shared = Arc::clone(&record);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let record = Arc::clone(&shared);
                thread::spawn(move || serve(&stream, &record));
            }
        });
        Self { address, record }
    }
}

fn serve(mut stream: &TcpStream, record: &Record) {
    let mut from = BufReader::new(stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if from.read_until(b'\n', &mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let path = head.split(' ').nth(1).unwrap();
    if let Some(path) = path.strip_suffix("/seen") {
        record.wait(|all| all.iter().any(|upload| upload.path == path && upload.bytes >= SEEN));
    } else {
        let number = {
            let mut uploads = record.uploads.lock().unwrap();
            uploads.push(Upload { path: path.to_owned(), ..Upload::default() });
            uploads.len() - 1
        };
        let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next()?.parse().ok());
        let whole = read(&mut from, length, |bytes| record.change(number, |upload| upload.bytes += bytes));
        record.change(number, |upload| (upload.whole, upload.over) = (whole, true));
    }
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
}

/// Reads a body to its end, or to that of the connection; whether it was the body's.
fn read(from: &mut impl BufRead, length: Option<usize>, mut came: impl FnMut(usize)) -> bool {
    let mut take = |from: &mut dyn BufRead, mut left: usize| {
        let mut buffer = [0; 1024];
        while left > 0 {
            let most = left.min(buffer.len());
            match from.read(&mut buffer[..most]) {
                Ok(0) => return false,
                Ok(bytes) => {
                    came(bytes);
                    left -= bytes;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    };
    if let Some(length) = length {
        return take(from, length);
    }
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).is_err() || !line.ends_with('\n') {
            return false;
        }
        let size = usize::from_str_radix(line.trim_end(), 16).unwrap();
        let all = take(from, size);
        let end = from.read_line(&mut String::new()).is_ok_and(|bytes| bytes == 2);
        if !all || !end || size == 0 {
            return all && end;
        }
    }
}

/// A host whose guests began an upload of each framing and then do this, and the server that gets them. Further keys of the
/// host and the consumer follow.
fn started(then: &str, host: &str, consumer: &str) -> (World, Host, Server) {
    let server = Server::start();
    let world = World::new(&format!(
        "{host}\n[consumers.one]\nchannel = 'one'\nhandler = '{}'\nconcurrency = 3\n\
         allow.http = ['http://{}']\nretry.requeues = 0\nretry.delays = 0\n{consumer}",
        HOSTILE.display(),
        server.address,
    ));
    for (path, length) in FRAMINGS {
        let url = format!("http://{}/{path}", server.address);
        let then = format!("then={then}");
        let mut args = vec!["send", "one", "--body", &url, "--attr", "do=upload", "--attr", &then];
        let length = length.map(|length| format!("length={length}"));
        if let Some(length) = &length {
            args.extend(["--attr", length]);
        }
        let said = world.output(&args);
        assert_eq!(said.code, 0, "{said:?}");
    }
    let host = world.started();
    server.record.wait(|all| all.len() == FRAMINGS.len() && all.iter().all(|upload| upload.bytes >= SEEN));
    (world, host, server)
}

/// All messages ended so, and the server took no upload for whole.
fn broke_off(host: &Host, server: &Server, outcome: &str) {
    let settled = host.settled(FRAMINGS.len());
    assert!(settled.iter().all(|line| line["outcome"] == outcome), "{settled:?}");
    let uploads = server.record.wait(|all| all.iter().all(|upload| upload.over));
    assert!(uploads.iter().all(|upload| !upload.whole), "{outcome}: {uploads:?}");
}

#[test]
fn the_upload_of_a_guest_that_is_stopped_at_its_timeout_breaks_off() {
    let (_world, host, server) = started("loop", "", "processing_timeout = '2s'");
    broke_off(&host, &server, "timed-out");
}

#[test]
fn the_upload_of_a_guest_that_traps_breaks_off() {
    let (_world, host, server) = started("trap", "", "");
    broke_off(&host, &server, "trapped");
}

#[test]
fn the_upload_of_a_guest_that_returns_without_finishing_it_breaks_off() {
    let (_world, host, server) = started("leave", "", "");
    broke_off(&host, &server, "ack");
}

#[test]
fn the_upload_of_a_guest_that_a_drain_stops_breaks_off() {
    let (_world, mut host, server) = started("loop", "host.shutdown_grace = '10s'", "");
    host.stop();
    broke_off(&host, &server, "shutdown");
}

#[test]
fn the_upload_of_a_guest_whose_lease_is_lost_breaks_off() {
    let (world, host, server) = started("loop", "", "lease = '3s'");
    // As if another process had taken the messages meanwhile.
    let queue = Connection::open(world.path("queue.db")).unwrap();
    queue.busy_timeout(PATIENCE).unwrap();
    queue.execute("UPDATE entry SET lease = 1, visible_at = visible_at + 3600000", []).unwrap();
    broke_off(&host, &server, "lease-lost");
}

#[test]
fn an_upload_that_its_guest_finishes_is_whole() {
    let server = Server::start();
    let world = World::new(&format!(
        "[consumers.one]\nchannel = 'one'\nhandler = '{}'\nallow.http = ['http://{}']\n",
        HOSTILE.display(),
        server.address
    ));
    for (path, length) in [("chunked", None), ("whole", Some(format!("length={WRITTEN}")))] {
        let url = format!("http://{}/{path}", server.address);
        let mut args = vec!["invoke", "one", "--json", "--body", &url, "--attr=do=upload", "--attr=then=finish"];
        if let Some(length) = &length {
            args.extend(["--attr", length]);
        }
        let said = world.output(&args);
        assert!(said.code == 0 && said.stdout.contains(r#""outcome":"reply""#), "{said:?}");
    }
    let uploads = server.record.wait(|all| all.len() == 2 && all.iter().all(|upload| upload.over));
    assert!(uploads.iter().all(|upload| upload.whole && upload.bytes == WRITTEN), "{uploads:?}");
}
