//! Command `hostler clean`.

use std::time::{Duration, SystemTime};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::notify::NotifyArgs;
use super::output::pretty_json;
use super::table::table;
use super::{ConfigArg, block_on, print, say};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use hostler_config::Config;
use hostler_ops::clean::{self, Class, Done, Named, Survey, Windows};
use hostler_ops::delivery::deliver;
use hostler_queue::{Disposal, QueueError};
use hostler_types::duration;

const HELP: &str = "\
Examples:
  hostler clean
  hostler clean --apply --queues-idle 100d

Reports on everything under the config's prefix that carries hostler's tags, with its use according to CloudWatch. \
    --apply removes queues that two inspections find empty and unused, and old stored bodies. A queue stays if it holds a \
    message, is in the config, receives from a topic of this account and region, or receives dead letters of another queue. \
    A move by SQS itself (requeue --native, the console) keeps a message 14 more days without renewing its body: allow for \
    that in --bodies-older.";

/// Find unused queues, topics and stored bodies
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Remove unused queues and bodies; without it, only report
    #[arg(long)]
    apply: bool,
    /// With --apply: the pause between the two inspections
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "60s")]
    pause: Duration,
    /// Minimum idle time and age of an unused queue; must exceed the longest pause between uses
    #[arg(long, value_name = "DURATION", value_parser = window, default_value = "35d")]
    queues_idle: Duration,
    /// Minimum idle time of an unused topic (only reported)
    #[arg(long, value_name = "DURATION", value_parser = window, default_value = "1d")]
    topics_idle: Duration,
    /// Minimum age of an unused body
    #[arg(long, value_name = "DURATION", value_parser = bodies, default_value = "90d")]
    bodies_older: Duration,
    /// Print the whole report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    notify: NotifyArgs,
    #[command(flatten)]
    config: ConfigArg,
}

/// Parses an idle time from one minute to 455 days. CloudWatch keeps hourly data for 455 days.
fn window(text: &str) -> std::result::Result<Duration, String> {
    let time = duration::parse(text).map_err(|error| error.to_string())?;
    let known = Duration::from_secs(60)..=Duration::from_secs(455 * 86_400);
    if known.contains(&time) { Ok(time) } else { Err("from 60s to 455d".to_owned()) }
}

fn bodies(text: &str) -> std::result::Result<Duration, String> {
    let age = duration::parse(text).map_err(|error| error.to_string())?;
    if age >= Windows::LEAST_BODIES {
        Ok(age)
    } else {
        Err("at least 14d, as SQS may keep a message that long".to_owned())
    }
}

pub(super) fn run(args: &Args) -> Result {
    let config = args.config.load()?.config;
    let stop = host::stop_on_signal().map_err(|error| Failure::new(Exit::Internal, error))?;
    block_on(async {
        let notifier = args.notify.notifier(&config).await?;
        let inventory = host::driver(&config).disposal(&config).await?;
        let (survey, done) = tokio::select! {
            both = clean(args, &config, &*inventory, &stop) => both?,
            () = stopped_looking(args, &stop) => return Ok(Exit::Failed),
        };
        let notice = clean::notice(&survey, done.as_ref(), SystemTime::now());
        if args.json {
            print(pretty_json(&clean::document(&survey, done.as_ref()))?)
        } else {
            print(for_people(&survey, done.as_ref(), &notice.summary))
        }
        let blind = no_record(&survey);
        if blind {
            let text = "CloudWatch has no record of any of these queues, so none is removed; try again in an hour, because \
                        each inspection makes CloudWatch record the queues";
            say(format_args!("hostler: warning: {text}"));
        }
        let unsure = survey.queues.iter().any(|finding| finding.subscribed.is_none());
        if unsure {
            let text =
                "subscriptions cannot be listed, so no queue is removed: `hostler iam --with-clean` prints the policy";
            say(format_args!("hostler: warning: {text}"));
        }
        if let Some(notifier) = notifier {
            deliver(&*notifier, &notice, &stop).await.map_err(|error| Failure::new(Exit::Failed, error))?;
        }
        let failed = done.as_ref().is_some_and(|done| !done.failed.is_empty());
        Ok(if failed || ((blind || unsure) && args.apply) { Exit::Failed } else { Exit::Ok })
    })
}

/// Without --apply, resolves when a signal cancels `stop`. With --apply, never resolves, because the removal itself watches
/// `stop` and finishes its current call to the service.
async fn stopped_looking(args: &Args, stop: &CancellationToken) {
    if args.apply { std::future::pending().await } else { stop.cancelled().await }
}

/// Surveys all queues, topics and stored bodies. With --apply, surveys them again after a pause, and removes everything that
/// both surveys found unused.
async fn clean(
    args: &Args,
    config: &Config,
    inventory: &dyn Disposal,
    stop: &CancellationToken,
) -> std::result::Result<(Survey, Option<Done>), QueueError> {
    let windows = Windows { queues: args.queues_idle, topics: args.topics_idle, bodies: args.bodies_older };
    let named = named(config);
    let first = clean::survey(inventory, &windows, &named, SystemTime::now()).await?;
    if !args.apply {
        return Ok((first, None));
    }
    let candidates = clean::agreed(&first, &first);
    if candidates.is_empty() {
        return Ok((first, Some(Done::default())));
    }
    let (queues, bodies) = (candidates.queues.len(), candidates.bodies.len());
    let pause = humantime::format_duration(args.pause);
    say(format_args!(
        "hostler: {queues} queues and {bodies} stored bodies may be removed; inspecting again in {pause}"
    ));
    tokio::select! {
        () = sleep(args.pause) => {}
        () = stop.cancelled() => return Ok((first, Some(Done::default()))),
    }
    let second = clean::survey(inventory, &windows, &named, SystemTime::now()).await?;
    let done = clean::remove(inventory, &clean::agreed(&first, &second), stop).await;
    Ok((second, Some(done)))
}

/// Returns all names in the config: the names of consumed queues, their dead-letter queues, and destinations.
fn named(config: &Config) -> Named {
    let mut named = Named::default();
    named.queues.extend(config.with_channels().map(|consumer| consumer.channel.dead_letter_queue()));
    for channel in config.with_channels().map(|consumer| &consumer.channel).chain(config.destinations()) {
        named.queues.insert(channel.queue().to_owned());
        named.exchanges.extend(channel.exchange().map(str::to_owned));
    }
    named
}

/// Returns true if queues exist, but CloudWatch has no data about any of them.
fn no_record(survey: &Survey) -> bool {
    !survey.queues.is_empty() && !survey.has_record()
}

fn for_people(survey: &Survey, done: Option<&Done>, summary: &str) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for finding in &survey.queues {
        if matches!(finding.class, Class::InUse | Class::Young) {
            continue;
        }
        let fate = done.and_then(|done| match () {
            () if done.removed.contains(&finding.queue) => Some("removed".to_owned()),
            () => reason(&done.kept, &finding.queue, "kept").or_else(|| reason(&done.failed, &finding.queue, "failed")),
        });
        let named = finding.named_by_config.then(|| "named by this config".to_owned());
        let count = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
        rows.push(vec![
            format!("queue {}", finding.queue),
            finding.class.name().to_owned(),
            finding.messages.to_string(),
            count(finding.used.map(|used| used.sent)),
            count(finding.used.map(|used| used.received)),
            finding.owner.clone().unwrap_or_else(|| "-".to_owned()),
            fate.or(named).unwrap_or_default(),
        ]);
    }
    for finding in survey.topics.iter().filter(|topic| topic.inactive) {
        let named = if finding.named_by_config { "named by this config" } else { "" };
        let dash = || "-".to_owned();
        let name = format!("topic {}", finding.topic);
        rows.push(vec![name, "inactive".to_owned(), dash(), "0".to_owned(), dash(), dash(), named.to_owned()]);
    }
    let mut lines = Vec::new();
    if !rows.is_empty() {
        lines.push(table(&["NAME", "CLASS", "MESSAGES", "SENT", "RECEIVED", "OWNER", "NOTE"], &rows));
    }
    lines.extend(survey.unread.iter().map(|unread| format!("not inspected: {}: {}", unread.name, unread.reason)));
    let failed = done.into_iter().flat_map(|done| &done.failed);
    lines.extend(failed.map(|(name, reason)| format!("not removed: {name}: {reason}")));
    lines.push(summary.to_owned());
    lines.join("\n")
}

fn reason(pairs: &[(String, String)], name: &str, word: &str) -> Option<String> {
    pairs.iter().find(|(kept, _)| kept == name).map(|(_, reason)| format!("{word}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_within_what_aws_keeps() {
        assert_eq!(window("3d"), Ok(Duration::from_secs(259_200)));
        assert_eq!(bodies("28d"), Ok(Duration::from_secs(28 * 86_400)));
        for bad in ["59s", "456d", "", "3"] {
            assert!(window(bad).is_err(), "{bad}");
        }
        for bad in ["13d", "0s", "old"] {
            assert!(bodies(bad).is_err(), "{bad}");
        }
        let defaults = Windows::default();
        assert_eq!(
            (window("35d"), window("1d"), bodies("90d")),
            (Ok(defaults.queues), Ok(defaults.topics), Ok(defaults.bodies))
        );
    }
}
