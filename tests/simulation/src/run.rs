//! Plays a scenario: processes that start and end work on a queue, in virtual time.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use hostler_queue_telemetry::{Producer, Replies};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::cancels::operate;
use super::embedded::Embedded;
use super::judge::Judge;
use super::key::{Key, Kind};
use super::push::Push;
use super::scenario::{Scenario, Turn};
use super::site::{Line, Opened, Site};
use super::sqs::Sqs;
use super::system::{Parts, Stage, System};
use super::worker::Worker;

/// Maximum time from the end of the grace to the exit of a process. Calls that hang time out one after another.
const EXIT: Duration = Duration::from_secs(180);
/// Maximum time until all messages are settled after the last fault.
const END: Duration = Duration::from_secs(30 * 24 * 3600);

/// A process.
struct Process {
    line: Line,
    stage: watch::Sender<Stage>,
    pause: watch::Sender<bool>,
    running: JoinHandle<()>,
}

/// World of a run.
struct World {
    system: System,
    /// Lines of the processes that have not started yet.
    lines: Vec<Line>,
    origin: Instant,
    scenario: Arc<Scenario>,
    judge: Arc<Judge>,
    site: Arc<dyn Site>,
}

/// Plays the scenario of this key. Returns the broken promises and, if `keeps_trace` is set, the trace.
pub fn play(system: System, key: &Key, keeps_trace: bool) -> (Vec<String>, Vec<String>) {
    // The SDK, tokio and hostler use this source of random numbers.
    fastrand::seed(key.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let scenario = Arc::new(Scenario::of(key));
        let judge = Arc::new(Judge::new(Arc::clone(&scenario), keeps_trace));
        let lines: Vec<_> = (0..=scenario.turns.len()).map(Line::new).collect();
        let (told, seen) = (Arc::clone(&scenario), Arc::clone(&judge));
        let site: Arc<dyn Site> = match key.kind {
            Kind::Sqs | Kind::Batch | Kind::Keys => Arc::new(Sqs::new(system, told, seen, &lines).await),
            Kind::Embedded | Kind::OwnKeys => Arc::new(Embedded::new(system, told, seen).await),
            Kind::Push | Kind::Nats => Arc::new(Push::new(told, seen)),
        };
        let world = World { system, lines, origin: Instant::now(), scenario, judge, site };
        world.play().await;
        world.judge.verdict()
    })
}

impl World {
    async fn play(&self) {
        let (site, messages) = (Arc::clone(&self.site), self.scenario.messages.clone());
        let started_at = Instant::now();
        tokio::spawn(async move {
            for message in messages {
                tokio::time::sleep_until(started_at + message.sent_at).await;
                site.put(&message).await;
            }
        });
        let mut process = self.start().await;
        for (after, turn) in self.scenario.turns.clone() {
            sleep(after).await;
            match turn {
                Turn::Drain(grace) => {
                    self.drain(process, grace).await;
                    process = self.start().await;
                }
                Turn::Crash => {
                    self.kill(process);
                    process = self.start().await;
                }
                Turn::Cut => {
                    self.judge.note(|| "the connection is lost".into());
                    self.site.cut();
                    // A receive that ends with its connection is no completed poll.
                    self.judge.outage(Duration::ZERO);
                }
                Turn::Boot => {
                    self.kill(process);
                    self.judge.booted();
                    self.site.boot().await;
                    process = self.start().await;
                }
                Turn::Clock(by) => {
                    self.judge.note(|| format!("the clock is set by {by} s"));
                    self.site.set_clock(by);
                }
                Turn::Pause(duration) => {
                    self.judge.paused(duration);
                    tokio::time::advance(duration).await;
                    self.judge.paused(Duration::ZERO);
                }
                Turn::Hold(duration) => {
                    self.judge.held(process.line.life, true);
                    process.pause.send_replace(true);
                    sleep(duration).await;
                    process.pause.send_replace(false);
                    self.judge.held(process.line.life, false);
                }
                Turn::Denial(denied, duration) => {
                    self.judge.note(|| format!("{denied:?} are denied for {duration:?}"));
                    self.site.deny(denied, duration);
                    sleep(duration).await;
                }
                Turn::Outage(duration) => {
                    self.site.fail_for(duration);
                    self.judge.outage(duration);
                    sleep(duration).await;
                }
            }
            if self.is_over(&process) {
                return;
            }
        }
        if timeout(END, self.site.until_empty(self.scenario.messages.len())).await.is_err() {
            self.judge.note(|| "what is left is never done".into());
        }
        // Settlements under way are answered in this time.
        sleep(self.scenario.lease).await;
        self.drain(process, Duration::from_secs(30)).await;
        self.judge.close();
    }

    /// Checks that a process ends only on request.
    fn is_over(&self, process: &Process) -> bool {
        if process.running.is_finished() {
            self.judge.break_promise(format!("8: process {} ended by itself", process.line.life));
        }
        process.running.is_finished()
    }

    async fn start(&self) -> Process {
        let life = self.judge.born();
        let line = self.lines[life].clone();
        let Opened { broker, queue, records } = self.site.open(&line, &self.scenario.channel()).await;
        let (scenario, judge) = (Arc::clone(&self.scenario), Arc::clone(&self.judge));
        let producer = Producer::new(broker, None);
        let (pause, paused) = watch::channel(false);
        let (stage, watched) = watch::channel(Stage::Running);
        let parts = Parts {
            scenario: Arc::clone(&self.scenario),
            queue,
            handler: Arc::new(Worker { line: line.clone(), scenario, judge, calls: AtomicUsize::new(0) }),
            replies: Some(Replies {
                producer: producer.clone(),
                channel: "replies".parse().unwrap(),
                from: "work".into(),
            }),
            keyed: records.map(|records| (records, producer)),
            stage: watched,
            pause: paused,
            origin: self.origin,
            board: Arc::clone(&line.board),
            operator: Arc::clone(&line.operator),
        };
        let running = tokio::spawn((self.system.consume)(parts));
        self.watch(line.clone());
        tokio::spawn(operate(line.clone(), self.scenario.cancels.clone(), Arc::clone(&self.judge)));
        Process { line, stage, pause, running }
    }

    /// Checks every second what the health check would report about a process.
    fn watch(&self, line: Line) {
        let (judge, site) = (Arc::clone(&self.judge), Arc::clone(&self.site));
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_secs(1)).await;
                let Some(report) = line.shown() else { continue };
                if !judge.looked(line.life, report, site.sent_ahead(line.life)) {
                    return;
                }
            }
        });
    }

    async fn drain(&self, mut process: Process, grace: Duration) {
        self.judge.draining(process.line.life);
        let _ = process.stage.send(Stage::Draining);
        let mut exited = timeout(grace, &mut process.running).await;
        if exited.is_err() {
            self.judge.grace_over(process.line.life);
            let _ = process.stage.send(Stage::Deadline);
            exited = timeout(EXIT, &mut process.running).await;
        }
        match exited {
            Ok(Ok(())) => {
                let shown = process.line.board.lock().unwrap().as_ref().map(|board| board());
                let (in_flight, in_hand) = shown.map_or((0, 0), |(report, in_hand)| (report.in_flight, in_hand));
                self.judge.exited(
                    process.line.life,
                    in_flight as usize,
                    in_hand,
                    self.site.sent_ahead(process.line.life),
                );
            }
            Ok(Err(panic)) => self.judge.break_promise(format!("8: process {} panicked: {panic}", process.line.life)),
            Err(_) => {
                self.judge.break_promise(format!("6: process {} does not exit", process.line.life));
                self.kill(process);
            }
        }
    }

    fn kill(&self, process: Process) {
        self.judge.crashed(process.line.life);
        process.line.cut();
        let _ = process.stage.send(Stage::Deadline);
        process.running.abort();
    }
}
