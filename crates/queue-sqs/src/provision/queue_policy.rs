//! Queue policies: checks that a topic may send to a queue, and creates the statement that allows it.

use serde_json::{Value as Json, json};

/// `Sid` of the statement that hostler adds to a queue's policy. All other statements are left unchanged.
const SID: &str = "HostlerTopicMaySend";

/// Returns `true` if a policy lets SNS deliver messages from the topic with the ARN `topic` to the queue with the ARN
/// `queue`. Ignores statements with conditions that hostler cannot evaluate.
pub(super) fn admits(policy: Option<&str>, queue: &str, topic: &str) -> bool {
    let policy = policy.and_then(|policy| serde_json::from_str::<Json>(policy).ok()).unwrap_or_default();
    statements(&policy).iter().any(|statement| {
        let principal = statement.get("Principal");
        let service = principal.and_then(|principal| principal.get("Service"));
        statement.get("Effect").and_then(Json::as_str) == Some("Allow")
            && (any(principal, |one| one == "*") || any(service, |one| one == "sns.amazonaws.com"))
            && any(statement.get("Action"), |action| {
                ["*", "sqs:*", "sqs:sendmessage"].contains(&&*action.to_lowercase())
            })
            && any(statement.get("Resource"), |one| one == "*" || one == queue)
            && holds(statement.get("Condition"), topic)
    })
}

/// Returns `true` if a condition holds for messages from the topic. Returns `false` if hostler cannot evaluate the
/// condition.
fn holds(condition: Option<&Json>, topic: &str) -> bool {
    let Some(operators) = condition.and_then(Json::as_object) else { return condition.is_none() };
    operators.iter().all(|(operator, keys)| {
        let known = ["ArnEquals", "ArnLike", "StringEquals", "StringLike"].contains(&operator.as_str());
        let of_source = |(key, arns): (&String, &Json)| {
            key.eq_ignore_ascii_case("aws:SourceArn") && any(Some(arns), |arn| arn == topic)
        };
        known && keys.as_object().is_some_and(|keys| keys.iter().all(of_source))
    })
}

/// Returns the policy with a statement that lets the topic send to the queue. Topics that were allowed before remain
/// allowed, because another config may use the same queue with another exchange.
pub(super) fn admitting(policy: Option<&str>, queue: &str, topic: &str) -> Json {
    let policy = policy.and_then(|policy| serde_json::from_str::<Json>(policy).ok());
    let mut policy = policy.filter(Json::is_object).unwrap_or_else(|| json!({"Version": "2012-10-17"}));
    let (former, foreign): (Vec<Json>, Vec<Json>) =
        statements(&policy).into_iter().partition(|statement| statement.get("Sid") == Some(&json!(SID)));
    let mut topics: Vec<String> = former.iter().flat_map(sources).collect();
    if !topics.iter().any(|known| known == topic) {
        topics.push(topic.to_owned());
    }
    let topics = if let [topic] = &topics[..] { json!(topic) } else { json!(topics) };
    let ours = json!({
        "Sid": SID,
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue,
        "Condition": {"ArnEquals": {"aws:SourceArn": topics}},
    });
    policy["Statement"] = foreign.into_iter().chain([ours]).collect();
    policy
}

/// Returns the ARNs of the topics that a statement from hostler allows to send.
fn sources(statement: &Json) -> Vec<String> {
    let arns = statement.pointer("/Condition/ArnEquals/aws:SourceArn");
    match arns {
        Some(Json::String(arn)) => vec![arn.clone()],
        Some(Json::Array(arns)) => arns.iter().filter_map(Json::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// Returns the statements of a policy. They may be written as a list or as a single statement.
fn statements(policy: &Json) -> Vec<Json> {
    match policy.get("Statement") {
        Some(Json::Array(statements)) => statements.clone(),
        Some(statement) => vec![statement.clone()],
        None => Vec::new(),
    }
}

/// Returns `true` if `fits` accepts the value, or, for a list, if it accepts any string in the list.
fn any(value: Option<&Json>, fits: impl Fn(&str) -> bool) -> bool {
    match value {
        Some(Json::String(text)) => fits(text),
        Some(Json::Array(values)) => values.iter().filter_map(Json::as_str).any(fits),
        _ => false,
    }
}

/// Returns the redrive-allow policy that a dead-letter queue needs so that `source` may use it. Returns `None` if
/// `source` may already use it. `policy`: current policy of the dead-letter queue. If it has none, any queue may use
/// it.
pub(super) fn opened(policy: Option<&str>, source: &str) -> Option<Json> {
    let policy: Json = serde_json::from_str(policy?).ok()?;
    let mut sources = match policy.get("redrivePermission")?.as_str()? {
        "denyAll" => Vec::new(),
        "byQueue" => policy.get("sourceQueueArns").and_then(Json::as_array).cloned().unwrap_or_default(),
        _ => return None,
    };
    if sources.iter().any(|known| known == source) {
        return None;
    }
    sources.push(source.into());
    Some(json!({"redrivePermission": "byQueue", "sourceQueueArns": sources}))
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: &str = "arn:aws:sqs:eu-west-1:1:thumbnails";
    const TOPIC: &str = "arn:aws:sns:eu-west-1:1:uploads";

    fn admitted(policy: &Json) -> bool {
        admits(Some(&policy.to_string()), QUEUE, TOPIC)
    }

    #[test]
    fn what_it_writes_admits_that_topic_only() {
        let policy = admitting(None, QUEUE, TOPIC);
        assert!(admitted(&policy));
        let policy = policy.to_string();
        assert!(!admits(Some(&policy), QUEUE, "arn:aws:sns:eu-west-1:1:other"));
        assert!(!admits(Some(&policy), "arn:aws:sqs:eu-west-1:1:other", TOPIC));
        for nothing in [None, Some(""), Some("{}"), Some("no JSON")] {
            assert!(!admits(nothing, QUEUE, TOPIC));
        }
    }

    #[test]
    fn foreign_statements_stay_and_ours_is_there_once() {
        let foreign =
            json!({"Sid": "Audit", "Effect": "Deny", "Principal": "*", "Action": "sqs:PurgeQueue", "Resource": "*"});
        for statements in [json!([foreign]), foreign.clone()] {
            let policy = json!({"Version": "2008-10-17", "Id": "theirs", "Statement": statements}).to_string();
            let first = admitting(Some(&policy), QUEUE, "arn:aws:sns:eu-west-1:1:former").to_string();
            let second = admitting(Some(&first), QUEUE, TOPIC);
            assert_eq!((&second["Version"], &second["Id"]), (&json!("2008-10-17"), &json!("theirs")));
            assert_eq!(second["Statement"][0], foreign);
            assert_eq!(second["Statement"].as_array().unwrap().len(), 2);
            assert!(admitted(&second));
        }
    }

    #[test]
    fn configs_with_other_exchanges_for_a_queue_leave_each_other_their_topics() {
        let other = "arn:aws:sns:eu-west-1:1:other";
        let first = admitting(None, QUEUE, other).to_string();
        let both = admitting(Some(&first), QUEUE, TOPIC);
        assert!(admitted(&both) && admits(Some(&both.to_string()), QUEUE, other));
        assert_eq!(admitting(Some(&both.to_string()), QUEUE, other), both, "once each");
    }

    #[test]
    fn other_peoples_statements_count_when_they_surely_admit() {
        let statement = json!({
            "Effect": "Allow", "Principal": {"Service": ["events.amazonaws.com", "sns.amazonaws.com"]},
            "Action": ["SQS:SendMessage"], "Resource": QUEUE, "Condition": {"ArnLike": {"AWS:SourceArn": [TOPIC, "x"]}},
        });
        let with = |key: &str, value: Json| {
            let mut statement = statement.clone();
            statement[key] = value;
            json!({"Statement": statement})
        };
        assert!(admitted(&json!({"Statement": statement})));
        assert!(admitted(&with("Principal", json!("*"))));
        assert!(!admitted(&with("Effect", json!("Deny"))));
        assert!(!admitted(&with("Action", json!("sqs:ReceiveMessage"))));
        assert!(!admitted(&with("Principal", json!({"AWS": "123456789012"}))));
        assert!(!admitted(&with("Condition", json!({"ArnLike": {"aws:SourceArn": "arn:aws:sns:*:*:x"}}))));
        let over_tls = json!({"ArnEquals": {"aws:SourceArn": TOPIC}, "Bool": {"aws:SecureTransport": "true"}});
        assert!(!admitted(&with("Condition", over_tls)));
    }

    #[test]
    fn a_dead_letter_queue_that_shuts_its_source_out_is_opened() {
        for open in [None, Some(""), Some(r#"{"redrivePermission":"allowAll"}"#)] {
            assert_eq!(opened(open, QUEUE), None);
        }
        let denied = opened(Some(r#"{"redrivePermission":"denyAll"}"#), QUEUE).unwrap();
        assert_eq!(denied["sourceQueueArns"], json!([QUEUE]));
        let other = r#"{"redrivePermission":"byQueue","sourceQueueArns":["other"]}"#;
        let policy = opened(Some(other), QUEUE).unwrap();
        assert_eq!(policy["sourceQueueArns"], json!(["other", QUEUE]));
        assert_eq!(opened(Some(&policy.to_string()), QUEUE), None);
    }
}
