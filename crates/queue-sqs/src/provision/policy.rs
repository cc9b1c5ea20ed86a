//! The least-privilege IAM policy for a config.

use serde_json::{Value as Json, json};

use super::super::Options;
use super::super::names::Names;
use super::super::payload::OWN as BODIES;
use super::account::name_in;
use hostler_queue::{ChannelSpec, tag};
use hostler_types::channel::Channel;

/// Returns the IAM policy for consuming the channels `consumed` and sending to the channels `sent`. The policy also
/// permits the read calls of `hostler check`. Each of its statements has one purpose, named by its `Sid`. Makes no call
/// to AWS.
///
/// If `account` or `options.region` is `None`, the policy covers any account or region. `provision`: adds the
/// permissions for `hostler provision`.
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

/// Returns the IAM statement that permits reading handlers from S3. `objects`: bucket and key of each handler. `None`:
/// `objects` is empty.
pub fn reading_handlers(options: &Options, objects: &[(&str, &str)]) -> Option<Json> {
    let partition = Scope::new(options, None).partition;
    let arns = objects.iter().map(|(bucket, key)| format!("arn:{partition}:s3:::{bucket}/{key}"));
    let statement = Statement::new("Handlers", &["s3:GetObject"], &distinct(arns.collect()));
    (!objects.is_empty()).then(|| statement.json())
}

/// Returns the IAM statement that lets a task in this ECS cluster protect itself from scale-in. Covers all tasks in the
/// cluster, because the ARN of a task is not known before the task runs.
pub fn protecting_tasks(options: &Options, account: Option<&str>, cluster: &str) -> Json {
    let tasks = Scope::new(options, account).arn("ecs", &format!("task/{cluster}/*"));
    Statement::new("ScaleInProtection", &["ecs:UpdateTaskProtection"], &[tasks]).json()
}

/// Returns the IAM statements for `hostler alarms` and `hostler queues`. They permit listing queues and reading every
/// queue under the prefix.
pub fn alarming(options: &Options, account: Option<&str>) -> Vec<Json> {
    let scope = Scope::new(options, account);
    let look = ["sqs:ListQueueTags", "sqs:GetQueueUrl", "sqs:GetQueueAttributes"];
    let queues = scope.arn("sqs", &format!("{}*", options.prefix));
    vec![
        // ListQueues does not apply to a single queue, so it is uncertain which ARN would cover it.
        Statement::new("FindQueues", &["sqs:ListQueues"], &["*".to_owned()]).json(),
        Statement::new("LookAtQueues", &look, &[queues]).json(),
    ]
}

/// Returns the IAM statements that `hostler clean` needs in addition to [`alarming`]. They permit reading usage metrics
/// and deleting resources that hostler manages, and nothing else.
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
        Statement::new("ListTopics", &["sns:ListTopics", "sns:ListSubscriptions"], &anywhere).json(),
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

/// Returns the IAM statements that `hostler requeue` and `hostler dlq` need, in addition to [`least_privilege`], for
/// the dead letters of the channels `consumed`. They permit receiving dead letters, sending them back, having SQS move
/// them (AWS: permissions for a dead-letter queue redrive), and finding out which exchanges feed a queue.
pub fn redriving(options: &Options, account: Option<&str>, consumed: &[ChannelSpec]) -> Vec<Json> {
    let scope = Scope::new(options, account);
    let dead_lettering: Vec<_> = consumed.iter().filter(|spec| spec.max_receives.is_some()).cloned().collect();
    let Reach { queues, dead_letters, topics, .. } = Reach::new(&scope, options, &dead_lettering, &[]);
    let take = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility"];
    let tasks = ["sqs:StartMessageMoveTask", "sqs:ListMessageMoveTasks", "sqs:CancelMessageMoveTask"];
    let statements = [
        Statement::new("TakeDeadLetters", &take, &dead_letters),
        Statement::new("MoveDeadLetters", &tasks, &dead_letters),
        Statement::new("SendBack", &["sqs:SendMessage"], &queues),
        Statement::anywhere("FindExchanges", &["sns:ListSubscriptions"], &topics),
    ];
    statements.into_iter().filter(|statement| !statement.resources.is_empty()).map(Statement::json).collect()
}

/// Returns the IAM statements that `hostler peek`, `receive` and `purge` need in addition to [`least_privilege`]. They
/// permit receiving the dead letters of the channels `consumed`, receiving the messages of the channels `replies`,
/// counting the dead letters of `replies`, and finding out which exchanges feed a queue. `replies`: channels to which handlers' replies are sent.
pub fn receiving(options: &Options, account: Option<&str>, consumed: &[ChannelSpec], replies: &[Channel]) -> Vec<Json> {
    let scope = Scope::new(options, account);
    let reach = Reach::new(&scope, options, consumed, replies);
    let dead: Vec<_> = replies.iter().filter_map(|channel| channel.dead_letter_queue().parse().ok()).collect();
    let take = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility"];
    let queues = distinct([reach.dead_letters, reach.sent_queues].concat());
    let counted = Reach::new(&scope, options, consumed, &dead).sent_queues;
    let statements = [
        Statement::new("TakeByHand", &take, &queues),
        Statement::new("CountDeadReplies", &["sqs:GetQueueUrl", "sqs:GetQueueAttributes"], &counted),
        // A policy may contain the statements of several commands, so each statement has an id of its own.
        Statement::anywhere("FindExchangesByHand", &["sns:ListSubscriptions"], &reach.topics),
    ];
    statements.into_iter().filter(|statement| !statement.resources.is_empty()).map(Statement::json).collect()
}

/// An IAM statement that allows actions on resources, for one purpose.
struct Statement {
    sid: &'static str,
    actions: Vec<&'static str>,
    resources: Vec<String>,
}

impl Statement {
    fn new(sid: &'static str, actions: &[&'static str], resources: &[String]) -> Self {
        Self { sid, actions: actions.to_vec(), resources: resources.to_vec() }
    }

    /// Creates a statement for actions that IAM cannot restrict to single topics, so it covers all resources (`*`). If
    /// `topics` is empty, the actions are not needed. The statement then has no resources, and the policy omits it.
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
    let publish = distinct([&reach.sent_topics[..], &reach.named_topics].concat());
    vec![
        Statement::new("Consume", &[&consume[..], &find].concat(), &reach.queues),
        Statement::new("DeadLetter", &send, &reach.dead_letters),
        Statement::new("Send", &send, &reach.sent_queues),
        Statement::new("RuleOutQueues", &["sqs:GetQueueUrl"], &reach.namesakes),
        Statement::new("Publish", &["sns:Publish"], &publish),
        Statement::anywhere("FindTopics", &["sns:ListTopics"], &publish),
        Statement::new("CheckTopics", &["sns:GetTopicAttributes", "sns:ListSubscriptionsByTopic"], &reach.topics),
        Statement::anywhere("CheckSubscriptions", &["sns:GetSubscriptionAttributes"], &reach.topics),
        // Bodies from other clients may have any key. Bodies that hostler stores or renews have keys with hostler's own
        // prefix.
        Statement::new("LargeMessages", &["s3:GetObject", "s3:DeleteObject"], &reach.objects),
        Statement::new("StoreLargeMessages", &["s3:PutObject"], &reach.own_objects),
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

/// Returns the statement for the KMS key. It permits decrypting received messages, and requesting data keys for sent
/// ones. `None`: no KMS key is configured.
fn encryption(scope: &Scope<'_>, options: &Options) -> Option<Json> {
    let key = options.kms_key.as_deref()?;
    let is_arn = key.starts_with("arn:");
    let name = if is_arn { name_in(key) } else { key };
    let mut statement =
        json!({"Sid": "Encryption", "Effect": "Allow", "Action": ["kms:Decrypt", "kms:GenerateDataKey"]});
    if name.starts_with("alias/") {
        // IAM identifies keys by their ids only; an alias needs a condition.
        statement["Resource"] = json!([scope.arn("kms", "key/*")]);
        statement["Condition"] = json!({"ForAnyValue:StringEquals": {"kms:ResourceAliases": name}});
    } else {
        let arn = if is_arn { key.to_owned() } else { scope.arn("kms", &format!("key/{key}")) };
        statement["Resource"] = json!([arn]);
    }
    Some(statement)
}

/// Region prefixes of each partition except `aws`.
const PARTITIONS: [(&str, &str); 7] = [
    ("cn-", "aws-cn"),
    ("us-gov-", "aws-us-gov"),
    ("us-iso-", "aws-iso"),
    ("us-isob-", "aws-iso-b"),
    ("us-isof-", "aws-iso-f"),
    ("eu-isoe-", "aws-iso-e"),
    ("eusc-", "aws-eusc"),
];

/// Partition, region and account of the resources.
struct Scope<'a> {
    partition: &'static str,
    region: &'a str,
    account: &'a str,
}

impl<'a> Scope<'a> {
    fn new(options: &'a Options, account: Option<&'a str>) -> Self {
        let region = options.region.as_deref().unwrap_or("*");
        let known = PARTITIONS.iter().find(|(prefix, _)| region.starts_with(prefix));
        Self { partition: known.map_or("aws", |(_, name)| name), region, account: account.unwrap_or("*") }
    }

    fn arn(&self, service: &str, name: &str) -> String {
        let Self { partition, region, account } = self;
        format!("arn:{partition}:{service}:{region}:{account}:{name}")
    }
}

/// ARNs of all resources that a config uses, by purpose.
struct Reach {
    queues: Vec<String>,
    dead_letters: Vec<String>,
    /// Topics of consumed channels.
    topics: Vec<String>,
    sent_queues: Vec<String>,
    sent_topics: Vec<String>,
    /// Topics that have the same name as a channel without an exchange. The channel's name may be the name of an
    /// exchange, so its messages may be sent to the topic. hostler does not create these topics.
    named_topics: Vec<String>,
    /// Queues that have the same name as an exchange. If a message is sent to a channel without an exchange, hostler
    /// first asks SQS for a queue with the channel's name. Only if there is none does the message go to the exchange
    /// with that name. Therefore, the policy must permit asking for these queues.
    namesakes: Vec<String>,
    objects: Vec<String>,
    /// Objects under hostler's own key prefix.
    own_objects: Vec<String>,
}

impl Reach {
    fn new(scope: &Scope<'_>, options: &Options, consumed: &[ChannelSpec], sent: &[Channel]) -> Self {
        let names = Names::new(&options.prefix);
        let arn = |service: &str, name: &str, ordered: bool| scope.arn(service, &names.on_aws(name, ordered));
        let dead_lettering = consumed.iter().filter(|spec| spec.max_receives.is_some());
        let exchange = |spec: &ChannelSpec| Some(arn("sns", spec.channel.exchange()?, spec.ordered));
        // If no consumer in this config has the channel, it is unknown whether the channel is ordered.
        let sent_to = |service: &str, name: &str, known: Option<bool>| -> Vec<String> {
            let kinds = known.map_or(vec![false, true], |ordered| vec![ordered]);
            kinds.into_iter().map(|ordered| arn(service, name, ordered)).collect()
        };
        let published: Vec<_> = sent.iter().filter_map(Channel::exchange).collect();
        let (mut sent_queues, mut named_topics, mut namesakes) = (Vec::new(), Vec::new(), Vec::new());
        for name in sent.iter().filter(|channel| channel.exchange().is_none()).map(Channel::queue) {
            match meaning(name, consumed, &published) {
                Meaning::Queue(ordered) => sent_queues.extend(sent_to("sqs", name, Some(ordered))),
                Meaning::Exchange(ordered) => {
                    named_topics.extend(sent_to("sns", name, ordered));
                    namesakes.extend(sent_to("sqs", name, None));
                }
                Meaning::Either => {
                    sent_queues.extend(sent_to("sqs", name, None));
                    named_topics.extend(sent_to("sns", name, None));
                }
            }
        }
        let sent_topics = published.iter().flat_map(|name| sent_to("sns", name, order_of_exchange(name, consumed)));
        let objects = |keys: &str| {
            let bucket = options.bucket.iter();
            bucket.map(|bucket| format!("arn:{}:s3:::{bucket}/{keys}*", scope.partition)).collect()
        };
        Self {
            queues: consumed.iter().map(|spec| arn("sqs", spec.channel.queue(), spec.ordered)).collect(),
            dead_letters: dead_lettering
                .map(|spec| arn("sqs", &spec.channel.dead_letter_queue(), spec.ordered))
                .collect(),
            topics: distinct(consumed.iter().filter_map(exchange).collect()),
            sent_queues: distinct(sent_queues),
            sent_topics: distinct(sent_topics.collect()),
            named_topics: distinct(named_topics),
            namesakes: distinct(namesakes),
            objects: objects(""),
            own_objects: objects(BODIES),
        }
    }
}

/// Kind of resource that the name of a channel without an exchange refers to. The value is `true` if the queue or topic
/// is ordered. `None`: it is unknown whether the topic is ordered.
enum Meaning {
    Queue(bool),
    Exchange(Option<bool>),
    /// A queue or an exchange. The kind is unknown, because no other channel in this config has a queue or an exchange
    /// with this name.
    Either,
}

/// Returns the kind of resource to which the channel `name` refers. The channel has no exchange. A queue takes
/// precedence over an exchange, as it does when messages are sent.
fn meaning(name: &str, consumed: &[ChannelSpec], published: &[&str]) -> Meaning {
    if let Some(spec) = consumed.iter().find(|spec| spec.channel.queue() == name) {
        return Meaning::Queue(spec.ordered);
    }
    let order = order_of_exchange(name, consumed);
    if order.is_some() || published.contains(&name) { Meaning::Exchange(order) } else { Meaning::Either }
}

/// Returns `true` if an exchange is ordered, according to its consumers in this config. `None`: the config has no
/// consumer for the exchange.
fn order_of_exchange(name: &str, consumed: &[ChannelSpec]) -> Option<bool> {
    consumed.iter().find(|spec| spec.channel.exchange() == Some(name)).map(|spec| spec.ordered)
}

/// Removes duplicates and keeps the order.
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
        let topics = [&topics[..], &["done", "done.fifo"].map(|name| format!("arn:aws:sns:*:*:{name}"))].concat();
        assert_eq!(statement(&policy, "Publish")["Resource"], json!(topics));
        assert_eq!(statement(&policy, "FindTopics")["Resource"], json!(["*"]));
    }

    #[test]
    fn a_name_alone_may_be_that_of_an_exchange() {
        let consumed = [ChannelSpec { ordered: true, ..spec("uploads.thumbnails") }];
        let policy = |sent: &[&str], provision| {
            let sent: Vec<Channel> = sent.iter().map(|name| name.parse().unwrap()).collect();
            least_privilege(&Options::default(), None, &consumed, &sent, provision)
        };
        let arns = |service: &str, names: &[&str]| -> Vec<String> {
            names.iter().map(|name| format!("arn:aws:{service}:*:*:{name}")).collect()
        };
        let of_consumed = policy(&["uploads"], true);
        assert_eq!(statement(&of_consumed, "Publish")["Resource"], json!(arns("sns", &["uploads.fifo"])));
        let asked = json!({
            "Sid": "RuleOutQueues", "Effect": "Allow", "Action": ["sqs:GetQueueUrl"],
            "Resource": arns("sqs", &["uploads", "uploads.fifo"]),
        });
        assert_eq!(*statement(&of_consumed, "RuleOutQueues"), asked);
        assert!(!sids(&of_consumed).contains(&"Send"));
        let of_sent = policy(&["news", "news.any"], false);
        assert_eq!(statement(&of_sent, "Publish")["Resource"], json!(arns("sns", &["news", "news.fifo"])));
        assert!(!sids(&of_sent).contains(&"Send"));
        let unknown = policy(&["done"], true);
        assert_eq!(statement(&unknown, "Send")["Resource"], json!(arns("sqs", &["done", "done.fifo"])));
        assert_eq!(statement(&unknown, "Publish")["Resource"], json!(arns("sns", &["done", "done.fifo"])));
        assert_eq!(statement(&unknown, "ProvisionTopics")["Resource"], json!(arns("sns", &["uploads.fifo"])));
        let queue = policy(&["thumbnails"], false);
        assert_eq!(statement(&queue, "Send")["Resource"], json!(arns("sqs", &["thumbnails.fifo"])));
        assert!(!sids(&queue).contains(&"Publish"), "it is a queue that is there");
    }

    #[test]
    fn each_region_is_in_its_partition() {
        let partition = |region: &str| {
            let options = Options { region: Some(region.into()), ..Options::default() };
            Scope::new(&options, None).partition
        };
        let all = ["eu-west-1", "us-iso-east-1", "us-isob-east-1", "us-gov-west-1", "cn-north-1", "eusc-de-east-1"];
        let expected = ["aws", "aws-iso", "aws-iso-b", "aws-us-gov", "aws-cn", "aws-eusc"];
        assert_eq!(all.map(partition), expected);
        assert_eq!(Scope::new(&Options::default(), None).partition, "aws");
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
    fn redriving_is_for_those_that_have_dead_letters() {
        let options = Options { region: Some("eu-west-1".into()), ..Options::default() };
        let ordered = ChannelSpec { ordered: true, ..spec("news.orders") };
        let single = ChannelSpec { max_receives: None, ..spec("single") };
        let policy = json!({"Statement": redriving(&options, Some("1"), &[ordered, single.clone()])});
        let arn = "arn:aws:sqs:eu-west-1:1:orders";
        for sid in ["TakeDeadLetters", "MoveDeadLetters"] {
            assert_eq!(statement(&policy, sid)["Resource"], json!([format!("{arn}-dlq.fifo")]), "{sid}");
        }
        assert_eq!(statement(&policy, "SendBack")["Resource"], json!([format!("{arn}.fifo")]), "not to its topic");
        assert_eq!(redriving(&options, None, &[single]), [] as [Json; 0]);
    }

    #[test]
    fn receiving_by_hand_is_for_dead_letters_and_replies() {
        let options = Options { region: Some("eu-west-1".into()), ..Options::default() };
        let ordered = ChannelSpec { ordered: true, ..spec("orders") };
        let single = ChannelSpec { max_receives: None, ..spec("single") };
        let replies = ["done".parse().unwrap(), "news.any".parse().unwrap()];
        let policy = json!({"Statement": receiving(&options, Some("1"), &[ordered, single.clone()], &replies)});
        let arn = "arn:aws:sqs:eu-west-1:1:";
        let queues = ["orders-dlq.fifo", "done", "done.fifo"].map(|name| format!("{arn}{name}"));
        assert_eq!(statement(&policy, "TakeByHand")["Resource"], json!(queues), "no topic");
        let counted = &statement(&policy, "CountDeadReplies")["Resource"];
        assert!(
            counted.as_array().is_some_and(|queues| queues.contains(&json!(format!("{arn}done-dlq")))),
            "{counted}"
        );
        assert_eq!(receiving(&options, None, &[single], &[]), [] as [Json; 0]);
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
