//! Creates the reports about a cleaning run, for people and programs.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::class::Class;
use super::removal::Done;
use super::survey::{QueueFinding, Survey, TopicFinding};
use crate::notice::Notice;

/// Returns the full report for programs. `done`: result of the deletion. `None`: the run deletes nothing and only
/// reports.
pub fn document(survey: &Survey, done: Option<&Done>) -> Value {
    let fate = |name: &str, pairs: &[(String, String)]| {
        pairs.iter().find(|(kept, _)| kept == name).map(|(_, reason)| reason.clone())
    };
    let queue = |finding: &QueueFinding| {
        let mut row = serde_json::to_value(finding).unwrap_or_default();
        if let (Some(done), Some(row)) = (done, row.as_object_mut()) {
            row.insert("removed".to_owned(), json!(done.removed.contains(&finding.queue)));
            row.insert("kept".to_owned(), json!(fate(&finding.queue, &done.kept)));
            row.insert("failed".to_owned(), json!(fate(&finding.queue, &done.failed)));
        }
        row
    };
    let bodies = survey.bodies.as_ref().map(|stored| {
        let bytes: u64 = stored.bodies.iter().map(|body| body.bytes).sum();
        json!({
            "bucket": stored.bucket, "unused": stored.bodies.len(), "bytes": bytes, "more": stored.more,
            "removed": done.map_or(0, |done| done.bodies),
        })
    });
    let unread: Vec<_> =
        survey.unread.iter().map(|unread| json!({"name": unread.name, "reason": unread.reason})).collect();
    json!({
        "applied": done.is_some(),
        "record_of_use": survey.has_record(),
        "queues": survey.queues.iter().map(queue).collect::<Vec<_>>(),
        "topics": survey.topics,
        "bodies": bodies,
        "not_looked_at": unread,
    })
}

/// Returns the notice about a cleaning run, with one line per problem, and with the full report for programs. `done`:
/// result of the deletion. `None`: the run deletes nothing. `at`: time of the notice.
pub fn notice(survey: &Survey, done: Option<&Done>, at: SystemTime) -> Notice {
    let summary = summary(survey, done);
    let mut document = document(survey, done);
    let head = json!({
        "source": "hostler", "kind": "clean", "at": humantime::format_rfc3339_seconds(at).to_string(), "summary": summary,
    });
    if let (Value::Object(head), Value::Object(body)) = (head, &mut document) {
        *body = head.into_iter().chain(std::mem::take(body)).collect();
    }
    let queues = survey.queues.iter().filter(|finding| is_odd(finding)).map(|finding| queue_line(finding, done));
    let topics = survey.topics.iter().filter(|topic| topic.inactive).map(topic_line);
    let unread = survey.unread.iter().map(|unread| format!("not inspected: {}: {}", unread.name, unread.reason));
    let failed =
        done.into_iter().flat_map(|done| &done.failed).map(|(name, why)| format!("not removed: {name}: {why}"));
    Notice { summary, lines: failed.chain(queues).chain(topics).chain(unread).collect(), document }
}

/// Returns `true` if the notice has a line for the queue.
pub(super) fn is_odd(finding: &QueueFinding) -> bool {
    !matches!(finding.class, Class::InUse | Class::Young)
}

fn queue_line(finding: &QueueFinding, done: Option<&Done>) -> String {
    let removed = done.is_some_and(|done| done.removed.contains(&finding.queue));
    let class = if removed { "removed" } else { finding.class.name() };
    let plural = if finding.messages == 1 { "message" } else { "messages" };
    let named = if finding.named_by_config { ", named by this config" } else { "" };
    let owner = finding.owner.as_ref().map_or(String::new(), |owner| format!(", owner {owner}"));
    format!("{class}: queue {} ({} {plural}{named}{owner})", finding.queue, finding.messages)
}

fn topic_line(finding: &TopicFinding) -> String {
    let named = if finding.named_by_config { " (named by this config)" } else { "" };
    format!("inactive: topic {}{named}", finding.topic)
}

/// Summarizes the cleaning run in one line, with the number of problems of each kind.
fn summary(survey: &Survey, done: Option<&Done>) -> String {
    let plural = |count: usize, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
    let mut parts = Vec::new();
    if let Some(done) = done {
        parts.push(format!("{} removed", plural(done.removed.len(), "queue", "queues")));
        if survey.bodies.is_some() {
            parts.push(format!("{} removed", plural(done.bodies, "stored body", "stored bodies")));
        }
        if !done.failed.is_empty() {
            parts.push(format!("{} failed", done.failed.len()));
        }
    }
    let classes = [Class::Deletable, Class::InactiveWithMessages, Class::NoProducers, Class::NoConsumers];
    for class in classes {
        let left = |finding: &&QueueFinding| {
            finding.class == class && !done.is_some_and(|done| done.removed.contains(&finding.queue))
        };
        let count = survey.queues.iter().filter(left).count();
        if count > 0 {
            parts.push(format!("{} {}", plural(count, "queue", "queues"), class.name()));
        }
    }
    let inactive = survey.topics.iter().filter(|topic| topic.inactive).count();
    if inactive > 0 {
        parts.push(format!("{} inactive", plural(inactive, "topic", "topics")));
    }
    if let (Some(stored), None) = (&survey.bodies, done)
        && !stored.bodies.is_empty()
    {
        parts.push(format!("{} beyond the age limit", plural(stored.bodies.len(), "stored body", "stored bodies")));
    }
    if !survey.unread.is_empty() {
        parts.push(format!("{} not inspected", survey.unread.len()));
    }
    let of = plural(survey.queues.len(), "queue", "queues");
    if parts.is_empty() { format!("{of}, nothing to clean") } else { format!("of {of}: {}", parts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_queue::{Body, QueueUse, StoredBodies, Unread};

    fn finding(queue: &str, class: Class) -> QueueFinding {
        QueueFinding {
            queue: queue.into(),
            class,
            named_by_config: queue == "p-named",
            messages: 2,
            subscribed: Some(false),
            used: Some(QueueUse::default()),
            consumer: None,
            owner: Some("shop".into()),
        }
    }

    fn survey() -> Survey {
        let body = |key: &str| Body { key: key.into(), stored_at: 1, bytes: 10 };
        let topic = |topic: &str, published: u64| TopicFinding {
            topic: topic.into(),
            inactive: published == 0,
            published: Some(published),
            named_by_config: false,
        };
        Survey {
            queues: vec![
                finding("p-old", Class::Deletable),
                finding("p-named", Class::Deletable),
                finding("p-busy", Class::InUse),
                finding("p-lone", Class::NoConsumers),
            ],
            topics: vec![topic("p-news", 0), topic("p-moves", 3)],
            bodies: Some(StoredBodies { bucket: "b".into(), bodies: vec![body("x"), body("y")], more: false }),
            unread: vec![Unread { name: "p-secret".into(), reason: "denied".into(), denied: true }],
        }
    }

    #[test]
    fn what_is_odd_is_told_and_what_is_in_use_is_not() {
        let said = notice(&survey(), None, SystemTime::UNIX_EPOCH);
        assert_eq!(
            said.summary,
            "of 4 queues: 2 queues deletable, 1 queue no consumers, 1 topic inactive, 2 stored bodies beyond the age \
             limit, 1 not inspected"
        );
        assert_eq!(
            said.lines,
            [
                "deletable: queue p-old (2 messages, owner shop)",
                "deletable: queue p-named (2 messages, named by this config, owner shop)",
                "no consumers: queue p-lone (2 messages, owner shop)",
                "inactive: topic p-news",
                "not inspected: p-secret: denied",
            ]
        );
        assert_eq!((&said.document["kind"], &said.document["applied"]), (&json!("clean"), &json!(false)));
        let bodies = json!({"bucket": "b", "unused": 2, "bytes": 20, "more": false, "removed": 0});
        assert_eq!(said.document["bodies"], bodies);
    }

    #[test]
    fn what_was_removed_and_what_was_not_is_told() {
        let done = Done {
            removed: ["p-old".to_owned()].into(),
            kept: vec![("p-lone".into(), "1 messages have come".into())],
            failed: vec![("p-named".into(), "DeleteQueue: no".into())],
            bodies: 2,
        };
        let said = notice(&survey(), Some(&done), SystemTime::UNIX_EPOCH);
        assert!(
            said.summary
                .starts_with("of 4 queues: 1 queue removed, 2 stored bodies removed, 1 failed, 1 queue deletable,")
        );
        assert_eq!(
            said.lines[..2],
            ["not removed: p-named: DeleteQueue: no", "removed: queue p-old (2 messages, owner shop)"]
        );
        let rows = &said.document["queues"];
        assert_eq!((&rows[0]["removed"], &rows[3]["kept"]), (&json!(true), &json!("1 messages have come")));
        assert_eq!((&rows[1]["failed"], &rows[2]["removed"]), (&json!("DeleteQueue: no"), &json!(false)));
    }

    #[test]
    fn all_is_well() {
        let well = Survey { queues: vec![finding("p-busy", Class::InUse)], ..Survey::default() };
        assert_eq!(notice(&well, None, SystemTime::UNIX_EPOCH).text(), "1 queue, nothing to clean");
    }
}
