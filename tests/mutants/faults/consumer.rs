//! Faults of the consumer.

use super::{Fault, fault};

/// The text to replace for a failed extension to pass for a success, and its replacement.
const FAILED_EXTENSION: (&str, &str) = (
    "| None => now + entry.duration / RETRY_FRACTION,",
    "| None => {
             self.deadlines.remove(&(entry.deadline, *id)); entry.deadline = deadline_of(sent_at, by, entry.duration);
             self.deadlines.insert((entry.deadline, *id)); now + entry.duration / RETRY_FRACTION
         }",
);

/// The text to replace for a handler to run on without a lease, and its replacement.
const LOST_LEASE: (&str, &str) = (
    "self.go(State::Stopping(Cause::LeaseLost), Action::Stop),\n            (State::Running, Event::DrainDeadline)",
    "self.go(State::Stopping(Cause::LeaseLost), Action::Nothing),\n            (State::Running, Event::DrainDeadline)",
);

pub const FAULTS: &[Fault] = &[
    fault(
        "settles before the heartbeat is awaited",
        "consumer/leases.rs",
        "                entry.beat = Beat::Last;\n                false\n",
        "                entry.beat = Beat::Last;\n                true\n",
    ),
    fault(
        "does not clamp extensions to 12 hours",
        "consumer/leases.rs",
        "let by = entry.duration.min(Duration::from_secs(left.as_secs()));",
        "let by = entry.duration.max(Duration::from_secs(left.as_secs()).min(Duration::ZERO));",
    ),
    fault(
        "counts an extension from its answer",
        "consumer/leases.rs",
        "entry.deadline = deadline_of(sent_at, by, entry.duration);",
        "entry.deadline = deadline_of(now, by, entry.duration);",
    ),
    fault("takes a failed extension for a success", "consumer/leases.rs", FAILED_EXTENSION.0, FAILED_EXTENSION.1),
    fault(
        "does nothing about a lease that ends",
        "consumer/event_loop.rs",
        "for id in self.leases.expire(now) {\n            self.lose(id);",
        "for id in self.leases.expire(now) {\n            drop(id);",
    ),
    fault("lets a handler run on without a lease", "consumer/delivery.rs", LOST_LEASE.0, LOST_LEASE.1),
    fault(
        "lets a handler run on after its processing timeout",
        "consumer/delivery.rs",
        "self.go(State::Stopping(Cause::Timeout(after)), Action::Stop)",
        "self.go(State::Stopping(Cause::Timeout(after)), Action::Nothing)",
    ),
    fault(
        "settles after the lease was lost",
        "consumer/delivery.rs",
        "(State::Stopping(Cause::LeaseLost), Event::Ended(_)) => self.forget(),",
        "(State::Stopping(Cause::LeaseLost), Event::Ended(_)) => self.stop_heartbeat(Outcome::Failed(String::new()), policy),",
    ),
    fault(
        "forgets what has not started when it drains",
        "consumer/delivery.rs",
        "(State::Waiting, Event::Drain | Event::DrainDeadline) => self.go_back(Outcome::Shutdown, Duration::ZERO),",
        "(State::Waiting, Event::Drain | Event::DrainDeadline) => self.forget(),",
    ),
    fault(
        "acks without the reply",
        "consumer/delivery.rs",
        "Outcome::Reply(body) if self.replies == Replies::Channel => {",
        "Outcome::Reply(body) if self.replies == Replies::Channel && body.is_empty() => {",
    ),
    fault(
        "polls while it drains",
        "consumer/event_loop.rs",
        "if self.phase == Phase::Running { self.poll() }",
        "if self.phase < Phase::Deadline { self.poll() }",
    ),
    fault(
        "starts what arrives while it drains",
        "consumer/event_loop/deliveries.rs",
        "} else if self.phase > Phase::Running || !is_kept {",
        "} else if !is_kept {",
    ),
    fault(
        "takes more than it has slots for",
        "consumer/poll_schedule.rs",
        "self.concurrency.saturating_sub(load.occupied + self.promised);",
        "self.concurrency.saturating_sub(load.occupied);",
    ),
    fault(
        "exits before all is settled",
        "consumer/event_loop.rs",
        "self.in_hand.is_empty() && self.schedule.under_way() == 0 && self.batches",
        "self.running.is_empty() && self.schedule.under_way() == 0 && self.batches",
    ),
    fault(
        "exits while a receive is under way",
        "consumer/event_loop.rs",
        "self.in_hand.is_empty() && self.schedule.under_way() == 0 && self.batches",
        "self.in_hand.is_empty() && self.batches",
    ),
    fault(
        "has no FIFO gate",
        "consumer/event_loop/deliveries.rs",
        "Some(group) => self.gate.enter(&group, id),",
        "Some(group) => self.gate.enter(&group, id) || !group.is_empty(),",
    ),
    fault(
        "starts the followers of a failure",
        "consumer/event_loop/groups.rs",
        "Command::Feed(follower, Event::Overtaken(delay))",
        "Command::Feed(follower, if self.phase == Phase::Running { Event::Start } else { Event::Overtaken(delay) })",
    ),
    fault(
        "takes a release that works for proof that removals do",
        "consumer/failures.rs",
        "self.kinds[kind as usize] = None;",
        "self.kinds = [None; Kind::COUNT]; drop(kind);",
    ),
    fault(
        "does not count leases that end because heartbeats fail",
        "consumer/event_loop/deliveries.rs",
        "if in_hand.heartbeat_failed {",
        "if in_hand.heartbeat_failed && in_hand.started_at.is_none() {",
    ),
    fault(
        "forgets failures while none has succeeded",
        "consumer/failures.rs",
        "now <= failing.last + lasts",
        "now <= failing.since + lasts",
    ),
    fault(
        "gives a settlement up when it fails",
        "consumer/event_loop.rs",
        "self.batcher.retry(id, settlement, self.now, self.leases.deadline(id));",
        "drop(settlement);",
    ),
    fault(
        "gives up an attempt too early",
        "consumer/policy.rs",
        "if attempt < self.attempts() {\n            let delays",
        "if attempt + 1 < self.attempts() {\n            let delays",
    ),
    fault(
        "spends an attempt when the host is at a limit",
        "consumer/delivery.rs",
        "Outcome::HostLimit(..) => Policy::give_back(self.spoilt, self.jitter),",
        "Outcome::HostLimit(_, why) => policy.disposition(&Outcome::Failed(why.clone()), self.attempt, self.jitter),",
    ),
    fault(
        "counts an attempt that the host spoilt",
        "consumer/spared.rs",
        "spoilt.attempts.push(attempt);",
        "spoilt.attempts.clear();",
    ),
    fault(
        "does not bound the delays",
        "consumer/policy.rs",
        "Backoff::new(retry.delay, retry.max_delay);",
        "Backoff::new(2 * retry.delay, Duration::MAX);",
    ),
    fault(
        "starts a message before its time",
        "consumer/event_loop/deliveries.rs",
        "} else if let Some(wait) = wait {",
        "} else if let Some(wait) = wait.filter(|_| false) {",
    ),
    fault(
        "hands a message that is not due back at once",
        "consumer/delivery.rs",
        "self.go_back(Outcome::Delay(wait), wait)",
        "self.go_back(Outcome::Delay(wait), Duration::ZERO)",
    ),
    fault(
        "does not rest after a failed receive",
        "consumer/poll_schedule.rs",
        "self.rest_until = Some(now + rest);",
        "self.rest_until = Some(now);",
    ),
    fault(
        "takes every attempt for the first",
        "consumer/event_loop/deliveries.rs",
        "Machine::new(counted, ",
        "Machine::new(1, ",
    ),
    fault(
        "takes a failure at the deadline for an ack",
        "consumer/delivery.rs",
        "(State::Stopping(_), Event::Ended(Some(outcome))) => self.conclude(outcome, policy),",
        "(State::Stopping(_), Event::Ended(Some(_))) => self.conclude(Outcome::Ack, policy),",
    ),
    fault(
        "receives while an operator has paused it",
        "consumer/admission.rs",
        "if self.paused { 0 } else { self.breaker.room(promised) }",
        "self.breaker.room(promised)",
    ),
    fault(
        "keeps what comes while an operator has paused it",
        "consumer/admission.rs",
        "!self.paused && self.breaker.admits(id)",
        "self.breaker.admits(id)",
    ),
    fault(
        "never opens the breaker",
        "consumer/breaker.rs",
        "let opens = of >= u64::from(settings.min)",
        "let opens = of >= u64::from(u32::MAX)",
    ),
    fault(
        "receives while the breaker is open",
        "consumer/breaker.rs",
        "State::Open { .. } | State::Probing(Some(_)) => 0,",
        "State::Open { .. } | State::Probing(Some(_)) => usize::MAX,",
    ),
    fault("takes no tokens for what it receives", "consumer/poll_schedule.rs", "bucket.take(max);", "bucket.take(0);"),
    fault("starts with all tokens", "consumer/poll_schedule.rs", "Bucket::empty(rate, now)", "Bucket::new(rate, now)"),
    fault(
        "ignores what the hook decided",
        "consumer/delivery.rs",
        "match decision.or_else(|| self.outcome.clone()) {",
        "match self.outcome.clone() {",
    ),
    fault(
        "forgets that it could not poll",
        "consumer/poll_schedule.rs",
        "self.could_poll_since = Some(now);",
        "self.could_poll_since = None;",
    ),
    fault(
        "takes a failed receive for a poll",
        "consumer/poll_schedule.rs",
        "        self.brought = Brought::Nothing;\n",
        "        self.brought = Brought::Nothing;\n        self.last_poll_at = Some(now);\n",
    ),
    fault(
        "leaves no time to stop a guest in",
        "consumer/leases.rs",
        ".clamp(MIN_MARGIN, MAX_MARGIN)",
        ".min(MAX_MARGIN)",
    ),
    fault(
        "dead-letters what timed out, whatever is configured",
        "consumer/policy.rs",
        "OnProcessingTimeout::Retry | OnProcessingTimeout::Exit => self.escalate(reason(), attempt, jitter),",
        "OnProcessingTimeout::Retry | OnProcessingTimeout::Exit => self.dead_letter(reason()),",
    ),
    fault(
        "retries what its handler gave up",
        "consumer/policy.rs",
        "Outcome::DeadLetter(reason) => self.dead_letter(reason.clone()),",
        "Outcome::DeadLetter(reason) => self.escalate(reason.clone(), attempt, jitter),",
    ),
    fault(
        "delays twice as long as was asked for",
        "consumer/policy.rs",
        "Disposition::Release((*delay).min(MAX_RELEASE))",
        "Disposition::Release((*delay * 2).min(MAX_RELEASE))",
    ),
    fault(
        "settles what is cancelled before its heartbeat is awaited",
        "consumer/delivery.rs",
        "                self.stop_heartbeat(Outcome::Failed(CANCELLED.into()), policy)\n",
        "                let outcome = Outcome::Failed(CANCELLED.into());
                self.disposition = policy.disposition(&outcome, self.attempt, self.jitter);
                self.outcome = Some(outcome);
                self.go(State::Settling, Action::Settle(self.disposition.clone()))\n",
    ),
    fault(
        "gives back what is cancelled as a drain does",
        "consumer/delivery.rs",
        "self.stop_heartbeat(Outcome::Failed(CANCELLED.into()), policy)",
        "self.stop_heartbeat(Outcome::Shutdown, policy)",
    ),
    fault(
        "cancels the next delivery in place of one that has ended",
        "consumer/event_loop/requests.rs",
        "let Some(in_hand) = self.in_hand.get(&delivery) else { return Cancellation::Ended };",
        "let Some((&delivery, in_hand)) = self.in_hand.range(delivery..).next() else { return Cancellation::Ended };",
    ),
    fault(
        "lets a cancelled handler run on",
        "consumer/delivery.rs",
        "self.go(State::Stopping(Cause::Cancelled), Action::Stop)",
        "self.go(State::Stopping(Cause::Cancelled), Action::Nothing)",
    ),
    fault(
        "starts what was taken back before it arrived",
        "push/consumer/event_loop/deliveries.rs",
        "let is_taken = !self.taken_early.is_empty()",
        "let is_taken = false",
    ),
    fault(
        "lets a handler run on after its lease was taken back",
        "push/consumer/event_loop/deliveries.rs",
        "                self.leases.remove(id);\n                self.lose(id);\n",
        "                self.leases.remove(id);\n",
    ),
    fault(
        "receives before the queue has begun to rest",
        "push/consumer/effects.rs",
        "let _ = stop.run_until_cancelled(ended(resting)).await;",
        "drop(resting);",
    ),
    fault(
        "lets only the first receive wait for a rest",
        "push/consumer/effects.rs",
        "let resting = self.resting.clone();",
        "let resting = self.resting.take();",
    ),
    fault(
        "lets the queue rest twice at once",
        "push/consumer/effects.rs",
        "            ended(before).await;\n",
        "            drop(before);\n",
    ),
    fault(
        "keeps what was sent ahead while an operator has paused it",
        "push/consumer/event_loop/pause.rs",
        "self.effects.rest();",
        "if !self.admission.paused { self.effects.rest(); }",
    ),
    fault(
        "keeps what was sent ahead while the breaker is open",
        "push/consumer/event_loop/pause.rs",
        "self.effects.rest();",
        "if self.admission.paused { self.effects.rest(); }",
    ),
    fault(
        "keeps what was sent ahead while the breaker has its probe",
        "push/consumer/poll_schedule.rs",
        "_ if admission.breaker.has_probe() => Lull::Probe,",
        "_ if admission.breaker.has_probe() => Lull::None,",
    ),
    fault(
        "keeps what was sent ahead when it exits",
        "push/consumer/event_loop.rs",
        "        self.effects.stop_polling.cancel();\n        self.effects.rest();\n",
        "        self.effects.stop_polling.cancel();\n",
    ),
    fault(
        "hides a message for longer than the service can",
        "push/consumer/event_loop/deliveries.rs",
        "settlement.within(self.limits.max_release);",
        "settlement.within(Duration::MAX);",
    ),
    fault(
        "takes an extension without a connection for a success",
        "nats/consumer/leases.rs",
        FAILED_EXTENSION.0,
        FAILED_EXTENSION.1,
    ),
    fault(
        "lets a handler run on after a lease that ended without a connection",
        "nats/consumer/delivery.rs",
        LOST_LEASE.0,
        LOST_LEASE.1,
    ),
    fault(
        "starts a batch for each message in one slot",
        "batch/consumer/event_loop/batches.rs",
        "if batches.in_slots.len() >= self.consumer.spec.concurrency {",
        "if batches.in_slots.len() > self.consumer.spec.concurrency {",
    ),
    fault(
        "gives the answers of a batch to the messages in another order",
        "batch/consumer/batch.rs",
        "given.iter().zip(answers).collect();",
        "given.iter().rev().zip(answers).collect();",
    ),
    fault(
        "takes an early answer for the first message of its batch",
        "batch/consumer/effects.rs",
        "if let Some(id) = ids.get(index) {",
        "if let Some(id) = ids.get(index.min(0)) {",
    ),
    fault(
        "runs the messages of a batch all at once after a trap",
        "batch/consumer/batch.rs",
        "if self.single.is_none() {",
        "if true {",
    ),
    fault(
        "runs a message alone although a drain has begun",
        "batch/consumer/event_loop/batches.rs",
        "if self.phase > Phase::Running || !self.admission.may_start(id) {",
        "if !self.admission.may_start(id) {",
    ),
    fault(
        "does not stop the guest of a batch at the drain deadline",
        "batch/consumer/event_loop/batches.rs",
        "if phase == Phase::Deadline && in_slot.machine.stop(Cause::Shutdown) {",
        "if phase == Phase::Running && in_slot.machine.stop(Cause::Shutdown) {",
    ),
    fault(
        "fails a batch that has another number of answers by none",
        "batch/consumer/batch.rs",
        "if answers.len() != given.len() {",
        "if answers.len() > given.len() {",
    ),
    fault(
        "has no timeout for batches",
        "batch/consumer/event_loop/batches.rs",
        "batches.deadlines.insert((deadline, batch));",
        "",
    ),
    fault(
        "keeps what was gathered in a drain",
        "batch/consumer/event_loop/batches.rs",
        "            self.gather.remove(id);\n",
        "",
    ),
    fault(
        "tells no guest of a batch that a lease is lost",
        "batch/consumer/event_loop/deliveries.rs",
        "Action::Stop => in_hand.call.bounds.stop.force(),",
        "Action::Stop if in_hand.membership.is_some() => {}\n            Action::Stop => in_hand.call.bounds.stop.force(),",
    ),
];
