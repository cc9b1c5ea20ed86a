//! Running job services (`hostler jobs serve`), and a small HTTP client for them.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::hostler::{Host, PATIENCE, World, until};
use super::postgres::Postgres;

/// First lines of every config.
const HEAD: &str = "
    host.health_file = 'health.json'
    queue.embedded.path = 'queue.db'
";

/// An answer of a service.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    /// Headers by their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Body as JSON. A body that is none becomes a string.
    pub body: Value,
}

impl Answer {
    /// Returns the body of an answer with this status.
    #[track_caller]
    pub fn of(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        self.body
    }
}

/// A client of a service. Each call has a connection of its own.
#[derive(Debug, Clone)]
pub struct Api {
    /// Host and port.
    pub address: String,
    /// Bearer token, if calls have one.
    pub token: Option<&'static str>,
}

impl Api {
    /// Calls the service.
    ///
    /// # Errors
    /// The service is not there, or ended during the call.
    pub fn try_call(&self, method: &str, path: &str, body: Option<&Value>) -> io::Result<Answer> {
        let body = body.map(Value::to_string);
        self.send(method, path, &[], body.as_deref())
    }

    /// Sends a request with further headers, and any text as its body.
    ///
    /// # Errors
    /// Same as for [`Self::try_call`].
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> io::Result<Answer> {
        finished(self.begin(method, path, headers, body)?)
    }

    /// Sends a request, and does not wait for its answer, which [`finished`] returns.
    ///
    /// # Errors
    /// The service is not there.
    pub fn begin(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&str>,
    ) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE + Duration::from_secs(30)))?;
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.address);
        if let Some(token) = self.token {
            head += &format!("Authorization: Bearer {token}\r\n");
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = body {
            head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        stream.write_all(format!("{head}\r\n{}", body.unwrap_or_default()).as_bytes())?;
        Ok(stream)
    }

    /// Calls the service, which must be there.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.try_call(method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Fetches a path.
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.call("GET", path, None)
    }

    /// Posts a body to a path.
    #[track_caller]
    pub fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, Some(&body))
    }

    /// Creates a tree. Returns the answer.
    #[track_caller]
    pub fn create(&self, job: Value) -> Value {
        self.post("/job", job).of(201)
    }

    /// Claims items. Returns the assignments.
    #[track_caller]
    pub fn claim(&self, kind: &str, worker: &str, max: u32, wait_seconds: u32) -> Vec<Value> {
        let body = json!({ "types": [kind], "worker_id": worker, "max": max, "wait_seconds": wait_seconds });
        self.post("/claim", body).of(200)["assignments"].as_array().unwrap().clone()
    }

    /// Claims exactly one item, which must come within a few seconds.
    #[track_caller]
    pub fn claim_one(&self, kind: &str, worker: &str) -> Value {
        let mut claimed = self.claim(kind, worker, 1, 20);
        assert_eq!(claimed.len(), 1, "no item of {kind} is available");
        claimed.remove(0)
    }

    /// Ends an assignment by a result.
    #[track_caller]
    pub fn succeed(&self, assignment: &Value, result: Value) -> Answer {
        let id = assignment["assignment_id"].as_str().unwrap();
        self.post(&format!("/assignment/{id}/result"), json!({ "result": result }))
    }

    /// Ends an assignment by a failure.
    #[track_caller]
    pub fn fail(&self, assignment: &Value, failure: Value) -> Answer {
        let id = assignment["assignment_id"].as_str().unwrap();
        self.post(&format!("/assignment/{id}/failure"), failure)
    }

    /// Extends an assignment.
    #[track_caller]
    pub fn beat(&self, assignment: &Value) -> Answer {
        let id = assignment["assignment_id"].as_str().unwrap();
        self.call("POST", &format!("/assignment/{id}/heartbeat"), None)
    }

    /// Returns the status of a job.
    #[track_caller]
    pub fn status(&self, job: &str) -> Value {
        self.get(&format!("/job/{job}/status")).of(200)
    }

    /// Returns all items that a query selects.
    #[track_caller]
    pub fn items(&self, query: &str) -> Vec<Value> {
        let (mut items, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("/job_item?{query}&limit=1000{cursor}")).of(200);
            items.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return items,
            }
        }
    }

    /// Waits until the tree of a job is complete. Returns its status.
    #[track_caller]
    pub fn complete(&self, job: &str) -> Value {
        until("a complete tree", PATIENCE, || Some(self.status(job)).filter(|status| status["tree_complete"] == true))
    }
}

/// Waits for the answer to a request.
///
/// # Errors
/// The service ended before it had answered.
pub fn finished(mut stream: TcpStream) -> io::Result<Answer> {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parsed(&answer).ok_or_else(|| io::Error::new(ErrorKind::UnexpectedEof, "the answer is cut off"))
}

fn parsed(answer: &[u8]) -> Option<Answer> {
    let at = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, body) = (str::from_utf8(&answer[..at]).ok()?, &answer[at + 4..]);
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let pair = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let headers: BTreeMap<_, _> = lines.filter_map(pair).collect();
    if let Some(length) = headers.get("content-length").and_then(|length| length.parse::<usize>().ok())
        && body.len() != length
    {
        return None;
    }
    let text = String::from_utf8_lossy(body);
    let body = serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.into_owned()));
    Some(Answer { status, headers, body })
}

/// A running service on a database of its own. Dropping this value kills the service.
pub struct Jobs {
    pub world: World,
    pub host: Host,
    pub api: Api,
}

impl Jobs {
    /// Starts a service on a new database of the shared server. `config`: further lines of its config.
    pub fn start(config: &str) -> Self {
        Self::on(&Postgres::shared().database(), config)
    }

    /// Starts a service on a database.
    pub fn on(database: &str, config: &str) -> Self {
        let env =
            vec![("HOSTLER_JOBS__DATABASE", database.to_owned()), ("HOSTLER_JOBS__LISTEN", "127.0.0.1:0".to_owned())];
        let mut world = World::with(HEAD, env, config);
        let host = Host::start(world.command(&["jobs", "serve"]));
        let address = listens(&host);
        // Commands and consumers of this world use this service.
        world.set("HOSTLER_JOBS__URL", format!("http://{address}"));
        Self { world, host, api: Api { address, token: None } }
    }

    /// Starts another service beside this one, on the same database and with the same config.
    pub fn second(&self) -> (Host, Api) {
        let mut command = self.world.command(&["jobs", "serve"]);
        command.env("HOSTLER_HOST__HEALTH_FILE", self.world.path("second.json"));
        let host = Host::start(command);
        let address = listens(&host);
        (host, Api { address, token: self.api.token })
    }
}

/// Waits until a service listens. Returns its address.
pub fn listens(host: &Host) -> String {
    let line = host.wait_for(PATIENCE, |line| line["message"] == "the job service listens");
    line["address"].as_str().unwrap().to_owned()
}

/// Returns items with these payloads.
pub fn items(payloads: impl IntoIterator<Item = impl Into<Value>>) -> Value {
    payloads.into_iter().map(|payload| json!({ "payload": payload.into() })).collect()
}
