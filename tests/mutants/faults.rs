// The planted faults: a file, and the text to replace in it. Each is a plausible mistake.

/// A fault.
pub struct Fault {
    pub name: &'static str,
    /// Below `src/`.
    pub file: &'static str,
    /// A text that the file has once.
    pub old: &'static str,
    pub new: &'static str,
}

impl Fault {
    /// Returns true if its name or its file contains this word.
    pub fn is_named(&self, word: &str) -> bool {
        self.name.contains(word) || self.file.contains(word)
    }
}

const fn fault(name: &'static str, file: &'static str, old: &'static str, new: &'static str) -> Fault {
    Fault { name, file, old, new }
}

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
    fault(
        "takes a failed extension for a success",
        "consumer/leases.rs",
        "| None => now + entry.duration / RETRY_FRACTION,",
        "| None => {
             self.deadlines.remove(&(entry.deadline, *id)); entry.deadline = deadline_of(sent_at, by, entry.duration);
             self.deadlines.insert((entry.deadline, *id)); now + entry.duration / RETRY_FRACTION
         }",
    ),
    fault(
        "does nothing about a lease that ends",
        "consumer/event_loop.rs",
        "for id in self.leases.expire(now) {\n            self.lose(id);",
        "for id in self.leases.expire(now) {\n            drop(id);",
    ),
    fault(
        "lets a handler run on without a lease",
        "consumer/delivery.rs",
        "self.go(State::Stopping(Cause::LeaseLost), Action::Stop),\n            (State::Running, Event::DrainDeadline)",
        "self.go(State::Stopping(Cause::LeaseLost), Action::Nothing),\n            (State::Running, Event::DrainDeadline)",
    ),
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
        "if self.phase > Phase::Running && self.in_hand.is_empty() && self.schedule.under_way() == 0 {",
        "if self.phase > Phase::Running && self.running.is_empty() && self.schedule.under_way() == 0 {",
    ),
    fault(
        "exits while a receive is under way",
        "consumer/event_loop.rs",
        "if self.phase > Phase::Running && self.in_hand.is_empty() && self.schedule.under_way() == 0 {",
        "if self.phase > Phase::Running && self.in_hand.is_empty() {",
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
        "waits for a copy beyond the lease of its message",
        "queue/sqs/queue/settle.rs",
        "let first_end = first_end(endings);",
        "let ends = calls.iter().flatten().map(|ending| ending.leased.until);
            let first_end = ends.max().unwrap_or_else(|| first_end(endings));",
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
        "spends attempts on waiting",
        "queue/sqs/queue.rs",
        "let attempt = wait.attempt(one.attempt);",
        "let attempt = one.attempt;",
    ),
    fault(
        "does not rest after a failed receive",
        "consumer/poll_schedule.rs",
        "self.rest_until = Some(now + rest);",
        "self.rest_until = Some(now);",
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
        "takes every attempt for the first",
        "consumer/event_loop/deliveries.rs",
        "Machine::new(counted, ",
        "Machine::new(1, ",
    ),
    fault(
        "releases beyond the 12 hours",
        "queue/sqs/queue.rs",
        "i32::try_from(seconds.min(left))",
        "i32::try_from(seconds)",
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
    fault(
        "starts with all tokens",
        "consumer/poll_schedule.rs",
        "Bucket::empty(rate, now)",
        "Bucket::new(rate, now)",
    ),
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
        "leaves the backoff to do",
        "retry/settings.rs",
        "Growth::Exponential => Backoff::new(self.base, self.max).rest(attempts.saturating_sub(1), random),",
        "Growth::Exponential => Duration::ZERO,",
    ),
    fault(
        "deletes a message that is out of retries",
        "retry/scheduler/mod.rs",
        "return self.bury(now, place, format!(\"not acknowledged in {attempts} deliveries; the last one: {reason}\"));",
        "return self.leave(now, place, Step::Remove(place), Outcome::Dropped);",
    ),
    fault(
        "acknowledges a message although the commit failed",
        "retry/engine/turns.rs",
        "self.scheduler.turn_failed(now);",
        "self.scheduler.turn_failed(now); new.iter().for_each(|new| self.stored(new.accepted.reply.clone(), \"\"));",
    ),
    fault(
        "lets a message with a time to live of zero expire",
        "retry/settings.rs",
        "duration(header, value, Duration::ZERO, LONGEST_TTL)?).filter(|ttl| !ttl.is_zero())",
        "duration(header, value, Duration::ZERO, LONGEST_TTL)?)",
    ),
    fault(
        "scans every 15 seconds",
        "retry/scheduler/window.rs",
        "self.frontier.0.saturating_sub(AHEAD / 2)",
        "self.frontier.0.saturating_add(15_000)",
    ),
    fault(
        "takes any reply for an acknowledgement",
        "retry/answer.rs",
        "replies::Reply::Other(reason) => Answer::NoAck(reason),",
        "replies::Reply::Other(_) => Answer::Ack,",
    ),
    fault(
        "loses the headers",
        "retry/envelope.rs",
        "Ok((settings, stored.headers))",
        "Ok((settings, Vec::new()))",
    ),
    fault(
        "does not keep what a receiver asks for to the millisecond",
        "retry/scheduler/lanes.rs",
        "self.gates.insert((until, id));",
        "self.gates.insert((until - 1, id));",
    ),
    fault(
        "closes no gate for a wait that a receiver asks for",
        "retry/scheduler/mod.rs",
        "if self.lanes.close(&subject, until, now) && delay >= STORED_GATE {",
        "if delay >= STORED_GATE {",
    ),
    fault(
        "counts a retry if nobody listens",
        "retry/scheduler/mod.rs",
        "if !matches!(answer, Answer::NoResponders | Answer::Unsent) {",
        "if !matches!(answer, Answer::Unsent) {",
    ),
    fault(
        "lets one priority starve the others",
        "retry/scheduler/shares.rs",
        "self.credits[best] -= sum;",
        "",
    ),
    fault(
        "opens a gate for all at once",
        "retry/scheduler/subject.rs",
        "(self.gate, self.allowance) = (None, 1);",
        "self.gate = None;",
    ),
    fault(
        "repeats a refusal without a wait at once",
        "retry/scheduler/mod.rs",
        "Answer::Nak(Some(delay)) if !delay.is_zero() => {",
        "Answer::Nak(Some(delay)) => {",
    ),
    fault(
        "lets receivers that do not answer take all slots",
        "retry/scheduler/slots.rs",
        "Class::UnprovenBusy => self.unproven < limit(4),",
        "Class::UnprovenBusy => true,",
    ),
    fault(
        "gives each turn to the same lane",
        "retry/scheduler/lanes.rs",
        "        // The lane's next turn comes after those of all others.\n        self.give_turn(id, priority);\n",
        "        self.turn = 0;\n",
    ),
    fault(
        "parks a message that is not yet due",
        "retry/scheduler/memory.rs",
        "        if at > now {\n            held.stage",
        "        if at > now.saturating_add(AHEAD / 2) {\n            held.stage",
    ),
    fault(
        "forgets when a parked message expires",
        "retry/scheduler/memory.rs",
        "due, until: expires }, true)",
        "due, until: None }, true)",
    ),
    fault(
        "parks a message that is about to expire",
        "retry/scheduler/memory.rs",
        "        if expires_soon(expires, now) {\n            return;\n        }\n",
        "        let _ = expires;\n",
    ),
    fault(
        "forgets what was parked during a read",
        "retry/scheduler/lanes.rs",
        "*change > until",
        "*change > until.saturating_add(9)",
    ),
    fault(
        "reads the backlog before what becomes due",
        "retry/scheduler/turns.rs",
        "if self.windows[priority].is_starved(now) {",
        "if true {",
    ),
    fault(
        "has no room for more than half of the window",
        "retry/scheduler/window.rs",
        "if self.is_starved(now) { self.room() } else",
        "if false { self.room() } else",
    ),
    fault(
        "takes what it has no room for",
        "retry/scheduler/turns.rs",
        "        if window.room().is_empty() {\n            return window.rewind(due);\n        }\n",
        "",
    ),
    fault(
        "loses what it has no room for",
        "retry/scheduler/turns.rs",
        "            return window.rewind(due);\n",
        "            return;\n",
    ),
    fault(
        "loses what was forgotten during a search",
        "retry/scheduler/turns.rs",
        "if sweep.is_none() && self.lanes.take_forgotten(priority) {\n            *sweep = Some(String::new());",
        "if self.lanes.take_forgotten(priority) {\n            sweep.get_or_insert_default();",
    ),
    fault(
        "does not repeat a turn that failed",
        "retry/scheduler/turns.rs",
        "            self.steps.push_front(queued);\n",
        "            drop(queued);\n",
    ),
    fault(
        "resends at once what was lost on the way",
        "retry/scheduler/mod.rs",
        "self.wait(now, place, now.saturating_add(millis(wait)), \"the connection",
        "self.wait(now, place, now.saturating_add(millis(wait) * 0), \"the connection",
    ),
    fault(
        "never flushes what it removed",
        "retry/scheduler/turns.rs",
        "self.unsynced_since = self.unsynced_since.or(Some(now));",
        "self.unsynced_since = None;",
    ),
    fault("changes nothing, which no test finds", "retry/lib.rs", "pub mod scheduler;", "pub mod scheduler;"),
];
