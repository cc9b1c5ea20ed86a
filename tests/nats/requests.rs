//! Messages to subjects, which a receiver acknowledges, and the retry service behind them.

use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::wire::Wire;
use super::world;
use crate::support::guests::component;
use crate::support::hostler::{Host, PATIENCE, Said, World, until};
use crate::support::nats::{Nats, Version};
use crate::support::servers::unique;

/// A consumer of `<root>.*`, whose handler does what the body says.
fn config(root: &str) -> String {
    format!(
        "
        [consumers.hooks]
        subject = '{root}.*'
        handler = 'guests/run-word.wat'
        lease = '3s'
        retry = {{ requeues = 1, requeue_delay = '2500ms', delays = 1, delay = '0s' }}
        "
    )
}

/// Sends a message to `<root>.<target>`.
fn request(world: &World, subject: &str, body: &str, more: &[&str]) -> Said {
    world.output(&[&["send", "--subject", subject, "--request", "--body", body], more].concat())
}

fn listening(world: &World, root: &str) -> Host {
    let host = world.started();
    until("the host listens", PATIENCE, || (request(world, &format!("{root}.a"), "ack", &[]).code == 0).then_some(()));
    host
}

/// Starts a retry service with a subject of its own.
fn retry_service(server: &Nats) -> (World, Host, String) {
    let subject = unique("retry");
    let env = vec![("HOSTLER_RETRY__NATS", server.url()), ("HOSTLER_RETRY__SUBJECT", subject.clone())];
    let world = World::with("host.health_file = 'health.json'\n", env, "[retry]\nbase = '50ms'\nmax = '100ms'\n");
    let host = Host::start(world.command(&["retry"]));
    host.wait_for(PATIENCE, |line| line["message"] == "the retry service takes messages");
    (world, host, subject)
}

#[test]
fn a_request_without_a_fallback_says_what_happened() {
    for version in Version::ALL {
        let (server, root) = (Nats::shared(version), unique("hooks"));
        let world = world(server, &config(&root));
        let mut host = listening(&world, &root);
        let to = |target: &str| format!("{root}.{target}");
        let forever = ["--timeout", "18446744073709551615s"];
        let accepted = request(&world, &to("a"), "ack", &[&["--attr", "tenant=7"], &forever[..]].concat());
        let told = format!("1 message to {root}.a: 1 accepted, 0 handed to the retry service, 0 failed");
        assert!(accepted.code == 0 && accepted.stdout.ends_with(&format!("{told}\n")), "{accepted:?}");
        // A handler that takes longer than the timeout keeps its sender waiting.
        let long = request(&world, &to("a"), "w4000", &["--timeout", "2s"]);
        assert_eq!(long.code, 0, "{long:?}");
        for (target, body, fault) in [
            ("a", "x1", "its receiver refused it for 2.5 s"),
            ("a", "x65", "its receiver refused it for good: bad row"),
            ("a.b", "ack", "nobody listens to the subject"),
        ] {
            let failed = request(&world, &to(target), body, &[]);
            assert_eq!(failed.code, 1, "{failed:?}");
            assert!(failed.stderr.contains(fault) && failed.stdout.contains("0 accepted"), "{failed:?}");
        }
        let none = request(&world, &to("a.b"), "ack", &["--fallback", &unique("nobody")]);
        assert!(none.code == 1 && none.stderr.contains("is `hostler retry` running"), "{none:?}");
        assert_eq!(host.stop(), 0);
    }
}

#[test]
fn a_receiver_that_does_not_answer_is_not_waited_for_longer_than_asked() {
    let (server, root) = (Nats::shared(Version::Newest), unique("silent"));
    let world = world(server, &config(&root));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = runtime.block_on(async_nats::connect(server.url())).unwrap();
    let mut requests = runtime.block_on(client.subscribe(format!("{root}.a"))).unwrap();
    runtime.block_on(client.flush()).unwrap();
    let silent = request(&world, &format!("{root}.a"), "x", &["--timeout", "300ms"]);
    assert!(silent.code == 1 && silent.stderr.contains("no answer came within 0.3 s"), "{silent:?}");
    let request = runtime.block_on(requests.next()).unwrap();
    assert!(request.headers.unwrap().get("Hostler-Id").is_some());
}

/// A stream that archives requests answers each of them, before their receiver does.
#[test]
fn an_archive_is_no_receiver() {
    for version in Version::ALL {
        let (server, root) = (Nats::shared(version), unique("archived"));
        let world = world(server, &config(&root));
        let mut host = listening(&world, &root);
        let (mut wire, subjects) = (Wire::to(&server.url()), [format!("{root}.>")]);
        wire.done(&format!("STREAM.CREATE.{root}"), &json!({ "name": root, "subjects": subjects }));
        let accepted = request(&world, &format!("{root}.a"), "w300", &[]);
        assert!(accepted.code == 0 && accepted.stdout.contains("1 accepted"), "{accepted:?}");
        let none = request(&world, &format!("{root}.a.b"), "ack", &["--timeout", "300ms"]);
        assert!(none.code == 1 && none.stderr.contains("no answer came"), "{none:?}");
        assert_eq!(host.stop(), 0);
    }
}

#[test]
fn what_nobody_acknowledges_goes_to_the_retry_service() {
    let (server, root) = (Nats::shared(Version::Middle), unique("hooks"));
    let world = world(server, &config(&root));
    let mut host = listening(&world, &root);
    let (_service, mut retry, fallback) = retry_service(server);
    let subject = format!("{root}.a");
    let args = ["send", "--subject", &subject, "--request", "--fallback", &fallback, "--lines", "--file", "-"];
    let said = world.output_with(&args, "ack\nx1\n\nx65\n");
    let told = format!("3 messages to {subject}: 1 accepted, 1 handed to the retry service, 1 failed");
    assert_eq!((said.code, said.stdout.trim_end()), (1, &*told), "{said:?}");
    assert!(said.stderr.contains("line 4 failed: its receiver refused it for good: bad row"), "{said:?}");
    // The service keeps the wait that the consumer asked for, and delivers until the consumer has had enough.
    let ended = retry.wait_for(PATIENCE, |line| line["disposition"] == "dead-letter");
    assert!(ended["reason"].as_str().unwrap().contains("gave up after 3 attempts"), "{ended}");
    let refused = request(&world, &format!("{root}.a.b"), "ack", &["--fallback", &fallback, "--attr", "Hostler-TTL=x"]);
    assert!(refused.code == 1 && refused.stderr.contains("the header Hostler-TTL is \"x\""), "{refused:?}");
    let one = request(&world, &format!("{root}.a.b"), "ack", &["--fallback", &fallback]);
    assert!(one.code == 0 && one.stderr.contains("note: nobody listens to the subject"), "{one:?}");
    assert_eq!((host.stop(), retry.stop()), (0, 0));
}

/// A handler of a queue whose messages each name a place to send to.
#[test]
fn a_guest_sends_to_the_subjects_that_are_granted() {
    let (server, root) = (Nats::shared(Version::Newest), unique("hooks"));
    let (_service, mut retry, fallback) = retry_service(server);
    let mut world = world(server, "");
    world.set("HOSTLER_QUEUE__NATS__FALLBACK", fallback);
    let handler = component("sends");
    world.config(&format!(
        "{}
        [consumers.one]
        channel = 'one'
        handler = '{}'
        allow.subjects = ['{root}.*', 'nobody.*']
        retry = {{ requeues = 0, delays = 0 }}
        ",
        config(&root),
        handler.display()
    ));
    let mut host = listening(&world, &root);
    let acked = |host: &Host| host.lines().iter().filter(|line| line["consumer"] == "hooks").count();
    let before = acked(&host);
    world.send("one", [format!("{root}.a"), "nobody.a".to_owned(), "other.a.b".to_owned()]);
    let of_one = |line: &Value| line["consumer"] == "one" && line["message"] == "settled";
    let settled = until("all are settled", PATIENCE, || {
        let lines: Vec<_> = host.lines().into_iter().filter(of_one).collect();
        (lines.len() == 3).then_some(lines)
    });
    let outcome = |line: &Value| (line["outcome"].as_str().unwrap().to_owned(), line["reason"].to_string());
    let mut outcomes: Vec<_> = settled.iter().map(outcome).collect();
    outcomes.sort();
    assert_eq!([&*outcomes[0].0, &*outcomes[1].0, &*outcomes[2].0], ["ack", "ack", "failed"], "{outcomes:?}");
    assert!(outcomes[2].1.contains("allow.subjects of this consumer does not name `other.a.b`"), "{outcomes:?}");
    assert!(acked(&host) > before);
    assert_eq!((host.stop(), retry.stop()), (0, 0));
}

#[test]
fn a_subject_is_refused_where_it_makes_no_sense() {
    let server = Nats::shared(Version::Newest);
    let world = world(server, &config("hooks"));
    for (args, fault) in [
        (&["send", "--subject", "a.*", "--request", "--body", ""][..], "may be empty or a wildcard"),
        (&["send", "--subject", "a", "--body", ""], "--request"),
        (&["send", "work", "--request", "--body", ""], "--subject"),
        (&["send", "--subject", "a", "--request", "--delay", "1s", "--body", ""], "--delay"),
        (&["send", "--body", ""], "<CHANNEL>"),
    ] {
        let said = world.output(args);
        assert!(said.code == 2 && said.stderr.contains(fault), "{args:?} {said:?}");
    }
    let embedded = World::new("[consumers.work]\nchannel = 'work'\nhandler = 'guests/run-word.wat'");
    let said = request(&embedded, "a", "x", &[]);
    assert!(said.code == 2 && said.stderr.contains("only NATS has subjects"), "{said:?}");
    assert!(!embedded.path("hostler.db").exists(), "no queue is created");
}
