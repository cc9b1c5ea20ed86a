//! Command `hostler iam`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::output::pretty_json;
use super::{ConfigArg, print, say};
use crate::exit::{Exit, Result};
use hostler_config::{Config, Driver, HandlerRef};
use hostler_types::secret::{ManagedSecret, SecretRef};

const HELP: &str = "\
Examples:
  hostler iam --account 123456789012
  hostler iam --with-provision --with-requeue > policy.json

Contacts no AWS service and needs no credentials. Covers `run` and `check` with the least privileges, handlers in S3 and \
    secrets included. The region is the config's or AWS_REGION's, else any. Permissions to create queues are included if \
    queue.sqs.provision is \"auto\".";

/// Print the IAM policy that the config needs
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The AWS account [default: any]
    #[arg(long, value_name = "ID", value_parser = account)]
    account: Option<String>,
    /// Allow scale-in protection in this ECS cluster
    #[arg(long, value_name = "NAME", value_parser = cluster)]
    cluster: Option<String>,
    /// Also allow `hostler provision`
    #[arg(long)]
    with_provision: bool,
    /// Also allow `hostler requeue` and `dlq` on dead letters
    #[arg(long)]
    with_requeue: bool,
    /// Also allow `hostler peek`, `receive` and `purge` on dead letters and replies
    #[arg(long)]
    with_receive: bool,
    /// Also allow `hostler alarms` and `queues`, but not sns:Publish for --sns
    #[arg(long)]
    with_alarms: bool,
    /// Also allow `hostler clean`
    #[arg(long)]
    with_clean: bool,
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    let config = args.config.load()?.config;
    let elsewhere = |handler: &HandlerRef| matches!(handler, HandlerRef::S3 { .. });
    let driver = config.queue.driver;
    let has_secrets = secrets(&config).next().is_some();
    if driver != Driver::Sqs && args.cluster.is_none() && !has_secrets && !handlers(&config).any(elsewhere) {
        // An IAM policy needs at least one statement. If no statement is needed, the command prints no policy.
        say(format_args!("hostler: the {} queue needs no permission on AWS", driver.word()));
    } else {
        print(pretty_json(&policy(args, &config)?)?);
        if has_secrets {
            say("hostler: a secret that a KMS key of your own encrypts also needs kms:Decrypt on that key");
        }
    }
    Ok(Exit::Ok)
}

/// Parses an AWS account ID (AWS: 12 digits). With any other value, the ARNs in the policy would match no resources, or
/// too many.
fn account(text: &str) -> std::result::Result<String, &'static str> {
    let is_one = text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_one { Ok(text.to_owned()) } else { Err("write the 12 digits of an AWS account") }
}

/// Parses the name of an ECS cluster (AWS: up to 255 letters, digits, hyphens and underscores).
fn cluster(text: &str) -> std::result::Result<String, &'static str> {
    let is_of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_one = (1..=255).contains(&text.len()) && text.bytes().all(is_of_a_name);
    if is_one {
        Ok(text.to_owned())
    } else {
        Err("write the cluster's name: letters, digits, `-` and `_`, 255 at most")
    }
}

/// Returns the handlers and hooks of all consumers.
fn handlers(config: &Config) -> impl Iterator<Item = &HandlerRef> {
    config.consumers.iter().flat_map(|consumer| std::iter::once(&consumer.handler).chain(&consumer.hooks))
}

/// Returns the secrets in Secrets Manager that variables of all consumers refer to.
fn secrets(config: &Config) -> impl Iterator<Item = &ManagedSecret> + Clone {
    let references = config.consumers.iter().flat_map(|consumer| consumer.allow.secrets.values());
    references.filter_map(SecretRef::managed)
}

/// Returns the statements that permit looking these secrets up. Current versions are looked up in batches, and that action has no
/// resources (AWS: BatchGetSecretValue).
#[cfg_attr(not(feature = "sqs"), allow(dead_code, reason = "a part of a policy, which this build lacks"))]
fn reading_secrets<'a>(secrets: impl Iterator<Item = &'a ManagedSecret> + Clone) -> Vec<Value> {
    let arns: BTreeSet<_> = secrets.clone().map(|secret| &secret.arn).collect();
    if arns.is_empty() {
        return Vec::new();
    }
    let read =
        json!({"Sid": "Secrets", "Effect": "Allow", "Action": ["secretsmanager:GetSecretValue"], "Resource": arns});
    let batch = json!({
        "Sid": "SecretsInBatches", "Effect": "Allow", "Action": ["secretsmanager:BatchGetSecretValue"], "Resource": ["*"],
    });
    let in_batches = secrets.clone().any(ManagedSecret::is_current);
    std::iter::once(read).chain(in_batches.then_some(batch)).collect()
}

#[cfg(feature = "sqs")]
fn policy(args: &Args, config: &Config) -> Result<Value> {
    use crate::host;
    use hostler_config::TaskProtection;
    use hostler_queue_sqs::{
        alarming, cleaning, least_privilege, protecting_tasks, reading_handlers, receiving, redriving,
    };

    let variables = ["AWS_REGION", "AWS_DEFAULT_REGION"];
    let region = variables.into_iter().find_map(|name| std::env::var(name).ok().filter(|region| !region.is_empty()));
    // Only SQS queues need AWS permissions. With any queue, handlers may be in an S3 bucket.
    let queues = if config.queue.driver == Driver::Sqs { &config.consumers[..] } else { &[] };
    let with_queues = queues.iter().filter(|consumer| consumer.job.is_none());
    let consumed: Vec<_> = with_queues.map(host::channel_spec).collect();
    let sends = |consumer: &hostler_config::Consumer| {
        let replies = consumer.reply_channel.iter();
        replies.chain(&consumer.allow.send).cloned().collect::<Vec<_>>()
    };
    let schedules = if config.queue.driver == Driver::Sqs { &config.schedules[..] } else { &[] };
    let scheduled = schedules.iter().map(|schedule| schedule.channel.clone());
    let sent: Vec<_> = queues.iter().flat_map(sends).chain(scheduled).collect();
    let mut options = host::sqs_options(config);
    options.region = options.region.or(region);
    let objects: Vec<_> = handlers(config)
        .filter_map(|handler| match handler {
            HandlerRef::S3 { bucket, key } => Some((bucket.as_str(), key.as_str())),
            HandlerRef::Path(_) | HandlerRef::Oci { .. } => None,
        })
        .collect();
    let mut policy = least_privilege(&options, args.account.as_deref(), &consumed, &sent, args.with_provision);
    if let Some(statements) = policy.get_mut("Statement").and_then(serde_json::Value::as_array_mut) {
        statements.extend(reading_handlers(&options, &objects));
        statements.extend(reading_secrets(secrets(config)));
        let (account, on_sqs) = (args.account.as_deref(), config.queue.driver == Driver::Sqs);
        if on_sqs && args.with_requeue {
            statements.extend(redriving(&options, account, &consumed));
        }
        if on_sqs && args.with_receive {
            let replies: Vec<_> = queues.iter().flat_map(|consumer| consumer.reply_channel.clone()).collect();
            statements.extend(receiving(&options, account, &consumed, &replies));
        }
        if on_sqs && (args.with_alarms || args.with_clean) {
            statements.extend(alarming(&options, account));
        }
        if on_sqs && args.with_clean {
            statements.extend(cleaning(&options, account));
        }
        let cluster = args.cluster.iter().filter(|_| config.host.task_protection == TaskProtection::Auto);
        statements.extend(cluster.map(|cluster| protecting_tasks(&options, args.account.as_deref(), cluster)));
    }
    Ok(policy)
}

#[cfg(not(feature = "sqs"))]
fn policy(_: &Args, _: &Config) -> Result<Value> {
    Err(crate::exit::Failure::new(Exit::QueueUnreachable, "queue.driver: this build of hostler has no driver `sqs`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_read_alone_or_in_batches() {
        let arn = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbC123";
        let actions = |references: &[String]| {
            let parsed: Vec<SecretRef> = references.iter().map(|text| text.parse().unwrap()).collect();
            let statements = reading_secrets(parsed.iter().filter_map(SecretRef::managed));
            statements
                .into_iter()
                .map(|statement| (statement["Action"][0].clone(), statement["Resource"].clone()))
                .collect::<Vec<_>>()
        };
        let read = ("secretsmanager:GetSecretValue".into(), json!([arn]));
        assert_eq!(actions(&["file:/a".into()]), []);
        assert_eq!(actions(&[format!("{arn}::AWSPREVIOUS:")]), std::slice::from_ref(&read));
        let batch = ("secretsmanager:BatchGetSecretValue".into(), json!(["*"]));
        assert_eq!(actions(&[format!("{arn}:a::"), format!("{arn}:b::")]), [read, batch]);
    }

    #[test]
    fn what_would_make_another_policy_is_refused() {
        assert_eq!(account("123456789012").as_deref(), Ok("123456789012"));
        for wrong in ["", "12", "1234567890123", "a\"b", "12345678901x", "*", "１２３４５６７８９０１２"] {
            assert!(account(wrong).is_err(), "{wrong}");
        }
        assert_eq!(cluster("hostler-worker_2").as_deref(), Ok("hostler-worker_2"));
        for wrong in ["", "x\"y*", "a/b", "a b", &"x".repeat(256)] {
            assert!(cluster(wrong).is_err(), "{wrong}");
        }
    }
}
