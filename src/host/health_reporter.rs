//! Health reporter. Writes the health file soon after the state, the pause or the breaker of a consumer changes.
//! Without changes, writes the file at least twice per [`TICK`].
//!
//! At each write, also checks for other files next to the health file. Operators create such files to pause a consumer
//! or to send a request.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::requests::RequestDesk;
use hostler_consumer::{Failed, Requests, Status, StatusHandle};
use hostler_health::{
    Clock, ConsumerReport, FailureReport, HealthFile, Pauses, QueueLink, QueueLinkState, Report, Rival, Rivals, TICK,
};
use hostler_queue::Link;

/// Minimum interval between two reports that are caused by changes of consumers. A busy consumer can change its state thousands
/// of times a second.
const SPACING: Duration = Duration::from_millis(50);

/// Minimum interval between two checks for the pause files of consumers.
const LOOKING: Duration = Duration::from_millis(500);

/// Maximum time to wait for the last write at the end of the process. A hanging file system must not keep the process alive.
pub(super) const LAST_WRITE: Duration = Duration::from_secs(1);

/// A consumer whose state the health file reports.
pub(super) struct Watched {
    pub(super) name: String,
    pub(super) healthcheck_timeout: Duration,
    /// Maximum duration of a drain.
    pub(super) shutdown_grace: Duration,
    pub(super) board: StatusHandle,
    /// Contains `true` while the consumer is paused.
    pub(super) pause: watch::Sender<bool>,
    /// Sends the requests of operators to the consumer.
    pub(super) requests: Requests,
}

/// The state of the connection to the queue service. Empty until the host has connected.
pub(super) type LinkSlot = Arc<OnceLock<watch::Receiver<Link>>>;

/// Writes the health file until stopped. Also checks for pauses and requests of operators.
///
/// The control thread creates the reports. Therefore, the file becomes stale if the control thread hangs. A separate thread
/// writes the reports. Therefore, a slow disk does not delay the control thread.
pub(super) struct HealthReporter {
    stop: CancellationToken,
    ticking: JoinHandle<()>,
    /// Closed after the health thread has written the last report.
    written: oneshot::Receiver<()>,
}

impl HealthReporter {
    /// Checks for paused consumers, starts the health thread, and sends the first report. Because the check comes first, a
    /// consumer that is already paused when the host starts receives no message. Must be called within the control runtime.
    pub(super) fn start(
        path: &Path,
        consumers: Vec<Watched>,
        link: LinkSlot,
        transitions: Arc<Notify>,
    ) -> io::Result<Self> {
        let file = HealthFile::new(path);
        let mut rivals = Rivals::start(path);
        for other in rivals.others() {
            log_another_host(other.pid, path);
        }
        let mut watch = PauseWatch::new(path, &consumers);
        watch.look();
        let asked = consumers.iter().map(|watched| (watched.name.clone(), watched.requests.clone()));
        let desk = RequestDesk::new(path, asked.collect());
        let path = path.to_owned();
        let (reports, queue) = mpsc::sync_channel::<Report>(1);
        let (writing, written) = oneshot::channel();
        thread::Builder::new().name("hostler-health".into()).spawn(move || {
            write_all(&file, &path, &queue, rivals, watch, desk);
            drop(writing);
        })?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let ticking = tokio::spawn(async move {
            let mut clock = Clock::start();
            let mut tick = || {
                let report = clock.report(|clock| consumers.iter().map(|watched| describe(watched, clock)).collect());
                let report = Report { queue_link: fault_of(&link), ..report };
                // If the health thread is still writing the last report, this report is dropped. The next tick sends a newer
                // report.
                let _ = reports.try_send(report);
            };
            loop {
                tick();
                tokio::select! {
                    () = stopped.cancelled() => break,
                    // If two hosts share the file by mistake, the jitter makes them write at different times. The health check
                    // can then see a report of each host.
                    () = tokio::time::sleep((TICK / 2).mul_f64(1.0 - 0.2 * fastrand::f64())) => {}
                    () = transitions.notified() => tokio::time::sleep(SPACING).await,
                }
            }
            tick();
        });
        Ok(Self { stop, ticking, written })
    }

    /// Writes a last report and stops. Waits at most [`LAST_WRITE`] for the write.
    pub(super) async fn stop(self) {
        self.stop.cancel();
        let _ = self.ticking.await;
        if timeout(LAST_WRITE, self.written).await.is_err() {
            tracing::warn!(
                "cannot write the last health report in time; the health file does not show that the host ended"
            );
        }
    }
}

/// Logs that another host writes this health file. Each host then overwrites the reports of the other. `top`, `pause` and the
/// health check see only the host that wrote last.
fn log_another_host(pid: u32, path: &Path) {
    tracing::error!(
        pid,
        path = %path.display(),
        "another host writes this health file: give each a path of its own with `host.health_file` \
         (HOSTLER_HOST__HEALTH_FILE), or their health, `hostler top` and `hostler pause` are mixed up"
    );
}

fn log_made_up(path: &Path) {
    tracing::error!(
        path = %path.display(),
        "a program that is not this host wrote a report in its name to this health file: let no program but hostler write it, or \
         set `host.health_file` (HOSTLER_HOST__HEALTH_FILE) to another path; until the next report, the health check may be wrong"
    );
}

/// Watches the pause files of consumers. Signals a consumer when its pause begins or ends.
struct PauseWatch {
    pauses: Pauses,
    consumers: Vec<(String, watch::Sender<bool>)>,
    looked_at: Option<Instant>,
    failing: bool,
}

impl PauseWatch {
    fn new(health_file: &Path, consumers: &[Watched]) -> Self {
        let consumers = consumers.iter().map(|watched| (watched.name.clone(), watched.pause.clone())).collect();
        Self { pauses: Pauses::beside(health_file), consumers, looked_at: None, failing: false }
    }

    fn look(&mut self) {
        if self.looked_at.is_some_and(|at| at.elapsed() < LOOKING) {
            return;
        }
        self.looked_at = Some(Instant::now());
        let mut fault = None;
        for (name, pause) in &self.consumers {
            match self.pauses.contains(name) {
                Ok(paused) => {
                    pause.send_if_modified(|now| std::mem::replace(now, paused) != paused);
                }
                Err(error) => fault = Some(error),
            }
        }
        // If the folder cannot be read, the last known pauses remain in force.
        if let (Some(error), false) = (&fault, self.failing) {
            tracing::warn!(%error, "cannot read which consumers to pause");
        }
        self.failing = fault.is_some();
    }
}

fn write_all(
    file: &HealthFile,
    path: &Path,
    reports: &mpsc::Receiver<Report>,
    mut rivals: Rivals,
    mut watch: PauseWatch,
    mut desk: RequestDesk,
) {
    let mut failing = false;
    for mut report in reports {
        watch.look();
        match rivals.look(path) {
            Some(Rival::Host(pid)) => log_another_host(pid, path),
            Some(Rival::InItsName) => log_made_up(path),
            None => {}
        }
        report.others = rivals.others();
        match file.write(&report) {
            Ok(()) => {
                failing = false;
                rivals.wrote(&report);
            }
            // The file becomes stale, and the health check reports that. Logs the reason once per series of failures.
            Err(error) if !failing => {
                tracing::error!(%error, "cannot write the health file");
                failing = true;
            }
            Err(_) => {}
        }
        desk.look(&report);
    }
}

/// Returns the fault of the connection to the queue service.
fn fault_of(link: &LinkSlot) -> Option<QueueLink> {
    let (state, reason) = match &*link.get()?.borrow() {
        Link::Up => return None,
        Link::Down { why, .. } => (QueueLinkState::Down, why.clone()),
        Link::Blocked(why) => (QueueLinkState::Blocked, why.clone()),
    };
    Some(QueueLink { state, reason })
}

fn describe(watched: &Watched, clock: &Clock) -> ConsumerReport {
    let status: Status = watched.board.get();
    let wall = |instant: tokio::time::Instant| clock.wall(Instant::from(instant));
    let failure = |failed: Failed| FailureReport {
        at: wall(failed.at),
        message_id: failed.message_id,
        outcome: failed.outcome.to_owned(),
        disposition: failed.disposition.to_owned(),
        reason: failed.reason,
    };
    let now = tokio::time::Instant::now();
    let report = status.report(&watched.name, watched.healthcheck_timeout, watched.shutdown_grace, now, wall);
    ConsumerReport { last_failures: watched.board.failures().into_iter().map(failure).collect(), ..report }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_types::State;

    #[tokio::test]
    async fn a_drain_within_the_grace_is_healthy() {
        let seconds = Duration::from_secs;
        for (healthcheck_timeout, shutdown_grace, exiting) in [(5, 115, 115), (90, 25, 90)] {
            let watched = Watched {
                name: "work".into(),
                healthcheck_timeout: seconds(healthcheck_timeout),
                shutdown_grace: seconds(shutdown_grace),
                board: StatusHandle::new(Arc::default(), Arc::default()),
                pause: watch::Sender::new(false),
                requests: Requests::default(),
            };
            let mut clock = Clock::start();
            for (state, wanted) in [
                (State::Initializing, healthcheck_timeout),
                (State::Processing, healthcheck_timeout),
                (State::Exiting, exiting),
            ] {
                watched.board.update(Instant::now().into(), |status| status.state = state);
                let report = clock.report(|clock| vec![describe(&watched, clock)]);
                let shown: Vec<_> =
                    report.consumers.iter().map(|shown| (shown.state, shown.healthcheck_timeout)).collect();
                assert_eq!(shown, [(state, seconds(wanted))]);
            }
        }
    }

    #[tokio::test]
    async fn a_stop_waits_until_what_was_reported_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("health.json");
        let watched = Watched {
            name: "work".into(),
            healthcheck_timeout: Duration::from_secs(90),
            shutdown_grace: Duration::from_secs(25),
            board: StatusHandle::new(Arc::default(), Arc::default()),
            pause: watch::Sender::new(false),
            requests: Requests::default(),
        };
        let reporter = HealthReporter::start(&path, vec![watched], Arc::default(), Arc::default()).unwrap();
        reporter.stop().await;
        assert_eq!(hostler_health::read(&path).unwrap().consumers.len(), 1);
    }

    #[test]
    fn a_connection_is_reported_while_it_does_not_work() {
        let (slot, link) = (LinkSlot::default(), watch::Sender::new(Link::Up));
        assert_eq!(fault_of(&slot), None, "not connected yet");
        slot.set(link.subscribe()).unwrap();
        assert_eq!(fault_of(&slot), None);
        let why = || "why".to_owned();
        for (is, state) in [
            (Link::Blocked(why()), QueueLinkState::Blocked),
            (Link::Down { since: tokio::time::Instant::now(), why: why() }, QueueLinkState::Down),
        ] {
            link.send_replace(is);
            assert_eq!(fault_of(&slot), Some(QueueLink { state, reason: why() }));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hung_disk_does_not_keep_the_process_from_its_end() {
        let (_hung, written) = oneshot::channel();
        let reporter = HealthReporter { stop: CancellationToken::new(), ticking: tokio::spawn(async {}), written };
        timeout(2 * LAST_WRITE, reporter.stop()).await.expect("it waits for ever");
    }
}
