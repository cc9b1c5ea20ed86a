//! Faults of the retry service.

use super::{Fault, fault};

pub const FAULTS: &[Fault] = &[
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
    fault("loses the headers", "retry/envelope.rs", "Ok((settings, stored.headers))", "Ok((settings, Vec::new()))"),
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
    fault("lets one priority starve the others", "retry/scheduler/shares.rs", "self.credits[best] -= sum;", ""),
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
