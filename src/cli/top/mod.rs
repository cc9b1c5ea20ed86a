//! Command `hostler top`. Shows a running host. Reads the host's health file and its metrics endpoint.

mod layout;
mod metrics;
mod model;
mod screen;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use super::table::table;
use super::{ConfigArg, print, say};
use crate::exit::{Exit, Failure, Result};
use hostler_config as config;
use hostler_health::{self as health, QueueLink, Report, StartPeriod, Timestamp, Verdict, process};
use hostler_types::duration;
use metrics::Scrape;
use model::{Look, Looks, rows};
use screen::{History, Title};

/// Maximum time to wait for an answer from the metrics endpoint.
const PATIENCE: Duration = Duration::from_secs(2);

const HELP: &str = "\
Examples:
  hostler top
  hostler top --once --file /tmp/hostler/health.json

Reads the health file and, if telemetry.prometheus is set, the metrics endpoint. Changes nothing and contacts no \
    queue. Without metrics, their columns stay empty.";

/// Show a running host: slots, rates, latencies, failures
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The health file [default: host.health_file]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The metrics endpoint [default: telemetry.prometheus, on this machine]
    #[arg(long, value_name = "URL")]
    metrics: Option<String>,
    /// The time between refreshes
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::parse)]
    interval: Duration,
    /// Print the table once and exit, with 1 if the host is unhealthy
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    config: ConfigArg,
}

/// Sources of the displayed data.
struct Host {
    file: PathBuf,
    /// URL of the metrics endpoint, or the reason why the URL is unknown.
    metrics: std::result::Result<String, String>,
    client: reqwest::Client,
}

pub(super) fn run(args: &Args) -> Result {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Internal, error))?;
    let host = Host::of(args)?;
    if args.once {
        return once(&host, &runtime);
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::new(
            Exit::Usage,
            "standard output is not a terminal: `hostler top --once` prints a table",
        ));
    }
    let mut terminal = ratatui::try_init().map_err(|error| Failure::new(Exit::Internal, error))?;
    let result = watch(&host, args.interval.max(Duration::from_millis(100)), &runtime, &mut terminal);
    // If this fails, the terminal has been closed.
    let _ = ratatui::try_restore();
    result
}

fn once(host: &Host, runtime: &tokio::runtime::Runtime) -> Result {
    let report = host.report()?;
    let verdict = host.verdict(&report);
    let (look, without) = runtime.block_on(host.look(report));
    let rows = rows(None, &look);
    print(table(&screen::HEADER, &rows.iter().map(screen::cells).collect::<Vec<_>>()));
    rows.iter().filter_map(screen::outcomes).for_each(print);
    screen::failures(&rows).into_iter().for_each(print);
    if let Some(without) = without {
        say(format_args!("hostler: no metrics: {without}"));
    }
    print(told(&verdict, look.report.queue_link.as_ref()));
    Ok(if verdict.healthy() { Exit::Ok } else { Exit::Failed })
}

/// Refreshes the display until the user quits.
fn watch(
    host: &Host,
    interval: Duration,
    runtime: &tokio::runtime::Runtime,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result {
    let (mut looks, mut history) = (Looks::default(), History::default());
    loop {
        let next = Instant::now() + interval;
        let report = host.report()?;
        let verdict = host.verdict(&report);
        let (look, without) = runtime.block_on(host.look(report));
        let rows = looks.rows(&look);
        history.push(&rows);
        let said = told(&verdict, look.report.queue_link.as_ref());
        let title = Title {
            pid: look.report.pid,
            up: look.at.since(look.report.started_at),
            age: look.at.since(look.report.written_at),
            verdict: &said,
            healthy: verdict.healthy(),
            without: without.as_deref(),
        };
        terminal
            .draw(|frame| screen::draw(frame, &title, &rows, &history))
            .map_err(|error| Failure::new(Exit::Internal, error))?;
        while let Some(left) = next.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if event::poll(left).map_err(|error| Failure::new(Exit::Internal, error))? && quits()? {
                return Ok(Exit::Ok);
            }
        }
    }
}

/// Returns true if the key that was just pressed quits: q, Escape or Ctrl-C. In raw mode, the terminal reports Ctrl-C as a key.
fn quits() -> Result<bool> {
    let event = event::read().map_err(|error| Failure::new(Exit::Internal, error))?;
    let Event::Key(key) = event else { return Ok(false) };
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let quits = match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => control,
        _ => false,
    };
    Ok(quits && key.kind == KeyEventKind::Press)
}

/// Formats the verdict and the fault of the connection to the queue service on one line.
fn told(verdict: &Verdict, link: Option<&QueueLink>) -> String {
    let reasons = verdict.reasons.iter().map(ToString::to_string);
    let reasons: Vec<_> = reasons.chain(link.map(ToString::to_string)).collect();
    if reasons.is_empty() {
        verdict.status.name().to_owned()
    } else {
        format!("{}: {}", verdict.status.name(), reasons.join("; "))
    }
}

impl Host {
    fn of(args: &Args) -> Result<Self> {
        let named = args.config.config.as_deref();
        super::warn_of_variables();
        let file = args.file.clone().unwrap_or_else(|| config::health_file(named, std::env::vars_os()));
        let metrics = match &args.metrics {
            Some(url) => Ok(url.clone()),
            None => served(named),
        };
        let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build();
        Ok(Self { file, metrics, client: client.map_err(|error| Failure::new(Exit::Internal, error))? })
    }

    fn report(&self) -> Result<Report> {
        health::read(&self.file).map_err(|error| Failure::new(Exit::Failed, error))
    }

    fn verdict(&self, report: &Report) -> Verdict {
        // A host that has written a report has passed its start period.
        let start_period = StartPeriod { limit: Duration::ZERO, pid1_started_at: None };
        health::verdict(Ok(report), process::info(report.pid), Timestamp::now(), start_period)
    }

    /// Returns a snapshot of the host. If the snapshot has no metrics, also returns the reason.
    async fn look(&self, report: Report) -> (Look, Option<String>) {
        let scraped = match &self.metrics {
            Ok(url) => self.scrape(url).await,
            Err(why) => Err(why.clone()),
        };
        let at = Timestamp::now();
        match scraped {
            Ok(scrape) => (Look { at, report, scrape: Some(scrape) }, None),
            Err(why) => (Look { at, report, scrape: None }, Some(why)),
        }
    }

    async fn scrape(&self, url: &str) -> std::result::Result<Scrape, String> {
        let answer = async { self.client.get(url).send().await?.error_for_status()?.text().await };
        answer.await.map(|text| Scrape::parse(&text)).map_err(|error| hostler_types::error_chain::with_causes(&error))
    }
}

/// Returns the metrics URL of the config, in the form in which this machine can reach it.
fn served(named: Option<&Path>) -> std::result::Result<String, String> {
    let loaded = config::load(named, std::env::vars_os()).map_err(|_| "the config cannot be read".to_owned())?;
    let address = loaded.config.telemetry.prometheus.ok_or("telemetry.prometheus is not set")?;
    Ok(reachable(address))
}

/// Returns the URL for an address. If the address listens on all interfaces, returns the URL of the loopback interface.
fn reachable(mut address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    format!("http://{address}/metrics")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_on_all_interfaces_is_asked_by_loopback() {
        let asked = |text: &str| reachable(text.parse().unwrap());
        assert_eq!(asked("0.0.0.0:9464"), "http://127.0.0.1:9464/metrics");
        assert_eq!(asked("[::]:9464"), "http://[::1]:9464/metrics");
        assert_eq!(asked("10.1.2.3:80"), "http://10.1.2.3:80/metrics");
    }
}
