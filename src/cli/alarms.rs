//! Command `hostler alarms`.

use std::time::{Duration, SystemTime};

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::notify::NotifyArgs;
use super::table::table;
use super::{ConfigArg, block_on, note_if_new, output, print, say};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use hostler_config::Config;
use hostler_ops::alarms::{self, Level, Look, Schedule, Seen, Step, Watch};
use hostler_ops::delivery::{Notifier, deliver};
use hostler_queue::Inventory;
use hostler_types::duration;
use hostler_types::printable::in_json;

const HELP: &str = "\
Examples:
  hostler alarms
  hostler alarms --every 15m --webhook

Checks every queue under the config's prefix that carries hostler's tags, also those of other configs. A queue alarms \
    from its alarm_threshold on, else from alarms.threshold; a dead-letter queue from its first message, or its \
    dead_letter_alarm_threshold. Visible and delayed messages and those in flight count; a note names those that the service \
    does not report, as RabbitMQ does not. The embedded queue and RabbitMQ have no tags: the config's queues are checked, \
    and all others that can be listed. Exits with 1 if a queue alarms. With --every it goes on until SIGTERM, and reports alarms \
    that are new, have doubled, are over, or are due for a reminder.";

/// List queues that hold too many messages
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Check repeatedly, with this pause (± 10 %) between checks
    #[arg(long, value_name = "DURATION", value_parser = pause)]
    every: Option<Duration>,
    /// With --every: repeat an alarm that has lasted this long
    #[arg(long, value_name = "DURATION", value_parser = pause, default_value = "12h")]
    remind: Duration,
    /// Print the notification instead of sending it
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object; with --every, one per notification
    #[arg(long, conflicts_with = "dry_run")]
    json: bool,
    #[command(flatten)]
    notify: NotifyArgs,
    #[command(flatten)]
    config: ConfigArg,
}

/// Parses the pause between two checks, which must be at least one second.
fn pause(text: &str) -> std::result::Result<Duration, String> {
    match duration::parse(text) {
        Ok(pause) if pause >= Duration::from_secs(1) => Ok(pause),
        Ok(_) => Err("at least a second".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn run(args: &Args) -> Result {
    let config = args.config.load()?.config;
    let stop = host::stop_on_signal().map_err(|error| Failure::new(Exit::Internal, error))?;
    if config.alarms.webhook.is_some() && args.every.is_some() && !args.notify.is_set() && !args.dry_run {
        say("hostler: warning: nobody is notified: add --webhook to send to alarms.webhook");
    }
    block_on(async {
        let notifier: Option<Box<dyn Notifier>> =
            if args.dry_run { Some(Box::new(args.notify.dry_run())) } else { args.notify.notifier(&config).await? };
        note_if_new(&config);
        let inventory = host::driver(&config).inventory(&config).await?;
        match args.every {
            None => once(args, &config, &*inventory, notifier.as_deref(), &stop).await,
            Some(every) => {
                let schedule = Schedule { threshold: config.alarms.threshold, every, remind: args.remind };
                let mut show = |step: Step<'_>| show(args, &config, &step);
                alarms::poll_loop(&*inventory, schedule, notifier.as_deref(), &stop, &mut show).await;
                Ok(Exit::Ok)
            }
        }
    })
}

async fn once(
    args: &Args,
    config: &Config,
    inventory: &dyn Inventory,
    notifier: Option<&dyn Notifier>,
    stop: &CancellationToken,
) -> Result {
    let seen = tokio::select! {
        seen = alarms::look(inventory, config.alarms.threshold) => seen?,
        () = stop.cancelled() => return Ok(Exit::Failed),
    };
    note_uncounted(config, &seen.uncounted);
    match (args.json, args.dry_run) {
        (true, _) => print(output::json(&for_programs(&seen))?),
        (false, false) => print(for_people(&seen)),
        (false, true) => {}
    }
    let (mut delta, _) = Watch::new(args.remind).after(Duration::ZERO, &Look::Seen(&seen.levels, &seen.unread));
    let alarms = !delta.news.is_empty();
    // The notice also names queues that deny access, but such queues alone cause no notice. Otherwise, every scheduled run would
    // send one.
    delta.denied.clear();
    if let (Some(notifier), false) = (notifier, delta.is_empty()) {
        let notice = alarms::notice(&delta, &seen.unread, SystemTime::now());
        deliver(notifier, &notice, stop).await.map_err(|error| Failure::new(Exit::Failed, error))?;
    }
    Ok(if alarms { Exit::Failed } else { Exit::Ok })
}

fn show(args: &Args, config: &Config, step: &Step<'_>) {
    match step {
        Step::Uncounted(kinds) => note_uncounted(config, kinds),
        Step::Tells(notice) if args.json => print(in_json(&notice.document.to_string())),
        // The dry run prints the notice itself.
        Step::Tells(_) if args.dry_run => {}
        Step::Tells(notice) => print(notice.text()),
        Step::Untold(reason) => say(format_args!("hostler: not sent, will try again after the next check: {reason}")),
        Step::Failed(reason) => say(format_args!("hostler: {reason}")),
    }
}

/// Prints a note about the kinds of messages that the service does not count, if there are any.
fn note_uncounted(config: &Config, kinds: &[&str]) {
    if !kinds.is_empty() {
        let (service, kinds) = (host::driver(config).title(), kinds.join(" and "));
        say(format_args!("hostler: note: {service} does not count {kinds}: they raise no alarm"));
    }
}

fn alarming(seen: &Seen) -> Vec<&Level> {
    seen.levels.iter().filter(|level| level.alarms()).collect()
}

fn for_programs(seen: &Seen) -> serde_json::Value {
    let unread: Vec<_> =
        seen.unread.iter().map(|unread| json!({"name": unread.name, "reason": unread.reason})).collect();
    json!({"queues": seen.levels.len(), "alarms": alarming(seen), "not_looked_at": unread})
}

fn for_people(seen: &Seen) -> String {
    let alarming = alarming(seen);
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let rows = alarming.iter().map(|level| {
        let critical = if level.critical { "yes" } else { "-" };
        let counts = [level.messages.to_string(), level.threshold.to_string()];
        let about = [critical.to_owned(), text(&level.consumer), text(&level.owner)];
        std::iter::once(level.queue.clone()).chain(counts).chain(about).collect()
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let mut lines = Vec::new();
    if !rows.is_empty() {
        lines.push(table(&["QUEUE", "MESSAGES", "THRESHOLD", "CRITICAL", "CONSUMER", "OWNER"], &rows));
    }
    lines.extend(seen.unread.iter().map(|unread| format!("not checked: {}: {}", unread.name, unread.reason)));
    let critical = alarming.iter().filter(|level| level.critical).count();
    let critical = if critical > 0 { format!(", {critical} of them critical") } else { String::new() };
    let unread = match seen.unread.len() {
        0 => String::new(),
        count => format!("; {count} could not be checked"),
    };
    lines.push(format!("{} of {} queues alarm{critical}{unread}", alarming.len(), seen.levels.len()));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_queue::Unread;

    #[test]
    fn the_table_shows_what_alarms_and_the_last_line_counts() {
        let level = |queue: &str, messages, critical| Level {
            queue: queue.to_owned(),
            messages,
            threshold: 10,
            dead_letter: false,
            critical,
            consumer: Some("orders".to_owned()),
            owner: None,
        };
        let unread = vec![Unread { name: "secret".into(), reason: "ListQueueTags is denied".into(), denied: true }];
        let levels = vec![level("orders", 12, true), level("mails", 3, false)];
        let seen = Seen { levels, unread, uncounted: Vec::new() };
        let expected = "QUEUE   MESSAGES  THRESHOLD  CRITICAL  CONSUMER  OWNER\n\
                        orders        12         10       yes    orders      -\n\
                        not checked: secret: ListQueueTags is denied\n\
                        1 of 2 queues alarm, 1 of them critical; 1 could not be checked";
        assert_eq!(for_people(&seen), expected);
        assert_eq!(for_people(&Seen::default()), "0 of 0 queues alarm");
    }

    #[test]
    fn a_pause_is_a_second_at_least() {
        assert_eq!(pause("15m"), Ok(Duration::from_secs(900)));
        for bad in ["0s", "999ms", "", "15"] {
            assert!(pause(bad).is_err(), "{bad}");
        }
    }
}
