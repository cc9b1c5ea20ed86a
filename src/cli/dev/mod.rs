//! Command `hostler dev`. Builds a handler, and runs it on a temporary queue. When a source file changes, builds the handler
//! again, and replaces the running host with a host that runs the new build.
//!
//! `plan.rs` decides what to do next, `watch.rs` detects changes, and `processes.rs` runs builds and hosts. `place.rs` creates
//! the temporary folder of the queue, `sweep.rs` removes the folders of killed sessions, and `shown.rs` formats log lines for
//! users. This file connects these parts.

mod place;
mod plan;
mod processes;
mod shown;
mod sweep;
mod watch;

use std::io::{self, IsTerminal as _, Read};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::runtime::{Builder, Runtime};

use self::place::Place;
use self::plan::{Action, Event, Plan};
use self::processes::{Build, Environment, HostProcess, Job};
use self::shown::{Settled, Shown};
use self::watch::Wanted;
use super::lines::Lines;
use super::{ConfigArg, destination, print, say};
use crate::exit::{Exit, Failure, Result};
use crate::host::{self, EndStep, Ending};
use hostler_config::{self as config, Config, HandlerRef};
use hostler_queue::{Broker, Provisioner};
use hostler_queue_telemetry::{CORRELATION_ATTRIBUTE, Producer};
use hostler_telemetry as telemetry;
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;

const HELP: &str = "\
Examples:
  hostler dev
  hostler dev --to orders --config orders.toml

Runs dev.build of the config, and then the consumers as `run` does, with an embedded queue in a temporary folder. Sends \
    each line of standard input as a message and prints its outcome. A change below dev.watch starts a new build, which \
    then replaces the host. If a build fails, the old host keeps running. Ctrl-C ends the host and removes the queue.";

/// Build and run a handler; rebuild on each change
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Send lines of standard input to this channel [default: that of the first consumer]
    #[arg(long, value_name = "CHANNEL")]
    to: Option<Channel>,
    #[command(flatten)]
    config: ConfigArg,
}

/// A report from one of the session's threads to its main loop.
enum Report {
    Changed(PathBuf),
    /// A line about the progress of the build.
    Progress(String),
    Built(std::result::Result<(), String>),
    Log(String),
    HostEnded(io::Result<ExitStatus>),
    Lines(io::Result<Vec<Vec<u8>>>),
    /// A signal, by its number.
    Interrupted(i32),
}

pub(super) fn run(args: &Args) -> Result {
    telemetry::show_warnings();
    let (sender, reports) = channel();
    // Runs before the session creates any file. A signal then always leads to cleanup.
    listen_to_signals(sender.clone()).map_err(internal)?;
    let session = Session::start(args, sender)?;
    session.introduce();
    match session.consume(&reports)? {
        SessionEnd::Well => Ok(Exit::Ok),
        // The code of `hostler run` after a second signal.
        SessionEnd::Killed { signal } => std::process::exit(128 + signal),
    }
}

/// End of a session.
#[derive(Debug, Clone, Copy)]
enum SessionEnd {
    Well,
    /// A second signal has killed the build and the host.
    Killed {
        signal: i32,
    },
}

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Internal, error)
}

fn listen_to_signals(reports: Sender<Report>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let thread = thread::Builder::new().name("hostler-signals".into());
    thread.spawn(move || {
        let mut ending = Ending::default();
        for signal in signals.forever() {
            if ending.step(signal) == EndStep::Nothing {
                continue;
            }
            if reports.send(Report::Interrupted(signal)).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// Maximum number of line batches that may wait to be sent. A batch may be a few MiB in size.
const WAITING_BATCHES: usize = 2;

/// Starts a thread that reads lines from `input`, and sends them to `reports` in batches. After each batch that the
/// caller has handled, the caller must take one value from the returned receiver. The thread pauses while
/// [`WAITING_BATCHES`] batches have not been handled.
fn read_lines(input: impl Read + Send + 'static, reports: Sender<Report>) -> io::Result<Receiver<()>> {
    let (waiting, sent) = sync_channel(WAITING_BATCHES);
    thread::Builder::new().name("hostler-input".into()).spawn(move || {
        for batch in Lines::new(input) {
            if waiting.send(()).is_err() || reports.send(Report::Lines(batch.map(|batch| batch.bodies))).is_err() {
                return;
            }
        }
    })?;
    Ok(sent)
}

/// Config of a session, as read from the file before the latest build.
struct Setup {
    config: Config,
    environment: Environment,
    /// Files to watch.
    wanted: Wanted,
}

/// A running session. Dropping the session ends its processes and removes its folder.
struct Session {
    place: Place,
    hostler: PathBuf,
    config: ConfigArg,
    to: Option<Channel>,
    setup: Setup,
    runtime: Runtime,
    broker: Arc<dyn Provisioner>,
    watched: Sender<Wanted>,
    reports: Sender<Report>,
    plan: Plan,
    job: Option<Job>,
    /// The last build, which has ended. Processes that its command has started in the background may run until the next build.
    built: Option<Job>,
    host: Option<HostProcess>,
    /// The last signal.
    signal: i32,
    ended: SessionEnd,
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(job) = &self.job {
            job.stop(Signal::KILL);
        }
        if let Some(host) = &self.host {
            host.signal(Signal::KILL);
            // The host writes to the folder, which is removed next.
            host.wait();
        }
    }
}

impl Session {
    fn start(args: &Args, reports: Sender<Report>) -> Result<Self> {
        let hostler = std::env::current_exe().map_err(internal)?;
        let place = Place::create().map_err(|error| internal(format!("cannot create a temporary folder: {error}")))?;
        let setup = Setup::load(&args.config, &place)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(internal)?;
        let broker = runtime.block_on(async {
            let broker = host::driver(&setup.config).connect(&setup.config).await?;
            host::declare(&broker, &setup.config).await?;
            Ok::<_, Failure>(broker)
        })?;
        if let Some(to) = &args.to {
            destination::check(&setup.config, &[], to)?;
        }
        let changes = reports.clone();
        let watched = watch::start(setup.wanted.clone(), move |path| {
            // The send fails only after the session has ended.
            let _ = changes.send(Report::Changed(path));
        });
        let watched = watched.map_err(internal)?;
        let (plan, first) = Plan::begin();
        let mut session = Self {
            place,
            hostler,
            config: args.config.clone(),
            to: args.to.clone(),
            setup,
            runtime,
            broker,
            watched,
            reports,
            plan,
            job: None,
            built: None,
            host: None,
            signal: SIGINT,
            ended: SessionEnd::Well,
        };
        // The first action is a build. A build never ends the session.
        let _ = session.act(first)?;
        Ok(session)
    }

    /// Returns the channel to which the session sends lines of standard input.
    fn channel(&self) -> Option<&Channel> {
        self.to.as_ref().or_else(|| self.setup.config.with_channels().next().map(|consumer| &consumer.channel))
    }

    fn introduce(&self) {
        let Some(channel) = self.channel() else { return };
        if io::stdin().is_terminal() {
            say(format_args!("hostler: each line typed here is sent to {channel}; Ctrl-C ends the session"));
        }
        let file = place::quoted(&self.place.shell_file().display().to_string());
        say(format_args!("hostler: to send from another terminal: . {file} && hostler send {channel} --body '{{}}'"));
    }

    fn consume(mut self, reports: &Receiver<Report>) -> Result<SessionEnd> {
        let sent = read_lines(io::stdin(), self.reports.clone()).map_err(internal)?;
        loop {
            // The session itself owns a sender. Therefore, the channel never closes here.
            let report = reports.recv().map_err(internal)?;
            let is_batch = matches!(report, Report::Lines(_));
            let event = self.take(report);
            if is_batch {
                // The input thread counts a batch before it reports the batch, so a value is always there.
                let _ = sent.try_recv();
            }
            let Some(event) = event else { continue };
            for action in self.plan.on(event) {
                if let ControlFlow::Break(ended) = self.act(action)? {
                    return Ok(ended);
                }
            }
        }
    }

    /// Shows a report to the user. Returns the event to pass to [`Plan::on`], if the report is such an event.
    fn take(&mut self, report: Report) -> Option<Event> {
        match report {
            Report::Changed(path) => {
                say(format_args!("hostler: {} changed", path.display()));
                Some(Event::Changed)
            }
            Report::Progress(line) => {
                say(line);
                None
            }
            Report::Built(result) => {
                self.built = self.job.take();
                let ok = result.is_ok();
                if let Err(error) = result {
                    say(format_args!("hostler: {error}"));
                }
                Some(Event::Built { ok })
            }
            Report::Log(line) => {
                self.show(&line);
                None
            }
            Report::HostEnded(status) => {
                self.host = None;
                match status {
                    Ok(status) if status.success() => {}
                    Ok(status) => say(format_args!("hostler: the host ended with an error ({status})")),
                    Err(error) => say(format_args!("hostler: cannot tell how the host ended: {error}")),
                }
                Some(Event::HostEnded)
            }
            Report::Lines(Ok(bodies)) => {
                self.send(bodies);
                None
            }
            Report::Lines(Err(error)) => {
                say(format_args!("hostler: cannot read standard input: {error}"));
                None
            }
            Report::Interrupted(signal) => {
                self.signal = signal;
                say("hostler: ending; press Ctrl-C again to end at once");
                Some(Event::Interrupted)
            }
        }
    }

    /// Performs an action. Returns `Break` if the action ends the session.
    fn act(&mut self, action: Action) -> Result<ControlFlow<SessionEnd>> {
        match action {
            Action::Build => self.build()?,
            Action::StopBuild => {
                if let Some(job) = &self.job {
                    job.stop(Signal::TERM);
                }
            }
            Action::Start => self.start_host()?,
            Action::Stop => {
                if let Some(host) = &self.host {
                    host.signal(Signal::TERM);
                }
            }
            Action::Kill => {
                self.ended = SessionEnd::Killed { signal: self.signal };
                if let Some(job) = &self.job {
                    job.stop(Signal::KILL);
                }
                if let Some(host) = &self.host {
                    host.signal(Signal::KILL);
                }
            }
            Action::End => return Ok(ControlFlow::Break(self.ended)),
            Action::TellOldRuns => say("hostler: the last good build keeps running"),
            Action::TellNothingRuns => say("hostler: nothing runs; waiting for a change"),
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Reads the config again, and starts a build.
    fn build(&mut self) -> Result<()> {
        match Setup::load(&self.config, &self.place).and_then(|setup| self.adopt(setup)) {
            Ok(()) => {}
            Err(failure) => {
                let _ = self.reports.send(Report::Built(Err(failure.message)));
                return Ok(());
            }
        }
        let command = self.setup.config.dev.build.clone();
        if let Some(command) = &command {
            say(format_args!("hostler: building: {command}"));
        }
        let build = Build { command, hostler: self.hostler.clone(), environment: self.setup.environment.clone() };
        self.built = None;
        let (lines, reports) = (self.reports.clone(), self.reports.clone());
        let progress = move |line| drop(lines.send(Report::Progress(line)));
        let job = Job::start(build, progress, move |result| drop(reports.send(Report::Built(result))));
        self.job = Some(job.map_err(internal)?);
        Ok(())
    }

    /// Replaces the config. Creates the missing queues of the new config, and watches its files.
    fn adopt(&mut self, setup: Setup) -> Result<()> {
        self.runtime.block_on(host::declare(&self.broker, &setup.config))?;
        self.setup = setup;
        // The send fails only if the watch thread has panicked. The panic has then been reported already.
        let _ = self.watched.send(self.setup.wanted.clone());
        Ok(())
    }

    fn start_host(&mut self) -> Result<()> {
        let (lines, ends) = (self.reports.clone(), self.reports.clone());
        let line = move |line| {
            let _ = lines.send(Report::Log(line));
        };
        let ended = move |status| {
            let _ = ends.send(Report::HostEnded(status));
        };
        let host = HostProcess::start(&self.hostler, &self.setup.environment, line, ended);
        self.host = Some(host.map_err(|error| internal(format!("cannot start the host: {error}")))?);
        Ok(())
    }

    fn send(&self, bodies: Vec<Vec<u8>>) {
        let Some(channel) = self.channel() else { return };
        let broker: Arc<dyn Broker> = Arc::clone(&self.broker) as _;
        let producer = Producer::new(broker, None);
        let channel = destination::of(&self.setup.config, channel);
        let group = self.is_ordered(channel).then(|| "hostler-dev".to_owned());
        let messages = bodies.into_iter().map(|body| Outgoing { body, group: group.clone(), ..Outgoing::default() });
        for result in self.runtime.block_on(producer.send(channel, messages.collect())) {
            if let Err(error) = result {
                say(format_args!("hostler: a line was not sent: {error}"));
            }
        }
    }

    fn is_ordered(&self, channel: &Channel) -> bool {
        self.setup
            .config
            .consumers
            .iter()
            .any(|consumer| consumer.ordered && consumer.channel.queue() == channel.queue())
    }

    fn show(&self, line: &str) {
        match shown::shown(line) {
            Some(Shown::Ready { consumer }) => say(format_args!("hostler: {consumer} is ready")),
            Some(Shown::Settled(settled)) => print(self.outcome(&settled)),
            Some(Shown::Output(text)) => print(format_args!("  {text}")),
            Some(Shown::Note(text)) => say(text),
            None => {}
        }
    }

    /// Formats the outcome of a message. Adds the consumer's name if the config has several consumers, and the text of the reply
    /// if the handler replied.
    fn outcome(&self, settled: &Settled) -> String {
        let name =
            if self.setup.config.consumers.len() > 1 { format!("{}: ", settled.consumer) } else { String::new() };
        let reply = if settled.has_reply { self.reply(settled) } else { None };
        let reply = reply.map(|text| format!(": {text}")).unwrap_or_default();
        format!("{name}{}{reply}", settled.text)
    }

    /// Returns the text of the reply to a message. `None`: no reply is in the channel, for example because another consumer has
    /// received the reply.
    fn reply(&self, settled: &Settled) -> Option<String> {
        let consumer = self.setup.config.consumers.iter().find(|consumer| consumer.name == settled.consumer)?;
        let channel = consumer.reply_channel.as_ref()?;
        let mut found = None;
        let mut each = |message: &hostler_types::message::Message| {
            let answers = message.attributes.get(CORRELATION_ATTRIBUTE).and_then(|value| value.as_text());
            if answers == Some(&settled.message_id) {
                found = Some(String::from_utf8_lossy(&message.body).into_owned());
            }
            ControlFlow::Continue(())
        };
        // The peek fails if the reply channel has no queue.
        self.runtime.block_on(self.broker.peek(channel, &mut each)).ok()?;
        found
    }
}

impl Setup {
    /// Reads the config twice. The first time, reads the config as written. The second time, also applies the variables that make
    /// the config use the session's folder.
    fn load(config: &ConfigArg, place: &Place) -> Result<Self> {
        let plain = config.load()?;
        let file = plain.file.as_deref().map(|file| std::path::absolute(file).unwrap_or_else(|_| file.to_owned()));
        let variables = place.variables(&plain.config, file.as_deref());
        let environment = place::over(std::env::vars_os(), &variables);
        let loaded = config::load(None, environment.clone().into_iter())
            .map_err(|error| Failure::new(Exit::BadConfig, error))?;
        let unwritten = |error| internal(format!("cannot write {}: {error}", place.shell_file().display()));
        place.write_shell_file(&variables).map_err(unwritten)?;
        let wanted = wanted(&loaded.config, file);
        Ok(Self { config: loaded.config, environment, wanted })
    }
}

/// Returns the files to watch: the paths in `dev.watch` and the config itself. Without `dev.build`, also returns the handlers.
fn wanted(config: &Config, file: Option<PathBuf>) -> Wanted {
    let of_consumers =
        config.consumers.iter().flat_map(|consumer| std::iter::once(&consumer.handler).chain(&consumer.hooks));
    let handlers = of_consumers.filter_map(|handler| match handler {
        HandlerRef::Path(path) => Some(path.clone()),
        _ => None,
    });
    let handlers = handlers.filter(|_| config.dev.build.is_none());
    Wanted { sources: config.dev.watch.clone(), files: file.into_iter().chain(handlers).collect() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Duration;

    use super::*;

    #[test]
    fn input_is_read_no_faster_than_it_is_sent() {
        let (sender, reports) = channel();
        let input = io::Cursor::new(b"x\n".repeat(4 * super::super::lines::BATCH));
        let sent = read_lines(input, sender).unwrap();
        let long = Duration::from_secs(30);
        for _ in 0..WAITING_BATCHES {
            assert!(matches!(reports.recv_timeout(long), Ok(Report::Lines(Ok(_)))));
        }
        assert!(matches!(reports.recv_timeout(Duration::from_millis(100)), Err(RecvTimeoutError::Timeout)));
        sent.recv_timeout(long).unwrap();
        assert!(matches!(reports.recv_timeout(long), Ok(Report::Lines(Ok(_)))), "one was sent");
    }
}
