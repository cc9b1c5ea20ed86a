//! JetStream by NATS's own protocol, as far as the comparison needs it: requests, one after the other or many in one go.

use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::Result;

/// Maximum time for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Number of requests in one go.
const BATCH: usize = 500;

/// Subject of all answers.
const INBOX: &str = "_INBOX.bench";

/// A connection to a server without authentication.
pub struct JetStream {
    reader: BufReader<TcpStream>,
    writer: BufWriter<TcpStream>,
}

impl JetStream {
    /// Connects to a server.
    pub fn connect(url: &str) -> Result<Self> {
        let stream = TcpStream::connect(url.trim_start_matches("nats://"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let (reader, writer) = (BufReader::new(stream.try_clone()?), BufWriter::new(stream));
        let mut connected = Self { reader, writer };
        write!(connected.writer, "CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB {INBOX} 1\r\n")?;
        connected.writer.flush()?;
        Ok(connected)
    }

    /// Sends a request, and returns its answer. Fails if the answer is an error.
    pub fn ask(&mut self, subject: &str, body: &str) -> Result<Value> {
        self.send(subject, body)?;
        self.writer.flush()?;
        self.answer()
    }

    /// Publishes messages, and waits until the server has stored all of them.
    pub fn publish(&mut self, subject: &str, bodies: impl Iterator<Item = Result<String>>) -> Result<()> {
        let mut bodies = bodies.peekable();
        while bodies.peek().is_some() {
            let mut sent = 0;
            for body in bodies.by_ref().take(BATCH) {
                self.send(subject, &body?)?;
                sent += 1;
            }
            self.writer.flush()?;
            for _ in 0..sent {
                self.answer()?;
            }
        }
        Ok(())
    }

    fn send(&mut self, subject: &str, body: &str) -> Result<()> {
        Ok(write!(self.writer, "PUB {subject} {INBOX} {}\r\n{body}\r\n", body.len())?)
    }

    fn answer(&mut self) -> Result<Value> {
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line)? == 0 {
                return Err("the server closed the connection".into());
            }
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("MSG") => {
                    let size: usize = words.next_back().ok_or("a message without a size")?.parse()?;
                    let mut body = vec![0; size + 2];
                    self.reader.read_exact(&mut body)?;
                    return accepted(serde_json::from_slice(&body)?);
                }
                Some("PING") => {
                    write!(self.writer, "PONG\r\n")?;
                    self.writer.flush()?;
                }
                Some("-ERR") => return Err(line.trim().into()),
                _ => {}
            }
        }
    }
}

fn accepted(answer: Value) -> Result<Value> {
    match answer["error"]["description"].as_str() {
        Some(refusal) => Err(refusal.into()),
        None => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn answers_are_read_past_what_the_server_says_besides() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let error = r#"{"error":{"description":"no"}}"#;
            let answers = format!(
                "INFO {{}}\r\nPING\r\nMSG {INBOX} 1 7\r\n{{\"a\":1}}\r\nMSG {INBOX} 1 {}\r\n{error}\r\n",
                error.len()
            );
            stream.write_all(answers.as_bytes()).unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            said
        });
        let mut client = JetStream::connect(&url).unwrap();
        assert_eq!(client.ask("s", "body").unwrap()["a"], 1);
        assert_eq!(client.ask("s", "").unwrap_err().to_string(), "no");
        drop(client);
        let said = server.join().unwrap();
        assert!(said.ends_with(&format!("PUB s {INBOX} 4\r\nbody\r\nPONG\r\nPUB s {INBOX} 0\r\n\r\n")), "{said}");
    }
}
