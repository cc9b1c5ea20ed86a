//! Clients of real servers in handlers, in Rust and in Python.

use super::GUEST;
use crate::invoke::{answer, reply};
use crate::support::hostler::World;
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::toolchains::{Guest, built};

/// Makes a guest ask this server. Returns its answers.
fn ask(guest: &Guest, client: &str, server: &str) -> String {
    let world = World::new(&format!(
        "host.cache_dir = '{}'\n[consumers.one]\nchannel = 'one'\nhandler = '{}'\nallow.tcp = ['{server}']",
        guest.cache.display(),
        guest.wasm.display()
    ));
    let args = ["--config", "hostler.toml", "--attr", &format!("do={client}"), "--body", server];
    String::from_utf8(reply(&answer(&world, "one", &args))).unwrap()
}

/// Asserts that a guest uses PostgreSQL, and Redis.
fn uses_servers(guest: &Guest) {
    let (postgres, redis) = (Postgres::start(), Redis::start());
    let address = format!("127.0.0.1:{}", postgres.port());
    assert_eq!(ask(guest, "postgres", &address), "42 1000000");
    assert_eq!(postgres.psql("postgres", "SELECT number FROM asked"), "6");
    assert_eq!(ask(guest, "redis", &redis.address()), "42 1000000");
    assert_eq!(redis.get("number"), "42");
}

#[test]
fn a_handler_in_rust_uses_postgresql_and_redis() {
    uses_servers(&GUEST);
}

#[test]
fn a_handler_in_python_uses_postgresql_and_redis() {
    uses_servers(&built("tests/tcp/python", &["sdk/python", "wit"]));
}
