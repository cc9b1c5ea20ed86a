//! `peek`, `receive` and `purge`: a queue looked into, read and emptied by hand; on the embedded queue and on SQS.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hostler_ops::{Outlet, ReceiveEnd, ReceiveReport, ReceiveRequest, receive};
use hostler_queue::fake::FakeBroker;
use hostler_queue::{Admin as _, Broker as _, ChannelSpec, LeaseError};
use hostler_types::channel::Channel;
use hostler_types::message::{Message, Outgoing};
use hostler_types::printable::acts;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::hostler::{Depth, PATIENCE, Said, World, until};
use crate::support::servers::Kind;
use crate::support::sqs::Aws;

const JOBS: &str = "
    [consumers.jobs]
    channel = 'jobs'
    handler = 'guests/run-tell.wat'
    reply_channel = 'done'
";

/// A world whose queues are there, with these messages in `jobs`.
fn world(bodies: &[&str]) -> World {
    let world = World::new(JOBS);
    world.provision();
    if !bodies.is_empty() {
        world.send("jobs", bodies);
    }
    world
}

fn visible(count: u64) -> Depth {
    Depth { visible: count, ..Depth::default() }
}

/// Output of a command that succeeds.
fn printed(world: &World, args: &[&str]) -> String {
    let said = world.output(args);
    assert_eq!(said.code, 0, "{args:?}: {said:?}");
    said.stdout
}

fn peek(world: &World, args: &[&str]) -> Vec<Value> {
    let text = printed(world, &[&["peek", "jobs", "--json"], args].concat());
    serde_json::from_str(&text).unwrap()
}

/// The messages of a `receive --json`, one a line.
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn bodies(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(|message| message["body"].as_str().unwrap()).collect()
}

fn start(world: &World, args: &[&str]) -> Child {
    world.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(child: Child) -> Said {
    Said::new(child.wait_with_output().unwrap())
}

#[test]
fn a_peek_shows_all_of_each_message_and_takes_none() {
    let world = world(&["one", "two"]);
    let id = printed(&world, &["send", "jobs", "--body", "héllo", "--attr", "tenant=7", "--delay", "15m"]);
    let shown = peek(&world, &[]);
    assert_eq!(bodies(&shown), ["one", "two", "héllo"], "the delayed one as well");
    let last = &shown[2];
    assert_eq!((&last["id"], &last["attributes"]), (&json!(id.trim()), &json!({ "tenant": "7" })));
    assert_eq!((&last["size_bytes"], last.get("attempt")), (&json!(6), None));
    let text = printed(&world, &["peek", "jobs", "--id", id.trim()]);
    for line in ["attribute     tenant = 7", "body          héllo", "size          6 bytes"] {
        assert!(text.lines().any(|one| one == line), "{line} in {text}");
    }
    let said = world.output(&["peek", "jobs", "--max", "2"]);
    assert_eq!((said.code, said.stdout.split("\n\n").count()), (0, 2), "{said:?}");
    assert_eq!(said.stderr, "hostler: note: 2 messages are shown; there may be more, see --max\n");
    assert_eq!(bodies(&peek(&world, &["--filter", "body~w"])), ["two"]);
    assert_eq!(world.depth("jobs"), Depth { visible: 2, delayed: 1, ..Depth::default() });
    let received = lines(&printed(&world, &["receive", "jobs", "--json", "--ack"]));
    assert_eq!(received.iter().map(|one| &one["attempt"]).collect::<Vec<_>>(), [1, 1], "no look counted");
}

#[test]
fn a_peek_sees_dead_letters_and_what_others_hold() {
    let world = world(&[]);
    world.send("jobs-dlq", ["dead"]);
    assert!(printed(&world, &["peek", "jobs", "--dead-letters"]).ends_with("\nbody          dead\n"));
    let mut holds = start(&world, &["receive", "jobs-dlq", "--ack", "--json"]);
    until("it is held", PATIENCE, || (world.depth("jobs-dlq").in_flight == 1).then_some(()));
    assert!(printed(&world, &["peek", "jobs-dlq"]).contains("dead"));
    holds.kill().unwrap();
    holds.wait().unwrap();
}

#[test]
fn a_receive_without_ack_gives_back_what_it_printed_and_counts_no_attempt() {
    let world = world(&["one", "two", "three"]);
    for _ in 0..2 {
        let said = world.output(&["receive", "jobs"]);
        assert_eq!((said.code, said.stdout.as_str()), (0, "one\ntwo\nthree\n"), "{said:?}");
        assert_eq!(said.stderr, "hostler: 3 messages given back to jobs; --ack removes what is printed\n");
        assert_eq!(world.depth("jobs"), visible(3));
    }
    let said = world.output(&["receive", "jobs", "--json", "--max", "1"]);
    let message = &lines(&said.stdout)[0];
    assert_eq!((&message["attempt"], &message["body"]), (&json!(1), &json!("one")));
}

#[test]
fn a_receive_with_ack_removes_what_it_printed() {
    let world = world(&["one", "two", "three"]);
    let said = world.output(&["receive", "jobs", "--ack", "--max", "2"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "one\ntwo\n"), "{said:?}");
    assert_eq!(said.stderr, "hostler: 2 messages removed from jobs\n");
    assert_eq!(world.depth("jobs"), visible(1));
    // More than one call brings.
    world.send("jobs", (0..25).map(|n| format!("more {n}")));
    assert_eq!(printed(&world, &["receive", "jobs", "--ack", "--max", "100"]).lines().count(), 26);
    assert_eq!(world.depth("jobs"), visible(0));
}

#[test]
fn a_receive_waits_for_a_reply() {
    let world = world(&[]);
    let receive = start(&world, &["receive", "jobs", "--ack", "--max", "1", "--wait", "5m"]);
    world.send("jobs", ["answer"]);
    let said = ended(receive);
    assert_eq!((said.code, said.stdout.as_str()), (0, "answer\n"), "{said:?}");
}

#[test]
fn nothing_that_a_message_says_makes_a_terminal_act_or_looks_like_another() {
    let world = world(&[]);
    let hostile = "\u{1b}[2J\u{9b}31mred\u{7}\u{202e}txt\nid            forged\r\u{0}";
    let raw = [0xff, 0x1b, b'[', b'2', b'J', 0];
    std::fs::write(world.path("hostile"), hostile).unwrap();
    std::fs::write(world.path("raw"), raw).unwrap();
    printed(&world, &["send", "jobs", "--file", "hostile", "--attr", "a=\u{9b}1m\nbody          forged"]);
    printed(&world, &["send", "jobs", "--file", "raw"]);
    for args in
        [&["peek", "jobs"][..], &["peek", "jobs", "--json"], &["receive", "jobs"], &["receive", "jobs", "--json"]]
    {
        let text = printed(&world, args);
        assert!(!text.contains(|char| char != '\n' && acts(char)), "{args:?}: {text:?}");
        assert!(!text.lines().any(|line| line.ends_with(" forged") && line.len() < 30), "{args:?}: {text}");
    }
    let read = printed(&world, &["receive", "jobs"]);
    assert_eq!(read.lines().count(), 2, "a line each: {read}");
    assert_eq!(read.lines().last(), Some("base64 /xtbMkoA"));
    let shown = peek(&world, &[]);
    assert_eq!((&shown[0]["body"], &shown[1]["body"]), (&json!(hostile), &json!({ "base64": "/xtbMkoA" })));
    assert_eq!(lines(&printed(&world, &["receive", "jobs", "--json"]))[0]["body"], hostile);
}

#[test]
fn an_ordered_queue_is_read_in_its_order() {
    let world = World::new(&format!("{JOBS}ordered = true"));
    world.provision();
    for (group, body) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("a", "a3")] {
        printed(&world, &["send", "jobs", "--group", group, "--body", body]);
    }
    let shown = peek(&world, &[]);
    assert_eq!((bodies(&shown), &shown[1]["group"]), (vec!["a1", "b1", "a2", "a3"], &json!("b")));
    for _ in 0..2 {
        assert!(printed(&world, &["receive", "jobs"]).starts_with("a1\n"), "given back in its place");
    }
    let read = printed(&world, &["receive", "jobs", "--ack"]);
    let group: Vec<&str> = read.lines().filter(|body| body.starts_with('a')).collect();
    assert_eq!((group, read.lines().count()), (vec!["a1", "a2", "a3"], 4));
    for body in ["c1", "c2"] {
        printed(&world, &["send", "jobs", "--group", "c", "--body", body]);
    }
    assert_eq!(printed(&world, &["purge", "jobs", "--yes"]), "2 messages removed from jobs\n");
}

#[test]
fn an_empty_queue_and_none_are_told_apart() {
    let world = World::new(JOBS);
    let commands = [&["peek"][..], &["receive"], &["receive", "--ack"], &["purge", "--yes"]];
    let refused = |channel: &str, told: &str| {
        for args in commands {
            let said = world.output(&[args, &[channel]].concat());
            assert_eq!((said.code, said.stdout.as_str()), (69, ""), "{args:?}: {said:?}");
            assert!(said.stderr.contains(told), "{args:?}: {said:?}");
        }
    };
    refused("jobs", "there is no queue `jobs`: `hostler queues` lists the queues");
    assert!(!world.path("queue.db").exists(), "nothing is created");
    world.provision();
    refused("jbos", "there is no queue `jbos`: `hostler queues` lists the queues");
    refused("nosuch.jbos", "there is no queue `nosuch.jbos`: `hostler queues` lists the queues");
    world.send("jobs", ["stays"]);
    refused("nosuch.jobs", "there is no exchange `nosuch` that feeds the queue `jobs`");
    assert_eq!(printed(&world, &["receive", "jobs", "--ack"]), "stays\n");
    assert_eq!(printed(&world, &["peek", "jobs"]), "no messages in jobs\n");
    assert_eq!(peek(&world, &[]), [] as [Value; 0]);
    assert_eq!(printed(&world, &["purge", "jobs", "--yes"]), "0 messages removed from jobs\n");
    let said = world.output(&["receive", "jobs", "--wait", "0s"]);
    assert_eq!((said.code, said.stdout.as_str()), (1, ""), "{said:?}");
    assert!(said.stderr.contains("no message came from jobs within 0s\n  cure: wait longer by --wait"), "{said:?}");
}

/// A receive into a pipe of which the reader takes one message.
#[test]
fn a_reader_that_goes_away_loses_nothing() {
    let world = world(&["one", "two", "three"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let said = Said::new(world.command(&["receive", "jobs", "--ack"]).stdout(writer).output().unwrap());
    assert_eq!((said.code, said.stderr.as_str()), (0, "hostler: 3 messages given back to jobs\n"));
    assert_eq!(world.depth("jobs"), visible(3));

    let full = File::options().write(true).open("/dev/full").unwrap();
    let said = Said::new(world.command(&["receive", "jobs", "--ack"]).stdout(full).output().unwrap());
    assert!(said.code == 70 && said.stderr.contains("cannot write to standard output: "), "{said:?}");
    assert_eq!(world.depth("jobs"), visible(3));

    let (mut reader, writer) = std::io::pipe().unwrap();
    let receive = world.command(&["receive", "jobs", "--ack"]).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 4];
    reader.read_exact(&mut first).unwrap();
    drop(reader);
    let said = ended(receive);
    assert_eq!((&first, said.code), (b"one\n", 0));
    assert_eq!(said.stderr, "hostler: 1 message removed from jobs\nhostler: 2 messages given back to jobs\n");
    assert_eq!(bodies(&peek(&world, &[])), ["two", "three"]);
}

/// In place of a closed descriptor, Rust's runtime opens `/dev/null`, where everything can be written.
#[test]
fn a_receive_whose_output_is_closed_removes_nothing() {
    let world = world(&["one", "two", "three"]);
    let receive = |redirect: &str, ack: &str| {
        let script = format!("exec \"$0\" receive jobs {ack} {redirect}");
        Said::new(world.program("sh", &["-c", &script, env!("CARGO_BIN_EXE_hostler")]).output().unwrap())
    };
    for redirect in [">&-", "<&- >&-", "1<>/dev/null", "1</dev/null", "1</etc/passwd"] {
        let said = receive(redirect, "--ack");
        assert!(said.code == 70 && said.stderr.contains("standard output is closed"), "{redirect}: {said:?}");
        assert!(said.stderr.contains("\n  cure: open standard output"), "{redirect}: {said:?}");
        assert_eq!(world.depth("jobs"), visible(3), "{redirect}");
    }
    assert_eq!((receive(">&-", "").code, world.depth("jobs")), (0, visible(3)), "it gives all back");
    // Whoever writes this wants it so.
    let said = receive(">/dev/null", "--ack");
    assert_eq!((said.code, said.stderr.as_str()), (0, "hostler: 3 messages removed from jobs\n"));
    assert_eq!(world.depth("jobs"), visible(0));
}

#[test]
fn a_receive_that_is_ended_in_the_middle_removes_nothing_unread() {
    let world = world(&["one", "two", "three"]);
    let held = || until("it is held", PATIENCE, || (world.depth("jobs").in_flight == 3).then_some(()));
    let receive = start(&world, &["receive", "jobs", "--ack"]);
    held();
    kill_process(Pid::from_child(&receive), Signal::TERM).unwrap();
    // What it wrote is unread, and read only now: it was withdrawn before.
    until("all is given back", PATIENCE, || (world.depth("jobs") == visible(3)).then_some(()));
    let said = ended(receive);
    assert!(said.code == 1 && said.stderr.ends_with("hostler: 3 messages given back to jobs\n"), "{said:?}");

    let mut receive = start(&world, &["receive", "jobs", "--ack"]);
    held();
    receive.kill().unwrap();
    receive.wait().unwrap();
    assert_eq!(bodies(&peek(&world, &[])), ["one", "two", "three"]);
}

#[test]
fn two_at_once_share_the_messages() {
    let world = world(&[]);
    let sent: BTreeSet<String> = (0..60).map(|n| format!("message {n}")).collect();
    world.send("jobs", &sent);
    let both = [(); 2].map(|()| start(&world, &["receive", "jobs", "--ack", "--max", "100"]));
    let read: Vec<String> = both.into_iter().map(|one| ended(one).stdout).collect();
    let all: Vec<&str> = read.iter().flat_map(|text| text.lines()).collect();
    assert_eq!((all.len(), all.iter().map(|line| (*line).to_owned()).collect()), (60, sent));
    assert_eq!(world.depth("jobs"), visible(0));
    world.send("jobs", (0..60).map(|n| n.to_string()));
    let both = [(); 2].map(|()| start(&world, &["purge", "jobs", "--yes", "--json"]));
    let removed =
        both.map(|one| serde_json::from_str::<Value>(&ended(one).stdout).unwrap()["removed"].as_u64().unwrap());
    assert_eq!((removed.iter().sum::<u64>(), world.depth("jobs")), (60, visible(0)), "{removed:?}");
}

#[test]
fn a_purge_removes_what_is_visible_and_only_with_a_yes() {
    let world = world(&["one", "two"]);
    printed(&world, &["send", "jobs", "--body", "later", "--delay", "15m"]);
    let said = world.output(&["purge", "jobs"]);
    assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{said:?}");
    assert!(said.stderr.contains("standard input is not a terminal") && said.stderr.contains("add --yes"), "{said:?}");
    assert_eq!(world.depth("jobs").visible, 2);
    let expected = "2 messages removed from jobs, 1 not inspected (delayed, or in flight)\n";
    assert_eq!(printed(&world, &["purge", "jobs", "--yes"]), expected);
    assert_eq!(world.depth("jobs"), Depth { delayed: 1, ..Depth::default() });
    let counts: Value = serde_json::from_str(&printed(&world, &["purge", "jobs", "--yes", "--json"])).unwrap();
    assert_eq!(counts, json!({ "removed": 0, "failed": 0, "not_looked_at": 1, "stopped": false }));
}

/// Runs a command on a terminal, and answers its question.
const TERMINAL: &str = "
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
said = b''
def read():
    global said
    try:
        part = os.read(fd, 4096)
    except OSError:
        part = b''
    said += part
    return part
while b'[y/N]' not in said and read(): pass
os.write(fd, sys.argv[1].encode() + b'\\n')
while read(): pass
sys.stdout.buffer.write(said)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

#[test]
fn a_purge_asks_on_a_terminal() {
    let world = world(&["one", "two"]);
    let answered = |answer| {
        let args = ["-c", TERMINAL, answer, env!("CARGO_BIN_EXE_hostler"), "purge", "jobs"];
        Said::new(world.program("python3", &args).output().unwrap())
    };
    for answer in ["n", "", "jobs"] {
        let said = answered(answer);
        let asked = "jobs has 2 messages, and 0 delayed and 0 in flight that stay. Remove them for good? [y/N]";
        assert!(said.code == 1 && said.stdout.contains(asked), "{said:?}");
        assert!(said.stdout.contains("nothing was removed from jobs"), "{said:?}");
        assert_eq!(world.depth("jobs"), visible(2));
    }
    let said = answered("y");
    assert!(said.code == 0 && said.stdout.contains("2 messages removed from jobs"), "{said:?}");
    assert_eq!(world.depth("jobs"), visible(0));
}

/// A reader that takes ten minutes for each message, and this many messages.
struct Slow(usize);

#[async_trait]
impl Outlet for Slow {
    async fn put(&mut self, _: &Arc<Message>, _: u32) -> io::Result<()> {
        tokio::time::sleep(Duration::from_secs(600)).await;
        self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(())
    }
}

/// Three messages on the fake, received by such a reader.
async fn read_slowly(fake: &FakeBroker, takes: usize) -> (ReceiveReport, ReceiveEnd, u64) {
    let channel: Channel = "jobs".parse().unwrap();
    fake.open(&ChannelSpec::new(channel.clone())).await.unwrap();
    let message = |body: &str| Outgoing { body: body.into(), ..Outgoing::default() };
    let sent = fake.send(&channel, ["one", "two", "three"].map(message).to_vec()).await;
    assert!(sent.iter().all(Result::is_ok));
    let request = ReceiveRequest { from: channel.clone(), ack: true, max: 3, wait: Duration::ZERO };
    let (report, end) = receive(fake, request, &Default::default(), &mut Slow(takes)).await.unwrap();
    let left = fake.depths(&[channel]).await.unwrap()[0].visible;
    (report, end, left)
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_loses_no_lease() {
    let fake = FakeBroker::default();
    let (report, end, left) = read_slowly(&fake, 3).await;
    assert!(matches!(end, ReceiveEnd::Done) && report.unremoved.is_empty(), "{report:?} {end:?}");
    assert_eq!((report.handed_out, report.removed, left), (3, 3, 0));
    let (report, end, left) = read_slowly(&FakeBroker::default(), 1).await;
    assert!(matches!(end, ReceiveEnd::Unwritten(_)), "{end:?}");
    assert_eq!((report.removed, report.given_back, left), (1, 2, 2));
}

#[tokio::test(start_paused = true)]
async fn what_was_printed_and_not_removed_is_told() {
    let fake = FakeBroker::default();
    fake.fail_settles(1, &LeaseError::Retry("not now".into()));
    assert_eq!(read_slowly(&fake, 3).await.0.removed, 3, "tried again");
    fake.fail_settles(1, &LeaseError::Lost("gone".into()));
    let (report, ..) = read_slowly(&fake, 3).await;
    assert_eq!((report.handed_out, report.removed, report.unremoved.len()), (3, 0, 3));
}

/// Standard and ordered queues on a server, whose looks are receives.
fn on_sqs(kind: Kind) {
    let world = Aws::new(
        kind,
        &format!("{JOBS}[consumers.line]\nchannel = 'line'\nordered = true\nhandler = 'guests/run-tell.wat'"),
    );
    world.provision();
    std::fs::write(world.path("raw"), [0xff, 0x1b, 0]).unwrap();
    world.send("jobs", (0..14).map(|n| format!("message {n}")));
    printed(&world, &["send", "jobs", "--file", "raw", "--attr", "tenant=7"]);
    let back = |count| until("all is given back", PATIENCE, || (world.counts("jobs") == [count, 0, 0]).then_some(()));

    let said = world.output(&["peek", "jobs", "--max", "100", "--json"]);
    assert!(
        said.code == 0 && said.stderr.contains("hidden from consumers meanwhile: SQS counts an attempt on each"),
        "{said:?}"
    );
    let shown: Vec<Value> = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(shown.len(), 15, "{said:?}");
    let raw = shown.iter().find(|one| one["body"]["base64"] == "/xsA").unwrap();
    assert_eq!(raw["attributes"]["tenant"], "7", "{raw}");
    back(15);
    let said = world.output(&["receive", "jobs", "--json", "--max", "100"]);
    assert_eq!((said.code, lines(&said.stdout).len()), (0, 15), "{said:?}");
    assert!(lines(&said.stdout).iter().all(|one| one["attempt"] == 2), "the look counted: {said:?}");
    let told = "15 messages given back to jobs; SQS counts an attempt on each; --ack removes what is printed";
    assert!(said.stderr.contains(told), "{said:?}");
    back(15);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let receive = world.command(&["receive", "jobs", "--ack"]).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    reader.read_exact(&mut [0; 4]).unwrap();
    drop(reader);
    let said = ended(receive);
    assert!(said.code == 0 && said.stderr.contains("given back to jobs"), "{said:?}");
    until("what was not read is back", PATIENCE, || world.counts("jobs")[1..].iter().all(|n| *n == 0).then_some(()));
    let left = world.counts("jobs")[0];
    assert!([14, 15].contains(&left), "{left}: {said:?}");
    let said = world.output(&["receive", "jobs", "--ack", "--max", "4"]);
    assert_eq!((said.code, said.stdout.lines().count(), world.counts("jobs")), (0, 4, [left - 4, 0, 0]), "{said:?}");
    let said = world.output(&["purge", "jobs", "--yes"]);
    assert_eq!((said.code, said.stdout), (0, format!("{} messages removed from jobs\n", left - 4)));
    assert_eq!(world.counts("jobs"), [0, 0, 0]);
    assert_eq!(world.output(&["receive", "jobs"]).code, 1);
    let said = world.output(&["peek", "jbos"]);
    assert!(said.code == 69 && said.stderr.contains("there is no SQS queue"), "{said:?}");

    for n in 0..12 {
        printed(&world, &["send", "line", "--group", "g", "--body", &format!("{n:02}")]);
    }
    let read = printed(&world, &["receive", "line", "--ack", "--max", "11"]);
    assert_eq!(read.lines().collect::<Vec<_>>(), (0..11).map(|n| format!("{n:02}")).collect::<Vec<_>>());
    assert_eq!(printed(&world, &["purge", "line", "--yes"]), "1 message removed from line\n");
}

#[test]
fn on_sqs_it_is_the_same_and_the_cost_is_told() {
    on_sqs(Kind::Ministack);
}

#[test]
fn on_another_server_too() {
    on_sqs(Kind::LocalStack);
}

/// Bodies that lie in S3 are fetched.
#[test]
fn bodies_that_lie_elsewhere_are_shown() {
    let world = Aws::new(Kind::Ministack, JOBS);
    let bucket = format!("{}bodies", world.prefix);
    world.python(
        "s3.create_bucket(Bucket=sys.argv[1], CreateBucketConfiguration={'LocationConstraint': 'eu-west-1'})",
        &[&bucket],
    );
    world.config(&format!("payload = {{ bucket = '{bucket}', threshold = '1KiB' }}\n{JOBS}"));
    world.provision();
    let large = "x".repeat(4000);
    printed(&world, &["send", "jobs", "--body", &large]);
    let shown: Vec<Value> = serde_json::from_str(&printed(&world, &["peek", "jobs", "--json"])).unwrap();
    assert_eq!((&shown[0]["body"], &shown[0]["body_at"]), (&json!(large), &Value::Null));
    let read = printed(&world, &["receive", "jobs", "--ack"]);
    assert_eq!(read.trim_end(), large);
    // Without the bucket, the body cannot be had, and its message stays.
    printed(&world, &["send", "jobs", "--body", &large]);
    world.config(JOBS);
    let said = world.output(&["peek", "jobs", "--json"]);
    let shown: Vec<Value> = serde_json::from_str(&said.stdout).unwrap();
    assert!(said.code == 0 && said.stderr.contains("is shown without its body: "), "{said:?}");
    assert!(shown[0]["body_at"].as_str().is_some_and(|at| at.starts_with(&format!("s3://{bucket}/"))), "{shown:?}");
    let said = world.output(&["receive", "jobs", "--ack"]);
    assert_eq!((said.code, said.stdout.as_str()), (1, ""), "{said:?}");
    assert!(said.stderr.contains("is not printed and stays in jobs: cannot read its body: "), "{said:?}");
    until("it stays", PATIENCE, || (world.counts("jobs") == [1, 0, 0]).then_some(()));
}
