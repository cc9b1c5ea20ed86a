//! Instances of the retry service are killed at random, while messages come in, are delivered and are adopted. Nothing may be
//! lost, and a message may be delivered twice only if an instance was killed before it could settle the first delivery.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::{Client, HeaderMap, Request};
use futures_util::StreamExt as _;
use tokio::task::block_in_place;

use super::Service;
use crate::support::hostler::{Host, PATIENCE, SECOND, announce, until};
use crate::support::nats::{Nats, Version};
use crate::support::servers::unique;

/// Number of producers that send at the same time.
const PRODUCERS: usize = 64;

/// Maximum number of instances.
const MOST: usize = 5;

/// Wait of a producer for its reply.
const REPLY: Duration = Duration::from_secs(2);

/// Longest time from a delivery to the write that removes its message, on a slow machine.
const SETTLED: Duration = Duration::from_secs(5);

/// The producers' knowledge.
#[derive(Default)]
struct Sent {
    next: AtomicUsize,
    /// Number of messages that the service has acknowledged, and the messages.
    count: AtomicUsize,
    stored: Mutex<Vec<String>>,
}

/// Sends messages until all are acknowledged. A message that gets no acknowledgement is sent again under another name.
async fn produce(client: Client, subject: String, sent: Arc<Sent>, messages: usize) {
    loop {
        let number = sent.next.fetch_add(1, Ordering::Relaxed);
        if number >= messages {
            return;
        }
        for try_ in 0.. {
            let body = format!("{number}-{try_}");
            let mut headers = HeaderMap::new();
            headers.insert("Hostler-Delay", format!("{}ms", number * 7 % 400));
            let request = Request::new().payload(body.clone().into()).headers(headers).timeout(Some(REPLY));
            let reply = client.send_request(subject.clone(), request).await;
            if reply.is_ok_and(|reply| reply.payload.starts_with(b"{\"id\"")) {
                sent.stored.lock().unwrap().push(body);
                sent.count.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
    }
}

/// Returns a number of the environment.
fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn kill(hosts: &mut Vec<Host>, kills: &mut Vec<Instant>) {
    let host = hosts.swap_remove(fastrand::usize(..hosts.len()));
    kills.push(Instant::now());
    host.kill();
    kills.push(Instant::now());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_instances_lose_nothing_and_double_only_what_was_in_flight() {
    let (messages, count) = (number("HOSTLER_MESSAGES", 4_000), number("HOSTLER_KILLS", 12));
    let config = "adopt_after = '200ms'\nretries = 100000\nin_flight = 256\nin_flight_per_subject = 256\n";
    let mut service = Service::new(Nats::shared(Version::Newest), config).await;
    service.world.set("RUST_LOG", "warn,hostler::host=info".to_owned());
    let target = unique("work");
    let (sent, seen) = (Arc::<Sent>::default(), Arc::<Mutex<HashMap<String, Vec<Instant>>>>::default());
    let mut requests = service.client.subscribe(target.clone()).await.unwrap();
    service.client.flush().await.unwrap();
    let (client, noted) = (service.client.clone(), Arc::clone(&seen));
    let receiver = tokio::spawn(async move {
        while let Some(message) = requests.next().await {
            let body = String::from_utf8(message.payload.to_vec()).unwrap();
            noted.lock().unwrap().entry(body).or_default().push(Instant::now());
            client.publish(message.reply.unwrap(), "+ACK".into()).await.unwrap();
        }
    });
    let mut hosts = vec![block_in_place(|| service.start())];
    let subject = format!("{}.{target}", service.subject);
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|_| tokio::spawn(produce(service.client.clone(), subject.clone(), Arc::clone(&sent), messages)))
        .collect();
    let mut kills = Vec::new();
    for round in 0..count {
        // Spread over the messages, at no regular distance.
        let at = messages * round / count + fastrand::usize(..messages / count);
        block_in_place(|| {
            while hosts.len() < MOST.min(2 + round) {
                hosts.push(service.start());
            }
            until("messages are stored", 10 * PATIENCE, || (sent.count.load(Ordering::Relaxed) >= at).then_some(()));
            kill(&mut hosts, &mut kills);
        });
    }
    for producer in producers {
        producer.await.unwrap();
    }
    // Back to one: some are killed, some drain.
    block_in_place(|| {
        kill(&mut hosts, &mut kills);
        while hosts.len() > 1 {
            assert_eq!(hosts.remove(0).stop(), 0);
        }
    });
    let stored = std::mem::take(&mut *sent.stored.lock().unwrap());
    let is_missing = |body: &&String| !seen.lock().unwrap().contains_key(*body);
    block_in_place(|| {
        until("all messages are delivered", 2 * PATIENCE, || stored.iter().find(is_missing).is_none().then_some(()));
        until("one store is left", PATIENCE, || (service.stores().len() == 1).then_some(()));
        // What was stored although its producer got no reply is delivered too.
        until("the store is empty", PATIENCE, || {
            let rows = service.world.queues();
            let is_empty = |row: &serde_json::Value| row["visible"] == 0 && row["delayed"] == 0;
            rows.as_array().unwrap().iter().all(is_empty).then_some(())
        });
        assert_eq!(hosts.remove(0).stop(), 0);
    });
    receiver.abort();
    let seen = seen.lock().unwrap();
    let mut doubled = BTreeMap::<usize, usize>::new();
    for (body, times) in seen.iter() {
        *doubled.entry(times.len()).or_default() += 1;
        for pair in times.windows(2) {
            // An instance was killed after the first delivery, before it could write that the message is gone.
            let is_killed = |at: &Instant| *at + SECOND >= pair[0] && *at <= pair[1] && *at <= pair[0] + SETTLED;
            assert!(kills.iter().any(is_killed), "{body} was delivered twice, and no instance was killed in between");
        }
    }
    let extra: usize = doubled.iter().map(|(times, bodies)| (times - 1) * bodies).sum();
    announce(&format!(
        "retry: {} messages stored, {} kills, {extra} delivered again ({doubled:?}), 0 lost",
        stored.len(),
        count + 1
    ));
    assert!(extra <= (count + 1) * 2 * 256, "more doubles than were in flight");
}
