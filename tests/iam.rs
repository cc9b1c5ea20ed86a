//! Every command as a user who may do exactly what `hostler iam` prints for it, on a server that enforces policies.

use serde_json::{Value, json};

use crate::support::guard::Guard;
use crate::support::hostler::{Host, Said, World};
use crate::support::servers::{Kind, Server};
use crate::support::upkeep::Estate;

/// Handlers exit with the code that the body says: 0 acks, 65 dead-letters.
const CONSUMERS: &str = "
    [consumers.orders]
    channel = 'orders'
    handler = 'guests/main-exits.wat'
    reply_channel = 'done'
    allow.send = ['news.any', 'notes']
    [consumers.ledger]
    channel = 'ledger'
    ordered = true
    handler = 'guests/main-exits.wat'
    [consumers.single]
    channel = 'single'
    dead_letter = false
    handler = 'guests/main-exits.wat'
    [consumers.thumbs]
    channel = 'uploads.thumbs'
    handler = 'guests/main-exits.wat'
";

/// Resources of an account that this config does not create.
const OTHERS: &str = "
create_queue(prefix + 'done')
sns.create_topic(Name=prefix + 'news')
sns.create_topic(Name=prefix + 'notes')
s3.create_bucket(Bucket=prefix + 'bodies', CreateBucketConfiguration={'LocationConstraint': 'eu-west-1'})
";

/// The server does not know which topic the calls about tags are for: it lets them pass for all or for none. And it takes a batch for
/// an action of its own, where AWS has it under that of one message.
const UNKNOWN: &str = "
BATCHES = {'sqs:SendMessage', 'sqs:DeleteMessage', 'sqs:ChangeMessageVisibility', 'sns:Publish'}
tags = {'sns:ListTagsForResource', 'sns:TagResource'}
for statement in policy['Statement'][:]:
    statement['Action'] += [action + 'Batch' for action in statement['Action'] if action in BATCHES]
    if granted := tags & set(statement['Action']):
        policy['Statement'].append({'Effect': 'Allow', 'Action': sorted(granted), 'Resource': '*'})
print(json.dumps(user(policy)))
";

/// A user of the policy that is printed with these options.
struct User<'a> {
    estate: &'a Estate<'a>,
    keys: Value,
}

impl<'a> User<'a> {
    fn new(estate: &'a Estate<'a>, options: &[&str]) -> Self {
        let printed = estate.world.output(&[&["iam", "--account", "000000000000"], options].concat());
        assert_eq!(printed.code, 0, "{printed:?}");
        let keys = estate.python(&format!("policy = json.loads('''{}''')\n{UNKNOWN}", printed.stdout));
        Self { estate, keys }
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.estate.world.command(args);
        command.env("AWS_ACCESS_KEY_ID", self.keys[0].as_str().unwrap());
        command.env("AWS_SECRET_ACCESS_KEY", self.keys[1].as_str().unwrap());
        command
    }

    /// Output of a command that succeeds and is denied nothing.
    fn may(&self, args: &[&str]) -> Said {
        let said = Said::new(self.command(args).output().unwrap());
        let text = format!("{said:?}");
        assert!(said.code == 0 && !text.contains("denied") && !text.contains("AccessDenied"), "{args:?}: {text}");
        said
    }
}

#[test]
fn every_command_gets_by_with_the_policy_that_is_printed_for_it() {
    let server = Server::enforcing();
    let estate = Estate::new(&server, "");
    let head = format!("payload = {{ bucket = '{}bodies', threshold = '1KiB' }}\n", estate.prefix);
    estate.world.config(&format!("host.health_file = 'health.json'\n{head}{CONSUMERS}"));
    estate.python(OTHERS);

    let nobody = estate.output_as("(['sqs:*', 'sns:*', 's3:*'], '*')", &["check"]);
    assert_ne!(nobody.code, 0, "the server enforces policies");

    let provisioner = User::new(&estate, &["--with-provision"]);
    provisioner.may(&["provision"]);
    assert_eq!(provisioner.may(&["provision", "--plan"]).stdout, "no change\n");

    let worker = User::new(&estate, &[]);
    worker.may(&["check"]);
    let large = format!("large={}", "x".repeat(2000));
    for channel in ["done", "notes", "news.any"] {
        worker.may(&["send", channel, "--body", "0", "--attr", &large]);
    }
    // What a worker consumes, others send.
    for (channel, body) in [("orders", "0"), ("single", "0"), ("uploads", "0"), ("orders", "65"), ("ledger", "65")] {
        let said = estate.world.output(&["send", channel, "--body", body, "--attr", &large]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    let mut host = Host::start(worker.command(&["run"]));
    let lines = host.settled(5);
    let ends = |disposition: &str| lines.iter().filter(|line| line["disposition"] == disposition).count();
    assert_eq!((ends("ack"), ends("dead-letter")), (3, 2), "{lines:?}");
    assert_eq!(host.stop(), 0);
    let denied: Vec<_> = host.lines().into_iter().filter(|line| line.to_string().contains("AccessDenied")).collect();
    assert!(denied.is_empty(), "{denied:?}");

    let operator = User::new(&estate, &["--with-requeue"]);
    for (queue, dead) in [("orders", "orders-dlq"), ("ledger", "ledger-dlq")] {
        assert!(operator.may(&["dlq", "ls", queue]).stdout.contains("65"), "{queue}");
        let moved = operator.may(&["requeue", "--from", dead]).stdout;
        assert_eq!(moved, format!("1 message moved from {dead} to {queue}\n"));
    }
    let script = "sqs.send_message(QueueUrl=url(prefix + 'orders-dlq'), MessageBody='dead')";
    estate.python(script);
    let letters: Value = serde_json::from_str(&operator.may(&["dlq", "ls", "orders", "--json"]).stdout).unwrap();
    let id = letters[0]["id"].as_str().unwrap();
    assert!(operator.may(&["dlq", "show", "orders", id, "--body"]).stdout.contains("dead"));
    operator.may(&["requeue", "--from", "orders", "--dry-run"]);
    operator.may(&["dlq", "drop", "orders", "--id", id, "--dry-run"]);
    operator.may(&["dlq", "drop", "orders", "--id", id, "--yes"]);
    assert!(operator.may(&["dlq", "ls", "orders"]).stdout.contains("no dead letters"));
    let reader = User::new(&estate, &["--with-receive"]);
    for channel in ["done", "orders-dlq", "ledger-dlq"] {
        estate.world.send(channel, ["dead"]);
        assert!(reader.may(&["peek", channel]).stdout.contains("dead"), "{channel}");
        assert!(reader.may(&["receive", channel]).stdout.contains("dead"), "{channel}");
        assert!(reader.may(&["receive", channel, "--ack"]).stdout.contains("dead"), "{channel}");
        reader.may(&["purge", channel, "--yes"]);
    }
    // Both policies permit finding out that the exchange does not feed the queue.
    for (user, command) in [(&operator, "dlq ls uploads.orders"), (&reader, "purge uploads.orders-dlq --yes")] {
        let said = Said::new(user.command(&command.split(' ').collect::<Vec<_>>()).output().unwrap());
        let told = "that feeds the queue `orders`: no exchange does";
        assert!(said.code == 69 && said.stderr.contains(told), "{command}: {said:?}");
    }
    let watcher = User::new(&estate, &["--with-alarms"]);
    watcher.may(&["queues"]);
    watcher.may(&["alarms"]);
    watcher.may(&["queues", "orders", "ledger"]);
    User::new(&estate, &["--with-clean"]).may(&["clean"]);
}

/// The policy that is printed with these options, for an account.
fn printed(estate: &Estate<'_>, account: &str, options: &[&str]) -> Value {
    let printed = estate.world.output(&[&["iam", "--account", account], options].concat());
    assert_eq!(printed.code, 0, "{printed:?}");
    serde_json::from_str(&printed.stdout).unwrap()
}

/// Runs a command through a guard, and CloudWatch through another. It is denied nothing.
fn guarded(estate: &Estate<'_>, guard: &Guard, metrics: Option<&Guard>, args: &[&str]) -> Said {
    let mut command = estate.world.command(args);
    command.env("AWS_ENDPOINT_URL", guard.endpoint());
    if let Some(metrics) = metrics {
        command.env("AWS_ENDPOINT_URL_CLOUDWATCH", metrics.endpoint());
    }
    let said = Said::new(command.output().unwrap());
    let denied: Vec<_> = [Some(guard), metrics].into_iter().flatten().flat_map(Guard::denied).collect();
    assert!(said.code == 0 && denied.is_empty(), "{args:?}: {denied:?} {said:?}");
    said
}

const DEAD: &str = "
    [consumers.orders]
    channel = 'orders'
    handler = 'guests/main-exits.wat'
    [consumers.ledger]
    channel = 'ledger'
    ordered = true
    handler = 'guests/main-exits.wat'
";

/// LocalStack is the one server here that has move tasks, and it enforces nothing.
#[test]
fn a_native_redrive_gets_by_with_the_policy_that_is_printed_for_it() {
    let server = Server::shared(Kind::LocalStack);
    let estate = Estate::new(server, DEAD);
    assert_eq!(estate.world.output(&["provision"]).code, 0);
    estate.python("sqs.send_message(QueueUrl=url(prefix + 'orders-dlq'), MessageBody='0')");
    let account = "000000000000";
    let plain = Guard::before(server.address(), account, printed(&estate, account, &[]));
    let mut command = estate.world.command(&["requeue", "--from", "orders", "--native"]);
    let said = Said::new(command.env("AWS_ENDPOINT_URL", plain.endpoint()).output().unwrap());
    assert!(said.code != 0 && !plain.denied().is_empty(), "the guard denies: {said:?}");

    let guard = Guard::before(server.address(), account, printed(&estate, account, &["--with-requeue"]));
    let said = guarded(&estate, &guard, None, &["requeue", "--from", "orders", "--native"]);
    assert_eq!(said.stdout, "1 message moved from orders-dlq to orders\n");
    assert!(guard.allowed().contains("sqs:StartMessageMoveTask"), "{:?}", guard.allowed());
}

/// Moto says whose dead-letter queue a queue is, and enforces nothing that names a resource.
#[test]
fn cleaning_gets_by_with_the_policy_that_is_printed_for_it() {
    let (server, account) = (Server::shared(Kind::Moto), "123456789012");
    let metrics = Server::shared(Kind::Ministack);
    let estate = Estate::beside(server, &metrics.endpoint(), DEAD);
    let bucket = estate.prefix.trim_end_matches('-');
    estate.world.config(&format!("payload = {{ bucket = '{bucket}' }}\n{DEAD}"));
    estate.python(&format!(
        "
s3.create_bucket(Bucket='{bucket}', CreateBucketConfiguration={{'LocationConstraint': 'eu-west-1'}})
queue('old', days=40); queue('old-dlq', days=40); queue('strange', days=40, tags={{'hostler:owner': 'x'}})
queue('busy', days=40); used('busy', 'NumberOfMessagesSent', 5); used('busy', 'NumberOfMessagesReceived', 5)
sns.create_topic(Name=prefix + 'quiet', Tags=[{{'Key': 'hostler:managed', 'Value': 'true'}}])
"
    ));
    let policy = printed(&estate, account, &["--with-clean"]);
    let guard = Guard::before(server.address(), account, policy.clone());
    let beside = Guard::before(metrics.address(), account, policy.clone());
    let report = guarded(&estate, &guard, Some(&beside), &["clean", "--json"]);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(report["not_looked_at"], json!([]), "{report}");
    assert_eq!(report["bodies"]["bucket"], bucket);

    // What is not marked as managed may not be deleted, whatever it is classed as.
    let said = estate.world.command(&["clean", "--apply", "--pause", "0s"]);
    let said = with_guards(said, &guard, &beside);
    assert!(said.code == 1 && said.stdout.contains("strange: DeleteQueue"), "{said:?}");
    assert_eq!(estate.queues(), ["busy", "strange"]);
    let denied: Vec<_> = guard.denied().into_iter().collect();
    assert!(
        matches!(&denied[..], [one] if one.starts_with("sqs:DeleteQueue on ") && one.ends_with("strange")),
        "{denied:?}"
    );
    for action in ["sqs:DeleteQueue", "sqs:ListDeadLetterSourceQueues", "sns:ListSubscriptions", "s3:ListBucket"] {
        assert!(guard.allowed().contains(action), "{action} in {:?}", guard.allowed());
    }
    assert!(beside.allowed().contains("cloudwatch:GetMetricData"), "{:?}", beside.allowed());
}

fn with_guards(mut command: std::process::Command, guard: &Guard, metrics: &Guard) -> Said {
    command.env("AWS_ENDPOINT_URL", guard.endpoint()).env("AWS_ENDPOINT_URL_CLOUDWATCH", metrics.endpoint());
    Said::new(command.output().unwrap())
}

#[test]
fn one_queue_that_may_not_be_read_hides_no_other() {
    let (server, account) = (Server::shared(Kind::Moto), "123456789012");
    let estate = Estate::new(server, "[consumers.one]\nchannel = 'one'\nhandler = 'guests/main-exits.wat'");
    estate.python("queue('one', messages=2); queue('one-dlq'); queue('two', messages=1); queue('three', messages=3)");
    let arns = |names: &[&str]| {
        names.iter().map(|name| format!("arn:aws:sqs:*:{account}:{}{name}", estate.prefix)).collect::<Vec<_>>()
    };
    let policy = json!({ "Statement": [
        { "Action": ["sqs:ListQueues"], "Resource": ["*"] },
        { "Action": ["sqs:GetQueueUrl"], "Resource": arns(&["*"]) },
        { "Action": ["sqs:GetQueueAttributes"], "Resource": arns(&["one*", "three*"]) },
    ]});
    let guard = Guard::before(server.address(), account, policy);
    let mut command = estate.world.command(&["queues", "--json"]);
    let said = Said::new(command.env("AWS_ENDPOINT_URL", guard.endpoint()).output().unwrap());
    let rows: Value = serde_json::from_str(&said.stdout).unwrap();
    let rows: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| (row["channel"].as_str().unwrap(), &row["visible"])).collect();
    assert_eq!(rows, [("one", &json!(2)), ("three", &json!(3))], "{said:?}");
    assert!(said.code == 1 && said.stderr.contains("two cannot be counted: "), "{said:?}");
}

#[test]
fn servers_of_handlers_need_no_permission() {
    let policy = |grant: &str| {
        let world = World::new(&format!(
            "queue.driver = 'sqs'\nqueue.sqs.region = 'eu-west-1'\n\
             [consumers.a]\nchannel = 'a'\nhandler = 'guests/main-exits.wat'\n{grant}"
        ));
        let said = world.output(&["iam", "--account", "000000000000"]);
        assert_eq!(said.code, 0, "{said:?}");
        said.stdout
    };
    assert_eq!(policy(""), policy("allow.tcp = ['db.internal:5432', '10.0.3.7:6379']"));
}
