//! Mistakes about SQS.

use std::fs;

use super::Page;
use crate::support::hostler::{Said, World};
use crate::support::servers::Kind;
use crate::support::sqs::Aws;

const MAILS: &str = "
    [consumers.mails]
    channel = 'mails'
    handler = 'guests/run-tell.wat'
";

/// A world on SQS, with these variables.
fn world(keys: &str, env: &[(&'static str, &str)]) -> World {
    let head = format!("queue.driver = 'sqs'\nhost.health_file = 'health.json'\n{keys}\n");
    let env = env.iter().map(|(name, value)| (*name, (*value).to_owned()));
    World::with(&head, env.chain([("AWS_EC2_METADATA_DISABLED", "true".to_owned())]).collect(), MAILS)
}

#[test]
fn mistakes_about_the_way_to_sqs() {
    let mut page = Page::new("sqs.md", "Mistakes about the way to SQS").hiding("mails(-dlq)?:", "QUEUE:");
    let keys = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")];
    page.run("The region is missing", &world("", &keys), &["check"]);
    page.run("The credentials are missing", &world("queue.sqs.region = 'eu-west-1'", &[]), &["check"]);
    let nowhere = "queue.sqs.region = 'eu-west-1'\nqueue.sqs.endpoint_url = 'http://127.0.0.1:1'";
    page.run("Nothing listens at the endpoint", &world(nowhere, &keys), &["check"]);
    page.run("Nothing listens at the endpoint of send", &world(nowhere, &keys), &["send", "mails", "--body", "x"]);
    page.compare();
}

#[test]
fn mistakes_about_queues_on_sqs() {
    let aws = Aws::new(Kind::Moto, MAILS);
    let prefix: &'static str = Box::leak(aws.prefix.clone().into_boxed_str());
    let mut page = Page::new("sqs-queues.md", "Mistakes about queues on SQS").hiding(prefix, "shop-");
    let mut check = |mistake: &str, script: &str, keys: &str| {
        if !script.is_empty() {
            aws.python(script, &[]);
        }
        aws.config(&format!("queue.sqs.provision = 'check'\n{MAILS}{keys}"));
        let mut command = aws.command(&["check"]);
        command.env_remove("HOSTLER_QUEUE__SQS__PROVISION");
        let said = Said::new(command.output().unwrap());
        page.add(mistake, &aws, &["check"], &said);
    };
    check("The queue is missing", "", "");
    check("The dead-letter queue is missing", "sqs.create_queue(QueueName=prefix + 'mails')", "");
    let dead = "
url = sqs.create_queue(QueueName=prefix + 'mails-dlq')['QueueUrl']
arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=['QueueArn'])['Attributes']['QueueArn']
policy = json.dumps({'deadLetterTargetArn': arn, 'maxReceiveCount': '2'})
sqs.set_queue_attributes(QueueUrl=sqs.get_queue_url(QueueName=prefix + 'mails')['QueueUrl'], Attributes={'RedrivePolicy': policy})
";
    check("The queue gives up before the retries are over", dead, "");
    check("The channel is ordered, and its queue is not", "", "ordered = true");
    aws.config("[consumers.bills]\nchannel = 'bills'\nordered = true\nhandler = 'guests/run-tell.wat'");
    aws.provision();
    let delayed = ["send", "bills", "--body", "x", "--group", "g", "--delay", "1m"];
    page.run("A message of an ordered channel has a delay", &aws, &delayed);
    aws.config(MAILS);
    aws.provision();
    let once = ["send", "mails", "--body", "x", "--dedupe", "k"];
    page.run("A key against duplicates needs an ordered channel", &aws, &once);
    fs::write(aws.path("large"), vec![b'x'; 2 << 20]).unwrap();
    page.run("A message is larger than SQS allows", &aws, &["send", "mails", "--file", "large"]);
    page.compare();
}
