//! The least-privilege IAM policy that a config needs.

use serde_json::{Value as Json, json};

use super::super::Options;
use super::super::names::Names;
use super::super::payload::OWN as BODIES;
use super::account::name_in;
use crate::channel::Channel;
use crate::queue::{ChannelSpec, tag};

/// The IAM policy for consuming these channels and sending to those; `None` in `account` or in `options.region` means any.
/// `provision`: what `hostler provision` needs as well. Asks nothing of AWS.
///
/// Each statement is for one purpose, which its `Sid` says. Reading what `hostler check` looks at is part of it.
pub fn least_privilege(
    options: &Options,
    account: Option<&str>,
    consumed: &[ChannelSpec],
    sent: &[Channel],
    provision: bool,
) -> Json {
    let scope = Scope::new(options, account);
    let reach = Reach::new(&scope, options, consumed, sent);
    let mut statements = run(&reach);
    if provision || options.create_missing {
        statements.extend(provisioning(&reach));
    }
    let statements = statements.into_iter().filter(|statement| !statement.resources.is_empty());
    let statements: Vec<_> = statements.map(Statement::json).chain(encryption(&scope, options)).collect();
    json!({"Version": "2012-10-17", "Statement": statements})
}

/// The statement that lets these objects, each a bucket and a key, be read: handlers that are there. `None` for none.
pub fn reading_handlers(options: &Options, objects: &[(&str, &str)]) -> Option<Json> {
    let partition = Scope::new(options, None).partition;
    let arns = objects.iter().map(|(bucket, key)| format!("arn:{partition}:s3:::{bucket}/{key}"));
    let statement = Statement::new("Handlers", &["s3:GetObject"], &distinct(arns.collect()));
    (!objects.is_empty()).then(|| statement.json())
}

/// The statement that lets a task of this ECS cluster protect itself from scale-in. A task's own ARN is not known before it
/// runs, so it is for all of the cluster's.
pub fn protecting_tasks(options: &Options, account: Option<&str>, cluster: &str) -> Json {
    let tasks = Scope::new(options, account).arn("ecs", &format!("task/{cluster}/*"));
    Statement::new("ScaleInProtection", &["ecs:UpdateTaskProtection"], &[tasks]).json()
}

/// The statements for `hostler alarms`: looking at every queue under the prefix.
pub fn alarming(options: &Options, account: Option<&str>) -> Vec<Json> {
    let scope = Scope::new(options, account);
    let look = ["sqs:ListQueueTags", "sqs:GetQueueAttributes"];
    let queues = scope.arn("sqs", &format!("{}*", options.prefix));
    vec![
        Statement::new("FindQueues", &["sqs:ListQueues"], &[scope.arn("sqs", "*")]).json(),
        Statement::new("LookAtQueues", &look, &[queues]).json(),
    ]
}

/// The statements for `hostler clean` beside those of [`alarming`]: the record of use, and removing what is managed by
/// hostler and no more.
pub fn cleaning(options: &Options, account: Option<&str>) -> Vec<Json> {
    let scope = Scope::new(options, account);
    let all = |service: &str| scope.arn(service, &format!("{}*", options.prefix));
    let anywhere = ["*".to_owned()];
    let find = ["sqs:GetQueueUrl", "sqs:ListDeadLetterSourceQueues"];
    let mut remove = Statement::new("RemoveQueues", &["sqs:DeleteQueue"], &[all("sqs")]).json();
    remove["Condition"] = json!({"StringEquals": {format!("aws:ResourceTag/{}", tag::MANAGED): "true"}});
    let mut statements = vec![
        Statement::new("RecordOfUse", &["cloudwatch:GetMetricData"], &anywhere).json(),
        Statement::new("FindUnused", &find, &[all("sqs")]).json(),
        remove,
        Statement::new("ListTopics", &["sns:ListTopics"], &anywhere).json(),
        Statement::new("LookAtTopics", &["sns:ListTagsForResource"], &[all("sns")]).json(),
    ];
    if let Some(bucket) = &options.bucket {
        let bucket = format!("arn:{}:s3:::{bucket}", scope.partition);
        let bodies = format!("{bucket}/{BODIES}*");
        statements.push(Statement::new("ListBodies", &["s3:ListBucket"], &[bucket]).json());
        statements.push(Statement::new("RemoveBodies", &["s3:DeleteObject"], &[bodies]).json());
    }
    statements
}

/// What may be done, to what, and what for.
struct Statement {
    sid: &'static str,
    actions: Vec<&'static str>,
    resources: Vec<String>,
}

impl Statement {
    fn new(sid: &'static str, actions: &[&'static str], resources: &[String]) -> Self {
        Self { sid, actions: actions.to_vec(), resources: resources.to_vec() }
    }

    /// One whose actions IAM cannot narrow down to a resource; for those who have to do with these topics at all.
    fn anywhere(sid: &'static str, actions: &[&'static str], topics: &[String]) -> Self {
        let anywhere = (!topics.is_empty()).then(|| "*".to_owned());
        Self { sid, actions: actions.to_vec(), resources: anywhere.into_iter().collect() }
    }

    fn json(self) -> Json {
        let Self { sid, actions, resources } = self;
        json!({"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources})
    }
}

fn run(reach: &Reach) -> Vec<Statement> {
    let consume = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility"];
    let find = ["sqs:GetQueueUrl", "sqs:GetQueueAttributes"];
    let send = [&["sqs:SendMessage"][..], &find].concat();
    vec![
        Statement::new("Consume", &[&consume[..], &find].concat(), &reach.queues),
        Statement::new("DeadLetter", &send, &reach.dead_letters),
        Statement::new("Send", &send, &reach.sent_queues),
        Statement::new("Publish", &["sns:Publish"], &reach.sent_topics),
        Statement::anywhere("FindTopics", &["sns:ListTopics"], &reach.sent_topics),
        Statement::new("CheckTopics", &["sns:GetTopicAttributes", "sns:ListSubscriptionsByTopic"], &reach.topics),
        Statement::anywhere("CheckSubscriptions", &["sns:GetSubscriptionAttributes"], &reach.topics),
        Statement::new("LargeMessages", &["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], &reach.objects),
    ]
}

fn provisioning(reach: &Reach) -> Vec<Statement> {
    let queues = distinct([&reach.dead_letters[..], &reach.queues, &reach.sent_queues].concat());
    let topics = distinct([&reach.topics[..], &reach.sent_topics].concat());
    let read = ["sqs:GetQueueUrl", "sqs:GetQueueAttributes", "sqs:ListQueueTags"];
    let write = ["sqs:CreateQueue", "sqs:SetQueueAttributes", "sqs:TagQueue", "sqs:UntagQueue"];
    let topic = ["sns:CreateTopic", "sns:SetTopicAttributes", "sns:ListTagsForResource", "sns:TagResource"];
    vec![
        Statement::new("ProvisionQueues", &[&read[..], &write].concat(), &queues),
        Statement::new("ProvisionTopics", &topic, &topics),
        Statement::anywhere("ProvisionFindTopics", &["sns:ListTopics"], &topics),
        Statement::new("ProvisionSubscriptions", &["sns:Subscribe"], &reach.topics),
        Statement::anywhere("ProvisionFilters", &["sns:SetSubscriptionAttributes"], &reach.topics),
    ]
}

/// Decrypting what is received, and a data key for what is sent.
fn encryption(scope: &Scope<'_>, options: &Options) -> Option<Json> {
    let key = options.kms_key.as_deref()?;
    let is_arn = key.starts_with("arn:");
    let name = if is_arn { name_in(key) } else { key };
    let mut statement =
        json!({"Sid": "Encryption", "Effect": "Allow", "Action": ["kms:Decrypt", "kms:GenerateDataKey"]});
    if name.starts_with("alias/") {
        // IAM knows keys by their ids only; by an alias they are known through a condition.
        statement["Resource"] = json!([scope.arn("kms", "key/*")]);
        statement["Condition"] = json!({"ForAnyValue:StringEquals": {"kms:ResourceAliases": name}});
    } else {
        let arn = if is_arn { key.to_owned() } else { scope.arn("kms", &format!("key/{key}")) };
        statement["Resource"] = json!([arn]);
    }
    Some(statement)
}

/// Where the resources are.
struct Scope<'a> {
    partition: &'static str,
    region: &'a str,
    account: &'a str,
}

impl<'a> Scope<'a> {
    fn new(options: &'a Options, account: Option<&'a str>) -> Self {
        let region = options.region.as_deref().unwrap_or("*");
        let partition = match region {
            region if region.starts_with("cn-") => "aws-cn",
            region if region.starts_with("us-gov-") => "aws-us-gov",
            _ => "aws",
        };
        Self { partition, region, account: account.unwrap_or("*") }
    }

    fn arn(&self, service: &str, name: &str) -> String {
        let Self { partition, region, account } = self;
        format!("arn:{partition}:{service}:{region}:{account}:{name}")
    }
}

/// The ARNs of everything that a config uses, by what for.
struct Reach {
    queues: Vec<String>,
    dead_letters: Vec<String>,
    /// Of consumed channels.
    topics: Vec<String>,
    sent_queues: Vec<String>,
    sent_topics: Vec<String>,
    objects: Vec<String>,
}

impl Reach {
    fn new(scope: &Scope<'_>, options: &Options, consumed: &[ChannelSpec], sent: &[Channel]) -> Self {
        let names = Names::new(&options.prefix);
        let arn = |service: &str, name: &str, ordered: bool| scope.arn(service, &names.on_aws(name, ordered));
        let dead_lettering = consumed.iter().filter(|spec| spec.max_receives.is_some());
        let exchange = |spec: &ChannelSpec| Some(arn("sns", spec.channel.exchange()?, spec.ordered));
        // Whether a channel that nobody here consumes is ordered, is for its own consumers to say.
        let kinds = |channel: &Channel| match consumed.iter().find(|spec| is_same(&spec.channel, channel)) {
            Some(spec) => vec![spec.ordered],
            None => vec![false, true],
        };
        let sent_to = |service: &str, name: &str, channel: &Channel| -> Vec<String> {
            kinds(channel).into_iter().map(|ordered| arn(service, name, ordered)).collect()
        };
        let plain = sent.iter().filter(|channel| channel.exchange().is_none());
        let published = sent.iter().filter_map(|channel| Some((channel, channel.exchange()?)));
        let bucket = options.bucket.iter().map(|bucket| format!("arn:{}:s3:::{bucket}/*", scope.partition));
        Self {
            queues: consumed.iter().map(|spec| arn("sqs", spec.channel.queue(), spec.ordered)).collect(),
            dead_letters: dead_lettering
                .map(|spec| arn("sqs", &spec.channel.dead_letter_queue(), spec.ordered))
                .collect(),
            topics: distinct(consumed.iter().filter_map(exchange).collect()),
            sent_queues: distinct(plain.flat_map(|channel| sent_to("sqs", channel.queue(), channel)).collect()),
            sent_topics: distinct(
                published.flat_map(|(channel, exchange)| sent_to("sns", exchange, channel)).collect(),
            ),
            objects: bucket.collect(),
        }
    }
}

/// Whether sending to one is sending to the other.
fn is_same(one: &Channel, other: &Channel) -> bool {
    match (one.exchange(), other.exchange()) {
        (None, None) => one.queue() == other.queue(),
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// Each once, in their order.
fn distinct(mut all: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|one| seen.insert(one.clone()));
    all
}

#[cfg(test)]
mod tests {
    use super::super::desired::example::spec;
    use super::*;

    fn statement<'a>(policy: &'a Json, sid: &str) -> &'a Json {
        let found = policy["Statement"].as_array().unwrap().iter().find(|statement| statement["Sid"] == sid);
        found.unwrap_or_else(|| panic!("no {sid} in {policy}"))
    }

    fn sids(policy: &Json) -> Vec<&str> {
        policy["Statement"].as_array().unwrap().iter().map(|statement| statement["Sid"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_plain_consumer_needs_its_two_queues_and_nothing_more() {
        let options = Options { prefix: "t-".into(), region: Some("cn-north-1".into()), ..Options::default() };
        let policy = least_privilege(&options, Some("123456789012"), &[spec("orders")], &[], false);
        assert_eq!(sids(&policy), ["Consume", "DeadLetter"]);
        let arn = "arn:aws-cn:sqs:cn-north-1:123456789012:t-orders";
        assert_eq!(statement(&policy, "Consume")["Resource"], json!([arn]));
        assert_eq!(statement(&policy, "DeadLetter")["Resource"], json!([format!("{arn}-dlq")]));
        let single = ChannelSpec { max_receives: None, ..spec("orders") };
        assert_eq!(sids(&least_privilege(&options, None, &[single], &[], false)), ["Consume"]);
    }

    #[test]
    fn sending_is_to_what_is_known_or_to_either_kind() {
        let ordered = ChannelSpec { ordered: true, ..spec("orders") };
        let sent: Vec<Channel> = ["orders", "done", "news.any"].map(|name| name.parse().unwrap()).into();
        let policy = least_privilege(&Options::default(), None, &[ordered], &sent, false);
        let queues = ["orders.fifo", "done", "done.fifo"].map(|name| format!("arn:aws:sqs:*:*:{name}"));
        assert_eq!(statement(&policy, "Send")["Resource"], json!(queues));
        let topics = ["news", "news.fifo"].map(|name| format!("arn:aws:sns:*:*:{name}"));
        assert_eq!(statement(&policy, "Publish")["Resource"], json!(topics));
        assert_eq!(statement(&policy, "FindTopics")["Resource"], json!(["*"]));
    }

    #[test]
    fn provisioning_is_there_when_asked_for_or_when_run_does_it() {
        let auto = Options { create_missing: true, ..Options::default() };
        let consumed = [spec("uploads.thumbnails")];
        let provisions = |options: &Options, asked| {
            sids(&least_privilege(options, None, &consumed, &[], asked)).iter().any(|sid| sid.starts_with("Provision"))
        };
        assert!(!provisions(&Options::default(), false));
        assert!(provisions(&Options::default(), true) && provisions(&auto, false));
    }

    #[test]
    fn cleaning_removes_only_what_is_managed() {
        let options = Options { prefix: "p-".into(), bucket: Some("bodies".into()), ..Options::default() };
        let statements = [alarming(&options, Some("1")), cleaning(&options, Some("1"))].concat();
        let policy = json!({"Statement": statements});
        let remove = statement(&policy, "RemoveQueues");
        assert_eq!(remove["Resource"], json!(["arn:aws:sqs:*:1:p-*"]));
        assert_eq!(remove["Condition"], json!({"StringEquals": {"aws:ResourceTag/hostler:managed": "true"}}));
        assert_eq!(statement(&policy, "RemoveBodies")["Resource"], json!(["arn:aws:s3:::bodies/hostler/*"]));
        assert_eq!(statement(&policy, "LookAtQueues")["Resource"], json!(["arn:aws:sqs:*:1:p-*"]));
        let deletes = |statement: &Json| statement["Action"].to_string().contains("Delete");
        assert!(!alarming(&options, None).iter().any(deletes), "alarms only look");
        assert_eq!(cleaning(&Options::default(), None).len(), 5, "no bucket, no objects");
    }

    #[test]
    fn a_key_is_named_by_its_arn_or_through_its_alias() {
        let encryption = |key: &str| {
            let options = Options { region: Some("eu-west-1".into()), kms_key: Some(key.into()), ..Options::default() };
            statement(&least_privilege(&options, Some("1"), &[spec("orders")], &[], false), "Encryption").clone()
        };
        let arn = "arn:aws:kms:eu-west-1:1:key/ab-cd";
        for key in ["ab-cd", arn] {
            assert_eq!(encryption(key)["Resource"], json!([arn]));
            assert_eq!(encryption(key).get("Condition"), None);
        }
        for key in ["alias/queues", "arn:aws:kms:eu-west-1:1:alias/queues"] {
            assert_eq!(encryption(key)["Resource"], json!(["arn:aws:kms:eu-west-1:1:key/*"]));
            let condition = json!({"ForAnyValue:StringEquals": {"kms:ResourceAliases": "alias/queues"}});
            assert_eq!(encryption(key)["Condition"], condition);
        }
    }
}
