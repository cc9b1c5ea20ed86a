//! Outgoing HTTP of guests: what a grant opens, and all that stays closed however it is asked for.
//!
//! The guest does by `wasi:http` what its message says; the servers are real ones on loopback.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;

use crate::invoke::reply;
use crate::support::hostler::{Said, World};
use crate::support::toolchains::built;
use crate::support::web::{Reply, Web};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The guest, as its source is now.
pub static HOSTILE: LazyLock<PathBuf> = LazyLock::new(|| built("tests/hostile/guest", &["wit"]).wasm);

/// A world whose consumer `one` is the guest, with these lines in its table.
fn world(lines: &str) -> World {
    World::new(&format!("[consumers.one]\nchannel = 'one'\nhandler = '{}'\n{lines}", HOSTILE.display()))
}

fn arguments<'a>(word: &'a str, body: &'a str) -> [&'a str; 8] {
    ["invoke", "one", "--json", "--attr", word, "--body", body, "--attr=x=y"]
}

/// Makes the guest do this. Returns its answer and hostler's warnings.
fn ask(world: &World, word: &str, body: &str) -> (Value, String) {
    said(world.output(&arguments(&format!("do={word}"), body)))
}

fn said(said: Said) -> (Value, String) {
    (serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("no JSON: {said:?}")), said.stderr)
}

fn text(answer: &Value) -> String {
    assert_eq!(answer["outcome"], "reply", "{answer}");
    String::from_utf8(reply(answer)).unwrap()
}

/// The guest saw this error, and the log names what is missing.
fn denied((answer, log): &(Value, String), error: &str, missing: &str) {
    assert_eq!(answer["outcome"], "failed", "{answer}");
    assert!(answer["reason"].as_str().unwrap().contains(error), "{answer} does not say {error}");
    assert!(log.contains("denied to the handler") && log.contains(missing), "the log does not name {missing}: {log}");
}

/// The same world, where names lead as this file of hosts says.
fn ask_where(world: &World, hosts: &str, word: &str, body: &str) -> (Value, String) {
    fs::write(world.path("hosts"), hosts).unwrap();
    let script = "mount --bind hosts /etc/hosts && exec \"$@\"";
    let unshare = ["--map-root-user", "--mount", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_hostler")];
    let word = format!("do={word}");
    said(Said::new(world.program("unshare", &[&unshare[..], &arguments(&word, body)].concat()).output().unwrap()))
}

#[test]
fn nothing_is_reached_without_a_grant() {
    let web = Web::start(|_, _| Reply::ok("secret"));
    let url = format!("http://{}/", web.address);
    denied(&ask(&world(""), "get", &url), "HttpRequestDenied", "allow.http");
    let other = world("allow.http = ['http://127.0.0.1:1', 'https://example.com']");
    let answer = ask(&other, "get", &url);
    denied(&answer, "HttpRequestDenied", &format!("http://{}", web.address));
    for url in ["http://169.254.170.2/v2/credentials", "http://169.254.169.254/latest/meta-data/", "http://[::1]/"] {
        denied(&ask(&other, "get", url), "HttpRequestDenied", "allow.http");
    }
    assert_eq!(web.requests("").len(), 0);
}

#[test]
fn a_granted_origin_answers() {
    let web = Web::start(|request, _| match request.path.as_str() {
        "/missing" => Reply::status(404),
        "/half" => Reply::Half(vec![b'x'; 1000]),
        path => Reply::ok(format!("at {path}")),
    });
    let world = world(&format!("allow.http = ['http://{}']", web.address));
    let at = |path: &str| ask(&world, "get", &format!("http://{}{path}", web.address)).0;
    assert_eq!(text(&at("/a?b=c")), "200 at /a?b=c");
    assert_eq!(text(&at("/missing")), "404 ");
    assert!(at("/half")["reason"].as_str().unwrap().contains("broke off"));
    assert!(at(&format!("/{}", "x".repeat(17_000)))["reason"].as_str().unwrap().contains("path is refused"));
    // Nothing is invented: no agent, no referer, and the host is the one that was granted.
    let request = web.requests("/a?b=c").remove(0);
    assert_eq!(request.headers.get("host"), Some(&web.address));
    assert!(!request.headers.contains_key("user-agent") && !request.headers.contains_key("referer"), "{request:?}");
}

#[test]
fn a_request_joins_the_trace_of_its_message() {
    let web = Web::start(|_, _| Reply::ok(""));
    let world = world(&format!("allow.http = ['http://{}']", web.address));
    let url = format!("http://{}/traced", web.address);
    let (trace, state) = (format!("traceparent={PARENT}"), "tracestate=a=1");
    let args = [&arguments("do=get", &url)[..], &["--attr", &trace, "--attr", state]].concat();
    assert_eq!(world.output(&args).code, 0);
    let request = web.requests("/traced").remove(0);
    assert_eq!(request.headers.get("traceparent").map(String::as_str), Some(PARENT));
    assert_eq!(request.headers.get("tracestate").map(String::as_str), Some("a=1"));
    let args = [&arguments("do=trace", "")[..], &["--attr", &trace]].concat();
    assert_eq!(text(&serde_json::from_str(&world.output(&args).stdout).unwrap()), PARENT);
    let (answer, _) = ask(&world, "get", &url);
    assert_eq!(text(&answer), "200 ");
    assert!(!web.requests("/traced").remove(1).headers.contains_key("traceparent"));
}

#[test]
fn a_body_goes_out_as_it_is() {
    let script = "
import http.server, sys
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        body = b''
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Echo)
print(server.server_port, flush=True)
server.serve_forever()
";
    let mut server = Command::new("python3").args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    let mut output = std::io::BufReader::new(server.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut port).unwrap();
    let origin = format!("http://127.0.0.1:{}", port.trim());
    let world = world(&format!("allow.http = ['{origin}']"));
    let sent = format!("{origin}/{}", "é".repeat(5_000));
    let (answer, _) = ask(&world, "post", &sent);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(text(&answer), format!("200 {sent}"));
}

#[test]
fn a_redirect_is_a_request_like_any_other() {
    let target = Web::start(|_, _| Reply::ok("secret"));
    let to = format!("http://{}/", target.address);
    let web = Web::start(move |request, _| match request.path.as_str() {
        "/out" => Reply::Of(302, vec![("Location", to.clone())], Vec::new()),
        "/metadata" => Reply::Of(307, vec![("Location", "http://169.254.170.2/v2".into())], Vec::new()),
        _ => Reply::ok("end"),
    });
    let world = world(&format!("allow.http = ['http://{}']", web.address));
    let at = |path: &str| format!("http://{}{path}", web.address);
    denied(&ask(&world, "follow", &at("/out")), "HttpRequestDenied", &target.address);
    denied(&ask(&world, "follow", &at("/metadata")), "HttpRequestDenied", "http://169.254.170.2");
    assert!(text(&ask(&world, "get", &at("/out")).0).starts_with("302"), "hostler itself follows nothing");
    assert_eq!(target.requests("").len(), 0);
}

#[test]
fn a_name_leads_to_public_addresses_unless_its_network_is_granted() {
    let web = Web::start(|_, _| Reply::ok("inside"));
    let port = web.address.rsplit(':').next().unwrap();
    let url = format!("http://inside.test:{port}/");
    let grant = format!("allow.http = ['http://inside.test:{port}', 'http://localhost:{port}']");
    let (closed, open) = (world(&grant), world(&format!("{grant}\nallow.networks = ['127.0.0.0/8']")));
    let hosts = "127.0.0.1 inside.test localhost\n";
    denied(&ask_where(&closed, hosts, "get", &url), "DestinationIpProhibited", "127.0.0.1");
    for address in ["169.254.170.2", "10.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0"] {
        let answer = ask_where(&closed, &format!("{address} inside.test\n"), "get", &url);
        denied(&answer, "DestinationIpProhibited", "allow.networks");
    }
    assert_eq!(web.requests("").len(), 0);
    assert_eq!(text(&ask_where(&open, hosts, "get", &url).0), "200 inside");
    // Who grants `localhost` means this machine.
    assert_eq!(text(&ask_where(&closed, hosts, "get", &format!("http://localhost:{port}/")).0), "200 inside");
    // A name that leads nowhere is an error like any other.
    let (answer, log) = ask_where(&closed, "", "get", &url);
    assert!(answer["outcome"] == "failed" && !log.contains("denied"), "{answer} {log}");
}

#[test]
fn open_requests_are_bounded() {
    let web = Web::start(|_, _| Reply::Endless);
    let world = world(&format!("allow.http = ['http://{}']", web.address));
    let (answer, _) = ask(&world, "open", &format!("http://{}/", web.address));
    assert_eq!(text(&answer), "16 opened, 84 refused");
}

#[test]
fn a_head_is_bounded() {
    let web = Web::start(|request, _| match request.path.as_str() {
        "/fits" => {
            Reply::Of(200, vec![("X-One", "x".repeat(15_000)), ("X-Two", "y".repeat(15_000))], b"small".to_vec())
        }
        _ => Reply::Of(200, vec![("X-One", "x".repeat(20_000)), ("X-Two", "y".repeat(20_000))], b"large".to_vec()),
    });
    let world = world(&format!("allow.http = ['http://{}']", web.address));
    let at = |path: &str| ask(&world, "get", &format!("http://{}{path}", web.address)).0;
    assert_eq!(text(&at("/fits")), "200 small");
    let large = at("/large");
    assert!(large["reason"].as_str().unwrap().contains("HttpResponseHeaderSectionSize"), "{large}");
}

/// The number of host resources that a guest may hold depends on its memory: 32 with 8 MiB.
#[test]
fn what_a_request_took_of_the_host_is_given_back() {
    let web = Web::start(|_, _| Reply::ok("again"));
    let world = world(&format!("allow.http = ['http://{}']\nlimits.memory = '8MiB'", web.address));
    let (answer, _) = ask(&world, "often", &format!("http://{}/often", web.address));
    assert_eq!(text(&answer), "200 again");
    assert_eq!(web.requests("/often").len(), 100);
}

#[test]
fn a_server_that_says_nothing_does_not_hold_a_guest_beyond_its_time() {
    let web = Web::start(|_, _| Reply::Silence);
    let world = world(&format!("allow.http = ['http://{}']\nprocessing_timeout = '1s'", web.address));
    let (answer, _) = ask(&world, "get", &format!("http://{}/", web.address));
    assert_eq!(answer["outcome"], "timed-out", "{answer}");
    let took = Duration::from_secs_f64(answer["duration_ms"].as_f64().unwrap() / 1e3);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// Calls `fetch` of the Python SDK. The host is played by the module `wit_world`: it notes the headers, refuses an address with
/// a blank, and has no answers.
const FETCH: &str = "
import sys, types
class Err(Exception):
    def __init__(self, value): self.value = value
class Request:
    def __init__(self, fields): self.fields = fields
    def set_method(self, method): pass
    def set_scheme(self, scheme): pass
    def set_authority(self, authority):
        if ' ' in authority: raise Err(None)
    def set_path_with_query(self, path):
        if ' ' in path: raise Err(None)
    def body(self): pass
class Options:
    def __getattr__(self, name): return lambda limit: None
seen = []
def handle(request, options):
    seen.append(request.fields)
    raise Err(types.SimpleNamespace())
http = types.SimpleNamespace(
    Fields=types.SimpleNamespace(from_list=list), OutgoingRequest=Request, RequestOptions=Options,
    Method_Other=str, Scheme_Https=str, Scheme_Http=str)
for name, members in {
    'componentize_py_types': {'Err': Err},
    'wit_world': {},
    'wit_world.imports': {'outgoing_handler': types.SimpleNamespace(handle=handle), 'wasi_http_types': http},
    'wit_world.imports.streams': {'StreamError_Closed': type(None)},
}.items():
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(members)
sys.path.insert(0, 'sdk/python')
sys.dont_write_bytecode = True
from hostler_http import fetch
def refused(url, headers=None):
    try: fetch('POST', url, headers, b'body')
    except OSError as error: return str(error)
for headers in (None, {'Content-Length': '3'}, {'CONTENT-LENGTH': '3', 'x': 'y'}):
    refused('http://a.test/', headers)
assert seen == [
    [('content-length', b'4')], [('Content-Length', b'3')], [('CONTENT-LENGTH', b'3'), ('x', b'y')]], seen
for url in ('http://a b/', 'http://a/b c'):
    assert 'refused' in refused(url), url
assert len(seen) == 3
";

#[test]
fn fetch_of_the_python_sdk_sends_one_length_and_raises_what_is_documented() {
    let mut python = Command::new("python3");
    let said = Said::new(python.args(["-c", FETCH]).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap());
    assert_eq!(said.code, 0, "{said:?}");
}
