//! Mistakes of those who try the job service for the first time: each names its cure.

use std::net::TcpListener;

use crate::support::hostler::{Said, World};
use crate::support::jobs::Jobs;
use crate::support::postgres::Postgres;

/// Runs `hostler jobs serve`, which cannot start, with these variables.
fn refused(variables: &[(&'static str, &str)], config: &str) -> Said {
    let env = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let world = World::with("host.health_file = 'health.json'\n", env, config);
    world.output(&["jobs", "serve"])
}

#[track_caller]
fn says(said: &Said, code: i32, cure: &str) {
    assert!(said.code == code && said.stderr.contains(cure), "{code} and {cure:?}: {said:?}");
    assert!(!said.stderr.contains("hunter2"), "{said:?}");
}

/// Returns a variable that lets the service choose a free port.
const ANY_PORT: (&str, &str) = ("HOSTLER_JOBS__LISTEN", "127.0.0.1:0");

#[test]
fn no_database() {
    says(&refused(&[], "[jobs]\nlisten = '127.0.0.1:0'"), 64, "HOSTLER_JOBS__DATABASE");
    says(&refused(&[("HOSTLER_JOBS__DATABASE", "me:hunter2@host")], ""), 64, "postgres://user:password@host");
}

#[test]
fn a_database_that_is_not_there() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("postgres://me:hunter2@{closed}/jobs");
    says(&refused(&[("HOSTLER_JOBS__DATABASE", &url), ANY_PORT], ""), 69, "start PostgreSQL");
    let missing = Postgres::shared().url("nowhere");
    says(&refused(&[("HOSTLER_JOBS__DATABASE", &missing), ANY_PORT], ""), 69, "createdb");
}

#[test]
fn a_user_without_rights() {
    let postgres = Postgres::shared();
    let name = postgres.new_database();
    postgres.psql(&name, "CREATE ROLE visitor LOGIN");
    let url = postgres.url(&name).replace("postgres@", "visitor@");
    says(&refused(&[("HOSTLER_JOBS__DATABASE", &url), ANY_PORT], ""), 69, "GRANT CREATE");
}

#[test]
fn a_port_that_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, listen) = (Postgres::shared().database(), taken.local_addr().unwrap().to_string());
    let said = refused(&[("HOSTLER_JOBS__DATABASE", &url), ("HOSTLER_JOBS__LISTEN", &listen)], "");
    says(&said, 64, "HOSTLER_JOBS__LISTEN");
    let schemas = Postgres::shared()
        .psql(url.rsplit('/').next().unwrap(), "SELECT count(*) FROM pg_namespace WHERE nspname = 'hostler_jobs'");
    assert_eq!(schemas, "0", "the schema was left alone");
}

#[test]
fn all_addresses_without_tokens() {
    let url = Postgres::shared().database();
    let open = ("HOSTLER_JOBS__LISTEN", "0.0.0.0:0");
    says(&refused(&[("HOSTLER_JOBS__DATABASE", &url), open], ""), 64, "HOSTLER_JOBS__TOKENS__PRODUCER");
}

#[test]
fn a_schema_of_a_newer_hostler() {
    let url = Postgres::shared().database();
    let name = url.rsplit('/').next().unwrap();
    let mut jobs = Jobs::on(&url, "");
    assert_eq!(jobs.host.stop(), 0);
    let postgres = Postgres::shared();
    postgres.psql(name, "UPDATE hostler_jobs.migration SET version = version + 1000, compatible_from = version + 1000 WHERE version = (SELECT max(version) FROM hostler_jobs.migration)");
    says(&refused(&[("HOSTLER_JOBS__DATABASE", &url), ANY_PORT], ""), 64, "newer hostler");
    let migrated = jobs.world.output(&["jobs", "migrate"]);
    says(&migrated, 64, "newer hostler");
}

#[test]
fn a_schema_is_made_by_hand_and_twice() {
    let url = Postgres::shared().database();
    let world = World::with("", vec![("HOSTLER_JOBS__DATABASE", url)], "");
    for _ in 0..2 {
        let said = world.output(&["jobs", "migrate"]);
        assert_eq!(
            (said.code, said.stdout.as_str()),
            (0, "the tables of the job service are up to date\n"),
            "{said:?}"
        );
    }
}

#[test]
fn no_service_and_no_such_job() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let world = World::with("", Vec::new(), &format!("[jobs]\nlisten = '{closed}'"));
    says(&world.output(&["jobs", "ls"]), 69, "hostler jobs serve");
    let jobs = Jobs::start("");
    says(&jobs.world.output(&["jobs", "show", "nothing"]), 1, "there is no such job");
    says(&jobs.world.output(&["jobs", "ls", "--url", "localhost"]), 2, "http://127.0.0.1:8081");
}

#[test]
fn the_check_tries_the_database() {
    let check = |url: String| World::with("", vec![("HOSTLER_JOBS__DATABASE", url)], "").output(&["check"]);
    let found = check(Postgres::shared().database());
    assert!(found.code == 0 && found.stdout.contains("jobs      ok  127.0.0.1:8081"), "{found:?}");
    says(&check(Postgres::shared().url("nowhere")), 69, "createdb");
}

#[test]
fn a_service_is_no_consumer() {
    let world = World::with("", Vec::new(), "[jobs]\nlisten = '127.0.0.1:0'");
    says(&world.output(&["run"]), 64, "hostler jobs serve");
}
