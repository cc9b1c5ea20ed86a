//! Figures of the retry service on a real NATS server: `benches/retry.sh`, which starts the server.
//!
//! Measures the real binary as a black box, and fails if a target is missed:
//!
//! - `ingest`: messages a second that are stored durably and answered.
//! - `lateness`: the time from which a message is due until its receiver has it, at 5,000 due a second. The messages are
//!   stored before, in any order, beside a subject that is closed, subjects whose receivers do not answer, and a backlog.
//! - `memory`: the resident memory with many stored messages, half of which are due to subjects to which nobody listens.
//! - `adoption`: the time in which an instance takes over the messages of a dead one.
//!
//! Arguments: the names of what is measured; all without any. SCALE divides the numbers of messages, for a try.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use futures_util::StreamExt as _;
use hostler_queue_embedded::{EmbeddedBroker, NewMessage, OwnedQueues, Turn};
use hostler_retry::envelope;
use hostler_retry::settings::{Growth, Settings};
use hostler_types::channel::Channel;
use tokio::runtime::Runtime;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Names of the queues of a store, and of its dead-letter queue.
const QUEUES: [&str; 3] = ["retry-high", "retry", "retry-low"];
const DEAD: &str = "retry-dlq";

/// Folder of a store.
const STORE: &str = "0199aa11-7c00-7000-8000-000000000000";

/// Size of a body.
const BODY: usize = 1024;

/// Messages due a second.
const RATE: usize = 5_000;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn main() -> Result<()> {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let bench = Bench::new()?;
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let mut missed = 0;
    for (name, measure) in MEASUREMENTS {
        if is_wanted(name) {
            let figure = measure(&bench)?;
            println!("{name:<10} {}", figure.text);
            missed += usize::from(!figure.is_met);
        }
    }
    if missed > 0 && bench.scale == 1 {
        return Err(format!("{missed} targets were missed").into());
    }
    Ok(())
}

type Measurement = fn(&Bench) -> Result<Figure>;

const MEASUREMENTS: [(&str, Measurement); 4] =
    [("ingest", ingest), ("lateness", lateness), ("memory", memory), ("adoption", adoption)];

/// A result, and if it meets its target.
struct Figure {
    text: String,
    is_met: bool,
}

struct Bench {
    url: String,
    hostler: PathBuf,
    /// Number by which all numbers of messages are divided.
    scale: usize,
    runtime: Runtime,
}

impl Bench {
    fn new() -> Result<Self> {
        let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set: run benches/retry.sh"));
        Ok(Self {
            url: variable("NATS_URL")?,
            hostler: variable("HOSTLER_BIN")?.into(),
            scale: std::env::var("SCALE").map_or(Ok(1), |text| text.parse())?,
            runtime: tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?,
        })
    }

    /// Starts the service on the stores of a folder. Waits until it takes messages.
    fn start(&self, folder: &Path) -> Result<Service> {
        fs::write(folder.join("hostler.toml"), format!("[host]\nhealth_file = {:?}\n", folder.join("health.json")))?;
        let mut process = Command::new(&self.hostler)
            .args(["retry", "--config"])
            .arg(folder.join("hostler.toml"))
            .env_clear()
            .env("HOSTLER_RETRY__NATS", &self.url)
            .env("HOSTLER_RETRY__STORE", folder.join("retry"))
            .env("HOSTLER_RETRY__ACK_TIMEOUT", "30s")
            .env("HOSTLER_TELEMETRY__LOG", "json")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let log = process.stderr.take().ok_or("no log")?;
        let mut log = BufReader::new(log);
        let mut line = String::new();
        while !line.contains("the retry service takes messages") {
            line.clear();
            if log.read_line(&mut line)? == 0 {
                return Err("the service has ended before it took messages".into());
            }
        }
        // A pipe that nobody reads would hold it up.
        thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Ok(Service { process })
    }
}

/// A running service. Dropping this value kills it.
struct Service {
    process: Child,
}

impl Service {
    /// Returns a number of `/proc/PID/status` in MiB.
    fn memory(&self, name: &str) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("the service has ended")?;
        let kib: f64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse()?;
        Ok(kib / 1024.0)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A store that no process has locked.
struct Store {
    _broker: EmbeddedBroker,
    queues: OwnedQueues,
    /// Number of milliseconds by which the store's clock is ahead of the wall clock.
    ahead: i64,
    batch: Vec<NewMessage>,
    stored: usize,
}

impl Store {
    async fn create(folder: &Path, name: &str) -> Result<Self> {
        let folder = folder.join("retry").join(name);
        fs::create_dir_all(&folder)?;
        File::create(folder.join("lock"))?;
        let broker = EmbeddedBroker::open(&folder.join("queue.db"))?;
        let channels: Vec<Channel> = QUEUES.iter().map(|name| name.parse()).collect::<std::result::Result<_, _>>()?;
        let queues = broker.own(&channels, &DEAD.parse()?).await?;
        let ahead = queues.now() - wall_millis();
        Ok(Self { _broker: broker, queues, ahead, batch: Vec::new(), stored: 0 })
    }

    /// Stores a message. `due`: milliseconds of the wall clock, which the body begins with.
    async fn add(&mut self, subject: &str, due: i64, queue: usize) -> Result<()> {
        let settings = Settings {
            retries: 20,
            ttl: None,
            delay: Duration::ZERO,
            backoff: Growth::Fixed,
            base: SECOND,
            max: HOUR,
            priority: queue,
        };
        let mut body = due.to_le_bytes().to_vec();
        body.resize(BODY, b'x');
        self.stored += 1;
        self.batch.push(NewMessage {
            queue,
            id: format!("{:032}", self.stored),
            subject: subject.to_owned(),
            attributes: envelope::seal(&settings, Vec::new()),
            body: body.into(),
            attempts: 0,
            enqueued_at: self.queues.now(),
            due: due + self.ahead,
            parked: false,
        });
        if self.batch.len() >= 10_000 { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<()> {
        let turn = Turn { new: std::mem::take(&mut self.batch), ..Turn::default() };
        self.queues.turn(turn).await?;
        Ok(())
    }
}

#[allow(clippy::disallowed_methods, reason = "another process can only be looked at again")]
fn pause(time: Duration) {
    thread::sleep(time);
}

fn wall_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Closes the files of the stores that were filled, so that the service finds them as after the end of a process.
fn close_files() {
    hostler_queue_embedded::close(Duration::from_secs(60));
}

fn ingest(bench: &Bench) -> Result<Figure> {
    const OPEN: usize = 4_096;
    let folder = tempfile::tempdir()?;
    let _service = bench.start(folder.path())?;
    let count = 200_000 / bench.scale;
    let took = bench.runtime.block_on(async {
        let client = async_nats::connect(&bench.url).await?;
        let inbox = client.new_inbox();
        let mut replies = client.subscribe(inbox.clone()).await?;
        let mut headers = HeaderMap::new();
        headers.insert("Hostler-Delay", "1h");
        let body = Bytes::from(vec![b'x'; BODY]);
        let start = Instant::now();
        let (mut sent, mut stored) = (0, 0);
        while stored < count {
            while sent < count && sent - stored < OPEN {
                let subject = format!("retry.bench.{}", sent % 100);
                client.publish_with_reply_and_headers(subject, inbox.clone(), headers.clone(), body.clone()).await?;
                sent += 1;
            }
            let reply = tokio::time::timeout(30 * SECOND, replies.next()).await?.ok_or("the connection is lost")?;
            if reply.headers.is_some() {
                return Err(format!("a message was refused: {:?}", reply.headers).into());
            }
            stored += 1;
        }
        Ok::<_, Box<dyn Error>>(start.elapsed())
    })?;
    let rate = count as f64 / took.as_secs_f64();
    let text = format!("{rate:>8.0} messages a second stored durably, {BODY} B each (target: 10,000)");
    Ok(Figure { text, is_met: rate >= 10_000.0 })
}

fn lateness(bench: &Bench) -> Result<Figure> {
    let folder = tempfile::tempdir()?;
    let seconds = (60 / bench.scale).max(5);
    let count = RATE * seconds;
    let trouble = 100_000 / bench.scale;
    let mut store = bench.runtime.block_on(Store::create(folder.path(), STORE))?;
    // The first becomes due when everything runs.
    let lead = 20_000 + i64::try_from((count + 2 * trouble) / 20)?;
    let start = wall_millis() + lead;
    let mut dues: Vec<_> = (0..count).map(|n| start + i64::try_from(n * 1_000 / RATE).unwrap_or(0)).collect();
    fastrand::shuffle(&mut dues);
    bench.runtime.block_on(async {
        for number in 0..trouble {
            let past = start - lead - 60_000;
            let hanging = format!("hangs.{}", number % 50);
            let subject = match number % 4 {
                0 => "closed",
                1 => "backlog",
                2 => "silent.a",
                _ => &*hanging,
            };
            store.add(subject, past, 1).await?;
        }
        for due in dues {
            let subject = format!("works.{}", fastrand::u32(..100));
            store.add(&subject, due, fastrand::usize(..3)).await?;
        }
        store.flush().await
    })?;
    drop(store);
    close_files();
    let measured = bench.runtime.block_on(async {
        let client = async_nats::connect(&bench.url).await?;
        spawn_answers(&client, "backlog", "+ACK").await?;
        spawn_answers(&client, "closed", "-NAK {\"delay\": 3600}").await?;
        let mut hanging = client.subscribe("hangs.*").await?;
        tokio::spawn(async move { while hanging.next().await.is_some() {} });
        let works = client.subscribe("works.*").await?;
        client.flush().await?;
        let _service = bench.start(folder.path())?;
        if wall_millis() > start {
            return Err("the store was not filled in time: the machine is too slow".into());
        }
        receive(&client, works, count, Duration::from_secs(120 + seconds as u64)).await
    })?;
    let quantile = |of: f64| measured[((measured.len() - 1) as f64 * of) as usize];
    let (median, p99, last) = (quantile(0.5), quantile(0.99), quantile(1.0));
    let text = format!(
        "p99 {p99:.1} ms, median {median:.1} ms, longest {last:.1} ms late, {count} messages (target: p99 below 20 ms)"
    );
    Ok(Figure { text, is_met: p99 < 20.0 })
}

/// Acknowledges messages. Returns their lateness in milliseconds, sorted.
async fn receive(
    client: &Client,
    mut messages: async_nats::Subscriber,
    count: usize,
    patience: Duration,
) -> Result<Vec<f64>> {
    let mut late = Vec::with_capacity(count);
    let deadline = Instant::now() + patience;
    while late.len() < count {
        let left = deadline.saturating_duration_since(Instant::now());
        let message = tokio::time::timeout(left, messages.next()).await;
        let message = message.map_err(|_| format!("{} of {count} messages have come", late.len()))?;
        let message = message.ok_or("the connection is lost")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1_000.0;
        let due = message.payload.first_chunk().map(|bytes| i64::from_le_bytes(*bytes)).ok_or("a foreign message")?;
        if let Some(reply) = message.reply {
            client.publish(reply, "+ACK".into()).await?;
        }
        late.push(now - due as f64);
    }
    late.sort_unstable_by(f64::total_cmp);
    Ok(late)
}

/// Gives the same answer to all messages of a subject.
async fn spawn_answers(client: &Client, subject: &'static str, answer: &'static str) -> Result<()> {
    let mut messages = client.subscribe(subject).await?;
    let client = client.clone();
    tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            if let Some(reply) = message.reply {
                let _ = client.publish(reply, answer.into()).await;
            }
        }
    });
    Ok(())
}

fn memory(bench: &Bench) -> Result<Figure> {
    let folder = tempfile::tempdir()?;
    let count = 10_000_000 / bench.scale;
    bench.runtime.block_on(async {
        let mut store = Store::create(folder.path(), STORE).await?;
        let now = wall_millis();
        for number in 0..count {
            // Half of them are due: to subjects to which nobody listens. The others are due within two days.
            let later = now + 3_600_000 + i64::try_from(number % 100_000)? * 1_700;
            let due = if number % 2 == 0 { now - 1 } else { later };
            store.add(&format!("nobody.{}", number % 1_000), due, number % 3).await?;
        }
        store.flush().await
    })?;
    close_files();
    let service = bench.start(folder.path())?;
    // It works through what is due.
    for _ in 0..(120 / bench.scale.min(12)) {
        pause(SECOND);
        service.memory("VmRSS")?;
    }
    let (now, most) = (service.memory("VmRSS")?, service.memory("VmHWM")?);
    let text = format!("{most:.0} MiB at most, {now:.0} MiB now, with {count} stored messages (target: 300 MiB)");
    Ok(Figure { text, is_met: most <= 300.0 })
}

fn adoption(bench: &Bench) -> Result<Figure> {
    let folder = tempfile::tempdir()?;
    let count = 1_000_000 / bench.scale;
    let _service = bench.start(folder.path())?;
    // Hidden from the service until it is complete.
    let hidden = tempfile::tempdir_in(folder.path())?;
    bench.runtime.block_on(async {
        let mut store = Store::create(hidden.path(), STORE).await?;
        let later = wall_millis() + 86_400_000;
        for number in 0..count {
            store.add(&format!("adopted.{}", number % 1_000), later, number % 3).await?;
        }
        store.flush().await
    })?;
    close_files();
    let shown = folder.path().join("retry").join(STORE);
    fs::rename(hidden.path().join("retry").join(STORE), &shown)?;
    let start = Instant::now();
    while shown.exists() {
        if start.elapsed() > 600 * SECOND {
            return Err("the store was not adopted in ten minutes".into());
        }
        pause(Duration::from_millis(50));
    }
    let took = start.elapsed().as_secs_f64();
    let text = format!("{took:.1} s for {count} messages, the wait for the next look included (target: a minute)");
    Ok(Figure { text, is_met: took < 60.0 })
}
