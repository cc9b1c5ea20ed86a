//! Command `hostler schedules`, and the part of `hostler check` about schedules.

use std::iter::successors;

use serde::Serialize;

use super::output::pretty_json;
use super::table::table;
use super::{ConfigArg, block_on, print, say};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use hostler_config::{Config, Schedule};
use hostler_queue::{Agreement, QueueError, Schedules};
use hostler_types::{ScheduleState, Timestamp};

const HELP: &str = "\
Examples:
  hostler schedules
  hostler schedules nightly --next 5
  hostler schedules --json

Times are those of the schedule's time zone, without its jitter. LAST SENT is the due time of the last message that any host sent; \
    `-` if there was none, or if the queue keeps no record of it (SQS).";

/// List the schedules with their next due times
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// List only these schedules
    schedules: Vec<String>,
    /// Number of due times to list for each schedule
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    next: u16,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

/// A schedule, as `--json` prints it.
#[derive(Serialize)]
struct Row {
    name: String,
    cron: String,
    timezone: &'static str,
    channel: String,
    /// Due times, with the offset of the time zone.
    next: Vec<String>,
    /// Due time of the last message. Null if there is none, or if the queue keeps no record.
    last_sent: Option<String>,
    /// `false` if hosts with another definition send now, or no host has run yet. Null if the queue keeps no record.
    current: Option<bool>,
}

pub(super) fn run(args: &Args) -> Result {
    let config = args.config.load()?.config;
    let schedules = chosen(args, &config)?;
    let (rows, fault) = block_on(async { Ok(rows(args, &config, &schedules).await) })?;
    if args.json {
        print(pretty_json(&rows)?);
    } else if rows.is_empty() {
        print("the config has no schedules: write a table `[schedules.NAME]` with `cron` and `channel`");
    } else {
        print(for_people(&rows));
    }
    // The due times need no queue.
    fault.map_or(Ok(Exit::Ok), Err)
}

fn chosen<'a>(args: &Args, config: &'a Config) -> Result<Vec<&'a Schedule>> {
    if args.schedules.is_empty() {
        return Ok(config.schedules.iter().collect());
    }
    let find = |name: &String| {
        let found = config.schedules.iter().find(|schedule| schedule.times.name == *name);
        found.ok_or_else(|| {
            let names = config.schedules.iter().map(|schedule| schedule.times.name.as_str());
            let cure = match hostler_config::alike(name, names) {
                Some(other) => format!("did you mean `{other}`?"),
                None => "`hostler schedules` lists them".to_owned(),
            };
            Failure::new(Exit::Usage, format!("the config has no schedule {name:?}\n  cure: {cure}"))
        })
    };
    args.schedules.iter().map(find).collect()
}

/// Returns the rows, and the reason why the states are unknown.
async fn rows(args: &Args, config: &Config, schedules: &[&Schedule]) -> (Vec<Row>, Option<Failure>) {
    let (states, fault) = match known(config, schedules).await {
        Ok(states) => (states, None),
        Err(failure) => (None, Some(failure)),
    };
    let now = Timestamp::now();
    let row = |(place, schedule): (usize, &&Schedule)| {
        let cron = &schedule.times.cron;
        let next = successors(cron.after(now), |due| cron.after(*due)).take(usize::from(args.next));
        let state = states.as_ref().map(|states| states[place].as_ref());
        let is_current = |state: &ScheduleState| state.definition == schedule.times.definition;
        Row {
            name: schedule.times.name.clone(),
            cron: schedule.cron.clone(),
            timezone: cron.zone_name(),
            channel: schedule.channel.to_string(),
            next: next.map(|due| cron.shown(due)).collect(),
            last_sent: state.flatten().and_then(|state| state.sent).map(|due| cron.shown(due)),
            current: state.map(|state| state.is_some_and(is_current)),
        }
    };
    (schedules.iter().enumerate().map(row).collect(), fault)
}

/// Returns the states of the schedules. `None`: the queue keeps no record.
async fn known(config: &Config, schedules: &[&Schedule]) -> Result<Option<Vec<Option<ScheduleState>>>> {
    if schedules.is_empty() {
        return Ok(None);
    }
    let broker = super::connect_to_look(config).await?;
    let store = broker.schedules()?;
    let states = states(store, schedules).await?;
    Ok((store.agreement() != Agreement::Stateless).then_some(states))
}

async fn states(
    store: &dyn Schedules,
    schedules: &[&Schedule],
) -> std::result::Result<Vec<Option<ScheduleState>>, QueueError> {
    let names: Vec<String> = schedules.iter().map(|schedule| schedule.times.name.clone()).collect();
    store.look(&names).await
}

fn for_people(rows: &[Row]) -> String {
    let cells = rows.iter().flat_map(|row| {
        row.next.iter().enumerate().map(move |(number, next)| {
            let first = |text: &str| if number == 0 { text.to_owned() } else { String::new() };
            let last = row.last_sent.as_deref().unwrap_or("-");
            vec![
                first(&row.name),
                first(&row.cron),
                first(row.timezone),
                first(&row.channel),
                next.clone(),
                first(last),
            ]
        })
    });
    table(&["SCHEDULE", "CRON", "TIME ZONE", "CHANNEL", "NEXT", "LAST SENT"], &cells.collect::<Vec<_>>())
}

/// Checks that the schedules could send, and tells when they are due next.
pub(super) async fn check(config: &Config) -> Result<()> {
    if config.schedules.is_empty() {
        return Ok(());
    }
    let broker = super::connect(config).await?;
    let store = broker.schedules()?;
    let mut fatal = Vec::new();
    for finding in host::unscheduled(&*broker, config).await? {
        say(format_args!("schedule  !!  {finding}"));
        if finding.fatal {
            fatal.push(finding.to_string());
        }
    }
    // Creates nothing then, and tells what `run` would be refused.
    if !host::driver(config).makes_what_is_missing(config)
        && let Err(error) = store.prepare().await
    {
        fatal.push(error.to_string());
    }
    if let Some(first) = fatal.into_iter().next() {
        return Err(Failure::new(Exit::QueueUnreachable, first));
    }
    // Reading the states needs the same permissions as `run`.
    states(store, &config.schedules.iter().collect::<Vec<_>>()).await?;
    for schedule in &config.schedules {
        let cron = &schedule.times.cron;
        if let Some(warning) = cron.warning() {
            say(format_args!("hostler: warning: schedules.{}.cron: {warning}", schedule.times.name));
        }
        let next = cron
            .after(Timestamp::now())
            .map_or_else(|| "never due again".to_owned(), |due| format!("next {}", cron.shown(due)));
        print(format!("schedule  ok  {}: {} to {}, {next}", schedule.times.name, schedule.cron, schedule.channel));
    }
    Ok(())
}
