//! Command `hostler provision`.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{ConfigArg, block_on, print};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use hostler_config::Config;
use hostler_queue::{Action, Change, Provisioner, Records, Schedules};
use hostler_types::channel::Channel;

const HELP: &str = "\
Examples:
  hostler provision --plan
  hostler provision
  hostler provision --permissions

Prints a line per change: `+` created, `~` changed, `=` left as it is, with the reason. Covers queues and dead-letter \
    queues; on SQS redrive, retention, KMS keys, topics, subscriptions and their filters, queue policies and tags; on \
    RabbitMQ exchanges, bindings and the queues for delays. A second run changes nothing. Destinations of replies, of \
    allow.send and of schedules are created if missing. On SQS, policy statements and tags of others stay, and so does the retention of a \
    consumed queue. A queue or topic on SQS that existed before and has no tag of hostler's is not tagged, so `alarms` and \
    `clean` skip it. RabbitMQ cannot change the arguments of a queue: such a queue is left, with the way out.";

/// Create and update the queues that the config needs
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Print the changes and make none
    #[arg(long)]
    plan: bool,
    /// Print the permissions that users of the service need, and contact no server
    #[arg(long, conflicts_with = "plan")]
    permissions: bool,
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn run(args: &Args) -> Result {
    let config = args.config.load()?.config;
    if args.permissions {
        return permissions(&config);
    }
    let count = block_on(changes(args, &config))?;
    match (count, args.plan) {
        (0, _) => {
            let unlisted = host::driver(&config).unlisted(&config).map(|unlisted| format!("; {unlisted}"));
            print(format!("no change{}", unlisted.unwrap_or_default()));
        }
        (1, true) => print("1 change; run `hostler provision` to make it"),
        (count, true) => print(format!("{count} changes; run `hostler provision` to make them")),
        (_, false) => {}
    }
    Ok(Exit::Ok)
}

fn permissions(config: &Config) -> Result {
    let driver = host::driver(config);
    let stores = host::stores(config).into_iter().filter(|named| !named.is_own).map(|named| named.driver());
    let permissions: Vec<_> = std::iter::once(driver).chain(stores).filter_map(|it| it.permissions(config)).collect();
    if !permissions.is_empty() {
        permissions.into_iter().for_each(print);
        return Ok(Exit::Ok);
    }
    let cure = if driver.uses_aws() {
        "`hostler iam` prints the policy for AWS"
    } else {
        "leave it out; the user that runs hostler must be able to write to the files of the queue"
    };
    let word = config.queue.driver.word();
    let text = format!("--permissions: the {word} queue has no users with permissions\n  cure: {cure}");
    Err(Failure::new(Exit::Usage, text))
}

/// Returns true if the change modifies a resource. A change with [`Action::Leave`] modifies nothing, and only reports
/// why the resource is left unchanged.
fn is_made(change: &Change) -> bool {
    change.action != Action::Leave
}

/// Prints the changes that the queues of the config need. Without --plan, also applies the changes. Returns the number
/// of changes.
async fn changes(args: &Args, config: &Config) -> Result<usize> {
    let wanted: Vec<_> = config.consumers.iter().map(host::channel_spec).collect();
    let of_consumers = config.consumers.iter().flat_map(|consumer| host::destinations(config, consumer));
    let destinations: BTreeSet<Channel> = of_consumers.chain(host::scheduled_destinations(config)).collect();
    let destinations: Vec<Channel> = destinations.into_iter().collect();
    if args.plan {
        let broker = super::connect_to_look(config).await?;
        let mut changes = broker.plan(&wanted).await?;
        changes.extend(broker.missing_destinations(&destinations).await?.into_iter().map(|(_, change)| change));
        if let Some(store) = schedules(&*broker, config)? {
            let planned = store.planned_changes().await?;
            changes.extend(planned.into_iter().filter(|change| !changes.contains(change)).collect::<Vec<_>>());
        }
        for records in records(config, &broker, true).await? {
            let planned = records.planned_changes().await?;
            changes.extend(planned.into_iter().filter(|change| !changes.contains(change)).collect::<Vec<_>>());
        }
        changes.iter().for_each(print);
        return Ok(changes.iter().filter(|change| is_made(change)).count());
    }
    let broker = super::connect(config).await?;
    let mut count = 0;
    let mut made = |change: &Change| {
        print(change);
        count += usize::from(is_made(change));
    };
    broker.provision(&wanted, &mut made).await?;
    for (channel, change) in broker.missing_destinations(&destinations).await? {
        broker.make_destination(&channel).await?;
        made(&change);
    }
    if let Some(store) = schedules(&*broker, config)? {
        store.make_changes().await?.iter().for_each(&mut made);
    }
    for records in records(config, &broker, false).await? {
        records.make_changes().await?.iter().for_each(&mut made);
    }
    Ok(count)
}

/// Connects to the stores of idempotency records. `queue`: the queue service. `looks`: creates nothing.
async fn records(config: &Config, queue: &Arc<dyn Provisioner>, looks: bool) -> Result<Vec<Arc<dyn Records>>> {
    let mut all = Vec::new();
    for named in host::stores(config) {
        let driver = named.driver();
        all.push(match looks {
            _ if named.is_own => queue.records()?,
            true => driver.connect_to_look(config).await?.records()?,
            false => driver.connect(config).await?.records()?,
        });
    }
    Ok(all)
}

/// Returns the store of schedules. `None`: the config has no schedules.
fn schedules<'a>(broker: &'a dyn Provisioner, config: &Config) -> Result<Option<&'a dyn Schedules>> {
    Ok(if config.schedules.is_empty() { None } else { Some(broker.schedules()?) })
}
