//! A guest that talks to TCP servers. The attribute `do` says how, the body says with which server.

mod postgres;
mod redis;

use std::fmt::Display;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs as _};
use std::ops::Range;
use std::thread::sleep;
use std::time::Duration;

use hostler_guest::{Failure, Message, Outcome, batch, batch_handler, handler};

type Answer = Result<Outcome, Failure>;

#[handler]
fn handle(message: Message) -> Answer {
    let server = message.text()?;
    match message.attribute("do").unwrap_or_default() {
        "echo" => echo(server),
        "connect" => TcpStream::connect(server).map(|_| Outcome::Ack).map_err(failed),
        "resolve" => resolve(server),
        "scan" => scan(server),
        "many" => Ok(Outcome::reply(many(server))),
        "read" => TcpStream::connect(server)
            .and_then(|mut stream| stream.read(&mut [0]))
            .map(|_| Outcome::Ack)
            .map_err(failed),
        "drain" => drain(server),
        "pour" => pour(server).map(drop).map(|()| Outcome::Ack),
        "leave" => leave(server),
        "listen" => TcpListener::bind(server).map(|_| Outcome::Ack).map_err(failed),
        "postgres" => postgres::query(server).map(Outcome::reply).map_err(failed),
        "redis" => redis::ask(server).map(Outcome::reply).map_err(failed),
        other => Err(Failure::dead_letter(format!("`{other}` is nothing that this guest does"))),
    }
}

/// Does the same for each message, and answers early for those that leave output behind.
#[batch_handler]
fn handle_batch(messages: Vec<Message>) -> Vec<Answer> {
    let each = messages.into_iter().enumerate().map(|(index, message)| {
        let leaves = message.attribute("do") == Some("leave");
        let answer = handle(message)?;
        if leaves && !batch::done(index, answer.clone()) {
            return Err(failed("the early answer was refused"));
        }
        Ok(answer)
    });
    each.collect()
}

fn failed(error: impl Display) -> Failure {
    Failure::error(error.to_string())
}

fn echo(server: &str) -> Answer {
    let mut answer = String::new();
    let mut stream = TcpStream::connect(server).map_err(failed)?;
    stream.write_all(b"hello").map_err(failed)?;
    stream.shutdown(Shutdown::Write).map_err(failed)?;
    stream.read_to_string(&mut answer).map_err(failed)?;
    Ok(Outcome::reply(answer))
}

fn resolve(server: &str) -> Answer {
    let addresses = server.to_socket_addrs().map_err(failed)?;
    Ok(Outcome::reply(addresses.map(|at| at.to_string()).collect::<Vec<_>>().join(" ")))
}

/// Tries to connect to each port of `host from to`. Returns the ports that were connected to, and the kinds of all errors.
fn scan(range: &str) -> Answer {
    let (host, ports) = ports(range).ok_or_else(|| failed("a host and two ports are needed"))?;
    let (mut open, mut kinds) = (Vec::new(), Vec::new());
    for port in ports {
        match TcpStream::connect((host, port)) {
            Ok(_) => open.push(port),
            Err(error) if kinds.contains(&error.kind()) => {}
            Err(error) => kinds.push(error.kind()),
        }
    }
    Ok(Outcome::reply(format!("{open:?} {kinds:?}")))
}

fn ports(range: &str) -> Option<(&str, Range<u16>)> {
    let mut words = range.split(' ');
    let (host, from, to) = (words.next()?, words.next()?, words.next()?);
    Some((host, from.parse().ok()?..to.parse().ok()?))
}

/// Connects 1000 times, and keeps each connection. Returns the number of connections, and the last error.
fn many(server: &str) -> String {
    let (mut streams, mut last) = (Vec::new(), None);
    for _ in 0..1000 {
        match TcpStream::connect(server) {
            Ok(stream) => streams.push(stream),
            Err(error) => last = Some(error.kind()),
        }
    }
    format!("{} {last:?}", streams.len())
}

/// Reads until the server ends the connection.
fn drain(server: &str) -> Answer {
    let mut stream = TcpStream::connect(server).map_err(failed)?;
    let mut part = [0; 1 << 16];
    while stream.read(&mut part).map_err(failed)? > 0 {}
    Ok(Outcome::Ack)
}

/// Writes 1 MiB, of which the host may hold a part when this returns.
fn pour(server: &str) -> Result<TcpStream, Failure> {
    let mut stream = TcpStream::connect(server).map_err(failed)?;
    stream.write_all(&[b'x'; 1 << 20]).map_err(failed)?;
    Ok(stream)
}

/// Writes to the first of two servers until the host takes no more, connects to the second, and returns at once. Closes
/// nothing, as a guest whose language closes nothing at the end of a call. Returns the number of bytes that the host took.
fn leave(servers: &str) -> Answer {
    let (server, told) = servers.split_once(' ').ok_or_else(|| failed("two servers are needed"))?;
    let mut stream = TcpStream::connect(server).map_err(failed)?;
    stream.set_nonblocking(true).map_err(failed)?;
    let (mut taken, mut refusals) = (0, 0);
    // The kernels at both ends take more for a while, so that one refusal proves nothing.
    while refusals < 50 {
        match stream.write(&[b'x'; 1 << 16]) {
            Ok(length) => (taken, refusals) = (taken + length, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                refusals += 1;
                sleep(Duration::from_millis(10));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    std::mem::forget(stream);
    std::mem::forget(TcpStream::connect(told).map_err(failed)?);
    Ok(Outcome::reply(taken.to_string()))
}
