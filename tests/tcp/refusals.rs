//! Servers that a grant does not open: other ports and addresses, names that change their address, and metadata services.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{GUEST, accept, listen, send, world};
use crate::invoke::reply;
use crate::support::echo::Echo;
use crate::support::hostler::{Host, PATIENCE, Said, World};
use crate::support::toolchains::Guest;

/// Ports that a guest tries.
const SCANNED: u16 = 1000;

/// Most lines that denials of one message may log.
const MAX_LINES: usize = 17;

/// Runs the commands of a world where names lead as its file `hosts` says.
const WITH_HOSTS: &str = "mount --bind hosts /etc/hosts && exec \"$@\"";

/// A world whose consumer may connect to the name `db.test`.
struct Named {
    world: World,
    server: String,
}

impl Named {
    /// Creates a world in which the name may lead to these networks.
    fn new(port: u16, networks: &str) -> Self {
        let (server, Guest { wasm, cache }) = (format!("db.test:{port}"), &*GUEST);
        let world = World::new(&format!(
            "host.cache_dir = '{}'\n[consumers.one]\nchannel = 'one'\nhandler = '{}'\nallow.tcp = ['{server}']\n\
             allow.networks = {networks}",
            cache.display(),
            wasm.display()
        ));
        Self { world, server }
    }

    /// Lets the name lead to this address from now on, for running commands too.
    fn leads_to(&self, address: &str) {
        fs::write(self.world.path("hosts"), format!("{address} db.test\n")).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let unshare = ["--map-root-user", "--mount", "sh", "-c", WITH_HOSTS, "sh", env!("CARGO_BIN_EXE_hostler")];
        self.world.program("unshare", &[&unshare[..], args].concat())
    }

    /// Makes the guest talk to this server. Returns its answer and the log.
    fn asks(&self, server: &str) -> (Value, String) {
        let args = ["invoke", "one", "--json", "--attr", "do=echo", "--body", server];
        answered(Said::new(self.command(&args).output().unwrap()))
    }
}

fn answered(said: Said) -> (Value, String) {
    (serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("no JSON: {said:?}")), said.stderr)
}

/// Asserts that nobody connects or has connected to a server.
fn is_unreached(listener: &TcpListener) {
    listener.set_nonblocking(true).unwrap();
    let Err(error) = listener.accept() else { panic!("somebody connected to {:?}", listener.local_addr()) };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

/// Returns a server at one of the ports above another one's.
fn next_to(port: u16) -> TcpListener {
    (port + 1..port + SCANNED / 2).find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).unwrap()
}

#[test]
fn a_scan_finds_only_what_is_granted() {
    let (granted, address) = listen();
    let other = next_to(address.port());
    let world = world(&[address], "processing_timeout = '30s'");
    let first = address.port() - SCANNED / 2;
    let range = format!("127.0.0.1 {first} {}", first + SCANNED);
    let args = ["invoke", "one", "--json", "--attr", "do=scan", "--body", &range];
    let (answer, log) = answered(world.output(&args));
    assert_eq!(String::from_utf8(reply(&answer)).unwrap(), format!("[{}] [PermissionDenied]", address.port()));
    accept(&granted);
    is_unreached(&other);
    assert!(log.contains(&format!("TCP to 127.0.0.1:{first}")), "{log}");
    assert!(log.lines().count() <= MAX_LINES, "{log}");
    let took = Duration::from_secs_f64(answer["duration_ms"].as_f64().unwrap() / 1e3);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_name_leads_to_public_addresses_and_granted_networks() {
    let echo = Echo::start();
    let named = Named::new(echo.address.port(), "['127.0.0.1/32']");
    named.leads_to("127.0.0.1");
    let (answer, log) = named.asks(&named.server);
    assert_eq!(reply(&answer), b"hello", "{log}");
    // The address alone is not granted, nor is another one in the network.
    for server in [echo.address, SocketAddr::new([127, 0, 0, 2].into(), echo.address.port())] {
        let (answer, log) = named.asks(&server.to_string());
        assert_eq!(answer["outcome"], "failed", "{answer}");
        assert!(log.contains(&format!("TCP to {server}")), "{log}");
    }
    for address in ["127.0.0.2", "10.0.0.1", "::1", "0.0.0.0"] {
        named.leads_to(address);
        let (answer, log) = named.asks(&named.server);
        assert_eq!(answer["outcome"], "failed", "{answer}");
        assert!(log.contains(&format!("`db.test` resolves to {address}, which is not public")), "{log}");
        assert!(log.contains("allow.networks"), "{log}");
    }
}

#[test]
fn no_name_leads_to_a_metadata_service() {
    let named = Named::new(80, "['0.0.0.0/0', '::/0']");
    let addresses = "169.254.169.254 169.254.170.2 169.254.170.23 fd00:ec2::254 fd00:ec2::23 ::ffff:169.254.169.254 \
        64:ff9b::a9fe:a9fe 2002:a9fe:a9fe::";
    for address in addresses.split_whitespace() {
        named.leads_to(address);
        let (answer, log) = named.asks(&named.server);
        assert_eq!(answer["outcome"], "failed", "{address}: {answer}");
        assert!(
            log.contains("denied to the handler") && log.contains("no grant leads to this one"),
            "{address}: {log}"
        );
        let (answer, log) = named.asks(&SocketAddr::new(address.parse().unwrap(), 80).to_string());
        assert_eq!(answer["outcome"], "failed", "{address}: {answer}");
        assert!(log.contains("denied to the handler") && log.contains("TCP to "), "{address}: {log}");
    }
}

/// The host keeps an address for 30 s. Whether the second message comes within that time or later, the new address is not reached.
#[test]
fn a_name_that_changes_its_address_does_not_open_the_new_one() {
    let echo = Echo::start();
    let port = echo.address.port();
    let inside = TcpListener::bind(("127.0.0.2", port)).unwrap();
    let named = Named::new(port, "['127.0.0.1/32']");
    named.leads_to("127.0.0.1");
    let host = Host::start(named.command(&["run"]));
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    let begun = Instant::now();
    send(&named.world, "echo", &named.server);
    assert_eq!(host.settled(1)[0]["outcome"], "reply");
    named.leads_to("127.0.0.2");
    send(&named.world, "echo", &named.server);
    let second = host.settled(2).remove(1);
    if begun.elapsed() < Duration::from_secs(30) {
        assert_eq!(second["outcome"], "reply", "the address of the first message is used: {second}");
    }
    is_unreached(&inside);
}

#[test]
fn a_check_tries_each_granted_server() {
    let (echo, closed) = (Echo::start(), listen().1);
    let named = Named::new(echo.address.port(), "['127.0.0.1/32']");
    let check = || {
        let said = Said::new(named.command(&["check"]).output().unwrap());
        assert_eq!(said.code, 0, "{said:?}");
        said
    };
    named.leads_to("127.0.0.1");
    let said = check();
    assert!(said.stdout.contains(&format!("tcp       ok  one: {} at {}\n", named.server, echo.address)), "{said:?}");
    named.leads_to("10.0.0.1");
    let fault = format!("tcp       !!  one: allow.tcp grants {}: the name resolves to 10.0.0.1", named.server);
    let said = check();
    assert!(said.stderr.contains(&fault) && said.stderr.contains("cure: add \"10.0.0.1\""), "{said:?}");
    let said = world(&[closed], "").output(&["check"]);
    let fault = format!("tcp       !!  one: allow.tcp grants {closed}: no connection to {closed}");
    assert!(said.code == 0 && said.stderr.contains(&fault), "{said:?}");
}
