//! Finds faults in the resources that a channel's consumer needs, each with a fix.

use bytesize::ByteSize;

use super::super::Options;
use super::account::Account;
use super::desired::{DEAD_LETTER_RETENTION, FanOut, Kind, Piece, Wanted};
use super::observed::{Observed, PENDING, Resource, Seen};
use super::queue_policy;
use super::setting::{
    Difference, MAX_SIZE, REDRIVE_POLICY, RETENTION, Redrive, SeenRedrive, Setting, VISIBILITY_TIMEOUT, Value,
    WAIT_TIME,
};
use hostler_queue::Finding;

const PROVISION: &str = "run `hostler provision`";
const CREATE: &str = "run `hostler provision`, or set queue.sqs.provision = \"auto\"";

/// Retention of a new queue on AWS in seconds (4 days).
const USUAL_RETENTION: u64 = 4 * 86_400;

/// Alias of SQS's own KMS key. SNS cannot use this key, because nobody can change the key's policy.
const SQS_OWN_KEY: &str = "alias/aws/sqs";

/// Returns all findings about the resources of one channel.
pub(super) fn findings(wanted: &Wanted, observed: &Observed, options: &Options) -> Vec<Finding> {
    let account = observed.account();
    let mut findings = Vec::new();
    findings.extend(of_piece(&wanted.queue, &observed.queue, account.as_ref(), options));
    if let Some(piece) = &wanted.dead_letters {
        findings.extend(of_piece(piece, &observed.dead_letters, account.as_ref(), options));
        findings.extend(dead_letters_die_first(wanted, observed));
        findings.extend(dead_letters_do_not_fit(wanted, observed, options));
    }
    findings.extend(too_small(&wanted.queue, &observed.queue, options));
    findings.extend(delays_outlast_it(&wanted.queue, &observed.queue));
    if let Some(fan_out) = &wanted.fan_out {
        findings.extend(of_fan_out(wanted, fan_out, observed, account.as_ref(), options));
    }
    findings
}

/// Returns the finding for a queue of the wrong kind: standard instead of FIFO, or FIFO instead of standard. `other`:
/// AWS name of the existing queue.
pub(super) fn of_the_other_kind(piece: &Piece, other: &str) -> Finding {
    let ordered = !piece.ordered;
    Finding {
        fault: format!("there is no SQS {}, but there is {other}", piece.title()),
        cure: format!("set consumers.*.ordered = {ordered} for it, or {PROVISION}"),
        fatal: true,
    }
}

fn warning(fault: String, cure: impl Into<String>) -> Finding {
    Finding { fault, cure: cure.into(), fatal: false }
}

fn denial(what: &str, fatal: bool) -> Finding {
    let cure = "allow it: `hostler iam` prints the policy that is needed".into();
    Finding { fault: what.to_owned(), cure, fatal }
}

/// Returns the finding for a missing resource without which the consumer receives no messages. The finding is not fatal
/// if hostler creates missing resources when it starts.
fn missing(what: String, options: &Options) -> Finding {
    let fault = format!("there is no {what}");
    Finding { fault, cure: CREATE.into(), fatal: !options.create_missing }
}

fn of_piece(piece: &Piece, seen: &Seen<Resource>, account: Option<&Account>, options: &Options) -> Vec<Finding> {
    match (seen, account) {
        (Seen::Missing, _) => vec![missing(format!("SQS {}", piece.title()), options)],
        (Seen::Denied(what), _) => vec![denial(what, piece.kind == Kind::Queue)],
        (Seen::There(resource), Some(account)) => differing(&piece.title(), &piece.settings, resource, account),
        (Seen::There(_), None) => Vec::new(),
    }
}

fn differing(title: &str, settings: &[Setting], resource: &Resource, account: &Account) -> Vec<Finding> {
    let differing = settings.iter().filter_map(|setting| {
        let Difference { seen, wanted } = setting.difference(resource.get(setting.attribute), account)?;
        let consequence = match setting.attribute {
            // The wait time is not checked, because each receive call states its own. `dead_letters_die_first` checks
            // the retention.
            WAIT_TIME | RETENTION => return None,
            VISIBILITY_TIMEOUT => " (each receive asks for the lease that it wants)",
            REDRIVE_POLICY => redrive_consequence(&setting.value, resource.get(REDRIVE_POLICY)),
            "RawMessageDelivery" => " (messages come wrapped in JSON of SNS)",
            "FilterPolicy" | "FilterPolicyScope" => " (the queue receives other messages than the config says)",
            _ => "",
        };
        Some(warning(format!("{title}: {} is {seen}, not {wanted}{consequence}", setting.label), PROVISION))
    });
    differing.collect()
}

/// Describes the consequence of a queue's redrive policy that differs from the desired one. Returns an empty string if
/// there is no consequence to report.
fn redrive_consequence(wanted: &Value, seen: Option<&str>) -> &'static str {
    let Value::Redrive(Some(Redrive { after: Some(wanted), .. })) = wanted else { return "" };
    match seen.and_then(SeenRedrive::read).and_then(|seen| seen.after) {
        None => " (a message that takes the host down is redelivered forever)",
        Some(seen) if seen < *wanted => " (messages are dead-lettered before the consumer has given up on them)",
        Some(_) => "",
    }
}

/// Checks that the dead-letter queue has a longer retention than its source. In a standard dead-letter queue, SQS
/// counts a message's age from the time when the message was first sent. With an equal or shorter retention, a message
/// could expire there soon after its move.
fn dead_letters_die_first(wanted: &Wanted, observed: &Observed) -> Option<Finding> {
    let (source, target) = (observed.queue.there()?, observed.dead_letters.there()?);
    let (source_keeps, target_keeps) = (source.number(RETENTION)?, target.number(RETENTION)?);
    let (most, least) = (DEAD_LETTER_RETENTION.as_secs(), least_retention(&wanted.queue).unwrap_or_default());
    let is_enough = target_keeps > source_keeps || (least >= most && target_keeps >= most);
    if wanted.queue.ordered || is_enough {
        return None;
    }
    let piece = wanted.dead_letters.as_ref()?;
    let days = |seconds: u64| humantime::format_duration(std::time::Duration::from_secs(seconds)).to_string();
    let fault = format!(
        "{} keeps messages for {}, counted from when they were first sent, and {} for {}",
        piece.title(),
        days(target_keeps),
        wanted.queue.title(),
        days(source_keeps)
    );
    let cure = match target_keeps < most {
        true if source_keeps < most || least >= most => PROVISION.to_owned(),
        _ => format!(
            "run `aws sqs set-queue-attributes --queue-url {} --attributes {RETENTION}={}` (SQS deletes the messages that \
             are older), and {PROVISION}",
            source.address,
            least.max(USUAL_RETENTION)
        ),
    };
    Some(warning(fault, cure))
}

/// Checks that the dead-letter queue accepts all messages of its source. If it refuses the copy of a message that
/// hostler wants to dead-letter, the message remains in the source until SQS itself moves it or it expires.
fn dead_letters_do_not_fit(wanted: &Wanted, observed: &Observed, options: &Options) -> Option<Finding> {
    let (source, target) = (observed.queue.there()?, observed.dead_letters.there()?);
    let (source_takes, target_takes) = (source.number(MAX_SIZE)?, target.number(MAX_SIZE)?);
    if target_takes >= source_takes {
        return None;
    }
    // If there is a bucket, a large body is stored there, unless the message has no attribute left for its pointer.
    let (consequence, fatal) = match &options.bucket {
        Some(_) => ("a larger one with ten attributes of its own", false),
        None => ("a larger one", true),
    };
    let fault = format!(
        "{} takes messages of {}, less than {}, {} ({consequence} cannot be dead-lettered)",
        wanted.dead_letters.as_ref()?.title(),
        ByteSize(target_takes),
        wanted.queue.title(),
        ByteSize(source_takes),
    );
    let cure = format!(
        "run `aws sqs set-queue-attributes --queue-url {} --attributes {MAX_SIZE}={source_takes}`",
        target.address
    );
    Some(Finding { fault, cure, fatal })
}

/// Returns the minimum retention in seconds that a queue needs because of its messages' delays. `None`: any retention
/// will do.
fn least_retention(piece: &Piece) -> Option<u64> {
    piece.settings.iter().find_map(|setting| match setting.value {
        Value::SecondsAtLeast(seconds) if setting.attribute == RETENTION => Some(seconds),
        _ => None,
    })
}

/// Checks that a queue's retention is at least the desired one, which covers the longest delay. With a shorter
/// retention, a message with a long delay may expire before it is due.
fn delays_outlast_it(piece: &Piece, seen: &Seen<Resource>) -> Option<Finding> {
    let wanted = least_retention(piece)?;
    let keeps = seen.there()?.number(RETENTION).filter(|keeps| *keeps < wanted)?;
    let days = |seconds| humantime::format_duration(std::time::Duration::from_secs(seconds));
    let (title, keeps, wanted) = (piece.title(), days(keeps), days(wanted));
    let fault =
        format!("{title} keeps messages for {keeps}, not {wanted} (one with a long delay may be gone before its time)");
    Some(warning(fault, PROVISION))
}

/// Checks that a queue accepts messages of up to `payload.threshold` bytes. Queues that were created before the AWS
/// limit rose to 1 MiB may accept only 256 KiB.
fn too_small(piece: &Piece, seen: &Seen<Resource>, options: &Options) -> Option<Finding> {
    let resource = seen.there()?;
    let limit = resource.number(MAX_SIZE)?;
    if limit >= u64::try_from(options.threshold).unwrap_or(u64::MAX) {
        return None;
    }
    let cure = format!(
        "set payload.threshold to {limit} at most, or run `aws sqs set-queue-attributes --queue-url {} --attributes \
         {MAX_SIZE}={}`",
        resource.address,
        super::super::MAX_MESSAGE
    );
    let threshold = ByteSize(options.threshold as u64);
    let fault =
        format!("{} takes messages of {}, less than payload.threshold, {threshold}", piece.title(), ByteSize(limit));
    Some(warning(fault, cure))
}

fn of_fan_out(
    wanted: &Wanted,
    fan_out: &FanOut,
    observed: &Observed,
    account: Option<&Account>,
    options: &Options,
) -> Vec<Finding> {
    let topic = &fan_out.topic;
    let mut findings = match &observed.topic {
        Seen::Missing => return vec![missing(format!("SNS {}", topic.title()), options)],
        seen => of_piece(topic, seen, account, options),
    };
    let title = format!("subscription of {} to {}", wanted.queue.on_aws, topic.on_aws);
    match (&observed.subscription, account) {
        (Seen::Missing, _) if observed.queue.there().is_some() && observed.topic.there().is_some() => {
            findings.push(missing(format!("SNS {title}"), options));
        }
        (Seen::Denied(what), _) => findings.push(denial(what, false)),
        (Seen::There(resource), _) if resource.get(PENDING) == Some("true") => {
            let fault = format!("{title} waits to be confirmed");
            let cure =
                format!("run `aws sns confirm-subscription` with the token in the message in {}", wanted.queue.on_aws);
            findings.push(Finding { fault, cure, fatal: true });
        }
        (Seen::There(resource), Some(account)) => {
            findings.extend(differing(&title, &fan_out.subscription, resource, account));
        }
        _ => {}
    }
    let queues = [(Some(&wanted.queue), &observed.queue), (wanted.dead_letters.as_ref(), &observed.dead_letters)];
    for (piece, seen) in queues {
        if let (Some(piece), Some(resource), Some(account)) = (piece, seen.there(), account) {
            findings.extend(shut_out(piece, resource, topic, account, piece == &wanted.queue, options));
        }
    }
    findings
}

/// Returns a finding if the topic cannot send to the queue. `fatal`: set if the queue is the consumer's own, and not
/// its dead-letter queue.
fn shut_out(
    queue: &Piece,
    resource: &Resource,
    topic: &Piece,
    account: &Account,
    fatal: bool,
    options: &Options,
) -> Option<Finding> {
    if !queue_policy::admits(resource.get("Policy"), &resource.arn, &account.topic(&topic.on_aws)) {
        let fault = format!("the policy of {} does not let {} send to it", queue.title(), topic.title());
        return Some(Finding { fault, cure: PROVISION.into(), fatal });
    }
    let key = resource.get("KmsMasterKeyId").or(options.kms_key.as_deref())?;
    key.ends_with(SQS_OWN_KEY).then(|| Finding {
        fault: format!("{} is encrypted with {SQS_OWN_KEY}, which SNS cannot use", queue.title()),
        cure: format!("set queue.sqs.kms_key to a key whose policy lets sns.amazonaws.com use it, and {PROVISION}"),
        fatal,
    })
}

#[cfg(test)]
mod tests {
    use super::super::desired::example::{spec, with};
    use super::super::observed::example::{nothing, whole};
    use super::*;
    use hostler_queue::ChannelSpec;
    use hostler_types::channel::Filter;

    fn fanned(options: &Options) -> Wanted {
        let filter = Filter::Exact(vec!["a".into()]);
        with(&ChannelSpec { filter, ..spec("uploads.thumbnails") }, options).unwrap()
    }

    /// Applies `drift` to resources in the desired state, and returns the only finding: its fault, and `true` if it is
    /// fatal.
    fn found(drift: impl FnOnce(&mut Observed)) -> (String, bool) {
        found_with(&Options::default(), drift)
    }

    fn found_with(options: &Options, drift: impl FnOnce(&mut Observed)) -> (String, bool) {
        let wanted = fanned(options);
        let mut observed = whole(&wanted);
        drift(&mut observed);
        let mut findings = findings(&wanted, &observed, options);
        let Some(Finding { fault, cure, fatal }) = findings.pop() else { return ("nothing".into(), false) };
        assert!(findings.is_empty(), "{findings:?}");
        assert!(["run `", "set ", "allow it: `"].iter().any(|cures| cure.starts_with(cures)), "no cure: {cure}");
        (fault, fatal)
    }

    #[test]
    fn nothing_is_wrong_with_what_provision_makes() {
        assert_eq!(found(|_| {}).0, "nothing");
    }

    #[test]
    fn what_is_missing_is_fatal_unless_it_will_be_created() {
        for create_missing in [false, true] {
            let options = Options { create_missing, ..Options::default() };
            let findings = findings(&fanned(&options), &nothing(), &options);
            let faults: Vec<_> = findings.iter().map(|finding| finding.fault.as_str()).collect();
            let queues = ["there is no SQS queue t-thumbnails", "there is no SQS queue t-thumbnails-dlq"];
            assert_eq!(faults, [&queues[..], &["there is no SNS topic t-uploads"]].concat());
            assert!(findings.iter().all(|finding| finding.fatal != create_missing));
        }
        let (fault, fatal) = found(|seen| seen.subscription = Seen::Missing);
        assert_eq!(fault, "there is no SNS subscription of t-thumbnails to t-uploads");
        assert!(fatal);
    }

    #[test]
    fn what_we_may_not_see_is_named() {
        let denied = |what: &str| Seen::Denied(format!("{what} on it is denied"));
        let one = |action: &str, drift: &dyn Fn(&mut Observed, Seen<Resource>)| {
            let (fault, fatal) = found(|seen| drift(seen, denied(action)));
            assert_eq!(fault, format!("{action} on it is denied"));
            fatal
        };
        assert!(one("sqs:GetQueueUrl", &|seen, denied| seen.dead_letters = denied));
        // A consumer runs without permission to read its topic and subscription.
        assert!(!one("sns:GetTopicAttributes", &|seen, denied| {
            (seen.topic, seen.subscription) = (denied, Seen::Missing);
        }));
        assert!(!one("sns:ListSubscriptionsByTopic", &|seen, denied| seen.subscription = denied));
    }

    #[test]
    fn redrive_that_is_not_as_the_policy_wants_it_says_what_comes_of_it() {
        let redrive = |count: u32| {
            let target = "arn:aws:sqs:eu-west-1:123456789012:t-thumbnails-dlq";
            format!(r#"{{"deadLetterTargetArn":"{target}","maxReceiveCount":"{count}"}}"#)
        };
        let fault = |policy: &str| found(|seen| seen.queue.set(REDRIVE_POLICY, policy)).0;
        assert_eq!(fault(&redrive(5)), "nothing");
        assert!(fault(&redrive(4)).ends_with("(messages are dead-lettered before the consumer has given up on them)"));
        assert!(fault(&redrive(6)).ends_with("not to t-thumbnails-dlq after 5 receives"));
        assert!(fault("").ends_with("(a message that takes the host down is redelivered forever)"));
        assert!(!found(|seen| seen.queue.set(REDRIVE_POLICY, "")).1);
    }

    #[test]
    fn a_dead_letter_queue_has_to_outlive_its_source() {
        let (fault, fatal) = found(|seen| seen.dead_letters.set(RETENTION, "345600"));
        assert!(fault.contains("queue t-thumbnails-dlq keeps messages for 4days") && !fatal, "{fault}");
        assert_eq!(found(|seen| seen.dead_letters.set(RETENTION, "345601")).0, "nothing");
        let wanted = fanned(&Options::default());
        let mut observed = whole(&wanted);
        observed.queue.set(RETENTION, "1209600");
        let cure = &findings(&wanted, &observed, &Options::default())[0].cure;
        assert!(cure.starts_with("run `aws sqs set-queue-attributes --queue-url at t-thumbnails "), "{cure}");
    }

    #[test]
    fn a_queue_that_long_delays_make_keep_messages_for_the_maximum_is_not_asked_for_less() {
        let delayed = |days: u32| {
            let longest_delay = std::time::Duration::from_secs(86400) * days;
            with(&ChannelSpec { longest_delay, ..spec("orders") }, &Options::default()).unwrap()
        };
        let found = |wanted: &Wanted, keeps: &str| {
            let mut observed = whole(wanted);
            observed.queue.set(RETENTION, "1209600");
            observed.dead_letters.set(RETENTION, keeps);
            findings(wanted, &observed, &Options::default())
        };
        assert_eq!(found(&delayed(10), "1209600"), []);
        let cures = |wanted: &Wanted, keeps| found(wanted, keeps).into_iter().map(|one| one.cure).collect::<Vec<_>>();
        assert_eq!(cures(&delayed(10), "345600"), [PROVISION]);
        let cure = cures(&delayed(2), "1209600").pop().unwrap();
        assert!(cure.contains("MessageRetentionPeriod=518400`"), "not less than the delays need: {cure}");
    }

    #[test]
    fn a_queue_has_to_outlast_the_delays_of_its_messages() {
        let longest_delay = std::time::Duration::from_secs(3 * 86400);
        let wanted = with(&ChannelSpec { longest_delay, ..spec("orders") }, &Options::default()).unwrap();
        let mut observed = whole(&wanted);
        observed.queue.set(RETENTION, "604800");
        assert_eq!(findings(&wanted, &observed, &Options::default()), []);
        observed.queue.set(RETENTION, "345600");
        let found = &findings(&wanted, &observed, &Options::default())[0];
        assert!(found.fault.starts_with("queue t-orders keeps messages for 4days, not 7days"), "{found}");
        assert!(found.cure == PROVISION && !found.fatal);
    }

    #[test]
    fn a_dead_letter_queue_has_to_take_what_its_source_takes() {
        let too_small = |seen: &mut Observed| seen.dead_letters.set(MAX_SIZE, "262144");
        let (fault, fatal) = found(too_small);
        let told = "queue t-thumbnails-dlq takes messages of 256.0 KiB, less than queue t-thumbnails, 1.0 MiB";
        assert_eq!(fault, format!("{told} (a larger one cannot be dead-lettered)"));
        assert!(fatal);
        let bucket = Options { bucket: Some("bodies".into()), ..Options::default() };
        let (fault, fatal) = found_with(&bucket, too_small);
        assert!(fault.contains("(a larger one with ten attributes of its own cannot") && !fatal, "{fault}");
        assert_eq!(found(|seen| seen.queue.set(MAX_SIZE, "262144")).0, "nothing");
        let wanted = fanned(&Options::default());
        let mut observed = whole(&wanted);
        too_small(&mut observed);
        let cure = &findings(&wanted, &observed, &Options::default())[0].cure;
        assert!(cure.ends_with("--queue-url at t-thumbnails-dlq --attributes MaximumMessageSize=1048576`"), "{cure}");
    }

    #[test]
    fn what_keeps_messages_from_arriving_is_fatal() {
        let (fault, fatal) = found(|seen| seen.queue.set("Policy", ""));
        assert_eq!(fault, "the policy of queue t-thumbnails does not let topic t-uploads send to it");
        assert!(fatal);
        assert!(!found(|seen| seen.dead_letters.set("Policy", "")).1);
        let (fault, fatal) = found(|seen| seen.subscription.set(PENDING, "true"));
        assert!(fault.ends_with("waits to be confirmed") && fatal, "{fault}");
        let (fault, fatal) = found(|seen| seen.queue.set("KmsMasterKeyId", "alias/aws/sqs"));
        assert!(fault.contains("which SNS cannot use") && fatal, "{fault}");
    }

    #[test]
    fn what_only_differs_is_a_warning() {
        let options = Options { kms_key: Some("alias/queues".into()), threshold: 256 * 1024, ..Options::default() };
        let warned = |fault: &str, drift: &dyn Fn(&mut Observed)| {
            let (text, fatal) = found_with(&options, drift);
            assert!(text.contains(fault) && !fatal, "{text}");
        };
        warned("visibility timeout is 45s, not 30s", &|seen| seen.queue.set("VisibilityTimeout", "45"));
        warned("raw message delivery is false, not true", &|seen| seen.subscription.set("RawMessageDelivery", "false"));
        warned("filter is none, not {\"routing-key\":[\"a\"]}", &|seen| seen.subscription.set("FilterPolicy", "{}"));
        warned("less than payload.threshold", &|seen| seen.queue.set(MAX_SIZE, "262143"));
        warned("KMS key is none, not alias/queues", &|seen| seen.queue.set("KmsMasterKeyId", ""));
        assert_eq!(found_with(&options, |seen| seen.queue.set(MAX_SIZE, "262144")).0, "nothing");
    }
}
