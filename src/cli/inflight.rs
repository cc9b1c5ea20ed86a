//! Commands `hostler inflight` and `hostler cancel`.

use std::path::PathBuf;
use std::time::Duration;

use super::output::pretty_json;
use super::table::table;
use super::{ConfigArg, print, say};
use crate::exit::{Exit, Failure, Result};
use hostler_config as config;
use hostler_health::{
    self as health, Answer, CancelResult, MessageReport, Question, Report, Requests, Timestamp, process,
};

/// Arguments that identify the host.
#[derive(Debug, clap::Args)]
struct HostArg {
    /// The host's health file [default: host.health_file]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArg,
}

const HELP: &str = "\
Examples:
  hostler inflight
  hostler inflight --json

AGE is the run time of the handler. TIME LEFT and LEASE LEFT are the times until the processing timeout and until the \
    lease ends; heartbeats extend the lease before. The command asks the host through a file beside the health file. \
    It therefore works in a container by `docker exec`. The answer takes about a second.";

const CANCEL_HELP: &str = "\
Examples:
  hostler cancel 01932f0c-5a1b-7c3e-9d20-3f1e5b7a9c11
  hostler cancel 01932f0c-5a1b-7c3e-9d20-3f1e5b7a9c11 --consumer mails

The handler is stopped and the outcome is `failed`. The retry policy decides whether the message is tried again or goes \
    to the dead-letter queue. If the handler decides just before it is stopped, its decision stands. Exits with 1 if the \
    message is not in flight.";

/// List the messages that a running host processes now
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    host: HostArg,
}

/// Stop a message in flight; the attempt counts as failed
#[derive(Debug, clap::Args)]
#[command(after_help = CANCEL_HELP)]
pub(super) struct CancelArgs {
    /// The message's id, as `hostler inflight` and the log show it
    id: String,
    /// The consumer that processes it; needed if several do, as with fan-out
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    #[command(flatten)]
    host: HostArg,
}

/// Runs `hostler inflight`.
pub(super) fn run(args: &Args) -> Result {
    let (_, answer) = args.host.ask(None, Question::List)?;
    match answer {
        Answer::InFlight(messages) if args.json => print(pretty_json(&messages)?),
        Answer::InFlight(messages) if messages.is_empty() => say("no message is in flight"),
        Answer::InFlight(messages) => print(table(&HEADER, &messages.iter().map(cells).collect::<Vec<_>>())),
        other => return Err(unanswered(&other)),
    }
    Ok(Exit::Ok)
}

/// Runs `hostler cancel`.
pub(super) fn cancel(args: &CancelArgs) -> Result {
    let (id, consumer) = (&args.id, args.consumer.clone());
    let question = Question::Cancel { message_id: id.clone(), consumer: consumer.clone() };
    let (pid, answer) = args.host.ask(consumer.as_deref(), question)?;
    match answer {
        Answer::Cancelled { consumer, attempt, result: CancelResult::Stopping } => {
            print(format_args!("{consumer}: {id} is being stopped (attempt {attempt})"));
            Ok(Exit::Ok)
        }
        Answer::Cancelled { consumer, attempt, result: CancelResult::AlreadyStopping } => {
            print(format_args!("{consumer}: {id} is already being stopped (attempt {attempt})"));
            Ok(Exit::Ok)
        }
        Answer::Cancelled { consumer, result: CancelResult::Deciding, .. } => Err(failure(format!(
            "{consumer}: the processing timeout of {id} has passed, and its hook decides now: it can no longer be cancelled"
        ))),
        Answer::NotInFlight => Err(failure(format!(
            "no message {id} is in flight{} in the host with pid {pid}; `hostler inflight` lists the messages in flight",
            consumer.map(|name| format!(" at consumer `{name}`")).unwrap_or_default()
        ))),
        Answer::Several(consumers) => {
            let text = format!("several consumers process {id}: add --consumer with one of {}", consumers.join(", "));
            Err(Failure::new(Exit::Usage, text))
        }
        other => Err(unanswered(&other)),
    }
}

impl HostArg {
    /// Sends a request to the host. Returns the host's process id and its answer. If `consumer` is set, the host must have a
    /// consumer of this name.
    fn ask(&self, consumer: Option<&str>, question: Question) -> Result<(u32, Answer)> {
        let file = self.file.clone();
        let file = file.unwrap_or_else(|| config::health_file(self.config.config.as_deref(), std::env::vars_os()));
        let report = health::read_in_turn(&file).map_err(|error| failure(format!("{error}; is a host running?")))?;
        if let Some(reason) = absence(&report) {
            return Err(failure(reason));
        }
        let known = || report.consumers.iter().map(|consumer| consumer.name.as_str());
        if let Some(unknown) = consumer.filter(|name| !known().any(|known| known == *name)) {
            let names = known().collect::<Vec<_>>().join(", ");
            return Err(Failure::new(Exit::Usage, format!("there is no consumer `{unknown}`: the host has {names}")));
        }
        let answer = Requests::beside(&file).ask(&report, question).map_err(failure)?;
        Ok((report.pid, answer))
    }
}

/// Returns the reason why the host cannot answer. `None`: the host is running.
fn absence(report: &Report) -> Option<health::Reason> {
    match health::host_beside(report) {
        Some(pid) => Some(health::Reason::AnotherContainer { pid }),
        None => health::absence(report, process::info(report.pid), Timestamp::now()),
    }
}

fn failure(text: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, text)
}

fn unanswered(answer: &Answer) -> Failure {
    match answer {
        Answer::Stuck(consumer) => {
            failure(format!("consumer `{consumer}` does not answer: the host's control thread is stuck; see its log"))
        }
        other => failure(format!("the host sent an unexpected answer: {other:?}")),
    }
}

const HEADER: [&str; 7] = ["CONSUMER", "MESSAGE", "ATTEMPT", "STATE", "AGE", "TIME LEFT", "LEASE LEFT"];

/// Returns the cells of a message, in the order of [`HEADER`].
fn cells(message: &MessageReport) -> Vec<String> {
    vec![
        message.consumer.clone(),
        message.message_id.clone(),
        message.attempt.to_string(),
        message.state.clone(),
        shown(message.age_seconds),
        shown(message.time_left_seconds),
        shown(message.lease_left_seconds),
    ]
}

/// Formats a duration in seconds: with one decimal below a minute, and otherwise with its two largest units.
fn shown(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.1}s");
    }
    let whole = Duration::try_from_secs_f64(seconds.round()).unwrap_or_default();
    humantime::format_duration(whole).to_string().split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!([0.04, 59.94, 60.4, 3725.0, 90_061.0].map(shown), ["0.0s", "59.9s", "1m", "1h 2m", "1day 1h"]);
    }
}
