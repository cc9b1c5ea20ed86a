//! A client that speaks the protocol itself, so that it sends what no library would.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::support::hostler::PATIENCE;
use crate::support::servers::unique;

/// A connection to a server.
pub struct Wire {
    stream: BufReader<TcpStream>,
    /// Begin of a line whose end has not come yet.
    begun: Vec<u8>,
    /// Begin of the subjects for answers. Other clients of the server have others.
    inbox: String,
    /// Number of requests.
    requests: u64,
}

/// A message in a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub sequence: u64,
    pub subject: String,
    pub headers: String,
    pub body: String,
}

impl Wire {
    /// Connects to the server with this URL, which may name a user.
    pub fn to(url: &str) -> Self {
        let rest = url.strip_prefix("nats://").unwrap();
        let (user, address) = rest.rsplit_once('@').map_or((None, rest), |(user, address)| (Some(user), address));
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let inbox = format!("_INBOX.{}", unique("wire"));
        let mut wire = Self { stream: BufReader::new(stream), begun: Vec::new(), inbox, requests: 0 };
        assert!(wire.line().starts_with("INFO "));
        let mut options = json!({ "verbose": false, "pedantic": false, "headers": true, "no_responders": true });
        if let Some((name, password)) = user.and_then(|user| user.split_once(':')) {
            (options["user"], options["pass"]) = (json!(name), json!(password));
        }
        wire.write(format!("CONNECT {options}\r\n").as_bytes());
        wire.flush();
        wire
    }

    /// Publishes a message. Without headers, they are empty.
    pub fn publish(&mut self, subject: impl AsRef<[u8]>, headers: impl AsRef<[u8]>, body: impl AsRef<[u8]>) {
        let (subject, headers, body) = (subject.as_ref(), headers.as_ref(), body.as_ref());
        let frame = if headers.is_empty() {
            [b"PUB ", subject, format!(" {}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat()
        } else {
            let sizes = format!(" {} {}\r\n", headers.len(), headers.len() + body.len());
            [b"HPUB ", subject, sizes.as_bytes(), headers, body, b"\r\n"].concat()
        };
        self.write(&frame);
    }

    /// Waits until the server has taken everything.
    pub fn flush(&mut self) {
        self.write(b"PING\r\n");
        while self.line() != "PONG" {}
    }

    /// Sends a request, and returns the answer, which must come. `None`: nobody listens.
    pub fn ask(&mut self, subject: &str, body: &str) -> Option<Vec<u8>> {
        self.request(subject, body).unwrap_or_else(|| panic!("{subject}: no answer came"))
    }

    /// Sends a request that may get lost, and returns the answer. `None`: nobody listens, or no answer came in time.
    pub fn try_ask(&mut self, subject: &str, body: &str, within: Duration) -> Option<Vec<u8>> {
        self.stream.get_ref().set_read_timeout(Some(within)).unwrap();
        let answer = self.request(subject, body);
        self.stream.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
        answer.flatten()
    }

    /// Sends a request, and returns the answer, in which `None` means that nobody listens. `None`: no answer came in time.
    fn request(&mut self, subject: &str, body: &str) -> Option<Option<Vec<u8>>> {
        self.requests += 1;
        let number = self.requests;
        let inbox = format!("{}.{number}", self.inbox);
        self.write(
            format!("SUB {inbox} {number}\r\nUNSUB {number} 1\r\nPUB {subject} {inbox} {}\r\n{body}\r\n", body.len())
                .as_bytes(),
        );
        loop {
            let line = self.next_line()?;
            let words: Vec<&str> = line.split(' ').collect();
            match words[0] {
                "PING" => self.write(b"PONG\r\n"),
                "MSG" | "HMSG" => {
                    let mut payload = vec![0; words.last().unwrap().parse::<usize>().unwrap() + 2];
                    self.stream.read_exact(&mut payload).unwrap();
                    payload.truncate(payload.len() - 2);
                    // An earlier request may be answered late.
                    if words[1] == inbox {
                        return Some((words[0] == "MSG").then_some(payload));
                    }
                }
                "-ERR" => panic!("{subject}: {line}"),
                _ => {}
            }
        }
    }

    /// Calls the API of JetStream. The answer may be an error.
    pub fn call(&mut self, operation: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.ask(&format!("$JS.API.{operation}"), &body).expect("JetStream answers");
        serde_json::from_slice(&answer).unwrap()
    }

    /// Calls the API of JetStream, without an error.
    pub fn done(&mut self, operation: &str, body: &Value) -> Value {
        let answer = self.call(operation, body);
        assert!(answer["error"].is_null(), "{operation}: {answer}");
        answer
    }

    /// Returns the messages of a stream.
    pub fn stored(&mut self, stream: &str) -> Vec<Stored> {
        let (mut found, mut from) = (Vec::new(), 1);
        loop {
            let answer = self.call(&format!("STREAM.MSG.GET.{stream}"), &json!({ "seq": from, "next_by_subj": ">" }));
            let message = &answer["message"];
            let Some(sequence) = message["seq"].as_u64() else { return found };
            let text = |field: &str| {
                let bytes = BASE64.decode(message[field].as_str().unwrap_or_default()).unwrap();
                String::from_utf8_lossy(&bytes).into_owned()
            };
            let subject = message["subject"].as_str().unwrap().to_owned();
            found.push(Stored { sequence, subject, headers: text("hdrs"), body: text("data") });
            from = sequence + 1;
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        self.next_line().expect("the server says something")
    }

    /// Returns the next line. `None`: it does not come in time.
    fn next_line(&mut self) -> Option<String> {
        match self.stream.read_until(b'\n', &mut self.begun) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return None,
            read => assert!(read.unwrap() > 0 || !self.begun.is_empty(), "the server closed the connection"),
        }
        Some(String::from_utf8_lossy(&std::mem::take(&mut self.begun)).trim_end().to_owned())
    }
}
