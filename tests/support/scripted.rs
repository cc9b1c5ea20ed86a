//! A server that speaks AWS's JSON protocol and answers what a test says: for faults that no real server shows.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use aws_sdk_sqs::primitives::{DateTime, DateTimeFormat};
use serde_json::{Value, json};

/// What the server does with one call.
pub enum Answer {
    /// Status 200 and this.
    Ok(Value),
    /// This status and error code.
    Error(u16, &'static str),
    /// The call took effect, and its answer is lost: the connection closes.
    Lost,
}

/// The id that every answer has for its request.
pub const REQUEST_ID: &str = "8b07f84c-0e4c-5a3f-9f0a-a1b2c3d4e5f6";

/// The server's own behaviour, whatever its script says.
#[derive(Clone, Copy, Default)]
pub struct Nature {
    /// Names of queues that nobody may ask for, as under a policy that does not name them.
    pub denied: &'static [&'static str],
    /// Names of queues that do not exist.
    pub missing: &'static [&'static str],
    /// How far its clock is ahead of ours.
    pub ahead: Duration,
}

type Script = dyn Fn(&str, &Value) -> Answer + Send + Sync;

/// The server. Its threads end with the process.
pub struct Scripted {
    endpoint: String,
    calls: Arc<Mutex<Vec<Call>>>,
}

/// A call that was made.
struct Call {
    action: String,
    input: Value,
    /// Whose signature it had.
    key: String,
    /// What program made it.
    agent: String,
}

impl Scripted {
    /// A server that answers calls by this script, which sees an action's name and its input. What a queue is called and
    /// how large its messages may be, it knows by itself.
    pub fn start(script: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static) -> Self {
        Self::denying(&[], script)
    }

    /// The same, where it is refused to ask for queues of these names, as a policy does that does not name them.
    pub fn denying(
        names: &'static [&'static str],
        script: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::with(Nature { denied: names, ..Nature::default() }, script)
    }

    /// The same with this nature.
    pub fn with(nature: Nature, script: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let calls = Arc::<Mutex<Vec<Call>>>::default();
        let script: Arc<Script> = Arc::new(script);
        let (seen, base) = (Arc::clone(&calls), endpoint.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (seen, base, script) = (Arc::clone(&seen), base.clone(), Arc::clone(&script));
                thread::spawn(move || serve(&stream, &base, nature, &seen, &*script));
            }
        });
        Self { endpoint, calls }
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// The inputs of all calls of an action so far.
    pub fn calls(&self, action: &str) -> Vec<Value> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|call| call.action == action).map(|call| call.input.clone()).collect()
    }

    /// The programs that made the calls of an action, one after the other.
    pub fn agents(&self, action: &str) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|call| call.action == action).map(|call| call.agent.clone()).collect()
    }

    /// The access keys that signed the calls, each once.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.calls.lock().unwrap().iter().map(|call| call.key.clone()).collect();
        keys.sort();
        keys.dedup();
        keys
    }
}

/// Answers the calls of one connection, one after the other.
fn serve(stream: &TcpStream, base: &str, nature: Nature, seen: &Mutex<Vec<Call>>, script: &Script) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (mut action, mut key, mut agent, mut length) = (String::new(), String::new(), String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                if line.trim_end().is_empty() {
                    break;
                }
                continue;
            };
            match name.to_ascii_lowercase().as_str() {
                "x-amz-target" => value.rsplit('.').next()?.clone_into(&mut action),
                "authorization" => value.split_once("Credential=")?.1.split('/').next()?.clone_into(&mut key),
                "user-agent" => value.clone_into(&mut agent),
                "content-length" => length = value.parse().ok()?,
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let input: Value = serde_json::from_slice(&body).ok()?;
        seen.lock().unwrap().push(Call { action: action.clone(), input: input.clone(), key, agent });
        let answer = match action.as_str() {
            "GetQueueUrl" if nature.denied.contains(&input["QueueName"].as_str()?) => {
                Answer::Error(400, "AccessDeniedException")
            }
            "GetQueueUrl" if nature.missing.contains(&input["QueueName"].as_str()?) => {
                Answer::Error(400, "QueueDoesNotExist")
            }
            "GetQueueUrl" => Answer::Ok(json!({ "QueueUrl": format!("{base}/1/{}", input["QueueName"].as_str()?) })),
            "GetQueueAttributes" => Answer::Ok(json!({ "Attributes": { "MaximumMessageSize": "1048576" } })),
            _ => script(&action, &input),
        };
        let (status, body) = match answer {
            Answer::Ok(body) => (200, body),
            Answer::Error(status, code) => {
                (status, json!({ "__type": format!("com.amazonaws.sqs#{code}"), "message": code }))
            }
            Answer::Lost => return None,
        };
        let body = body.to_string();
        let date = DateTime::from(SystemTime::now() + nature.ahead).fmt(DateTimeFormat::HttpDate).ok()?;
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {length}\r\n\
             Date: {date}\r\nx-amzn-RequestId: {REQUEST_ID}\r\n\r\n"
        );
        (&*stream).write_all(format!("{head}{body}").as_bytes()).ok()?;
    }
}
