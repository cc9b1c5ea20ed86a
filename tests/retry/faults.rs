//! Faulty receivers, producers and servers, and operators who get in the way.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use tokio::task::block_in_place;

use super::*;

/// Answers all messages of a subject with a reply whose headers nobody can read, until the connection ends.
fn answer_badly(server: &Nats, subject: &str) {
    let mut stream = TcpStream::connect(server.url().strip_prefix("nats://").unwrap()).unwrap();
    let hello = "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true,\"protocol\":1}\r\n";
    write!(stream, "{hello}SUB {subject} 1\r\nPING\r\n").unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "PONG"));
    std::thread::spawn(move || {
        for line in lines {
            if line.starts_with("HMSG ") {
                let reply = line.split(' ').nth(3).unwrap();
                let headers = "NATS/1.0\r\nthis is no header\r\n\r\n";
                let size = headers.len();
                if write!(stream, "HPUB {reply} {size} {size}\r\n{headers}\r\n").is_err() {
                    return;
                }
            } else if line == "PING" && stream.write_all(b"PONG\r\n").is_err() {
                return;
            }
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_breaks_the_connection_ends_as_a_dead_letter_and_keeps_out_no_other() {
    let server = Nats::shared(Version::Newest);
    let service = Service::new(server, "").await;
    let mut host = service.start();
    let (bad, good) = (unique("bad"), unique("good"));
    block_in_place(|| answer_badly(server, &bad));
    let receiver = service.receive(&good, |_, _| "+ACK".to_owned()).await;
    service.stored(&bad, "x", &[("Hostler-Retries", "0")]).await;
    for number in 0..20 {
        let delay = format!("{}ms", number * 200);
        service.stored(&good, &number.to_string(), &[("Hostler-Delay", &delay)]).await;
    }
    let line = block_in_place(|| host.wait_for(PATIENCE, |line| line["disposition"] == "dead-letter"));
    assert!(line["reason"].as_str().unwrap().contains("replies that are not valid"), "{line}");
    receiver.wait("the others", |seen| {
        let bodies: std::collections::BTreeSet<_> = seen.iter().map(|seen| &seen.body).collect();
        (bodies.len() == 20).then_some(())
    });
    assert_eq!(block_in_place(|| host.stop()), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subjects_that_would_do_harm_are_refused() {
    let service = Service::new(Nats::shared(Version::Newest), "targets = ['webhooks.>']").await;
    let mut host = service.start();
    let long = format!("webhooks.{}", "a".repeat(2_000));
    for (target, reason) in [
        (&*long, "use at most 1024"),
        ("$JS.API.STREAM.NAMES", "of NATS itself"),
        ("_INBOX.x", "of NATS itself"),
        ("orders.a", "`retry.targets`"),
    ] {
        let reply = service.send(target, "x", &[]).await;
        let headers = reply.headers.unwrap();
        assert_eq!(headers.get("Nats-Service-Error-Code").unwrap().as_str(), "400");
        assert!(headers.get("Nats-Service-Error").unwrap().as_str().contains(reason), "{headers:?}");
    }
    service.stored("webhooks.a", "x", &[("Hostler-Delay", "1h")]).await;
    assert_eq!(block_in_place(|| host.stop()), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_too_large_with_what_is_added_is_refused() {
    let service = Service::new(Nats::shared(Version::Newest), "").await;
    let mut host = service.start();
    let target = unique("large");
    let receiver = service.receive(&target, |_, _| "+ACK".to_owned()).await;
    let most = service.client.max_payload();
    let reply = service.send(&target, &"x".repeat(most), &[]).await;
    let headers = reply.headers.unwrap();
    assert!(headers.get("Nats-Service-Error").unwrap().as_str().contains("max_payload"), "{headers:?}");
    service.stored(&target, &"x".repeat(most - 100), &[]).await;
    receiver.wait("the delivery", |seen| (!seen.is_empty()).then_some(()));
    assert_eq!(block_in_place(|| host.stop()), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_retry_services_do_not_multiply_messages() {
    let server = Nats::shared(Version::Newest);
    let (first, second) = (Service::new(server, "retries = 0").await, Service::new(server, "").await);
    let mut hosts = [first.start(), second.start()];
    first.stored(&format!("{}.a", second.subject), "x", &[]).await;
    let line = block_in_place(|| hosts[0].wait_for(PATIENCE, |line| line["disposition"] == "dead-letter"));
    assert!(line["reason"].as_str().unwrap().contains("another retry service"), "{line}");
    block_in_place(|| hosts.iter_mut().for_each(|host| assert_eq!(host.stop(), 0)));
    assert_eq!(second.world.row("retry")["visible"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stuck_costs_no_retry() {
    let server = Nats::start(Version::Newest);
    let service = Service::new(&server, "ack_timeout = '1s'\nretries = 0").await;
    let mut host = service.start();
    let receiver = service.receive("work", |_, _| "+ACK".to_owned()).await;
    service.stored("work", "x", &[("Hostler-Delay", "500ms")]).await;
    server.freeze();
    let began = Instant::now();
    // Longer than the delay and the time for an answer, but not so long that the client gives the connection up.
    block_in_place(|| until("the time is up", PATIENCE, || (began.elapsed() > 4 * SECOND).then_some(())));
    server.thaw();
    receiver.wait("the delivery", |seen| (!seen.is_empty()).then_some(()));
    let line = block_in_place(|| host.wait_for(PATIENCE, |line| !line["outcome"].is_null()));
    assert_eq!((&line["outcome"], &line["attempt"]), (&Value::from("ack"), &Value::from(1)));
    assert_eq!(block_in_place(|| host.stop()), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_hangs_is_noticed_although_somebody_listens_to_all_subjects() {
    let server = Nats::start(Version::Newest);
    let service = Service::new(&server, "ack_timeout = '1s'\nretries = 0").await;
    let _spy = service.client.subscribe(">").await.unwrap();
    service.client.flush().await.unwrap();
    let mut host = service.start();
    service.stored("nobody", "x", &[]).await;
    let line = block_in_place(|| host.wait_for(PATIENCE, |line| line["disposition"] == "dead-letter"));
    assert!(line["reason"].as_str().unwrap().contains("did not answer within 1 s"), "{line}");
    assert_eq!(block_in_place(|| host.stop()), 0);
    let said = block_in_place(|| service.world.output(&["check"]));
    assert_eq!(said.code, 0, "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_without_a_server_does_not_wait_for_the_grace() {
    let mut server = Nats::start(Version::Newest);
    let service = Service::new(&server, "").await;
    let mut host = service.start();
    service.stored("a", "x", &[("Hostler-Delay", "1h")]).await;
    block_in_place(|| {
        server.kill();
        host.wait_for(PATIENCE, |line| line["message"].as_str().is_some_and(|text| text.contains("is lost")));
        let began = Instant::now();
        assert_eq!(host.stop(), 0);
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_take_no_messages_that_the_service_has() {
    let service = Service::new(Nats::shared(Version::Newest), "").await;
    let mut host = service.start();
    // Nobody listens to it, so the message stays.
    service.stored(&unique("nobody"), "x", &[]).await;
    block_in_place(|| {
        for command in [&["receive", "retry"][..], &["requeue", "--from", "retry", "--to", "retry-high"]] {
            let said = service.world.output(command);
            assert!(said.code == 1 && said.stderr.contains("a running `hostler retry`"), "{said:?}");
        }
        assert_eq!(host.stop(), 0);
        let said = service.world.output(&["requeue", "--from", "retry", "--to", "retry-high"]);
        assert_eq!(said.code, 0, "{said:?}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_says_if_the_service_could_start() {
    let mut server = Nats::start(Version::Newest);
    let service = Service::new(&server, "").await;
    block_in_place(|| {
        let said = service.world.output(&["check"]);
        assert!(said.code == 0 && said.stdout.contains("retry     ok"), "{said:?}");
        std::fs::remove_dir_all(service.world.path("retry")).unwrap();
        std::fs::write(service.world.path("retry"), "").unwrap();
        let said = service.world.output(&["check"]);
        assert!(said.code == 69 && said.stderr.contains("retry.store"), "{said:?}");
        std::fs::remove_file(service.world.path("retry")).unwrap();
        server.kill();
        let said = service.world.output(&["check"]);
        assert!(said.code == 69 && said.stderr.contains("`retry.nats`"), "{said:?}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_names_a_permission_that_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nats.conf");
    for (subscribe, publish, missing) in [
        ("retry.>", "_INBOX.>", None),
        ("other.>", "_INBOX.>", Some("violation for subscription to \"retry.")),
        ("retry.>", "webhooks.>", Some("violation for publish to \"_inbox.")),
    ] {
        let permissions = format!("{{ subscribe: [\"{subscribe}\", \"_INBOX.>\"], publish: \"{publish}\" }}");
        let user = format!("{{ user: a, password: b, permissions: {permissions} }}");
        std::fs::write(&file, format!("authorization {{ users: [{user}] }}\n")).unwrap();
        let server = Nats::start_with(Version::Newest, &["-c", file.to_str().unwrap()]);
        let env = vec![("HOSTLER_RETRY__NATS", format!("nats://a:b@127.0.0.1:{}", server.port()))];
        let world = World::with(HEAD, env, "[retry]\n");
        let said = block_in_place(|| world.output(&["check"]));
        assert_eq!(said.code, if missing.is_some() { 69 } else { 0 }, "{said:?}");
        assert!(missing.is_none_or(|missing| said.stderr.to_lowercase().contains(missing)), "{said:?}");
    }
}
