//! The way to SQS: a proxy of the environment, TLS by a certificate that the environment trusts, and which client makes the calls.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::json;

use super::WORK;
use crate::support::certificate::self_signed;
use crate::support::hostler::{PATIENCE, World};
use crate::support::scripted::{Answer, Scripted};
use crate::support::servers::installed;

/// A service that has one message, and nothing for who asks again.
fn service() -> Scripted {
    let receives = AtomicUsize::new(0);
    Scripted::start(move |action, _| match action {
        "ReceiveMessage" if receives.fetch_add(1, Ordering::Relaxed) == 0 => {
            Answer::Ok(json!({ "Messages": [{ "MessageId": "m", "ReceiptHandle": "r", "Body": "ack" }] }))
        }
        "ReceiveMessage" => loop {
            thread::park();
        },
        _ => Answer::Ok(json!({ "Successful": [{ "Id": "0" }], "Failed": [] })),
    })
}

/// A worker on this endpoint settles the message, and nothing of it is logged as a failure.
fn works(endpoint: &str, keys: &str, variables: &[(&'static str, String)]) {
    let head = format!(
        "host.health_file = 'health.json'
        queue.driver = 'sqs'
        queue.sqs = {{ region = 'eu-west-1', endpoint_url = '{endpoint}'{keys} }}"
    );
    let mut env = vec![("AWS_ACCESS_KEY_ID", "KEY".to_owned()), ("AWS_SECRET_ACCESS_KEY", "secret".to_owned())];
    env.extend_from_slice(variables);
    let world = World::with(&head, env, WORK);
    let host = world.start();
    host.wait_for(PATIENCE, |line| line["outcome"] == "ack");
    let lines = host.lines();
    assert!(lines.iter().all(|line| line["level"] != "ERROR"), "{lines:?}");
    host.kill();
}

#[test]
fn all_calls_go_through_the_proxy_that_the_environment_names() {
    let proxy = service();
    works("http://no-such-host.invalid:4566", "", &[("HTTP_PROXY", proxy.endpoint())]);
    assert!(proxy.agents("ReceiveMessage")[0].starts_with("hostler/"), "{:?}", proxy.agents("ReceiveMessage"));
}

#[test]
fn direct_calls_can_be_switched_off() {
    let server = service();
    works(&server.endpoint(), ", direct_calls = false", &[]);
    assert!(server.agents("ReceiveMessage")[0].starts_with("aws-sdk-rust"), "{:?}", server.agents("ReceiveMessage"));
}

/// Takes TLS off the connections, and passes them on to a port.
const TERMINATOR: &str = r#"
import socket, ssl, sys, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("cert.pem", "key.pem")
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass
def serve(raw):
    try:
        client = context.wrap_socket(raw, server_side=True)
    except OSError:
        return
    server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    threading.Thread(target=copy, args=(client, server), daemon=True).start()
    copy(server, client)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// A child that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tls_trusts_the_roots_that_the_environment_names() {
    let (server, folder) = (service(), tempfile::tempdir().unwrap());
    self_signed(folder.path(), "sqs");
    let mut python = Command::new(installed("clients").join("bin/python"));
    python.args(["-c", TERMINATOR, server.endpoint().rsplit(':').next().unwrap()]).current_dir(&folder);
    let mut terminator = Ends(python.stdout(Stdio::piped()).spawn().unwrap());
    let mut port = String::new();
    BufReader::new(terminator.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let roots = folder.path().join("cert.pem").to_str().unwrap().to_owned();
    works(&format!("https://127.0.0.1:{}", port.trim()), "", &[("SSL_CERT_FILE", roots)]);
    assert!(server.agents("ReceiveMessage")[0].starts_with("hostler/"), "{:?}", server.agents("ReceiveMessage"));
}
