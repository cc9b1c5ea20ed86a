//! Connections by TLS and by Unix sockets, of a host that is fully hardened.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use rustix::process::geteuid;
use tempfile::TempDir;

use super::{URL, WORK, is_served, on};
use crate::support::certificate::self_signed;
use crate::support::hostler::World;
use crate::support::postgres::Postgres;

/// User of a server that root's tests start.
const NOBODY: u32 = 65534;

/// Gives a file or a folder to the server's user.
fn give(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    if geteuid().is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// A server with TLS, and the folder of its certificate.
fn with_tls() -> (Postgres, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    self_signed(folder.path(), "postgres");
    give(folder.path(), 0o700);
    give(&folder.path().join("key.pem"), 0o600);
    give(&folder.path().join("cert.pem"), 0o644);
    let place = folder.path().display();
    let server =
        Postgres::with(&format!("ssl = on\nssl_cert_file = '{place}/cert.pem'\nssl_key_file = '{place}/key.pem'"));
    (server, folder)
}

/// Reports whether the host's own connections are encrypted, as the server counts them.
fn is_encrypted(server: &Postgres, world: &World, database: &str) -> bool {
    let host = world.started();
    let sql = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE backend_type = 'client backend' AND datname =";
    let encrypted = server.psql("postgres", &format!("{sql} '{database}'"));
    drop(host);
    encrypted == "t"
}

#[test]
fn tls_proves_the_server_by_the_certificate_that_the_url_names() {
    let (server, folder) = with_tls();
    let name = server.new_database();
    let url = |query: &str| format!("{}{query}", server.url(&name));
    let root = format!("sslrootcert={}/cert.pem", folder.path().display());
    let mut world = on(url(&format!("?sslmode=verify-full&{root}")), WORK);
    is_served(&world);
    assert!(is_encrypted(&server, &world, &name));

    for query in ["", "?sslmode=require", &format!("?sslmode=verify-ca&{root}")] {
        world.set(URL, url(query));
        assert!(is_encrypted(&server, &world, &name), "{query}");
    }
    world.set(URL, url("?sslmode=disable"));
    assert!(!is_encrypted(&server, &world, &name));

    // Nobody vouches for it.
    world.set(URL, url("?sslmode=verify-full"));
    let said = world.output(&["run"]);
    assert!(said.code == 69 && said.stderr.contains("queue.postgres.url"), "{said:?}");
    // It is for the address, not for the name.
    let by_name = url(&format!("?sslmode=verify-full&{root}")).replace("127.0.0.1", "localhost");
    world.set(URL, by_name.clone());
    let said = world.output(&["check"]);
    assert!(said.code == 69 && said.stderr.contains("queue.postgres.url"), "{said:?}");
    world.set(URL, by_name.replace("verify-full", "verify-ca"));
    assert_eq!(world.output(&["check"]).code, 0);
}

/// The file of the authorities was read at the start, and is not needed again.
#[test]
fn a_hardened_host_connects_again_by_tls() {
    let (mut server, folder) = with_tls();
    let url = server.database();
    let mut world = on(url.clone(), WORK);
    world.provision();
    let root = world.path("ca.pem");
    fs::copy(folder.path().join("cert.pem"), &root).unwrap();
    world.set(URL, format!("{url}?sslmode=verify-full&sslrootcert={}", root.display()));
    let mut host = world.started();
    fs::remove_file(root).unwrap();
    world.set(URL, url);
    world.send("work", ["ack"]);
    host.settled(1);
    server.stop();
    server.restart();
    world.send("work", ["ack"]);
    host.settled(2);
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_unix_socket_works_for_a_hardened_host() {
    let folder = tempfile::tempdir().unwrap();
    give(folder.path(), 0o755);
    let place = folder.path().display().to_string();
    let mut server = Postgres::with(&format!("unix_socket_directories = '{place}'"));
    let (name, port) = (server.new_database(), server.port());
    for url in [
        format!("postgres://postgres@{}:{port}/{name}", place.replace('/', "%2F")),
        format!("postgres:///{name}?host={place}&port={port}&user=postgres"),
    ] {
        let world = on(url, WORK);
        is_served(&world);
        world.output(&["purge", "work-dlq", "--yes"]);
    }
    let world = on(format!("postgres://postgres@{}:{port}/{name}", place.replace('/', "%2F")), WORK);
    let mut host = world.started();
    server.stop();
    server.restart();
    world.send("work", ["ack"]);
    host.settled(1);
    assert_eq!(host.stop(), 0);
}
