//! Many queues on a third-party server, and a hostler config for them, for tests of `alarms` and `clean`.

use std::process::Command;

use serde_json::Value;

use super::hostler::{Said, World};
use super::python::python;
use super::servers::{Server, unique};

/// Script that creates queues in parallel and sends messages. `sys.argv` contains the prefix and the address of CloudWatch.
const PRELUDE: &str = r#"
import time
from concurrent.futures import ThreadPoolExecutor
prefix, metrics = sys.argv[1:]
OURS = {"hostler:managed": "true", "hostler:consumer": "c", "hostler:owner": "shop", "hostler:critical": "false"}
DAY = 86400

def queue(name, tags=OURS, days=0, messages=0, **attributes):
    """A queue, so many days old."""
    url = sqs.create_queue(QueueName=prefix + name, tags=tags, Attributes=attributes)["QueueUrl"]
    if days:
        created = str(int(time.time()) - days * DAY)
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"CreatedTimestamp": created})
    for start in range(0, messages, 10):
        entries = [{"Id": str(n), "MessageBody": "x"} for n in range(start, min(start + 10, messages))]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    return url

def many(count, name="many", **options):
    with ThreadPoolExecutor(16) as hands:
        list(hands.map(lambda n: queue(f"{name}-{n:04}", **options), range(count)))

def used(resource, metric, value, hours=5, namespace="AWS/SQS", dimension="QueueName"):
    """Lets CloudWatch know of a use, so many hours ago."""
    cloudwatch = boto3.client("cloudwatch", endpoint_url=metrics)
    point = {"MetricName": metric, "Timestamp": time.time() - hours * 3600, "Value": value, "Unit": "Count"}
    point["Dimensions"] = [{"Name": dimension, "Value": prefix + resource}]
    cloudwatch.put_metric_data(Namespace=namespace, MetricData=[point])

def denied(*statements):
    """The keys of a user who may do everything but this."""
    allow = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    deny = [{"Effect": "Deny", "Action": actions, "Resource": resources} for actions, resources in statements]
    return user({"Version": "2012-10-17", "Statement": [allow, *deny]})

def user(policy):
    """The keys of a user who may do what this policy allows."""
    iam, name = boto3.client("iam"), f"{prefix}{time.monotonic_ns()}"
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return [key["AccessKeyId"], key["SecretAccessKey"]]
"#;

/// A server, a prefix on it, and a folder with a config.
pub struct Estate<'a> {
    pub world: World,
    pub server: &'a Server,
    pub prefix: String,
    /// Address of CloudWatch.
    metrics: String,
}

impl<'a> Estate<'a> {
    /// Creates a config with these consumers on this server.
    pub fn new(server: &'a Server, consumers: &str) -> Self {
        Self::beside(server, &server.endpoint(), consumers)
    }

    /// Creates a config with CloudWatch at another address. Needed because Moto does not support CloudWatch's protocol, and
    /// Ministack does not report the source queues of a dead-letter queue.
    pub fn beside(server: &'a Server, metrics: &str, consumers: &str) -> Self {
        let (prefix, metrics) = (format!("{}-", unique("up")), metrics.to_owned());
        let head = format!("queue.driver = 'sqs'\nqueue.sqs.region = 'eu-west-1'\nqueue.sqs.prefix = '{prefix}'\n");
        let mut env = server.env();
        env.push(("AWS_ENDPOINT_URL_CLOUDWATCH", metrics.clone()));
        Self { world: World::with(&head, env, consumers), server, prefix, metrics }
    }

    /// Runs a script. Returns its output, parsed as JSON. Null: no output.
    pub fn python(&self, script: &str) -> Value {
        let printed = python(self.server, &format!("{PRELUDE}\n{script}"), &[&self.prefix, &self.metrics]);
        if printed.is_empty() { Value::Null } else { serde_json::from_str(&printed).expect(&printed) }
    }

    /// Runs hostler as a user with all permissions except these statements, as `denied` in the script defines them.
    pub fn output_as(&self, statements: &str, args: &[&str]) -> Said {
        let keys = self.python(&format!("print(json.dumps(denied({statements})))"));
        let mut command = self.world.command(args);
        command.env("AWS_ACCESS_KEY_ID", keys[0].as_str().unwrap());
        command.env("AWS_SECRET_ACCESS_KEY", keys[1].as_str().unwrap());
        Said::new(command.output().unwrap())
    }

    /// Creates a command with a webhook at this address of a test server.
    pub fn with_webhook(&self, address: &str, args: &[&str]) -> Command {
        with_webhook(&self.world, address, args)
    }

    /// Returns the names of existing queues with the prefix, without the prefix.
    pub fn queues(&self) -> Vec<String> {
        let names = self.python(
            "pages = sqs.get_paginator('list_queues').paginate(QueueNamePrefix=prefix, PaginationConfig={'PageSize': 1000})\n\
             print(json.dumps(sorted(url.rsplit('/', 1)[1][len(prefix):] for page in pages for url in page.get('QueueUrls', []))))",
        );
        serde_json::from_value(names).unwrap()
    }
}

/// Part of the webhook URL that must never be printed.
pub const SECRET: &str = "T0SECRET/B0/hunter2";

/// Creates a hostler command with a webhook at this address.
pub fn with_webhook(world: &World, address: &str, args: &[&str]) -> Command {
    let mut command = world.command(args);
    command.env("HOSTLER_ALARMS__WEBHOOK", format!("http://{address}/services/{SECRET}"));
    command
}

/// Parses the standard output of a command as JSON.
pub fn json(said: &Said) -> Value {
    serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

/// Returns the names in a list of objects, without the prefix.
pub fn names(list: &Value, key: &str, prefix: &str) -> Vec<String> {
    let name = |row: &Value| row[key].as_str().unwrap().trim_start_matches(prefix).to_owned();
    list.as_array().unwrap().iter().map(name).collect()
}

/// Asserts that the output does not contain the webhook's secret.
pub fn keeps_the_secret(said: &Said) {
    assert!(!format!("{said:?}").contains("hunter2"), "{said:?}");
}

/// Config line with an existing handler.
pub const HANDLER: &str = "handler = 'guests/main-echoes.wat'";
