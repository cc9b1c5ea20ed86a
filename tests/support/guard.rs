//! A proxy that enforces an IAM policy for a server without IAM. Calls that the policy does not allow are denied, and all others
//! pass.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

/// Actions that AWS requires on the source queue of a move task, in addition to the action for the task.
const MOVES: [&str; 3] = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"];

/// A running proxy. Its threads end with the process.
pub struct Guard {
    endpoint: String,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    policy: Value,
    /// Account in the ARNs of the server's resources.
    account: &'static str,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    allowed: BTreeSet<String>,
    denied: BTreeSet<String>,
    /// Tags of queues, as the server last reported them.
    tags: BTreeMap<String, Value>,
}

/// An action on a resource, with the names that IAM uses.
type Need = (String, String);

struct Request {
    /// First line of the request: method, path and version.
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Guard {
    /// Starts a proxy for this server. The resources of the server belong to `account`.
    pub fn before(server: SocketAddr, account: &'static str, policy: Value) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared { server, policy, account, seen: Mutex::default() });
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&served);
                thread::spawn(move || shared.serve(&stream));
            }
        });
        Self { endpoint, shared }
    }

    /// Returns the URL of the proxy.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// Returns the actions that were allowed so far.
    pub fn allowed(&self) -> BTreeSet<String> {
        self.shared.seen.lock().unwrap().allowed.clone()
    }

    /// Returns the calls that were denied so far, each as an action with its resource.
    pub fn denied(&self) -> BTreeSet<String> {
        self.shared.seen.lock().unwrap().denied.clone()
    }
}

impl Shared {
    /// Answers the single request of a connection.
    fn serve(&self, mut stream: &TcpStream) -> Option<()> {
        let request = Request::read(stream)?;
        let needs = request.needs(self.account);
        let lacking: Vec<String> =
            needs.iter().filter(|need| !self.allows(need)).map(|(a, r)| format!("{a} on {r}")).collect();
        if !lacking.is_empty() || needs.is_empty() {
            let what = if needs.is_empty() { request.line.clone() } else { lacking.join(", ") };
            self.seen.lock().unwrap().denied.insert(what.clone());
            let body = format!(r#"{{"__type":"com.amazon.coral.service#AccessDeniedException","message":"{what}"}}"#);
            let head = "HTTP/1.1 403 Forbidden\r\nContent-Type: application/x-amz-json-1.0\r\nConnection: close\r\n";
            return write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).ok();
        }
        self.seen.lock().unwrap().allowed.extend(needs.iter().map(|(action, _)| action.clone()));
        let answer = request.pass_on(self.server)?;
        if let [(action, queue), ..] = &needs[..]
            && action == "sqs:ListQueueTags"
        {
            let body = answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| &answer[at + 4..])?;
            let tags = serde_json::from_slice::<Value>(body).unwrap_or_default()["Tags"].clone();
            self.seen.lock().unwrap().tags.insert(queue.clone(), tags);
        }
        stream.write_all(&answer).ok()
    }

    /// Returns true if a statement of the policy allows the action.
    fn allows(&self, (action, resource): &Need) -> bool {
        let statements = self.policy["Statement"].as_array().unwrap();
        statements.iter().any(|statement| {
            let has = |key: &str, one: &str| {
                statement[key].as_array().unwrap().iter().any(|pattern| fits(pattern.as_str().unwrap(), one))
            };
            has("Action", action) && has("Resource", resource) && self.holds(&statement["Condition"], resource)
        })
    }

    /// Returns true if a condition on the tags of a queue holds. Other conditions never hold.
    fn holds(&self, condition: &Value, queue: &str) -> bool {
        let Some(operators) = condition.as_object() else { return true };
        let tags = self.seen.lock().unwrap().tags.get(queue).cloned().unwrap_or_default();
        operators.iter().all(|(operator, keys)| {
            let equal = |(key, wanted): (&String, &Value)| {
                key.strip_prefix("aws:ResourceTag/").is_some_and(|tag| &tags[tag] == wanted)
            };
            operator == "StringEquals" && keys.as_object().unwrap().iter().all(equal)
        })
    }
}

impl Request {
    fn read(stream: &TcpStream) -> Option<Self> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let mut headers = Vec::new();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let Some((name, value)) = header.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut request = Self { line: line.trim_end().to_owned(), headers, body: Vec::new() };
        request.body = vec![0; request.header("content-length").map_or(0, |length| length.parse().unwrap())];
        reader.read_exact(&mut request.body).ok()?;
        Some(request)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Forwards the request to the server. Returns the answer of the server.
    fn pass_on(&self, server: SocketAddr) -> Option<Vec<u8>> {
        let mut to = TcpStream::connect(server).ok()?;
        let mut head = format!("{}\r\n", self.line);
        for (name, value) in self.headers.iter().filter(|(name, _)| name != "connection") {
            head += &format!("{name}: {value}\r\n");
        }
        to.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).ok()?;
        to.write_all(&self.body).ok()?;
        let mut answer = Vec::new();
        to.read_to_end(&mut answer).ok()?;
        Some(answer)
    }

    /// Returns the actions that the caller must be allowed. Empty for a request that is no known AWS call.
    fn needs(&self, account: &str) -> Vec<Need> {
        let text = String::from_utf8_lossy(&self.body);
        if let Some(action) = self.header("x-amz-target").and_then(|target| target.strip_prefix("AmazonSQS.")) {
            return of_sqs(action, &serde_json::from_str(&text).unwrap_or_default(), account);
        }
        if let Some(action) = text.strip_prefix("Action=").and_then(|rest| rest.split('&').next()) {
            let field = |name: &str| {
                let field = text.split('&').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
                field.map(|value| value.replace("%3A", ":"))
            };
            let resource = field("TopicArn").or_else(|| field("ResourceArn")).unwrap_or_else(|| "*".to_owned());
            return vec![(format!("sns:{}", action.trim_end_matches("Batch")), resource)];
        }
        if let Some((_, action)) = self.line.split(' ').nth(1).and_then(|path| path.split_once("/operation/")) {
            return vec![(format!("cloudwatch:{action}"), "*".to_owned())];
        }
        self.of_s3(&text)
    }

    fn of_s3(&self, text: &str) -> Vec<Need> {
        let mut words = self.line.split(' ');
        let (Some(method), Some(path)) = (words.next(), words.next()) else { return Vec::new() };
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let path = path.trim_matches('/');
        let one = |action: &str, of: &str| (format!("s3:{action}"), format!("arn:aws:s3:::{of}"));
        match method {
            "GET" if query.contains("list-type") => vec![one("ListBucket", path)],
            "GET" | "HEAD" => vec![one("GetObject", path)],
            "PUT" => vec![one("PutObject", path)],
            "DELETE" => vec![one("DeleteObject", path)],
            "POST" if query.starts_with("delete") => {
                let keys = text.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next());
                keys.map(|key| one("DeleteObject", &format!("{path}/{key}"))).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn of_sqs(action: &str, input: &Value, account: &str) -> Vec<Need> {
    let name = input["QueueUrl"].as_str().and_then(|url| url.rsplit('/').next()).or(input["QueueName"].as_str());
    let named = name.map(|name| format!("arn:aws:sqs:eu-west-1:{account}:{name}"));
    let source = input["SourceArn"].as_str().map(str::to_owned);
    let resource = named.or(source).unwrap_or_else(|| "*".to_owned());
    let mut needs = vec![(format!("sqs:{}", action.trim_end_matches("Batch")), resource.clone())];
    if action == "StartMessageMoveTask" {
        needs.extend(MOVES.map(|action| (action.to_owned(), resource.clone())));
        needs.push(("sqs:SendMessage".to_owned(), input["DestinationArn"].as_str().unwrap().to_owned()));
    }
    needs
}

/// Returns true if a text matches an IAM pattern. `*` matches any text.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((begin, rest)) => text.strip_prefix(begin).is_some_and(|left| {
            left.char_indices().map(|(at, _)| at).chain([left.len()]).any(|at| fits(rest, &left[at..]))
        }),
    }
}
