//! Decisions of a consumer, without I/O.

use std::hint::black_box;
use std::time::Duration;

use hostler_config::{OnProcessingTimeout, Retry};
use hostler_consumer::{Batcher, Leases, Policy};
use hostler_handler::Outcome;
use hostler_queue::{Limits, Receipt, Settlement};
use tokio::time::Instant;

use crate::{Result, Step};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = SECOND.saturating_mul(30);
/// Number of leases that become due within one heartbeat interval (a third of the lease), at a rate of one per millisecond.
const LEASES: u64 = 10_000;
const BETWEEN: Duration = Duration::from_millis(1);
const BATCH: u32 = 10;

fn leases(start: Instant) -> Leases<u64> {
    let mut leases = Leases::new(LEASE, 12 * 3600 * SECOND);
    let mut at = start;
    for id in 0..LEASES {
        leases.enter(id, Receipt::new(id.to_string()).lease(), at);
        at += BETWEEN;
    }
    leases
}

/// Advances the time until ten heartbeats are due, sends them, and handles their answers.
pub fn heartbeats() -> Result<Step> {
    let start = Instant::now();
    let mut leases = leases(start);
    let mut now = start + LEASE / 3 - BETWEEN;
    Ok(Box::new(move || {
        now += BETWEEN * BATCH;
        assert!(leases.expire(now).is_empty());
        for beat in leases.heartbeats(now, BATCH as usize) {
            let results: Vec<_> = beat.ids.iter().map(|_| Ok(())).collect();
            assert!(leases.answered(&beat.ids, beat.by, &results, now, now).is_empty());
        }
        black_box(leases.next_at());
    }))
}

/// Adds a delivery and settles it.
pub fn in_and_out() -> Result<Step> {
    let start = Instant::now();
    let mut leases = leases(start);
    let receipt = Receipt::new("one more");
    let mut id = LEASES;
    Ok(Box::new(move || {
        leases.enter(id, receipt.lease(), start + SECOND);
        assert!(leases.stop(id));
        leases.remove(id);
        black_box(leases.next_at());
        id += 1;
    }))
}

/// Returns a policy with requeues, delays and a dead-letter queue.
pub fn retrying() -> Policy {
    let retry =
        Retry { requeues: 2, requeue_delay: 5 * SECOND, delays: 3, delay: 60 * SECOND, max_delay: 200 * SECOND };
    Policy { retry, on_processing_timeout: OnProcessingTimeout::DeadLetter, dead_letter: true }
}

/// Applies the policy to a success, a failure, a failure after the last attempt, and a delay.
pub fn policy() -> Result<Step> {
    let policy = retrying();
    let cases = [
        (Outcome::Ack, 1),
        (Outcome::Failed("no connection".into()), 4),
        (Outcome::Failed("no connection".into()), 6),
        (Outcome::Delay(SECOND), 2),
    ];
    Ok(Box::new(move || {
        for (outcome, attempt) in &cases {
            black_box(policy.disposition(black_box(outcome), *attempt, 0.5));
        }
    }))
}

/// Collects ten settlements and sends them as a batch.
pub fn settlements() -> Result<Step> {
    let limits = Limits {
        receive_batch: 10,
        settle_batch: BATCH as usize,
        settle_linger: SECOND / 10,
        max_wait: 20 * SECOND,
        max_lease: 12 * 3600 * SECOND,
        parallel_receives: 4,
        max_release: 12 * 3600 * SECOND,
    };
    let (mut batcher, now) = (Batcher::new(limits, false), Instant::now());
    let mut receipts: Vec<_> = (0..BATCH).map(|n| (n, Receipt::new(n.to_string()))).collect();
    Ok(Box::new(move || {
        for (id, receipt) in receipts.drain(..) {
            batcher.push(id, Settlement::Ack(receipt), now, None);
        }
        let batch = batcher.next(now, true).into_iter().flatten();
        receipts.extend(batch.filter_map(|(id, settlement)| match settlement {
            Settlement::Ack(receipt) => Some((id, receipt)),
            _ => None,
        }));
        batcher.answered();
        assert_eq!(receipts.len(), BATCH as usize);
    }))
}
