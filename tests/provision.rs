//! `provision`, `check` and `iam` against real servers: from nothing to whole, and from drifted to whole again.

mod foreign;
mod policies;

use serde_json::{Value, json};

use crate::support::hostler::{Host, PATIENCE, Said, World};
use crate::support::python::python;
use crate::support::servers::{Kind, Server, unique};

/// Consumers of every sort, under a prefix of their own.
const CONSUMERS: &str = r#"
    [consumers.orders]
    channel = "orders"
    handler = "guests/main-echoes.wat"
    lease = "45s"
    tags = { owner = "shop", critical = true, alarm_threshold = 1000 }
    [consumers.ledger]
    channel = "ledger"
    ordered = true
    dead_letter = false
    handler = "guests/main-echoes.wat"
    [consumers.stock]
    channel = "moves.stock"
    ordered = true
    handler = "guests/main-echoes.wat"
    [consumers.exact]
    channel = "uploads.exact"
    handler = "guests/main-echoes.wat"
    filter = { type = "exact", values = ["MOBILE.a", "b"] }
    [consumers.begins]
    channel = "uploads.begins"
    handler = "guests/main-echoes.wat"
    filter = { type = "prefix", values = ["MOBILE."] }
    [consumers.others]
    channel = "uploads.others"
    handler = "guests/main-echoes.wat"
    filter = { type = "exclude", values = ["b", "c"] }
"#;

/// Prints the queue of the name in `sys.argv[1]` with all that belongs to it.
const LOOK: &str = r#"
url = sqs.get_queue_url(QueueName=sys.argv[1])["QueueUrl"]
seen = dict(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"])
for policy in {"Policy", "RedrivePolicy"} & seen.keys():
    seen[policy] = json.loads(seen[policy])
seen["tags"] = sqs.list_queue_tags(QueueUrl=url).get("Tags", {})
for topic in sns.list_topics()["Topics"]:
    for one in sns.list_subscriptions_by_topic(TopicArn=topic["TopicArn"])["Subscriptions"]:
        if one["Endpoint"] == seen["QueueArn"]:
            seen["subscription"] = sns.get_subscription_attributes(SubscriptionArn=one["SubscriptionArn"])["Attributes"]
            for policy in {"FilterPolicy", "RedrivePolicy"} & seen["subscription"].keys():
                seen["subscription"][policy] = json.loads(seen["subscription"][policy])
print(json.dumps(seen))
"#;

/// A server, a prefix, and a folder with the config.
struct Setup {
    world: World,
    server: &'static Server,
    prefix: String,
}

impl Setup {
    fn new(kind: Kind, queue: &str, consumers: &str) -> Self {
        let (server, prefix) = (Server::shared(kind), format!("{}-", unique("prov")));
        let setup = Self { world: World::new(""), server, prefix };
        setup.write(queue, consumers);
        setup
    }

    /// Replaces the config. `queue`: further keys.
    fn write(&self, queue: &str, consumers: &str) {
        let (endpoint, prefix) = (self.server.endpoint(), &self.prefix);
        self.world.config(&format!(
            "queue.driver = 'sqs'\nqueue.sqs.region = 'eu-west-1'\nqueue.sqs.endpoint_url = '{endpoint}'\n\
             queue.sqs.prefix = '{prefix}'\n{queue}\n{consumers}"
        ));
    }

    fn hostler(&self, args: &[&str]) -> Said {
        let output = self.world.command(args).envs(self.server.env()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap().replace(&self.prefix, "P-");
        Said { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// The lines that a command prints which has to succeed.
    fn lines(&self, args: &[&str]) -> Vec<String> {
        let said = self.hostler(args);
        assert_eq!(said.code, 0, "{said:?}");
        said.stdout.lines().map(str::to_owned).collect()
    }

    fn is_whole(&self) {
        assert_eq!(self.lines(&["provision", "--plan"]), ["no change"]);
    }

    fn look(&self, queue: &str) -> Value {
        let seen = python(self.server, LOOK, &[&format!("{}{queue}", self.prefix)]);
        serde_json::from_str(&seen.replace(&self.prefix, "P-")).unwrap()
    }

    fn start(&self) -> Host {
        let mut command = self.world.command(&["run"]);
        command.envs(self.server.env());
        Host::start(command)
    }
}

fn from_nothing_to_whole(kind: Kind) {
    let setup = Setup::new(kind, "", CONSUMERS);
    let planned = setup.lines(&["provision", "--plan"]);
    let (count, planned) = planned.split_last().unwrap();
    assert_eq!(*count, format!("{} changes; run `hostler provision` to make them", planned.len()));
    let heads: Vec<_> = planned.iter().map(|line| line.split(':').next().unwrap()).collect();
    let mut expected = Vec::new();
    for queue in ["begins", "exact"] {
        expected.extend([format!("+ queue P-{queue}-dlq"), format!("+ queue P-{queue}")]);
        expected.extend((queue == "begins").then(|| "+ topic P-uploads".to_owned()));
        expected.extend([format!("+ policy of queue P-{queue}-dlq"), format!("+ policy of queue P-{queue}")]);
        expected.push(format!("+ subscription of P-{queue} to P-uploads"));
    }
    assert_eq!(heads[..expected.len()], expected);
    assert_eq!(planned.len(), 11 + 2 + 8 + 4, "{planned:#?}");
    let ledger = "+ queue P-ledger.fifo: largest message 1.0 MiB, FIFO true, content-based deduplication true, visibility \
                  timeout 30s, receive wait 20s";
    assert!(planned.iter().any(|line| line == ledger), "{planned:#?}");

    assert_eq!(setup.lines(&["provision"]), planned, "the plan had changed something, or was not kept");
    setup.is_whole();
    assert_eq!(setup.lines(&["provision"]), ["no change"]);
    let checked = setup.hostler(&["check"]);
    assert!(checked.code == 0 && !checked.stderr.contains("!!"), "{checked:?}");
}

#[test]
fn from_nothing_to_whole_on_moto() {
    from_nothing_to_whole(Kind::Moto);
}

#[test]
fn from_nothing_to_whole_on_localstack() {
    from_nothing_to_whole(Kind::LocalStack);
}

#[test]
fn from_nothing_to_whole_on_ministack() {
    from_nothing_to_whole(Kind::Ministack);
}

#[test]
fn from_nothing_to_whole_on_fauxqs() {
    from_nothing_to_whole(Kind::Fauxqs);
}

/// As another client sees it.
#[test]
fn what_provision_makes_is_what_the_config_says() {
    let setup = Setup::new(Kind::LocalStack, "queue.sqs.kms_key = 'alias/queues'", CONSUMERS);
    setup.lines(&["provision"]);
    let queue = setup.look("orders");
    let arn = |service: &str, name: &str| format!("arn:aws:{service}:eu-west-1:000000000000:P-{name}");
    assert_eq!((&queue["VisibilityTimeout"], &queue["ReceiveMessageWaitTimeSeconds"]), (&json!("45"), &json!("20")));
    assert_eq!(queue["RedrivePolicy"], json!({"deadLetterTargetArn": arn("sqs", "orders-dlq"), "maxReceiveCount": 5}));
    assert_eq!(queue["KmsMasterKeyId"], "alias/queues");
    let tags = json!({
        "hostler:managed": "true", "hostler:consumer": "orders", "hostler:owner": "shop", "hostler:critical": "true",
        "hostler:alarm-threshold": "1000",
    });
    let dead_letters = setup.look("orders-dlq");
    assert_eq!((&queue["tags"], &dead_letters["tags"]), (&tags, &tags));
    assert_eq!(dead_letters["MessageRetentionPeriod"], "1209600");
    assert_eq!(setup.look("ledger.fifo")["ContentBasedDeduplication"], "true");

    let exact = setup.look("exact");
    let statement = &exact["Policy"]["Statement"][0];
    assert_eq!(statement["Condition"], json!({"ArnEquals": {"aws:SourceArn": arn("sns", "uploads")}}));
    assert_eq!(
        (&statement["Resource"], &statement["Action"]),
        (&json!(arn("sqs", "exact")), &json!("sqs:SendMessage"))
    );
    assert_eq!(setup.look("exact-dlq")["Policy"]["Statement"][0]["Resource"], arn("sqs", "exact-dlq"));
    let filter = |queue: &str| setup.look(queue)["subscription"]["FilterPolicy"].clone();
    assert_eq!(filter("exact"), json!({"routing-key": ["MOBILE.a", "b"]}));
    assert_eq!(filter("begins"), json!({"routing-key": [{"prefix": "MOBILE."}]}));
    assert_eq!(filter("others"), json!({"routing-key": [{"anything-but": ["b", "c"]}]}));
    let subscription = &exact["subscription"];
    assert_eq!(subscription["RawMessageDelivery"], "true");
    assert_eq!(subscription["RedrivePolicy"], json!({"deadLetterTargetArn": arn("sqs", "exact-dlq")}));
    assert_eq!(setup.look("stock.fifo")["subscription"]["TopicArn"], arn("sns", "moves.fifo"));
}

/// Makes it otherwise in everything that there is, and adds what is other people's.
const DRIFT: &str = r#"
def queue(name):
    return sqs.get_queue_url(QueueName=sys.argv[1] + name)["QueueUrl"]
url = queue("orders")
redrive = {"deadLetterTargetArn": arn(queue("orders-dlq")), "maxReceiveCount": 2}
sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "99", "RedrivePolicy": json.dumps(redrive)})
sqs.tag_queue(QueueUrl=url, Tags={"hostler:owner": "nobody", "hostler:former": "1", "team": "x"})
sqs.set_queue_attributes(QueueUrl=queue("orders-dlq"), Attributes={"MessageRetentionPeriod": "345600"})

url = queue("exact")
foreign = {"Sid": "Audit", "Effect": "Deny", "Principal": "*", "Action": "sqs:PurgeQueue", "Resource": arn(url)}
policy = json.dumps({"Version": "2012-10-17", "Statement": [foreign]})
sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
topic = next(t["TopicArn"] for t in sns.list_topics()["Topics"] if t["TopicArn"].endswith(":" + sys.argv[1] + "uploads"))
for one in sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]:
    def put(name, value):
        sns.set_subscription_attributes(SubscriptionArn=one["SubscriptionArn"], AttributeName=name, AttributeValue=value)
    if one["Endpoint"].endswith("exact"):
        put("FilterPolicy", json.dumps({"routing-key": ["z"]}))
        put("RawMessageDelivery", "false")
    if one["Endpoint"].endswith("begins"):
        put("FilterPolicy", "{}")
    if one["Endpoint"].endswith("others"):
        sns.unsubscribe(SubscriptionArn=one["SubscriptionArn"])
"#;

/// Everything provisioned, then changed; and the stock had no dead-letter queue, but is to have one now.
fn drifted(kind: Kind, queue: &str) -> Setup {
    let setup = Setup::new(kind, queue, &CONSUMERS.replace("\"moves.stock\"", "\"moves.stock\"\n dead_letter = false"));
    setup.lines(&["provision"]);
    python(setup.server, DRIFT, &[&setup.prefix]);
    setup.write(queue, CONSUMERS);
    setup
}

fn from_drifted_to_whole(kind: Kind) {
    let setup = drifted(kind, "");
    let mut planned = setup.lines(&["provision", "--plan"]);
    let count = planned.pop();
    assert_eq!(count.as_deref(), Some("14 changes; run `hostler provision` to make them"), "{planned:#?}");
    let expected = [
        "~ subscription of P-begins to P-uploads: filter: none → {\"routing-key\":[{\"prefix\":\"MOBILE.\"}]}",
        "+ policy of queue P-exact: topic P-uploads may send to it",
        "~ subscription of P-exact to P-uploads: raw message delivery: false → true",
        "~ subscription of P-exact to P-uploads: filter: {\"routing-key\":[\"z\"]} → {\"routing-key\":[\"MOBILE.a\",\"b\"]}",
        "~ queue P-orders-dlq: retention: 4days → 14days",
        "~ queue P-orders: visibility timeout: 1m 39s → 45s",
        "~ queue P-orders: redrive: to P-orders-dlq after 2 receives → to P-orders-dlq after 5 receives",
        "~ queue P-orders: tags: hostler:owner=shop",
        "~ queue P-orders: tags no longer wanted: hostler:former",
    ];
    assert_eq!(planned[..expected.len()], expected);
    let others: Vec<_> = planned[expected.len()..].iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(
        others,
        [
            "+ subscription of P-others to P-uploads",
            "+ queue P-stock-dlq.fifo",
            "~ queue P-stock.fifo",
            "+ policy of queue P-stock-dlq.fifo",
            "~ subscription of P-stock.fifo to P-moves.fifo",
        ]
    );

    let checked = setup.hostler(&["check"]);
    assert_eq!(checked.code, 69, "{checked:?}");
    let findings: Vec<_> = checked.stderr.lines().filter_map(|line| line.strip_prefix("queue     !!  ")).collect();
    let expected = [
        "begins: subscription of P-begins to P-uploads: filter is none",
        "exact: subscription of P-exact to P-uploads: raw message delivery is false",
        "exact: subscription of P-exact to P-uploads: filter is {\"routing-key\":[\"z\"]}",
        "exact: the policy of queue P-exact does not let topic P-uploads send to it",
        "orders: queue P-orders: visibility timeout is 1m 39s, not 45s",
        "orders: queue P-orders: redrive is to P-orders-dlq after 2 receives",
        "orders: queue P-orders-dlq keeps messages for 4days",
        "others: there is no SNS subscription of P-others to P-uploads",
        "stock: queue P-stock.fifo: redrive is none, not to P-stock-dlq.fifo after 5 receives (a message that takes the host",
        "stock: there is no SQS queue P-stock-dlq.fifo",
        "stock: subscription of P-stock.fifo to P-moves.fifo: redrive is none, not to P-stock-dlq.fifo",
    ];
    assert_eq!(findings.len(), expected.len(), "{findings:#?}");
    for (finding, fault) in findings.iter().zip(expected) {
        assert!(finding.starts_with(fault) && finding.contains(": run `hostler provision`"), "{finding}");
    }
    assert!(checked.stderr.ends_with(
        "3 consumers cannot work with these queues: the lines `queue !!` above name each fault and its cure\n"
    ));

    assert_eq!(setup.lines(&["provision"]), planned);
    if kind == Kind::Moto {
        // It forgets a queue's policy whenever another attribute is set.
        assert_eq!(setup.lines(&["provision"]), ["+ policy of queue P-stock.fifo: topic P-moves.fifo may send to it"]);
    }
    setup.is_whole();
    assert_eq!(setup.hostler(&["check"]).code, 0);
    let orders = setup.look("orders");
    assert_eq!((&orders["tags"]["team"], &orders["tags"]["hostler:owner"]), (&json!("x"), &json!("shop")));
    let statements = setup.look("exact")["Policy"]["Statement"].clone();
    assert_eq!((statements.as_array().unwrap().len(), &statements[0]["Sid"]), (2, &json!("Audit")));
}

#[test]
fn from_drifted_to_whole_on_moto() {
    from_drifted_to_whole(Kind::Moto);
}

#[test]
fn from_drifted_to_whole_on_localstack() {
    from_drifted_to_whole(Kind::LocalStack);
}

#[test]
fn from_drifted_to_whole_on_ministack() {
    from_drifted_to_whole(Kind::Ministack);
}

#[test]
fn from_drifted_to_whole_on_fauxqs() {
    from_drifted_to_whole(Kind::Fauxqs);
}

#[test]
fn a_dead_letter_queue_may_have_a_consumer_of_its_own() {
    let consumers = r#"
        [consumers.graves]
        channel = "orders-dlq"
        dead_letter = false
        handler = "guests/main-echoes.wat"
        lease = "45s"
        tags = { owner = "support" }
        [consumers.orders]
        channel = "orders"
        handler = "guests/main-echoes.wat"
        tags = { owner = "shop" }
    "#;
    let setup = Setup::new(Kind::Moto, "", consumers);
    setup.lines(&["provision"]);
    assert_eq!(setup.lines(&["provision"]), ["no change"]);
    setup.is_whole();
    let (orders, dead_letters) = (setup.look("orders"), setup.look("orders-dlq"));
    assert_eq!((&orders["tags"]["hostler:owner"], &orders["VisibilityTimeout"]), (&json!("shop"), &json!("30")));
    assert_eq!(
        (&dead_letters["tags"]["hostler:owner"], &dead_letters["VisibilityTimeout"]),
        (&json!("support"), &json!("45"))
    );
    assert_eq!(dead_letters["MessageRetentionPeriod"], "1209600");
}

#[test]
fn check_names_everything_that_is_missing_and_changes_nothing() {
    let setup = Setup::new(Kind::Moto, "", CONSUMERS);
    for _ in 0..2 {
        let said = setup.hostler(&["check"]);
        assert_eq!(said.code, 69, "{said:?}");
        assert_eq!(said.stderr.matches("queue     !!  ").count(), 11 + 4, "{said:?}");
        let cured = said.stderr.lines().filter(|line| line.ends_with("or set queue.sqs.provision = \"auto\""));
        assert_eq!(cured.count(), 11 + 4, "{said:?}");
    }
}

#[test]
fn a_queue_of_the_other_kind_is_told() {
    let consumer = |ordered| {
        format!("[consumers.orders]\nchannel = 'orders'\nhandler = 'guests/main-echoes.wat'\nordered = {ordered}")
    };
    let setup = Setup::new(Kind::Moto, "", &consumer(true));
    setup.lines(&["provision"]);
    setup.write("", &consumer(false));
    let said = setup.hostler(&["check"]);
    assert_eq!(said.code, 69, "{said:?}");
    let fault = "there is no SQS queue P-orders, but there is P-orders.fifo: set consumers.*.ordered = true";
    assert!(said.stderr.contains(fault), "{said:?}");
}

/// Two hosts of one config that start on nothing at the same time.
fn hosts_create_what_is_missing(kind: Kind) {
    let setup = Setup::new(kind, "queue.sqs.provision = 'auto'", CONSUMERS);
    let checked = setup.hostler(&["check"]);
    assert!(checked.code == 0 && checked.stderr.contains("there is no SQS queue P-orders"), "{checked:?}");
    let mut hosts = [setup.start(), setup.start()];
    for host in &hosts {
        for consumer in ["orders", "ledger", "stock", "exact", "begins", "others"] {
            host.wait_for(PATIENCE, |line| line["message"] == "consuming" && line["consumer"] == consumer);
        }
    }
    setup.is_whole();
    for host in &mut hosts {
        assert_eq!(host.stop(), 0);
    }
}

#[test]
fn hosts_create_what_is_missing_on_moto() {
    hosts_create_what_is_missing(Kind::Moto);
}

#[test]
fn hosts_create_what_is_missing_on_localstack() {
    hosts_create_what_is_missing(Kind::LocalStack);
}

#[test]
fn hosts_create_what_is_missing_and_change_nothing_else() {
    let setup = drifted(Kind::LocalStack, "queue.sqs.provision = 'auto'");
    let changes = || -> Vec<String> {
        let lines = setup.lines(&["provision", "--plan"]);
        lines.into_iter().filter(|line| line.starts_with(['+', '~'])).collect()
    };
    let before = changes();
    let host = setup.start();
    for consumer in ["orders", "ledger", "stock", "exact", "begins", "others"] {
        host.wait_for(PATIENCE, |line| line["message"] == "consuming" && line["consumer"] == consumer);
    }
    let created = ["+ subscription of P-others", "+ queue P-stock-dlq.fifo:", "+ policy of queue P-stock-dlq.fifo:"];
    let kept = before.into_iter().filter(|line| !created.iter().any(|created| line.starts_with(created)));
    assert_eq!(changes(), kept.collect::<Vec<_>>());
}

#[test]
fn the_embedded_queue_is_provisioned_too() {
    let world = World::new("[consumers.orders]\nchannel = 'orders'\nhandler = 'guests/main-echoes.wat'");
    let said = |args: &[&str]| {
        let said = world.output(args);
        assert_eq!(said.code, 0, "{said:?}");
        said.stdout
    };
    let changes = "+ queue orders-dlq\n+ queue orders\n";
    let plan = format!("{changes}2 changes; run `hostler provision` to make them\n");
    assert_eq!(said(&["provision", "--plan"]), plan);
    assert!(!world.path("queue.db").exists(), "a plan makes nothing");
    assert_eq!(said(&["check"]).lines().last(), Some("queue     ok  orders: orders, dead letters to orders-dlq"));
    assert_eq!(said(&["provision", "--plan"]), plan, "nor does a check");
    assert_eq!(said(&["provision"]), changes);
    assert_eq!(said(&["provision"]), "no change\n");
    let said = world.output(&["iam"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, ""), "nothing that a file of policies could take for one");
    assert_eq!(said.stderr, "hostler: the embedded queue needs no permission on AWS\n");
}

#[test]
fn high_throughput_of_a_fifo_queue_is_as_the_config_says() {
    let consumers = |high: &str| {
        format!("[consumers.ledger]\nchannel = 'ledger'\nordered = true\n{high}\nhandler = 'guests/main-echoes.wat'")
    };
    let setup = Setup::new(Kind::LocalStack, "", &consumers("high_throughput = true"));
    let created = setup.lines(&["provision"]);
    assert!(
        created[1].contains("deduplication scope messageGroup, throughput limit perMessageGroupId"),
        "{created:#?}"
    );
    setup.is_whole();
    for queue in ["ledger.fifo", "ledger-dlq.fifo"] {
        let queue = setup.look(queue);
        assert_eq!(queue["FifoThroughputLimit"], "perMessageGroupId");
        assert_eq!(queue["DeduplicationScope"], "messageGroup");
    }
    setup.write("", &consumers(""));
    setup.is_whole();
    setup.write("", &consumers("high_throughput = false"));
    let checked = setup.hostler(&["check"]);
    assert!(
        checked.stderr.contains("throughput limit is perMessageGroupId, not perQueue: run `hostler provision`"),
        "{checked:?}"
    );
    assert_eq!(setup.lines(&["provision"]).len(), 4);
    setup.write("", &consumers("high_throughput = true"));
    assert_eq!(setup.lines(&["provision"]).len(), 4, "on a queue that is there");
    setup.is_whole();
}
