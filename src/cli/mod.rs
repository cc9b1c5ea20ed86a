//! Command line of hostler. Each command has its own file.

mod alarms;
mod check;
pub mod check_consumer_health;
mod clean;
mod compile;
mod completions;
mod dead_letter;
mod destination;
mod dev;
mod dlq;
mod exchange;
mod iam;
mod inflight;
mod invoke;
#[cfg(feature = "jobs")]
mod jobs;
pub mod lines;
mod new;
mod notify;
mod output;
mod pause;
mod peek;
mod picked;
mod progress;
mod provision;
mod purge;
mod queues;
mod receive;
mod requeue;
#[cfg(feature = "retry")]
mod retry;
mod run;
mod schedules;
mod schema;
mod send;
mod shown;
mod source;
mod table;
mod top;

use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use clap::{Parser, Subcommand};

use crate::exit::{Exit, Failure, Result};
use crate::host;
use crate::host::resources::{Purpose, check_bare_memory};
use hostler_config::{self as config, Config, Loaded};
use hostler_queue::Provisioner;
use hostler_telemetry as telemetry;
use hostler_types::channel::Channel;
use output::{print, say};

/// Run a WASM handler on each message of a queue
#[derive(Debug, Parser)]
#[command(name = "hostler", version, max_term_width = 100, after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Text at the end of the help of `hostler`.
const HELP: &str = "\
Example: hostler run --config config/quickstart.toml
Exit codes: 0 ok, 1 check failed, 2 usage, 64 bad config, 65 bad handler, 69 unreachable, 70 internal, 71 timeout, \
    75 drain incomplete, 128+n second signal n";

/// Command line of the health check alone. Container engines run the health check every few seconds, often with only a few MiB of
/// memory. Therefore, the health check does not build the arguments of the other commands.
#[derive(Debug, Parser)]
#[command(name = "hostler", version, max_term_width = 100)]
struct HealthCheckOnly {
    #[command(subcommand)]
    command: HealthCheck,
}

#[derive(Debug, Subcommand)]
enum HealthCheck {
    CheckConsumerHealth(Box<CheckHealth>),
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Check(check::Args),
    CheckConsumerHealth(Box<CheckHealth>),
    Invoke(invoke::Args),
    Send(send::Args),
    Queues(queues::Args),
    Schedules(schedules::Args),
    Peek(peek::Args),
    Receive(receive::Args),
    Purge(purge::Args),
    Top(top::Args),
    Provision(provision::Args),
    Iam(iam::Args),
    Requeue(requeue::Args),
    Dlq(dlq::Args),
    #[cfg(feature = "retry")]
    Retry(retry::Args),
    #[cfg(feature = "jobs")]
    Jobs(jobs::Args),
    /// Pause consumers; messages in progress are finished
    #[command(after_help = pause::PAUSE_HELP)]
    Pause(pause::Args),
    /// Resume paused consumers
    #[command(after_help = pause::RESUME_HELP)]
    Resume(pause::Args),
    Inflight(inflight::Args),
    Cancel(inflight::CancelArgs),
    Alarms(alarms::Args),
    Clean(clean::Args),
    Compile(compile::Args),
    New(new::Args),
    Dev(dev::Args),
    Schema(schema::Args),
    Completions(completions::Args),
}

/// `check-consumer-health`, with the config that names the health file.
#[derive(Debug, clap::Args)]
#[command(about = CHECK_HEALTH, after_help = check_consumer_health::HELP)]
struct CheckHealth {
    #[command(flatten)]
    args: check_consumer_health::Args,
    #[command(flatten)]
    config: ConfigArg,
}

const CHECK_HEALTH: &str = "Report whether every consumer makes progress";

/// The location of the config.
#[derive(Debug, Clone, clap::Args)]
struct ConfigArg {
    /// The config file [default: $HOSTLER_CONFIG, /etc/hostler/hostler.toml, ./hostler.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigArg {
    /// Loads the config. Prints its warnings to standard error.
    fn load(&self) -> Result<Loaded> {
        let loaded = config::load(self.config.as_deref(), std::env::vars_os())
            .map_err(|error| Failure::new(Exit::BadConfig, error))?;
        warn(&loaded.warnings);
        #[cfg(feature = "retry")]
        let loaded = {
            let mut loaded = loaded;
            if let Some(note) = host::look_into_store(&mut loaded.config) {
                say(format_args!("hostler: note: {note}"));
            }
            loaded
        };
        Ok(loaded)
    }
}

/// Refuses to take messages from a channel whose messages a running retry service has in memory.
#[cfg_attr(not(feature = "retry"), allow(unused_variables, reason = "there is no retry service"))]
fn check_unscheduled(config: &Config, channel: &Channel) -> Result<()> {
    #[cfg(feature = "retry")]
    if let Some(fault) = host::scheduled(config, channel) {
        return Err(Failure::new(Exit::Failed, fault));
    }
    Ok(())
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        say(format_args!("hostler: warning: {warning}"));
    }
}

/// Prints a warning about ignored environment variables. Called by commands that do not load the config.
fn warn_of_variables() {
    warn(&config::ignored_variables(std::env::vars_os()));
}

/// Parses the arguments. If the arguments are invalid or request help, prints an error message or the help, and ends
/// the process. Escapes this output, because the output may quote arguments, which may be untrusted.
fn parse<T: Parser>() -> T {
    T::try_parse().unwrap_or_else(|error| {
        let text = error.render().to_string();
        if error.use_stderr() {
            say(text.trim_end_matches('\n'))
        } else {
            print(text.trim_end_matches('\n'))
        }
        std::process::exit(error.exit_code())
    })
}

/// Parses the arguments and runs the command.
pub fn main() -> Exit {
    if let Err(exit) = check_bare_memory() {
        return exit;
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == "check-consumer-health") {
        let HealthCheck::CheckConsumerHealth(command) = parse::<HealthCheckOnly>().command;
        return check_health(&command);
    }
    telemetry::bound_panics();
    host::exit_without_memory();
    // Runs before the arguments are parsed, because parsing needs much stack.
    if let Err(failure) = Purpose::Plain.check_limits() {
        return failed(&failure);
    }
    let command = parse::<Cli>().command;
    host::outlive_size_limit();
    let result = panic::catch_unwind(AssertUnwindSafe(|| run(command)));
    let result = result.unwrap_or_else(|_| Err(Failure::new(Exit::Internal, host::PANICKED)));
    host::close_all();
    let result = result.and_then(|exit| output::unprinted().map_or(Ok(exit), Err));
    result.unwrap_or_else(|failure| failed(&failure))
}

fn failed(failure: &Failure) -> Exit {
    say(format_args!("hostler: {}", failure.message));
    failure.exit
}

fn run(command: Command) -> Result {
    if matches!(command, Command::Run(_) | Command::Check(_) | Command::Invoke(_)) {
        Purpose::Handlers.check_limits()?;
    }
    match command {
        Command::CheckConsumerHealth(command) => Ok(check_health(&command)),
        Command::Run(args) => run::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Invoke(args) => invoke::run(&args),
        Command::Send(args) => send::run(&args),
        Command::Queues(args) => queues::run(&args),
        Command::Schedules(args) => schedules::run(&args),
        Command::Peek(args) => peek::run(&args),
        Command::Receive(args) => receive::run(&args),
        Command::Purge(args) => purge::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Provision(args) => provision::run(&args),
        Command::Iam(args) => iam::run(&args),
        Command::Requeue(args) => requeue::run(&args),
        Command::Dlq(args) => dlq::run(&args),
        #[cfg(feature = "retry")]
        Command::Retry(args) => retry::run(&args),
        #[cfg(feature = "jobs")]
        Command::Jobs(args) => jobs::run(&args),
        Command::Pause(args) => pause::pause(&args),
        Command::Resume(args) => pause::resume(&args),
        Command::Inflight(args) => inflight::run(&args),
        Command::Cancel(args) => inflight::cancel(&args),
        Command::Alarms(args) => alarms::run(&args),
        Command::Clean(args) => clean::run(&args),
        Command::Compile(args) => compile::run(&args),
        Command::New(args) => new::run(&args),
        Command::Dev(args) => dev::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Completions(args) => completions::run(&args),
    }
}

fn check_health(command: &CheckHealth) -> Exit {
    let file = config::health_file(command.config.config.as_deref(), std::env::vars_os());
    if check_consumer_health::run(&command.args, &file) == 0 {
        return Exit::Ok;
    }
    // An ignored variable may be the reason why this is not the host's health file.
    warn_of_variables();
    Exit::Failed
}

/// Runs the future of a command on a new single-threaded runtime.
fn block_on<'a, T>(future: impl Future<Output = Result<T>> + 'a) -> Result<T> {
    // Behind a pointer, so that the runtime's part is translated once for each type of result.
    let future: Pin<Box<dyn Future<Output = Result<T>> + 'a>> = Box::pin(future);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Internal, error))?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    result
}

/// Connects to the queue service of the config. If the connection creates the file of the embedded queue, prints a note, because
/// the user may have meant another file.
async fn connect(config: &Config) -> Result<Arc<dyn Provisioner>> {
    host::check_grants_of_queue(config)?;
    let created = host::file_to_come(config).map(host::full);
    let broker = host::driver(config).connect(config).await?;
    if let Some(file) = created {
        say(format_args!("hostler: note: created the queue {}", file.display()));
    }
    Ok(broker)
}

/// Connects for a command that only reads. Creates nothing.
async fn connect_to_look(config: &Config) -> crate::exit::Result<Arc<dyn Provisioner>> {
    host::check_grants_of_queue(config)?;
    Ok(host::driver(config).connect_to_look(config).await?)
}

/// Connects for a command that receives messages. Does not create the file of the embedded queue.
async fn connect_to_take(config: &Config) -> Result<Arc<dyn Provisioner>> {
    if host::file_to_come(config).is_some() { connect_to_look(config).await } else { connect(config).await }
}

/// Prints a note if the embedded queue does not exist yet. The command shows such a queue as empty. Without the note, a
/// user could believe that a different, existing queue file is empty.
fn note_if_new(config: &Config) {
    if let Some(file) = host::file_to_come(config) {
        let file = host::full(file);
        say(format!("hostler: note: the queue {} does not exist yet; `hostler send` creates it", file.display()));
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// Splits an example command line into words, as a shell does. Stops at a redirection or a pipe.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for char in line.chars() {
            match (char, quote) {
                (_, Some(open)) if char == open => quote = None,
                ('"' | '\'', None) => {
                    quote = Some(char);
                    word.get_or_insert_default();
                }
                (' ', None) => words.extend(word.take()),
                ('>' | '|', None) => break,
                _ => word.get_or_insert_default().push(char),
            }
        }
        words.extend(word);
        words
    }

    /// Returns all commands below `command` that have no subcommands. Each element contains the names of a command, and the text
    /// at the end of its help.
    fn leaves(command: &clap::Command, path: &str) -> Vec<(String, String)> {
        let below: Vec<_> = command.get_subcommands().collect();
        if below.is_empty() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            return vec![(path.to_owned(), help)];
        }
        below.into_iter().flat_map(|command| leaves(command, &format!("{path} {}", command.get_name()))).collect()
    }

    #[test]
    fn every_example_is_accepted() {
        let commands = leaves(&Cli::command(), "hostler");
        let head = ("hostler run".to_owned(), HELP.replace("Example: ", "  "));
        for (path, help) in commands.into_iter().chain([head]) {
            let examples: Vec<_> = help.lines().filter_map(|line| line.strip_prefix("  hostler")).collect();
            assert!(!examples.is_empty(), "the help of `{path}` has no line `  {path} …`");
            for example in examples {
                let example = format!("hostler{example}");
                assert!(example.starts_with(&path), "{example} is an example of another command than {path}");
                Cli::try_parse_from(words(&example)).unwrap_or_else(|error| panic!("{example}: {error}"));
            }
        }
    }
}
