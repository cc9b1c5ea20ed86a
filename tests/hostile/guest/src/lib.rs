//! A guest that tries what it may not. The attribute `do` says what, the body says with what.

mod http;

use std::hint::black_box;
use std::io::Write as _;
use std::net::{TcpStream, ToSocketAddrs as _, UdpSocket};
use std::time::{Duration, Instant, SystemTime};

use exports::hostler::consumer::handler::Guest;
use hostler::consumer::producer::{self, Options};
use hostler::consumer::types::{Attribute, AttributeValue, Message, Outcome};
use wasip2::filesystem::types::{Descriptor, DescriptorFlags, OpenFlags, PathFlags};

wit_bindgen::generate!({ path: "../../../wit", world: "consumer" });

struct Hostile;

export!(Hostile);

type Answer = Result<Outcome, String>;

impl Guest for Hostile {
    fn handle(message: Message) -> Answer {
        let word = attribute(&message, "do").unwrap_or_default();
        let text = String::from_utf8_lossy(&message.body).into_owned();
        match word.as_str() {
            "ack" => Ok(Outcome::Ack),
            // Time.
            "loop" => spin(|| {}),
            "clock" => spin(|| _ = black_box((Instant::now(), SystemTime::now()))),
            "random" => random(),
            "sleep" => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            // Memory.
            "memory" => memory(),
            "stack" => reply(recurse(0).to_string()),
            "panic" => panic!("{text}"),
            // Output.
            "lines" => lines(&text),
            "short" => short_lines(&text),
            "flood" => spin(|| _ = std::io::stdout().write_all(&[b'x'; 4096])),
            // The world.
            "env" => reply(std::env::vars().map(|(name, value)| format!("{name}={value}\n")).collect::<String>()),
            "read" => std::fs::read(&text).map(Outcome::Reply).map_err(|error| error.to_string()),
            "write" => done(std::fs::write(&text, b"mine")),
            "files" => files(&text),
            "list" => {
                let folder = granted()?;
                spin(|| {
                    _ = black_box(
                        folder
                            .read_directory()
                            .map(|entries| while let Ok(Some(_)) = entries.read_directory_entry() {}),
                    )
                })
            }
            "listings" => listings(&text),
            "denials" => denials(),
            "polls" => polls(&text),
            "attributes" => attributes(&text),
            "fields" => fields(&text),
            "tamper" => tamper(std::path::Path::new(&text)),
            "tcp" => done(TcpStream::connect(&text)),
            "udp" => done(UdpSocket::bind("0.0.0.0:0")),
            "name" => done((text.as_str(), 80).to_socket_addrs()),
            "send" => send(&text, &message),
            "fork" => fork(&text, &message),
            "get" => http::get(&text).map(Outcome::Reply),
            "often" => http::get_often(&text, 100).map(Outcome::Reply),
            "post" => http::post(&text, &message.body).map(Outcome::Reply),
            "follow" => http::follow(&text).map(Outcome::Reply),
            "upload" => upload(&text, &message),
            "open" => reply(http::open_many(&text, 100)),
            "trace" => reply(hostler::consumer::context::traceparent().unwrap_or_default()),
            "attempt" => reply(hostler::consumer::context::attempt().to_string()),
            other => Err(format!("`{other}` is nothing that this guest does")),
        }
    }
}

fn reply(text: String) -> Answer {
    Ok(Outcome::Reply(text.into_bytes()))
}

/// Writes 16 KiB of a request's body, waits until the server has seen most of it, and then does what `then` says. `length` is
/// the length that the request announces.
fn upload(url: &str, message: &Message) -> Answer {
    let upload = http::Upload::begin(url, attribute(message, "length").as_deref(), &[b'x'; 16 * 1024])?;
    http::get(&format!("{url}/seen"))?;
    match attribute(message, "then").unwrap_or_default().as_str() {
        "loop" => spin(|| {}),
        "trap" => std::process::abort(),
        "leave" => {
            // As a guest does that returns without a word about its upload.
            std::mem::forget(upload);
            Ok(Outcome::Ack)
        }
        "finish" => upload.finish().map(Outcome::Reply),
        other => Err(format!("`{other}` is nothing that an upload ends with")),
    }
}

fn done<T>(result: std::io::Result<T>) -> Answer {
    result.map(|_| Outcome::Ack).map_err(|error| error.to_string())
}

/// Tries every function that takes a path on something in this folder, each on a name of its own.
fn tamper(folder: &std::path::Path) -> Answer {
    use std::fs;
    let at = |name: &str| folder.join(name);
    let tried = [
        fs::File::open(at("open")).map(drop),
        fs::metadata(at("stat")).map(drop),
        fs::read_link(at("readlink")).map(drop),
        fs::create_dir(at("mkdir")),
        fs::remove_dir(at("rmdir")),
        fs::remove_file(at("unlink")),
        fs::rename(at("rename"), at("rename")),
        fs::hard_link(at("link"), at("link")),
        fs::File::create(at("create")).map(drop),
    ];
    let denied = tried.iter().filter(|result| matches!(result, Err(error) if error.raw_os_error() == Some(EPERM)));
    Err(format!("{} of {} denied", denied.count(), tried.len()))
}

/// WASI's error code for an operation that is not permitted.
const EPERM: i32 = 63;

fn attribute(message: &Message, name: &str) -> Option<String> {
    message.attributes.iter().find(|attribute| attribute.name == name).and_then(|attribute| match &attribute.value {
        AttributeValue::Text(text) => Some(text.clone()),
        AttributeValue::Binary(_) => None,
    })
}

fn spin(mut step: impl FnMut()) -> Answer {
    loop {
        step();
    }
}

fn random() -> Answer {
    spin(|| _ = black_box(wasip2::random::random::get_random_bytes(1 << 20)))
}

fn memory() -> Answer {
    let mut held = Vec::new();
    loop {
        held.push(black_box(vec![1_u8; 1 << 20]));
    }
}

#[allow(unconditional_recursion)]
fn recurse(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    recurse(depth + 1) + frame[0]
}

/// So many lines, as fast as it goes; then acks.
fn lines(count: &str) -> Answer {
    for number in 0..count.parse::<u64>().map_err(|error| error.to_string())? {
        eprintln!("line {number} of a guest that has much to say");
    }
    Ok(Outcome::Ack)
}

/// So many lines of one letter, handed over in one write; then acks.
fn short_lines(count: &str) -> Answer {
    let count = count.parse::<usize>().map_err(|error| error.to_string())?;
    done(std::io::stdout().write_all(&b"x\n".repeat(count)))
}

fn send(channel: &str, message: &Message) -> Answer {
    let word = Attribute { name: "do".into(), value: AttributeValue::Text("ack".into()) };
    let options = Options { attributes: vec![word], routing_key: None, delay: None, group_id: None, dedupe_key: None };
    producer::send(channel, &message.body, &options)
        .map(|id| Outcome::Reply(id.into_bytes()))
        .map_err(|e| e.to_string())
}

/// Sends itself twice, again and again, to the channel that it came from.
fn fork(channel: &str, message: &Message) -> Answer {
    let options = || Options {
        attributes: message.attributes.clone(),
        routing_key: None,
        delay: None,
        group_id: None,
        dedupe_key: None,
    };
    loop {
        for _ in 0..2 {
            producer::send(channel, &message.body, &options()).map_err(|error| error.to_string())?;
        }
    }
}

/// Opens a file so many times, or as often as it may, and keeps all of them for as long as it may.
fn files(count: &str) -> Answer {
    let count = count.parse().map_err(|error| format!("{error}"))?;
    let opened: Vec<_> = (0..count).map_while(|_| std::fs::File::open("/granted/file").ok()).collect();
    black_box(&opened);
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// The first granted folder.
fn granted() -> Result<Descriptor, String> {
    let folders = wasip2::filesystem::preopens::get_directories();
    folders.into_iter().next().map(|(folder, _)| folder).ok_or_else(|| "no folder is granted".to_owned())
}

/// Begins so many listings of the granted folder, keeps all of them, and says how many entries the last one has.
fn listings(count: &str) -> Answer {
    let (folder, mut listings) = (granted()?, Vec::new());
    for _ in 0..number(count)? {
        let listing = folder.read_directory().map_err(|error| error.to_string())?;
        listing.read_directory_entry().map_err(|error| error.to_string())?;
        listings.push(listing);
    }
    let Some(last) = listings.last() else { return Ok(Outcome::Ack) };
    let mut entries = 1;
    while last.read_directory_entry().map_err(|error| error.to_string())?.is_some() {
        entries += 1;
    }
    Err(format!("{} listings of {entries} entries", listings.len()))
}

/// Tries for files outside of the granted folder, whose names are as long in the log as can be.
fn denials() -> Answer {
    let folder = granted()?;
    for file in 0..16 {
        let path = format!("../{file}{}", "\u{10ffff}".repeat(250));
        let _ = folder.open_at(PathFlags::empty(), &path, OpenFlags::empty(), DescriptorFlags::READ);
    }
    Ok(Outcome::Ack)
}

/// Waits for the same thing so many times over.
fn polls(count: &str) -> Answer {
    let ready = wasip2::clocks::monotonic_clock::subscribe_duration(0);
    wasip2::io::poll::poll(&vec![&ready; number(count)?]);
    Ok(Outcome::Ack)
}

/// Sends a message with so many attributes.
fn attributes(count: &str) -> Answer {
    let attribute = Attribute { name: String::new(), value: AttributeValue::Text(String::new()) };
    let attributes = vec![attribute; number(count)?];
    let options = Options { attributes, routing_key: None, delay: None, group_id: None, dedupe_key: None };
    producer::send("neighbour", b"0", &options).map(|_| Outcome::Ack).map_err(|error| error.to_string())
}

/// Makes the head of a request with so many fields.
fn fields(count: &str) -> Answer {
    let entries = vec![("a".to_owned(), Vec::new()); number(count)?];
    let made = wasip2::http::types::Fields::from_list(&entries);
    made.map(|_| Outcome::Ack).map_err(|error| error.to_string())
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|error| format!("{error}"))
}
