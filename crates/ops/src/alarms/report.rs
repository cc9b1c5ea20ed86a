//! Creates notices about alarms.

use std::time::SystemTime;

use serde_json::json;

use super::watch::{AlarmDelta, Change, News, PollHealth};
use crate::notice::Notice;
use hostler_queue::Unread;

/// Returns the notice about the changes in `delta`. `unread`: all queues that could not be read. `at`: time of the
/// notice.
pub fn notice(delta: &AlarmDelta, unread: &[Unread], at: SystemTime) -> Notice {
    let summary = summary(delta);
    let mut lines: Vec<String> = delta.news.iter().map(line).collect();
    if let Some(PollHealth::Lost(reason)) = &delta.sight {
        lines.push(reason.clone());
    }
    lines.extend(unread.iter().map(|unread| format!("not checked: {}: {}", unread.name, unread.reason)));
    let hidden: Vec<_> =
        unread.iter().map(|Unread { name, reason, .. }| json!({"name": name, "reason": reason})).collect();
    let blind = match &delta.sight {
        Some(PollHealth::Lost(reason)) => Some(reason),
        Some(PollHealth::Regained) | None => None,
    };
    let document = json!({
        "source": "hostler",
        "kind": "alarms",
        "at": humantime::format_rfc3339_seconds(at).to_string(),
        "summary": summary,
        "critical": is_critical(delta),
        "changes": delta.news,
        "not_looked_at": hidden,
        "blind": blind,
    });
    Notice { summary, lines, document }
}

/// Returns `true` if `delta` contains an unresolved alarm of a critical queue.
fn is_critical(delta: &AlarmDelta) -> bool {
    delta.news.iter().any(|news| news.level.critical && news.change != Change::Resolved)
}

fn summary(delta: &AlarmDelta) -> String {
    let count = |wanted: &[Change]| delta.news.iter().filter(|news| wanted.contains(&news.change)).count();
    let changes = [
        ("new", count(&[Change::New])),
        ("worse", count(&[Change::Worse])),
        ("still there", count(&[Change::Reminder])),
        ("resolved", count(&[Change::Resolved])),
    ];
    let changes: Vec<_> =
        changes.iter().filter(|(_, count)| *count > 0).map(|(word, count)| format!("{count} {word}")).collect();
    let mut parts = Vec::new();
    match &delta.sight {
        Some(PollHealth::Lost(_)) => parts.push("the queues cannot be checked".to_owned()),
        Some(PollHealth::Regained) => parts.push("the queues can be checked again".to_owned()),
        None => {}
    }
    if !changes.is_empty() {
        parts.push(format!("queue alarms: {}", changes.join(", ")));
    }
    if !delta.denied.is_empty() {
        parts.push(format!("{} more may not be checked", delta.denied.len()));
    }
    let flag = if is_critical(delta) { "CRITICAL: " } else { "" };
    format!("{flag}{}", parts.join("; "))
}

fn line(News { change, level }: &News) -> String {
    let word = match change {
        Change::New => "new",
        Change::Worse => "worse",
        Change::Reminder => "still",
        Change::Resolved => "resolved",
    };
    let flag = if level.critical && *change != Change::Resolved { "CRITICAL " } else { "" };
    let plural = if level.messages == 1 { "message" } else { "messages" };
    let kind = if level.dead_letter { "dead-letter queue" } else { "queue" };
    let mut about = vec![kind.to_owned(), format!("alarm from {} on", level.threshold)];
    about.extend(level.consumer.as_ref().map(|consumer| format!("consumer {consumer}")));
    about.extend(level.owner.as_ref().map(|owner| format!("owner {owner}")));
    format!("{flag}{word}: {}: {} {plural} ({})", level.queue, level.messages, about.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::level::Level;
    use super::*;

    fn news(change: Change, queue: &str, messages: u64, critical: bool) -> News {
        let level = Level {
            queue: queue.into(),
            messages,
            threshold: 1,
            dead_letter: queue.ends_with("-dlq"),
            critical,
            consumer: Some("orders".into()),
            owner: None,
        };
        News { change, level }
    }

    #[test]
    fn a_notice_says_what_has_changed_and_what_is_critical() {
        let denied = Unread { name: "p-secret".into(), reason: "ListQueueTags is denied".into(), denied: true };
        let delta = AlarmDelta {
            news: vec![news(Change::New, "p-orders-dlq", 1, true), news(Change::Resolved, "p-mails", 0, true)],
            denied: vec![denied.clone()],
            sight: None,
        };
        let at = SystemTime::UNIX_EPOCH;
        let said = notice(&delta, &[denied], at);
        assert_eq!(said.summary, "CRITICAL: queue alarms: 1 new, 1 resolved; 1 more may not be checked");
        assert_eq!(
            said.lines,
            [
                "CRITICAL new: p-orders-dlq: 1 message (dead-letter queue, alarm from 1 on, consumer orders)",
                "resolved: p-mails: 0 messages (queue, alarm from 1 on, consumer orders)",
                "not checked: p-secret: ListQueueTags is denied",
            ]
        );
        let change = json!({
            "change": "new", "queue": "p-orders-dlq", "messages": 1, "threshold": 1, "dead_letter": true,
            "critical": true, "consumer": "orders", "owner": null,
        });
        assert_eq!(said.document["changes"][0], change);
        assert_eq!((&said.document["at"], &said.document["critical"]), (&json!("1970-01-01T00:00:00Z"), &json!(true)));
        assert_eq!(said.document["not_looked_at"], json!([{"name": "p-secret", "reason": "ListQueueTags is denied"}]));
        let over = AlarmDelta { news: vec![news(Change::Resolved, "p-mails", 0, true)], ..AlarmDelta::default() };
        assert_eq!(notice(&over, &[], at).summary, "queue alarms: 1 resolved");
    }

    #[test]
    fn that_nothing_can_be_seen_is_said() {
        let lost =
            AlarmDelta { sight: Some(PollHealth::Lost("ListQueues: no network".into())), ..AlarmDelta::default() };
        let said = notice(&lost, &[], SystemTime::UNIX_EPOCH);
        assert_eq!(said.text(), "the queues cannot be checked\nListQueues: no network");
        assert_eq!(said.document["blind"], "ListQueues: no network");
    }
}
