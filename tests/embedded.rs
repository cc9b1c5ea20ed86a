//! Behaviour of the embedded driver alone: one file shared by processes, crashes, and damaged files.

mod clock;
mod commands;
mod damage;
mod moved;

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hostler_queue::{
    Admin, Broker, ChannelSpec, Delivery, Depth, LeaseError, Queue, QueueError, Receive, SendError, Settlement,
};
use hostler_queue_embedded::EmbeddedBroker;
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;
use rusqlite::Connection;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(120);

fn jobs() -> Channel {
    "jobs".parse().unwrap()
}

async fn open(path: &Path) -> (EmbeddedBroker, Arc<dyn Queue>) {
    let broker = EmbeddedBroker::open(path).unwrap();
    let spec = ChannelSpec { max_receives: Some(9), ..ChannelSpec::new(jobs()) };
    let queue = broker.open(&spec).await.unwrap();
    (broker, queue)
}

fn message(body: &str) -> Outgoing {
    Outgoing { body: body.into(), ..Outgoing::default() }
}

async fn send(broker: &EmbeddedBroker, count: usize) -> Vec<String> {
    broker.send(&jobs(), vec![message("a"); count]).await.into_iter().map(|sent| sent.unwrap().id).collect()
}

async fn receive(queue: &Arc<dyn Queue>, wait: Duration) -> Vec<Delivery> {
    queue.receive(Receive { max: 10, wait, lease: LEASE }, &CancellationToken::new()).await.unwrap()
}

async fn ack(queue: &Arc<dyn Queue>, deliveries: Vec<Delivery>) {
    let batch = deliveries.into_iter().map(|delivery| Settlement::Ack(delivery.receipt)).collect();
    assert!(queue.settle(batch).await.iter().all(Result::is_ok));
}

/// Looks until it is `reached`; for what tells nobody that it happens.
async fn until(mut reached: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached().await {
        assert!(Instant::now() < deadline, "it did not come true");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Another process: this binary again, in one of the roles of [`child`]. It ends with the test.
struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Process {
    fn start(role: &str, path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "embedded::child", "--ignored", "--nocapture"])
            .envs([("HOSTLER_TEST_ROLE", role), ("HOSTLER_TEST_QUEUE", path.to_str().unwrap())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix("child: ") {
                    let _ = sender.send(line.to_owned());
                }
            }
        });
        let process = Self { child, lines };
        assert_eq!(process.line(PATIENCE).as_deref(), Some("ready"));
        process
    }

    /// Its next line; nothing if there is none in time, or ever.
    fn line(&self, patience: Duration) -> Option<String> {
        self.lines.recv_timeout(patience).ok()
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    /// Ends it as a power switch would, and answers what it had still said.
    fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => panic!("its output did not end"),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(line: impl std::fmt::Display) {
    println!("child: {line}");
}

fn micros() -> i128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros().cast_signed()
}

#[tokio::test]
#[ignore = "other tests run it as a process of its own"]
async fn child() {
    let Ok(role) = std::env::var("HOSTLER_TEST_ROLE") else { return };
    let path = std::env::var_os("HOSTLER_TEST_QUEUE").unwrap();
    let (broker, queue) = open(Path::new(&path)).await;
    // What libtest has printed before the test has no end of line.
    println!();
    say("ready");
    match role.as_str() {
        "receive" => loop {
            let received = receive(&queue, Duration::from_secs(20)).await;
            let ids: Vec<_> = received.iter().map(|delivery| delivery.message.id.clone()).collect();
            ack(&queue, received).await;
            ids.iter().for_each(say);
        },
        "send" => loop {
            send(&broker, 5).await.iter().for_each(say);
        },
        "send-on-demand" => {
            for _ in std::io::stdin().lines() {
                send(&broker, 1).await;
                say(micros());
            }
        }
        other => panic!("no such role: {other}"),
    }
}

#[tokio::test]
async fn processes_share_the_messages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, _queue) = open(&path).await;
    let processes = [Process::start("receive", &path), Process::start("receive", &path)];
    let (mut sent, mut received) = (Vec::new(), [Vec::new(), Vec::new()]);
    while sent.len() < 2000 || received.iter().any(Vec::is_empty) {
        sent.extend(send(&broker, 100).await);
        assert!(sent.len() < 20_000, "one process receives nothing");
        for (process, received) in processes.iter().zip(&mut received) {
            received.extend(process.lines.try_iter());
        }
    }
    until(async || {
        for (process, received) in processes.iter().zip(&mut received) {
            received.extend(process.lines.try_iter());
        }
        received.iter().map(Vec::len).sum::<usize>() >= sent.len()
    })
    .await;

    let mut received = received.concat();
    received.sort_unstable();
    sent.sort_unstable();
    assert_eq!(received, sent, "each message once");
    assert_eq!(broker.depths(&[jobs()]).await.unwrap()[0].total(), 0);
}

#[tokio::test]
async fn sender_in_another_process_wakes_a_receive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (_broker, queue) = open(&path).await;
    let mut sender = Process::start("send-on-demand", &path);
    let mut late = Vec::new();
    for _ in 0..11 {
        let (received, ()) = tokio::join!(receive(&queue, Duration::from_secs(20)), async { sender.go() });
        let woken = micros();
        let sent: i128 = sender.line(PATIENCE).unwrap().parse().unwrap();
        late.push(woken - sent);
        ack(&queue, received).await;
    }
    late.sort_unstable();
    // The middle one, as a busy machine may be late itself now and then.
    assert!(late[5] < 50_000, "late by (µs) {late:?}");
}

#[tokio::test]
async fn killed_sender_loses_nothing_it_was_answered_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let sender = Process::start("send", &path);
    let mut answered: Vec<String> = (0..200).map(|_| sender.line(PATIENCE).unwrap()).collect();
    answered.extend(sender.kill());

    let (_broker, queue) = open(&path).await;
    let mut found = HashSet::new();
    loop {
        let received = receive(&queue, Duration::ZERO).await;
        if received.is_empty() {
            break;
        }
        assert!(received.iter().all(|delivery| found.insert(delivery.message.id.clone())), "twice");
        ack(&queue, received).await;
    }
    assert!(answered.iter().all(|id| found.contains(id)));
    assert_eq!(found.len() % 5, 0, "a batch is sent as a whole");
}

#[tokio::test]
async fn dropped_receive_takes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (broker, queue) = open(&folder.path().join("queue.db")).await;
    let mut dropped = Box::pin(receive(&queue, Duration::from_secs(20)));
    assert!(is_pending(&mut dropped).await);
    drop(dropped);
    send(&broker, 1).await;
    let received = receive(&queue, Duration::ZERO).await;
    assert_eq!(received.iter().map(|delivery| delivery.attempt).collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn dropped_receive_gives_back() {
    let folder = tempfile::tempdir().unwrap();
    let (broker, queue) = open(&folder.path().join("queue.db")).await;
    let mut dropped = Box::pin(receive(&queue, Duration::from_secs(20)));
    assert!(is_pending(&mut dropped).await);
    send(&broker, 1).await;
    until(async || broker.depths(&[jobs()]).await.unwrap()[0].in_flight == Some(1)).await;
    drop(dropped);
    let received = receive(&queue, Duration::from_secs(20)).await;
    assert_eq!(received.iter().map(|delivery| delivery.attempt).collect::<Vec<_>>(), [2]);
}

/// Here the receive is dropped at various moments while the thread is about to take, which the lock makes it wait for.
#[tokio::test]
async fn receive_dropped_at_any_moment_gives_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, queue) = open(&path).await;
    let meddler = Connection::open(&path).unwrap();
    for moment in 0..7 {
        send(&broker, 1).await;
        meddler.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut dropped = Box::pin(receive(&queue, Duration::from_secs(20)));
        assert!(is_pending(&mut dropped).await);
        tokio::time::sleep(Duration::from_millis(moment)).await;
        drop(dropped);
        meddler.execute_batch("COMMIT").unwrap();
        let received = receive(&queue, Duration::from_secs(20)).await;
        assert_eq!(received.len(), 1);
        ack(&queue, received).await;
    }
}

async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending()))
        .await
}

#[tokio::test]
async fn failing_command_does_not_undo_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, queue) = open(&path).await;
    let meddler = Connection::open(&path).unwrap();
    let trigger = "CREATE TRIGGER poison BEFORE INSERT ON content WHEN NEW.body = CAST('poison' AS BLOB)
                   BEGIN SELECT raise(ABORT, 'poisoned'); END; BEGIN IMMEDIATE;";
    meddler.execute_batch(trigger).unwrap();

    // While the meddler has the lock, the commands gather.
    let send_one = async |body| broker.send(&jobs(), vec![message(body)]).await.remove(0);
    let unlock = async { meddler.execute_batch("COMMIT").unwrap() };
    let sent = tokio::join!(send_one("first"), send_one("poison"), send_one("last"), unlock);
    assert!(sent.0.is_ok() && sent.2.is_ok());
    let error = sent.1.unwrap_err();
    assert!(matches!(&error, SendError::Queue(QueueError::Unavailable(text)) if text.contains("poisoned")), "{error}");
    let received = receive(&queue, Duration::ZERO).await;
    assert_eq!(received.iter().map(|delivery| &*delivery.message.body).collect::<Vec<_>>(), [&b"first"[..], b"last"]);
}

#[tokio::test]
async fn lock_that_stays_makes_it_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, queue) = open(&path).await;
    send(&broker, 1).await;
    let leased = receive(&queue, Duration::ZERO).await.remove(0);
    let meddler = Connection::open(&path).unwrap();
    meddler.execute_batch("BEGIN IMMEDIATE").unwrap();
    let channel = jobs();
    let (mut sent, mut settled) =
        tokio::join!(broker.send(&channel, vec![message("a")]), queue.settle(vec![Settlement::Ack(leased.receipt)]),);
    let error = sent.remove(0).unwrap_err();
    assert!(matches!(&error, SendError::Queue(QueueError::Unavailable(text)) if text.contains("locked")), "{error}");
    let unsettled = settled.remove(0).unwrap_err();
    assert!(matches!(unsettled.error, LeaseError::Retry(_)), "{:?}", unsettled.error);
    meddler.execute_batch("COMMIT").unwrap();
    assert!(queue.settle(vec![unsettled.settlement]).await.remove(0).is_ok());
}

#[tokio::test]
async fn everything_ends_with_the_last_queue() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, queue) = open(&path).await;
    send(&broker, 1).await;
    drop(broker);
    assert_eq!(receive(&queue, Duration::ZERO).await.len(), 1, "a queue works without its broker");
    drop(queue);
    // The last connection removes it when it is closed.
    until(async || !folder.path().join("queue.db-wal").exists()).await;
}

#[test]
fn first_opens_may_race() {
    for _ in 0..60 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.db");
        std::thread::scope(|scope| {
            let open = || EmbeddedBroker::open(&path).map(drop);
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(open)).collect();
            for thread in threads {
                assert_eq!(thread.join().unwrap(), Ok(()));
            }
        });
    }
}

#[tokio::test]
async fn only_its_user_can_read_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (broker, _queue) = open(&folder.path().join("queue.db")).await;
    send(&broker, 1).await;
    for name in ["queue.db", "queue.db-wal", "queue.db-shm"] {
        let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test]
async fn who_only_looks_sees_what_is_there_and_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, _queue) = open(&path).await;
    send(&broker, 2).await;
    let looker = EmbeddedBroker::open_to_look(&path).unwrap();
    assert_eq!(looker.depths(&[jobs()]).await.unwrap()[0].visible, 2);
    let refused = looker.send(&jobs(), vec![message("a")]).await.remove(0).unwrap_err();
    assert!(matches!(&refused, SendError::Queue(QueueError::Refused(_))), "{refused}");
    assert_eq!(broker.depths(&[jobs()]).await.unwrap()[0].visible, 2);

    let missing = folder.path().join("missing/queue.db");
    let looker = EmbeddedBroker::open_to_look(&missing).unwrap();
    assert_eq!(looker.channels().await.unwrap(), []);
    let missing = Depth { missing: true, delayed: Some(0), in_flight: Some(0), ..Depth::default() };
    assert_eq!(looker.depths(&[jobs()]).await.unwrap(), [missing]);
    assert!(looker.send(&jobs(), vec![message("a")]).await.remove(0).is_err(), "it would be lost");
    assert!(!folder.path().join("missing").exists());
}

/// Opening must be refused, with a text that names the file and contains `cure`.
fn assert_refused(path: &Path, cure: &str) {
    let error = EmbeddedBroker::open(path).unwrap_err();
    let QueueError::Refused(text) = &error else { panic!("not refused: {error}") };
    assert!(text.contains(cure) && text.contains(path.to_str().unwrap()), "{text}");
}

#[test]
fn foreign_files_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "Not a database, but long enough to be looked at. ".repeat(100)).unwrap();
    let before = fs::read(&path).unwrap();
    assert_refused(&path, "not a hostler queue");
    assert_eq!(fs::read(&path).unwrap(), before);

    let path = folder.path().join("other.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE mine (x)").unwrap();
    let before = fs::read(&path).unwrap();
    assert_refused(&path, "not a hostler queue");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn newer_layout_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    drop(open(&path).await);
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 1000).unwrap();
    assert_refused(&path, "layout 1000");
}

#[test]
fn places_that_cannot_hold_it_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert_refused(&folder.path().join("missing/queue.db"), "create its folder");
    assert_refused(folder.path(), "it is a folder");
    assert_refused(&read_only_folder(&folder).join("queue.db"), "must be writable");
}

/// A folder where this user may not create files; for root that is one of the kernel's.
fn read_only_folder(folder: &TempDir) -> std::path::PathBuf {
    let path = folder.path().join("read-only");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o500)).unwrap();
    match fs::write(path.join("probe"), "") {
        Ok(()) => "/sys/kernel".into(),
        Err(_) => path,
    }
}

#[tokio::test]
async fn damaged_file_is_refused_when_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, queue) = open(&path).await;
    send(&broker, 100).await;
    drop((broker, queue));
    until(async || !folder.path().join("queue.db-wal").exists()).await;
    let mut bytes = fs::read(&path).unwrap();
    // The first page tells what the file is and where its tables are; it stays.
    bytes[4096..].fill(0xa5);
    fs::write(&path, bytes).unwrap();

    let error = EmbeddedBroker::open(&path).map(drop).unwrap_err();
    assert!(matches!(&error, QueueError::Refused(text) if text.contains("damaged")), "{error}");
}
