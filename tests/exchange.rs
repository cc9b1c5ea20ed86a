//! Exchanges in the names of channels: commands on one queue refuse an exchange that does not feed it.

use serde_json::Value;

use crate::support::hostler::World;
use crate::support::servers::Kind;
use crate::support::sqs::Aws;

/// Two queues with an exchange each, and one without an exchange.
pub(crate) const CONSUMERS: &str = "
    [consumers.mobile]
    channel = 'news.mobile'
    handler = 'guests/run-tell.wat'
    [consumers.results]
    channel = 'sports.results'
    handler = 'guests/run-tell.wat'
    [consumers.jobs]
    channel = 'jobs'
    handler = 'guests/run-tell.wat'
    allow.send = ['sports.jobs']
";

/// All commands that use the messages of one queue. `@` stands for the name of the channel.
const COMMANDS: [&str; 12] = [
    "peek @",
    "peek @ --dead-letters",
    "receive @",
    "receive @ --ack",
    "purge @ --yes",
    "dlq ls @",
    "dlq show @ 1",
    "dlq drop @ --filter older:0s --dry-run",
    "dlq drop @ --filter older:0s --yes",
    "requeue --from @",
    "requeue --from @ --to parked",
    "requeue --from parked --to @",
];

/// Asserts that all commands refuse this channel, and say so.
pub(crate) fn refused(world: &World, channel: &str, told: &str) {
    for command in ["queues @"].iter().chain(&COMMANDS) {
        let command = command.replace('@', channel);
        let said = world.output(&command.split(' ').collect::<Vec<_>>());
        assert_eq!((said.code, said.stdout.as_str()), (69, ""), "{command}: {said:?}");
        assert!(said.stderr.contains(told), "{command}: {told} in {said:?}");
    }
}

/// Asserts that a channel with the exchange of its queue, or with the name of its dead-letter queue, is accepted.
pub(crate) fn accepted(world: &World, channel: &str) {
    for command in ["queues @", "peek @", "peek @ --dead-letters", "dlq ls @", "dlq ls @-dlq", "requeue --from @-dlq"] {
        let command = command.replace('@', channel);
        let said = world.output(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(said.code, 0, "{command}: {said:?}");
    }
}

/// Asserts both for the queues of the config. Each queue has a message, and so has its dead-letter queue.
fn of_the_config(world: &World) {
    world.provision();
    let queues = ["mobile", "mobile-dlq", "results", "results-dlq", "jobs", "jobs-dlq"];
    for queue in queues {
        world.send(queue, ["stays"]);
    }
    let feeds = "that feeds the queue `mobile`: the exchange `news` does\n  cure: write `news.mobile";
    refused(world, "nope.mobile", &format!("there is no exchange `nope` {feeds}"));
    refused(world, "sports.mobile", &format!("there is no exchange `sports` {feeds}"));
    refused(world, "sports.mobile-dlq", &format!("there is no exchange `sports` {feeds}-dlq`"));
    refused(world, "news.jobs", "there is no exchange `news` that feeds the queue `jobs`: no exchange does");
    // A channel that handlers send to is no proof that the exchange feeds this queue.
    refused(world, "sports.jobs", "there is no exchange `sports` that feeds the queue `jobs`: no exchange does");
    for queue in queues {
        let row = world.row(queue);
        assert_eq!((&row["visible"], &row["in_flight"]), (&Value::from(1), &Value::from(0)), "{queue}: {row}");
    }
    accepted(world, "news.mobile");
    accepted(world, "sports.results");
}

#[test]
fn a_wrong_exchange_is_refused_on_the_embedded_queue() {
    let world = World::new(CONSUMERS);
    world.queue("parked");
    of_the_config(&world);
    // Another config feeds a queue that this one does not name.
    world.config("[consumers.desk]\nchannel = 'papers.desk'\nhandler = 'guests/run-tell.wat'");
    world.provision();
    world.config(CONSUMERS);
    accepted(&world, "papers.desk");
    refused(&world, "news.desk", "that feeds the queue `desk`: the exchange `papers` does");
}

#[test]
fn a_missing_queue_is_told_before_its_exchange() {
    let world = World::new(CONSUMERS);
    world.provision();
    for command in ["peek @", "queues @", "requeue --from parked --to @", "requeue --from @ --to jobs"] {
        let command = command.replace('@', "nope.jbos");
        let said = world.output(&command.split(' ').collect::<Vec<_>>());
        assert_eq!((said.code, said.stdout.as_str()), (69, ""), "{command}: {said:?}");
        assert!(said.stderr.contains("there is no queue `nope.jbos`"), "{command}: {said:?}");
    }
}

#[test]
fn a_wrong_exchange_is_refused_on_sqs() {
    let world = Aws::new(Kind::Ministack, CONSUMERS);
    world.python("create_queue(prefix + 'parked')", &[]);
    of_the_config(&world);
    world.python(
        "topic = sns.create_topic(Name=prefix + 'papers')['TopicArn']
for queue in ['desk', 'desk-dlq']:
    create_queue(prefix + queue)
sns.subscribe(TopicArn=topic, Protocol='sqs', Endpoint=arn(url(prefix + 'desk')))",
        &[],
    );
    accepted(&world, "papers.desk");
    refused(&world, "news.desk", "that feeds the queue `desk`: the exchange `papers` does");
}
