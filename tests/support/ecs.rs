//! A server for the endpoints of the ECS agent (task protection and metadata), with answers defined by a test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Id of the container in the paths of the agent's addresses. ECS uses a random id that no other container knows.
const ID: &str = "f0a2bd3c-1";

/// Answer of the agent to a call.
pub enum Answer {
    /// The answer of the real agent on success.
    Well,
    /// This status and body.
    Says(u16, String),
    /// Accepts the call and never answers.
    Hangs,
}

/// A received call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub method: String,
    /// Path below the container's own path.
    pub path: String,
    /// Body of the request. Null: no body.
    pub body: Value,
    pub at: Instant,
}

type Script = dyn Fn(&Call, usize) -> Answer + Send + Sync;

/// A simulated agent. Its threads end with the process.
pub struct Agent {
    address: String,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    calls: Mutex<Calls>,
    grown: Condvar,
}

#[derive(Default)]
struct Calls {
    all: Vec<Call>,
    /// Current and maximum number of concurrent calls on protection.
    open: usize,
    most: usize,
}

impl Agent {
    /// Starts an agent. `script` returns the answer to a call, given the number of earlier calls with the same path.
    pub fn start(script: impl Fn(&Call, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (seen, script) = (Arc::<Seen>::default(), Arc::<Script>::from(Box::new(script) as Box<Script>));
        let serving = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (seen, script) = (Arc::clone(&serving), Arc::clone(&script));
                thread::spawn(move || serve(&stream, &seen, &*script));
            }
        });
        Self { address, seen }
    }

    /// Returns the environment that ECS sets for a container. Also sets a proxy, which clients must not use.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let address = &self.address;
        vec![
            ("ECS_AGENT_URI", format!("{address}/api/{ID}")),
            ("ECS_CONTAINER_METADATA_URI_V4", format!("{address}/v4/{ID}")),
            ("HTTP_PROXY", "http://127.0.0.1:9".to_owned()),
            ("http_proxy", "http://127.0.0.1:9".to_owned()),
        ]
    }

    /// Returns the calls on protection so far.
    pub fn protections(&self) -> Vec<Call> {
        let calls = self.seen.calls.lock().unwrap();
        calls.all.iter().filter(|call| call.method == "PUT").cloned().collect()
    }

    /// Returns the requested protection of each call so far.
    pub fn asked(&self) -> Vec<bool> {
        self.protections().iter().map(|call| call.body["ProtectionEnabled"].as_bool().unwrap()).collect()
    }

    /// Waits until `count` calls on protection have arrived.
    pub fn wait_for(&self, count: usize, within: Duration) -> Vec<Call> {
        let deadline = Instant::now() + within;
        let mut calls = self.seen.calls.lock().unwrap();
        loop {
            let protections = calls.all.iter().filter(|call| call.method == "PUT");
            if protections.clone().count() >= count {
                return protections.cloned().collect();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{count} calls did not come within {within:?}: {:?}", calls.all);
            calls = self.seen.grown.wait_timeout(calls, left).unwrap().0;
        }
    }

    /// Returns the maximum number of concurrent calls on protection.
    pub fn at_a_time(&self) -> usize {
        self.seen.calls.lock().unwrap().most
    }
}

/// Answers the single call of a connection.
fn serve(stream: &TcpStream, seen: &Seen, script: &Script) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let mut words = head.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?);
    let path = path.split_once(ID)?.1.to_owned();
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let call = Call { method, path, body: serde_json::from_slice(&body).unwrap_or_default(), at: Instant::now() };

    let put = call.method == "PUT";
    let before = {
        let mut calls = seen.calls.lock().unwrap();
        let before = calls.all.iter().filter(|earlier| earlier.path == call.path).count();
        calls.all.push(call.clone());
        calls.open += usize::from(put);
        calls.most = calls.most.max(calls.open);
        seen.grown.notify_all();
        before
    };
    let answer = script(&call, before);
    let (status, body) = match answer {
        Answer::Well => (200, well(&call)),
        Answer::Says(status, body) => (status, body),
        // Waits until the client closes the connection.
        Answer::Hangs => {
            let gone = reader.read(&mut [0]);
            seen.calls.lock().unwrap().open -= usize::from(put);
            return gone.ok().map(|_| ());
        }
    };
    // The next call may arrive immediately after this answer.
    seen.calls.lock().unwrap().open -= usize::from(put);
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    (&*stream).write_all(format!("{head}{body}").as_bytes()).ok()
}

/// Returns the answer of the real agent, according to the examples in the ECS guide.
fn well(call: &Call) -> String {
    let task = "arn:aws:ecs:eu-west-1:111122223333:task/default/c1";
    let answer = match (call.method.as_str(), call.path.as_str()) {
        ("PUT", "/task-protection/v1/state") => {
            let enabled = call.body["ProtectionEnabled"].as_bool().unwrap();
            let known = ["ProtectionEnabled", "ExpiresInMinutes"];
            assert!(call.body.as_object().unwrap().keys().all(|key| known.contains(&key.as_str())));
            let expires = enabled.then_some("2026-11-21T14:00:00Z");
            json!({ "protection": { "ExpirationDate": expires, "ProtectionEnabled": enabled, "TaskArn": task } })
        }
        ("GET", "") => json!({
            "DockerId": "c1-2495160603",
            "Name": "hostler",
            "DockerName": "hostler",
            "Image": "registry.example:5000/hostler:1.2",
            "Limits": { "CPU": 2 },
            "ContainerARN": "arn:aws:ecs:eu-west-1:111122223333:container/default/c1/b",
        }),
        ("GET", "/task") => json!({
            "Cluster": "default",
            "TaskARN": task,
            "Family": "thumbnails",
            "Revision": "7",
            "Limits": { "CPU": 0.25, "Memory": 512 },
            "AvailabilityZone": "eu-west-1a",
            "LaunchType": "FARGATE",
        }),
        other => panic!("the agent has no {other:?}"),
    };
    answer.to_string()
}
