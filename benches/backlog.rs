//! Throughput of the embedded queue without a host, with growing backlogs: messages received and acked per second.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostler_queue::{Broker, ChannelSpec, Queue, Receive, Settlement};
use hostler_queue_embedded::EmbeddedBroker;
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Divisors of the largest backlog. The quotients are the backlogs to measure.
const PARTS: [usize; 3] = [100, 10, 1];

/// Minimum throughput in messages per second. `PART`: minimum fraction of the throughput that remains with the largest backlog.
const RATE: f64 = 20_000.0;
const PART: f64 = 0.8;

/// Number of messages settled per round.
const TAKEN: usize = 20_000;

/// Number of messages in flight, as with a consumer of this many slots.
const SLOTS: usize = 64;

/// Size of a body in bytes.
const BODY: usize = 200;

/// A queue in a separate file.
struct Filled {
    broker: EmbeddedBroker,
    queue: Arc<dyn Queue>,
    channel: Channel,
    /// Messages per second, and CPU time per message in microseconds, of every round.
    rounds: Vec<(f64, f64)>,
    _folder: tempfile::TempDir,
}

/// Measures an empty queue and backlogs up to `largest` in turn, for this many rounds. Prints the medians. With `check`, fails if
/// the queue is too slow.
pub async fn run(largest: usize, rounds: usize, check: bool) -> Result<()> {
    let backlogs: Vec<usize> = std::iter::once(0).chain(PARTS.map(|part| largest / part)).collect();
    let mut queues = Vec::new();
    for &backlog in &backlogs {
        let folder = tempfile::tempdir()?;
        let broker = EmbeddedBroker::open(&folder.path().join("queue.db"))?;
        let channel: Channel = "bench".parse()?;
        let mut spec = ChannelSpec::new(channel.clone());
        spec.max_receives = Some(5);
        let queue = broker.open(&spec).await?;
        let filled = Filled { broker, queue, channel, rounds: Vec::new(), _folder: folder };
        filled.send(backlog).await?;
        queues.push(filled);
    }
    for _ in 0..rounds {
        for filled in &mut queues {
            filled.send(TAKEN).await?;
            let (begin, cpu) = (Instant::now(), crate::cpu_seconds(std::process::id())?);
            filled.settle(TAKEN).await?;
            let (took, cpu) = (begin.elapsed().as_secs_f64(), crate::cpu_seconds(std::process::id())? - cpu);
            filled.rounds.push((TAKEN as f64 / took, cpu * 1e6 / TAKEN as f64));
        }
    }
    println!("| {:>9} | {:>11} | {:>14} | {:>8} |", "backlog", "messages/s", "CPU µs/message", "of empty");
    println!("| --------: | ----------: | -------------: | -------: |");
    let empty: Vec<f64> = queues.iter().take(1).flat_map(|queue| &queue.rounds).map(|round| round.0).collect();
    let (rate, mut part) = (middle(empty.clone()), 1.0);
    for (filled, backlog) in queues.iter().zip(backlogs) {
        let of = |one: fn(&(f64, f64)) -> f64| middle(filled.rounds.iter().map(one).collect());
        // Ratios are computed per round, because the other load of the machine varies.
        part = middle(filled.rounds.iter().zip(&empty).map(|(round, empty)| round.0 / empty).collect());
        println!(
            "| {backlog:>9} | {:>11.0} | {:>14.1} | {:>7.0}% |",
            of(|round| round.0),
            of(|round| round.1),
            part * 100.0
        );
    }
    if check && (rate < RATE || part < PART) {
        let part = part * 100.0;
        return Err(format!("{rate:.0} messages per second, and {part:.0} % of that with the largest backlog").into());
    }
    Ok(())
}

fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Filled {
    async fn send(&self, count: usize) -> Result<()> {
        let batch = vec![Outgoing { body: vec![b'x'; BODY], ..Outgoing::default() }; 1000];
        for _ in 0..count / batch.len() {
            for sent in self.broker.send(&self.channel, batch.clone()).await {
                sent?;
            }
        }
        Ok(())
    }

    /// Receives and acks messages as a consumer does: receives while settling, as long as slots are free.
    async fn settle(&self, count: usize) -> Result<()> {
        let slots = Arc::new(Semaphore::new(SLOTS));
        let (done, mut to_ack) = mpsc::unbounded_channel();
        let queue = Arc::clone(&self.queue);
        let taking = async {
            let (mut left, never) = (count, CancellationToken::new());
            while left > 0 {
                let _ = slots.acquire().await?;
                let max = slots.available_permits().min(queue.limits().receive_batch).min(left);
                let request = Receive { max, wait: Duration::from_secs(1), lease: Duration::from_secs(30) };
                let deliveries = queue.receive(request, &never).await?;
                slots.try_acquire_many(u32::try_from(deliveries.len())?)?.forget();
                left -= deliveries.len();
                deliveries.into_iter().try_for_each(|delivery| done.send(Settlement::Ack(delivery.receipt)))?;
            }
            drop(done);
            Ok::<_, Box<dyn Error>>(())
        };
        let settling = async {
            let mut batch = Vec::new();
            let most = queue.limits().settle_batch;
            while to_ack.recv_many(&mut batch, most).await > 0 {
                let settled = self.queue.settle(std::mem::take(&mut batch)).await;
                if settled.iter().any(|settled| settled.is_err()) {
                    return Err("an ack failed".into());
                }
                slots.add_permits(settled.len());
            }
            Ok::<_, Box<dyn Error>>(())
        };
        tokio::try_join!(taking, settling).map(|_| ())
    }
}
