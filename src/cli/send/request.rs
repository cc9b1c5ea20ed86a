//! `hostler send --subject … --request`: each message is a request, which a receiver acknowledges.

use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Args, FLUSH, NAMED, outgoing, read_ahead, traces};
use crate::cli::lines::Batch;
use crate::cli::output::counted;
use crate::cli::source::Input;
use crate::cli::{block_on, connect, print, say};
use crate::exit::{Exit, Failure, Result};
use crate::host;
use hostler_config::{Config, Driver};
use hostler_queue::parallel::stopping;
use hostler_queue::request::{Terms, check_subject};
use hostler_queue::{Request, Requested, SendError};
use hostler_queue_telemetry::Producer;
use hostler_types::duration;

/// Requests that wait for their answers at the same time.
const AT_ONCE: usize = 64;

/// Arguments for requests.
#[derive(Debug, clap::Args)]
pub(super) struct RequestArgs {
    /// A subject of NATS in place of a channel
    #[arg(long, value_name = "SUBJECT", value_parser = subject, requires = "request")]
    #[arg(conflicts_with_all = ["channel", "routing_key", "delay", "group", "dedupe"])]
    subject: Option<String>,
    /// Wait until a receiver acknowledges each message
    #[arg(long, requires = "subject")]
    request: bool,
    /// The longest wait for an answer
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    #[arg(requires = "subject")]
    timeout: Duration,
    /// The subject of a retry service for the rest
    #[arg(long, value_name = "SUBJECT", value_parser = subject, requires = "subject")]
    fallback: Option<String>,
}

impl RequestArgs {
    /// Returns `true` if an option is given that only requests to a subject have.
    pub(super) fn is_given(&self) -> bool {
        self.request || self.fallback.is_some()
    }
}

fn subject(text: &str) -> std::result::Result<String, &'static str> {
    check_subject(text).map(|()| text.to_owned())
}

/// A message that neither a receiver nor the retry service has. `line`: its number in the input.
struct Failed {
    line: Option<u64>,
    error: SendError,
}

/// Numbers of messages by their ends.
#[derive(Default)]
struct Books {
    accepted: u64,
    handed_over: u64,
    failed: u64,
    /// The first failures.
    failures: Vec<Failed>,
}

impl Books {
    fn enter(&mut self, line: Option<u64>, result: std::result::Result<Requested, SendError>) {
        match result {
            Ok(Requested::Accepted { .. }) => self.accepted += 1,
            Ok(Requested::HandedOver { .. }) => self.handed_over += 1,
            Err(error) => {
                self.failed += 1;
                if self.failures.len() < NAMED {
                    self.failures.push(Failed { line, error });
                }
            }
        }
    }

    /// Formats the books, for people.
    fn told(&self, subject: &str) -> String {
        let Self { accepted, handed_over, failed, .. } = self;
        let sent = counted(accepted + handed_over + failed, "message");
        format!("{sent} to {subject}: {accepted} accepted, {handed_over} handed to the retry service, {failed} failed")
    }

    /// Formats the failures, for people. `None`: there are none.
    fn failures(&self) -> Option<String> {
        if self.failed == 0 {
            return None;
        }
        let name = |Failed { line, error }: &Failed| match line {
            Some(line) => format!("line {line} failed: {error}"),
            None => format!("the message failed: {error}"),
        };
        let more = self.failed - self.failures.len() as u64;
        let more = (more > 0).then(|| format!("and {more} more"));
        Some(self.failures.iter().map(name).chain(more).collect::<Vec<_>>().join("\n  "))
    }
}

/// Runs the command for a subject.
pub(super) fn run(args: &Args, config: &Config, input: Input) -> Result {
    let Some(subject) = &args.request.subject else {
        return Err(Failure::new(Exit::Usage, "name a channel, or a subject by --subject"));
    };
    if config.queue.driver != Driver::Nats {
        let driver = config.queue.driver.word();
        let text = format!(
            "--subject: only NATS has subjects, and queue.driver is \"{driver}\"\n  cure: name a config with \
             queue.driver = \"nats\" by --config"
        );
        return Err(Failure::new(Exit::Usage, text));
    }
    block_on(async {
        let traces = traces(config);
        let producer = Producer::new(connect(config).await?, traces.clone());
        let mut books = Books::default();
        let stopped = if args.lines {
            let stop = host::stop_on_signal().map_err(|error| Failure::new(Exit::Internal, error))?;
            request_lines(args, subject, &producer, read_ahead(input)?, &stop, &mut books).await
        } else {
            let result = producer.request(request(args, subject, input.read_message()?)).await;
            if let Ok(Requested::HandedOver { why, .. }) = &result {
                say(format_args!("hostler: note: {why}: the retry service has the message"));
            }
            if let Ok(requested) = &result {
                print(requested.clone().into_id());
            }
            books.enter(None, result);
            Ok(false)
        };
        if let Some(traces) = traces {
            traces.finish(FLUSH).await;
        }
        end(&books, subject, stopped)
    })
}

/// Prints the books, and returns the result of the command. `stopped`: set if a signal ended the command before its input did.
fn end(books: &Books, subject: &str, stopped: Result<bool>) -> Result {
    let told = books.told(subject);
    let is_stopped = match stopped {
        Ok(is_stopped) => is_stopped,
        Err(failure) => return Err(Failure::new(failure.exit, format!("{}\n  {told}", failure.message))),
    };
    print(if is_stopped { format!("stopped: {told}") } else { told });
    match books.failures() {
        Some(failures) => Err(Failure::new(Exit::Failed, failures)),
        None => Ok(if is_stopped { Exit::Failed } else { Exit::Ok }),
    }
}

fn request(args: &Args, subject: &str, body: Vec<u8>) -> Request {
    let terms = Terms { timeout: args.request.timeout, fallback: args.request.fallback.clone() };
    Request { subject: subject.to_owned(), message: outgoing(args, body), terms }
}

/// Requests each line. A line that fails does not keep the others from being tried. Returns `true` if a signal ended it, after the
/// answers to what had been sent.
async fn request_lines(
    args: &Args,
    subject: &str,
    producer: &Producer,
    mut input: Receiver<Result<Batch>>,
    stop: &CancellationToken,
    books: &mut Books,
) -> Result<bool> {
    let mut waiting = JoinSet::new();
    let ended = 'input: loop {
        let next = tokio::select! {
            biased;
            () = stop.cancelled() => break Ok(true),
            next = input.recv() => next,
        };
        let Batch { bodies, numbers, .. } = match next {
            None => break Ok(false),
            Some(Ok(batch)) => batch,
            Some(Err(failure)) => break Err(failure),
        };
        for (body, line) in bodies.into_iter().zip(numbers) {
            if waiting.len() >= AT_ONCE {
                enter(books, waiting.join_next().await);
            }
            if stop.is_cancelled() {
                break 'input Ok(true);
            }
            let (producer, request) = (producer.clone(), request(args, subject, body));
            waiting.spawn(async move { (line, producer.request(request).await) });
        }
    };
    while !waiting.is_empty() {
        enter(books, waiting.join_next().await);
    }
    ended
}

type Joined = std::result::Result<(u64, std::result::Result<Requested, SendError>), tokio::task::JoinError>;

fn enter(books: &mut Books, joined: Option<Joined>) {
    match joined {
        Some(Ok((line, result))) => books.enter(Some(line), result),
        // The panic itself was printed.
        Some(Err(_)) => books.enter(None, Err(stopping().into())),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_queue::QueueError;

    #[test]
    fn the_books_balance_and_name_the_first_failures() {
        let mut books = Books::default();
        assert_eq!((books.failures(), books.told("a.b").starts_with("0 messages to a.b: 0 accepted")), (None, true));
        books.enter(Some(1), Ok(Requested::Accepted { id: "1".to_owned() }));
        books.enter(Some(2), Ok(Requested::HandedOver { id: "2".to_owned(), why: "no".to_owned() }));
        for line in 3..15 {
            books.enter(Some(line), Err(QueueError::Unavailable("no".to_owned()).into()));
        }
        let told = "14 messages to a.b: 1 accepted, 1 handed to the retry service, 12 failed";
        assert_eq!(books.told("a.b"), told);
        let failures = books.failures().unwrap();
        assert!(failures.starts_with("line 3 failed: no\n  line 4 failed: no\n  "), "{failures}");
        assert!(failures.ends_with("line 12 failed: no\n  and 2 more"), "{failures}");
        assert_eq!(end(&books, "a.b", Ok(false)).unwrap_err().exit, Exit::Failed);
    }

    #[test]
    fn a_stop_is_no_success() {
        assert_eq!(end(&Books::default(), "a", Ok(true)).ok(), Some(Exit::Failed));
        assert_eq!(end(&Books::default(), "a", Ok(false)).ok(), Some(Exit::Ok));
    }
}
