//! Every command as a user who may do exactly what `hostler iam` prints for it, on a server that enforces policies.

use serde_json::Value;

use crate::support::hostler::{Host, Said};
use crate::support::servers::Server;
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

/// What an account has that is not this config's to make.
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

    /// What a command says that succeeds, and is denied nothing.
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
    let watcher = User::new(&estate, &["--with-alarms"]);
    watcher.may(&["queues"]);
    watcher.may(&["alarms"]);
    User::new(&estate, &["--with-alarms", "--with-clean"]).may(&["clean"]);
}
