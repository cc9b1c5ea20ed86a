//! `hostler iam`.

use super::{ConfigArg, print};
use crate::config::{Config, Driver};
use crate::exit::{Exit, Failure, Result};

/// Print the least-privilege IAM policy that this config needs
///
/// Asks nothing of AWS and needs no credentials. The region is the config's, or AWS_REGION's; without one, any. Covers
/// `run` and `check`; what creating queues takes is added where queue.sqs.provision is "auto", or by --with-provision.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The AWS account [default: any]
    #[arg(long, value_name = "ID")]
    account: Option<String>,
    /// Allow what `hostler provision` does as well
    #[arg(long)]
    with_provision: bool,
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    let config = args.config.load()?.config;
    match config.queue.driver {
        Driver::Embedded => print("The embedded queue needs no permission on AWS."),
        Driver::Sqs => print(serde_json::to_string_pretty(&policy(args, &config)?).map_err(internal)?),
    }
    Ok(Exit::Ok)
}

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Internal, error)
}

#[cfg(feature = "sqs")]
fn policy(args: &Args, config: &Config) -> Result<serde_json::Value> {
    use crate::host;
    use crate::queue::sqs::least_privilege;

    let variables = ["AWS_REGION", "AWS_DEFAULT_REGION"];
    let region = variables.into_iter().find_map(|name| std::env::var(name).ok().filter(|region| !region.is_empty()));
    let consumed: Vec<_> = config.consumers.iter().map(host::channel_spec).collect();
    let sends = |consumer: &crate::config::Consumer| {
        let replies = consumer.reply_channel.iter();
        replies.chain(&consumer.allow.send).cloned().collect::<Vec<_>>()
    };
    let sent: Vec<_> = config.consumers.iter().flat_map(sends).collect();
    let mut options = host::sqs_options(config);
    options.region = options.region.or(region);
    Ok(least_privilege(&options, args.account.as_deref(), &consumed, &sent, args.with_provision))
}

#[cfg(not(feature = "sqs"))]
fn policy(_: &Args, _: &Config) -> Result<serde_json::Value> {
    Err(Failure::new(Exit::QueueUnreachable, "queue.driver: this build of hostler has no driver `sqs`"))
}
