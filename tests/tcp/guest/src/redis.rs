//! Redis by the crate of that name, which reads and writes a stream of the standard library.

use redis::{Client, Commands as _, RedisResult};

/// Asks the server at `host:port` for two things. Returns its answers.
pub fn ask(server: &str) -> RedisResult<String> {
    let mut connection = Client::open(format!("redis://{server}"))?.get_connection()?;
    let () = connection.set("number", 6)?;
    let (product,): (i64,) = redis::pipe().incr("number", 36).query(&mut connection)?;
    let () = connection.set("large", vec![b'x'; 1_000_000])?;
    let large: Vec<u8> = connection.get("large")?;
    Ok(format!("{product} {}", large.len()))
}
