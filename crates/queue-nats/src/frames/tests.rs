use std::time::Duration;

use async_nats::{ConnectOptions, Event};
use futures_util::StreamExt as _;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;

const PATIENCE: Duration = Duration::from_secs(5);

const INFO: &str = r#"INFO {"server_id":"x","version":"2.10.0","proto":1,"headers":true,"max_payload":1048576}"#;

/// Answers the opening of a connection, and its pings, until the client subscribes or closes. Returns `true` if it subscribed.
async fn serve(stream: &mut BufReader<TcpStream>) -> bool {
    let mut line = String::new();
    while stream.read_line(&mut line).await.is_ok_and(|count| count > 0) {
        match line.split(' ').next().map(str::trim) {
            Some("PING") => stream.write_all(b"PONG\r\n").await.unwrap(),
            Some("SUB") => return true,
            _ => {}
        }
        line.clear();
    }
    false
}

/// Returns the headers that the client library reads. `None`: it ends the connection.
async fn read(subject: &[u8], headers: &[u8]) -> Option<HeaderMap> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let frame =
        [b"HMSG ", subject, format!(" 1 {} {}\r\n", headers.len(), headers.len() + 1).as_bytes(), headers, b"x\r\n"]
            .concat();
    let server = tokio::spawn(async move {
        let mut stream = BufReader::new(listener.accept().await.unwrap().0);
        stream.write_all(format!("{INFO}\r\n").as_bytes()).await.unwrap();
        assert!(serve(&mut stream).await);
        stream.write_all(&frame).await.unwrap();
        serve(&mut stream).await
    });
    let (lost, mut is_lost) = mpsc::unbounded_channel();
    let client = ConnectOptions::new().event_callback(move |event| {
        if event == Event::Disconnected {
            let _ = lost.send(());
        }
        std::future::ready(())
    });
    let client = client.connect(address).await.unwrap();
    let mut messages = client.subscribe("s").await.unwrap();
    let message = timeout(PATIENCE, async {
        tokio::select! {
            message = messages.next() => message,
            _ = is_lost.recv() => None,
        }
    });
    let message = message.await.unwrap_or_else(|_| panic!("{:?}", String::from_utf8_lossy(headers)));
    server.abort();
    message.map(|message| message.headers.unwrap())
}

/// Random blocks of headers, of pieces that a parser takes for something.
fn random(random: &mut fastrand::Rng) -> Vec<u8> {
    const PIECES: [&[u8]; 18] = [
        b"Key",
        b"a",
        b":",
        b": ",
        b"value",
        b" ",
        b"\t",
        b"\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n ",
        b"\xff",
        b"\xc3\xa9",
        b"\xc2\xa0",
        b"\0",
        b"NATS/1.0",
        b"Nats-Msg-Id: 7",
    ];
    const BEGINNINGS: [&[u8]; 12] = [
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\n",
        b"NATS/1.0\r\nA: b\r\n",
        b"NATS/1.0 503\r\n",
        b"NATS/1.0 503 No one\r\n",
        b"NATS/1.0 none\r\n",
        b"NATS/1.0503",
        b"NATS/1.0\n",
        b"",
    ];
    let pieces = (0..random.usize(0..8)).map(|_| PIECES[random.usize(..PIECES.len())]).collect::<Vec<_>>().concat();
    let end: &[u8] = if random.u8(..) < 200 { b"\r\n\r\n" } else { b"" };
    [BEGINNINGS[random.usize(..BEGINNINGS.len())], &pieces, end].concat()
}

/// The client library itself is asked.
#[tokio::test]
async fn what_the_client_library_reads_is_known() {
    let mut seeded = fastrand::Rng::with_seed(7);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..600 {
        let headers = random(&mut seeded);
        let (known, read) = (check("s", &headers), read(b"s", &headers).await);
        let shown = String::from_utf8_lossy(&headers);
        if headers.is_empty() {
            continue;
        }
        assert_eq!(known.is_ok(), read.is_some(), "{shown:?}: {known:?}");
        if let Some(read) = read {
            assert_eq!(readable(&headers), read, "{shown:?}");
            good += 1;
        } else {
            bad += 1;
        }
    }
    assert!(good > 100 && bad > 100, "{good} {bad}");
}

#[tokio::test]
async fn each_reason_is_told() {
    let cases: [(&str, &[u8], Result<(), Unreadable>); 10] = [
        ("s", b"", Ok(())),
        ("s.\u{2003}", b"NATS/1.0\r\na: b\r\n\r\n", Ok(())),
        ("s", b"NATS/1.0\r\na: b\r\n\r\n", Ok(())),
        ("s.\u{2003}a", b"NATS/1.0\r\na: b\r\n\r\n", Err(Unreadable::Space)),
        ("s", b"NATS/1.0\r\na: \xff\r\n\r\n", Err(Unreadable::Encoding)),
        ("s", b"HTTP/1.0\r\n\r\n", Err(Unreadable::Version)),
        ("s", b"NATS/1.0 teapot\r\n\r\n", Err(Unreadable::Version)),
        ("s", b"NATS/1.0\r\na b\r\n\r\n", Err(Unreadable::Colon)),
        ("s", b"NATS/1.0\r\na b: c\r\n\r\n", Err(Unreadable::Name)),
        ("s", b"NATS/1.0\r\na: b\rc\r\n\r\n", Err(Unreadable::LineEnd)),
    ];
    for (subject, headers, expected) in cases {
        assert_eq!(check(subject, headers), expected, "{subject:?} {}", String::from_utf8_lossy(headers));
        if !headers.is_empty() {
            assert_eq!(read(subject.as_bytes(), headers).await.is_some(), expected.is_ok(), "{expected:?}");
        }
    }
    assert_eq!(read(b"s.\xff", b"NATS/1.0\r\n\r\n").await, None);
}

#[test]
fn a_copy_keeps_what_can_be_kept() {
    let headers = readable(b"NATS/1.0\r\ncaf\xe9: cr\xe8me\r\nno colon\r\na b: c\rd\r\n e\r\nNats-Msg-Id: 7\r\n\r\n");
    let value = |name: &str| headers.get(name).map(HeaderValue::as_str);
    assert_eq!((value("caf_"), value("a_b")), (Some("cr\u{fffd}me"), Some("c d e")));
    assert_eq!((value(UNREADABLE), value("Nats-Msg-Id")), (Some("no colon"), Some("7")));
    assert_eq!(headers.len(), 4);
}
