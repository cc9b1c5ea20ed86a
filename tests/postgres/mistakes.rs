//! Mistakes of somebody who uses PostgreSQL with hostler for the first time. Each is named with its place and its cure, and no text
//! shows the password.

use std::fs;
use std::net::TcpListener;

use super::{URL, WORK, on, strict};
use crate::support::hostler::{Said, World};
use crate::support::postgres::Postgres;

/// A password that no text may show.
const SECRET: &str = "secret-4711";

/// A server whose users other than `postgres` need their passwords.
struct Guarded(Postgres);

impl Guarded {
    /// `users`: SQL that creates them.
    fn start(users: &str) -> Self {
        let mut server = Postgres::start();
        server.psql("postgres", users);
        let rules = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
        fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
        server.stop();
        server.restart();
        Self(server)
    }

    /// Returns the URL of a database for a user.
    fn url(&self, database: &str, user: &str) -> String {
        self.0.url(database).replace("postgres@", &format!("{user}:{SECRET}@"))
    }
}

/// The command failed with this code, and said all this, and no secret.
fn is_told(said: &Said, code: i32, parts: &[&str]) {
    assert_eq!(said.code, code, "{said:?}");
    assert!(parts.iter().all(|part| said.stderr.contains(part)), "{parts:?}: {said:?}");
    assert!(!said.stderr.contains(SECRET) && !said.stdout.contains(SECRET), "{said:?}");
}

/// All commands that connect say the same.
fn all_tell(world: &World, code: i32, parts: &[&str]) {
    for args in [&["run"][..], &["check"], &["provision"], &["queues"], &["send", "work", "--body", "x"]] {
        is_told(&world.output(args), code, parts);
    }
}

fn create(user: &str) -> String {
    format!("CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'")
}

#[test]
fn a_wrong_password_is_named() {
    let server = Guarded::start("CREATE ROLE guest LOGIN PASSWORD 'another'");
    all_tell(&on(server.url("postgres", "guest"), WORK), 69, &["queue.postgres.url", "password authentication failed"]);
}

#[test]
fn a_missing_password_is_named() {
    let server = Guarded::start(&create("guest"));
    let url = server.0.url("postgres").replace("postgres@", "guest@");
    is_told(&on(url, WORK).output(&["run"]), 69, &["queue.postgres.url", "password"]);
}

#[test]
fn a_user_that_does_not_exist_is_named() {
    let server = Guarded::start("SELECT 1");
    is_told(&on(server.url("postgres", "nobody"), WORK).output(&["run"]), 69, &["queue.postgres.url"]);
}

#[test]
fn a_wrong_database_is_named() {
    let url = Postgres::shared().url("nowhere").replace("postgres@", &format!("postgres:{SECRET}@"));
    all_tell(&on(url, WORK), 69, &["queue.postgres.url", "nowhere", "does not exist"]);
}

#[test]
fn a_port_at_which_no_server_listens_is_named() {
    // Kept, so that no other test takes the port; closed for connections once dropped.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("postgres://me:{SECRET}@127.0.0.1:{port}/work");
    all_tell(&on(url, WORK), 69, &["queue.postgres.url", &format!("127.0.0.1:{port}")]);
}

#[test]
fn a_host_that_has_no_address_is_named() {
    let url = format!("postgres://me:{SECRET}@postgres.invalid/work");
    is_told(&on(url, WORK).output(&["run"]), 69, &["queue.postgres.url", "postgres.invalid"]);
}

/// A listener that accepts connections and says nothing, such as a service of another protocol.
#[test]
fn a_server_that_does_not_answer_is_named() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://me:{SECRET}@127.0.0.1:{}/work", silent.local_addr().unwrap().port());
    is_told(&on(url, WORK).output(&["check"]), 69, &["queue.postgres.url"]);
}

#[test]
fn a_server_without_tls_is_named_if_tls_is_asked_for() {
    let url = Postgres::shared().database();
    let world = on(format!("{url}?sslmode=require"), WORK);
    is_told(&world.output(&["run"]), 69, &["queue.postgres.url", "TLS"]);
}

#[test]
fn a_mistake_in_the_url_is_one_error_of_the_config() {
    for (url, part) in [
        (format!("mysql://me:{SECRET}@127.0.0.1/work"), "does not begin with postgres://"),
        (format!("me:{SECRET}@127.0.0.1/work"), "does not begin with postgres://"),
        (format!("postgres://me:{SECRET}@127.0.0.1:99999/work"), "a port that is not a number"),
        (format!("postgres://me:{SECRET}@/work"), "lacks the name of a host"),
        (format!("postgres://me:{SECRET}@127.0.0.1/work?sslmode=on"), "an sslmode other than"),
        (format!("postgres://me:/{SECRET}@127.0.0.1/work"), "%2F, %3F and %23"),
        (format!("postgres://me:{SECRET}@127.0.0.1/work "), "has a space"),
    ] {
        let said = on(url, WORK).output(&["check"]);
        is_told(&said, 64, &["1 error in the configuration", "queue.postgres.url", part]);
    }
}

#[test]
fn a_missing_url_is_an_error_of_the_config() {
    let said = on(String::new(), WORK).output(&["check"]);
    is_told(&said, 64, &["needs the address of the database", "HOSTLER_QUEUE__POSTGRES__URL"]);
}

#[test]
fn the_file_of_an_address_is_read_and_its_mistakes_are_named() {
    let mut world = on(String::new(), WORK);
    let file = world.path("address");
    world.set("HOSTLER_QUEUE__POSTGRES__URL_FILE", file.display().to_string());
    is_told(&world.output(&["provision"]), 69, &["queue.postgres.url_file", "cannot read"]);
    fs::write(&file, format!("mysql://me:{SECRET}@localhost/work\n")).unwrap();
    is_told(&world.output(&["provision"]), 69, &["queue.postgres.url_file", "does not begin with postgres://"]);
    fs::write(&file, format!("{}\n", Postgres::shared().database())).unwrap();
    world.provision();
}

/// Docker mounts secrets in a folder that the host has no other reason to read.
#[test]
fn a_hardened_host_reads_its_address_from_any_folder() {
    let (mut world, secrets) = (on(String::new(), WORK), tempfile::tempdir().unwrap());
    let file = secrets.path().join("address");
    fs::write(&file, Postgres::shared().database()).unwrap();
    world.set("HOSTLER_QUEUE__POSTGRES__URL_FILE", file.display().to_string());
    let mut host = world.started();
    assert_eq!(host.stop(), 0);
}

#[test]
fn a_certificate_that_cannot_be_read_is_named() {
    let url = Postgres::shared().database();
    let world = on(format!("{url}?sslmode=verify-full&sslrootcert=/nowhere/ca.pem"), WORK);
    is_told(&world.output(&["run"]), 69, &["queue.postgres.url", "/nowhere/ca.pem"]);
}

/// A user without the right to create in the database.
#[test]
fn a_missing_right_to_create_is_named_with_the_cure() {
    let server = Guarded::start(&create("guest"));
    server.0.psql("postgres", "CREATE DATABASE work");
    let mut world = on(server.url("work", "guest"), WORK);
    is_told(&world.output(&["provision"]), 69, &["cannot be created", "permission denied", "grant CREATE"]);
    world.set("HOSTLER_QUEUE__POSTGRES__PROVISION", "check".to_owned());
    is_told(&world.output(&["run"]), 69, &["hostler provision"]);
    server.0.psql("work", "GRANT CREATE ON DATABASE work TO guest");
    world.provision();
    let mut host = world.started();
    world.send("work", ["ack"]);
    host.settled(1);
    assert_eq!(host.stop(), 0);
}

/// One user provisions, another runs hosts. The statements are those of the book's page.
#[test]
fn a_user_with_the_rights_of_the_book_runs_hosts_and_commands() {
    let server = Guarded::start(&create("worker"));
    server.0.psql("postgres", "CREATE DATABASE work");
    let mut world = on(server.0.url("work"), WORK);
    world.provision();
    world.set("HOSTLER_QUEUE__POSTGRES__PROVISION", "check".to_owned());
    world.set(URL, server.url("work", "worker"));
    is_told(&world.output(&["run"]), 69, &["permission denied", "--permissions"]);
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/book/src/postgres.md")).unwrap();
    let grants = page.split("```sql\n").nth(1).unwrap().split("```").next().unwrap();
    let printed = world.output(&["provision", "--permissions"]);
    assert!(grants.lines().all(|grant| printed.stdout.contains(grant)), "{printed:?}");
    server.0.psql("work", grants);
    super::is_served(&world);
    for args in [&["check"][..], &["queues"], &["purge", "work", "--yes"]] {
        let said = world.output(args);
        assert_eq!(said.code, 0, "{args:?}: {said:?}");
    }
}

/// `provision = "check"` must not let a host of a newer version change what others use.
#[test]
fn check_creates_nothing() {
    let world = strict(WORK);
    for args in [&["check"][..], &["run"]] {
        assert_eq!(world.output(args).code, 69, "{args:?}");
    }
    let said = world.output(&["send", "work", "--body", "x"]);
    assert!(said.code != 0 && said.stderr.contains("hostler provision"), "{said:?}");
    let planned = world.output(&["provision", "--plan"]);
    assert!(planned.stdout.contains("+ "), "{planned:?}");
}
