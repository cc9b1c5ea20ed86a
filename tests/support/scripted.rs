//! A server for AWS's JSON protocol, with answers defined by a test. Simulates faults that no real server produces.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use aws_sdk_sqs::primitives::{DateTime, DateTimeFormat};
use serde_json::{Value, json};

/// Answer of the server to one call.
pub enum Answer {
    /// Status 200 and this body.
    Ok(Value),
    /// This status and error code.
    Error(u16, &'static str),
    /// The call takes effect, but its answer is lost: the connection closes.
    Lost,
}

/// Request id in every answer.
pub const REQUEST_ID: &str = "8b07f84c-0e4c-5a3f-9f0a-a1b2c3d4e5f6";

/// Behaviour of the server that does not depend on its script.
#[derive(Clone, Copy, Default)]
pub struct Nature {
    /// Names of queues to which access is denied, as with a policy that does not name them.
    pub denied: &'static [&'static str],
    /// Names of queues that do not exist.
    pub missing: &'static [&'static str],
    /// Difference between the server's clock and this machine's clock. The server is ahead.
    pub ahead: Duration,
}

type Script = dyn Fn(&str, &Value) -> Answer + Send + Sync;

/// A running server. Its threads end with the process.
pub struct Scripted {
    endpoint: String,
    calls: Arc<Mutex<Vec<Call>>>,
}

/// A received call.
struct Call {
    action: String,
    input: Value,
    /// Access key of the signature.
    key: String,
    /// User agent of the caller.
    agent: String,
}

impl Scripted {
    /// Starts a server that answers calls with this script, which gets the name and the input of each action. The server itself
    /// answers calls for the URL of a queue and its maximum message size.
    pub fn start(script: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static) -> Self {
        Self::denying(&[], script)
    }

    /// Starts a server that denies access to queues with these names.
    pub fn denying(
        names: &'static [&'static str],
        script: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::with(Nature { denied: names, ..Nature::default() }, script)
    }

    /// Starts a server with this behaviour.
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

    /// Returns the URL of the server.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// Returns the inputs of all calls of an action so far.
    pub fn calls(&self, action: &str) -> Vec<Value> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|call| call.action == action).map(|call| call.input.clone()).collect()
    }

    /// Returns the user agents of all calls of an action, in order.
    pub fn agents(&self, action: &str) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|call| call.action == action).map(|call| call.agent.clone()).collect()
    }

    /// Returns the access keys that signed calls, without duplicates.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.calls.lock().unwrap().iter().map(|call| call.key.clone()).collect();
        keys.sort();
        keys.dedup();
        keys
    }
}

/// Answers the calls of one connection, one after another.
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
