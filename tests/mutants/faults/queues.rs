//! Faults of the queue drivers.

use super::{Fault, fault};

pub const FAULTS: &[Fault] = &[
    fault(
        "waits for a copy beyond the lease of its message",
        "queue/sqs/queue/settle.rs",
        "let first_end = first_end(endings);",
        "let ends = calls.iter().flatten().map(|ending| ending.leased.until);
            let first_end = ends.max().unwrap_or_else(|| first_end(endings));",
    ),
    fault(
        "spends attempts on waiting",
        "queue/sqs/queue.rs",
        "let attempt = wait.attempt(one.attempt);",
        "let attempt = one.attempt;",
    ),
    fault(
        "deletes before the copy is in the dead-letter queue",
        "queue/sqs/queue/settle.rs",
        "let results = self.copy_all(",
        "let to_copy: Vec<Ending> = self.ack(to_copy).await.into_iter().map(|(ending, _)| ending).collect();\n\
         let results = self.copy_all(",
    ),
    fault(
        "deletes though the copy failed",
        "queue/sqs/queue/settle.rs",
        "Err(error) => settled.push((ending, Err(error))),",
        "Err(_) => gone.push(ending),",
    ),
    fault(
        "takes the answers of a batch in their order",
        "queue/sqs/calls.rs",
        "if done.get(n) == Some(&id) || done.contains(&id) {",
        "if n < done.len() {",
    ),
    fault(
        "forgets what it has finished",
        "queue/sqs/in_flight.rs",
        "self.finished.contains(id)",
        "self.finished.contains(id) && self.finished.ids.is_empty()",
    ),
    fault(
        "counts a lease from the answer of the receive",
        "queue/sqs/queue.rs",
        "let leased_at = now.min(since + taken.padding);",
        "let leased_at = now;",
    ),
    fault(
        "takes a stale receipt for a passing fault",
        "queue/sqs/fault.rs",
        "Fault::Missing(text) | Fault::Stale(text) => Self::Lost(text),",
        "Fault::Missing(text) | Fault::Stale(text) => Self::Retry(text),",
    ),
    fault(
        "lets the SDK repeat a receive",
        "queue/sqs/clients.rs",
        "with_patience(&shared, MAX_WAIT + BEYOND_WAIT, 1)",
        "with_patience(&shared, MAX_WAIT + BEYOND_WAIT, 3)",
    ),
    fault(
        "releases beyond the 12 hours",
        "queue/sqs/queue.rs",
        "i32::try_from(seconds.min(left))",
        "i32::try_from(seconds)",
    ),
    fault(
        "lets a stale receipt end the lease of another",
        "queue/embedded/lease.rs",
        "            \"UPDATE entry SET visible_at = ?6, lease = ?7
             WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3 AND lease = ?4 AND visible_at > ?5\",",
        "            \"UPDATE entry SET visible_at = ?6, lease = ?7
             WHERE queue = ?1 AND enqueued_at = ?2 AND seq = ?3 AND ?4 = ?4 AND visible_at > ?5\",",
    ),
    fault(
        "counts leases by the wall clock",
        "queue/embedded/clock.rs",
        "millis(self.clock.monotonic()).saturating_add(self.ahead)",
        "wall_millis(&*self.clock)",
    ),
    fault(
        "shows what its group is to hold back",
        "queue/embedded/send.rs",
        "let visible_at = (!blocked).then_some(due_at);",
        "let visible_at = Some(due_at).or((!blocked).then_some(due_at));",
    ),
    fault(
        "takes a change that failed for done",
        "queue/embedded/writer.rs",
        "jobs.iter().map(|_| Err(fault.clone())).collect()",
        "jobs.iter().map(|_| Ok(drop(fault.clone()))).collect()",
    ),
    fault(
        "removes what it dead-letters, and makes no copy",
        "queue/embedded/lease.rs",
        "    place(db, target, seq, group.as_deref(), enqueued_at, now)\n",
        "    drop((target, seq, group)); Ok(())\n",
    ),
    fault(
        "counts an attempt that is given back",
        "queue/embedded/lease.rs",
        "                uncount(db, source.queue, ticket)?;\n",
        "",
    ),
];
