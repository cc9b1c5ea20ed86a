//! Faults of schedules.

use super::{Fault, fault};

pub const FAULTS: &[Fault] = &[
    fault(
        "sends what was due before a schedule was new",
        "schedules/turn.rs",
        "Step::Advance { to: self.state(now, before.and_then",
        "Step::Advance { to: self.state(now.minus(Duration::from_secs(3600)), before.and_then",
    ),
    fault(
        "forgets what it has sent",
        "schedules/turn.rs",
        "let to = self.state(handled, sent, now);",
        "let to = self.state(handled.minus(Duration::from_micros(1)), sent, now);",
    ),
    fault(
        "takes a schedule over from living hosts",
        "schedules/turn.rs",
        "if now < take_over && state.seen",
        "if now < state.seen && state.seen",
    ),
    fault(
        "leaves a schedule to hosts that are gone",
        "schedules/turn.rs",
        "let take_over = state.seen.plus(TAKE_OVER);",
        "let take_over = state.seen.plus(TAKE_OVER.saturating_mul(300));",
    ),
    fault(
        "leaves a schedule to hosts with an older definition",
        "schedules/turn.rs",
        "if is_new {",
        "if is_new && state.seen > now {",
    ),
    fault("writes no sign of life", "schedules/turn.rs", "if life_sign <= now ||", "if life_sign < state.seen ||"),
    fault(
        "sends again what a wrong clock put back",
        "schedules/turn.rs",
        "sent.max(state.handled)",
        "sent.min(state.handled)",
    ),
    fault(
        "believes a sign of life of a wrong clock",
        "schedules/turn.rs",
        "&& state.seen <= now.plus(TAKE_OVER) {",
        "&& state.seen <= now.plus(TAKE_OVER.saturating_mul(300)) {",
    ),
    fault(
        "forgets what was missed when it takes over",
        "schedules/turn.rs",
        "let to = self.state(state.handled, state.sent, now);\n        Step::Advance { to, due: Vec::new(), notice: Some",
        "let to = self.state(now, state.sent, now);\n        Step::Advance { to, due: Vec::new(), notice: Some",
    ),
    fault(
        "sends each missed message",
        "schedules/turn.rs",
        "late <= ON_TIME || self.missed == Missed::All && late <= self.catch_up",
        "late <= ON_TIME || late <= self.catch_up",
    ),
    fault(
        "sends what was missed too long ago",
        "schedules/turn.rs",
        "&& now.since(self.send_time(missed)) <= self.catch_up;",
        "&& now.since(self.send_time(missed)) <= self.catch_up.saturating_mul(100);",
    ),
    fault(
        "waits for a clock that was wrong",
        "schedules/turn.rs",
        "if state.handled > now.plus(AHEAD) {",
        "if state.handled > now.plus(AHEAD.saturating_mul(365)) {",
    ),
    fault(
        "sends after the next due time",
        "schedules/schedule.rs",
        "sent.min(next.minus(Duration::from_micros(1)))",
        "sent.max(next.minus(Duration::from_micros(1)))",
    ),
    fault(
        "searches a due time that it has just had",
        "schedules/cron.rs",
        "find_next_occurrence(&from, false)",
        "find_next_occurrence(&from, true)",
    ),
    fault("gives up at a day that a zone left out", "schedules/cron.rs", "for _ in 0..4 {", "for _ in 0..1 {"),
    fault(
        "reads Sunday as the first day of seven",
        "schedules/cron.rs",
        "CronParser::builder().seconds(Seconds::Optional)",
        "CronParser::builder().alternative_weekdays(true).seconds(Seconds::Optional)",
    ),
];
