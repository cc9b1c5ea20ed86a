//! Plays a scenario: processes that come and go over the model queue, by a clock that has no other.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_smithy_runtime_api::client::http::SharedHttpClient;
use hostler_handler::Handler;
use hostler_health::ConsumerReport;
use hostler_queue::{Broker, ChannelSpec, Queue, QueueError};
use hostler_queue_telemetry::{Producer, Replies};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::judge::Judge;
use super::scenario::{Key, Scenario, Turn};
use super::service::Service;
use super::wire::{Shown, Wire};
use super::worker::Worker;

/// How long a process may take to exit after its grace: calls that hang are given up one after the other.
const EXIT: Duration = Duration::from_secs(180);
/// How long it may take until all is done once nothing goes wrong any more.
const END: Duration = Duration::from_secs(30 * 24 * 3600);

/// A future that is given away.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A broker, or why there is none.
pub type Connected = Result<Arc<dyn Broker>, QueueError>;

/// How far a process is, whatever the system under test calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Running,
    Draining,
    Deadline,
}

/// What one process works with.
pub struct Parts {
    pub scenario: Arc<Scenario>,
    pub queue: Arc<dyn Queue>,
    pub handler: Arc<dyn Handler>,
    pub replies: Option<Replies>,
    pub stage: watch::Receiver<Stage>,
    pub pause: watch::Receiver<bool>,
    /// When the run began.
    pub origin: Instant,
    /// Gets what tells how the consumer is.
    pub board: Arc<Mutex<Option<Board>>>,
}

/// Tells what the health file would say, and how many messages are in hand.
pub type Board = Box<dyn Fn() -> (ConsumerReport, usize) + Send>;

/// What is tested: a driver of SQS and a consumer.
#[derive(Clone, Copy)]
pub struct System {
    pub connect: fn(SharedHttpClient) -> Boxed<Connected>,
    pub consume: fn(Parts) -> Boxed<()>,
}

/// Makes a [`System`] of the modules of a consumer and of a driver.
macro_rules! system {
    ($($consumer:ident)::+, $($sqs:ident)::+) => {{
        use $($consumer)::+ as consumer;
        use $($sqs)::+ as sqs;
        $crate::simulation::run::System {
            connect: |http| {
                Box::pin(async move {
                    let options = sqs::Options {
                        region: Some("eu-central-1".into()),
                        endpoint_url: Some("http://sqs".into()),
                        credentials: Some(("key".into(), "secret".into())),
                        http: Some(http),
                        ..sqs::Options::default()
                    };
                    let broker = sqs::SqsBroker::connect(options).await?;
                    Ok(std::sync::Arc::new(broker) as std::sync::Arc<dyn hostler_queue::Broker>)
                })
            },
            consume: |mut parts| {
                let scenario = std::sync::Arc::clone(&parts.scenario);
                let status = consumer::StatusBoard::new(Default::default(), Default::default());
                let (shown, timeout) = (status.clone(), scenario.healthcheck_timeout());
                *parts.board.lock().unwrap() = Some(Box::new(move || {
                    let status = shown.get();
                    let wall = |at| $crate::simulation::judge::wall(parts.origin, at);
                    let (limit, now) = (timeout, tokio::time::Instant::now());
                    (status.report("work", limit, limit, now, wall), status.in_hand)
                }));
                let (sender, phase) = tokio::sync::watch::channel(consumer::Phase::Running);
                tokio::spawn(async move {
                    while parts.stage.changed().await.is_ok() {
                        let _ = sender.send(match *parts.stage.borrow_and_update() {
                            $crate::simulation::run::Stage::Running => consumer::Phase::Running,
                            $crate::simulation::run::Stage::Draining => consumer::Phase::Draining,
                            $crate::simulation::run::Stage::Deadline => consumer::Phase::Deadline,
                        });
                    }
                });
                let spec = consumer::Spec {
                    name: "work".into(),
                    channel: "work".into(),
                    ordered: scenario.ordered,
                    concurrency: scenario.concurrency,
                    lease: scenario.lease,
                    processing_timeout: scenario.processing_timeout,
                    delay_tolerance: std::time::Duration::from_secs(60),
                    longest_poll: std::time::Duration::from_secs(20),
                    rate_limit: scenario.rate_limit,
                    policy: consumer::Policy {
                        retry: scenario.retry,
                        on_processing_timeout: scenario.on_processing_timeout,
                        dead_letter: true,
                    },
                    breaker: scenario.breaker,
                    output: 1024,
                };
                let consumer = consumer::Consumer {
                    spec,
                    queue: parts.queue,
                    handler: parts.handler,
                    replies: parts.replies,
                    guests: hostler_handler::Lanes::new(tokio::runtime::Handle::current(), None),
                    status,
                    metrics: None,
                    traces: None,
                    pause: parts.pause,
                    exit: Default::default(),
                };
                Box::pin(async move { _ = consumer.run(phase).await })
            },
        }
    }};
}
pub(crate) use system;

/// A process.
struct Process {
    life: usize,
    stage: watch::Sender<Stage>,
    pause: watch::Sender<bool>,
    dead: Arc<AtomicBool>,
    board: Arc<Mutex<Option<Board>>>,
    running: JoinHandle<()>,
}

/// What a process to come will be connected by.
struct Line {
    shown: Shown,
    dead: Arc<AtomicBool>,
    board: Arc<Mutex<Option<Board>>>,
    broker: Arc<dyn Broker>,
}

/// The world of a run.
struct World {
    system: System,
    lines: Vec<Line>,
    origin: Instant,
    scenario: Arc<Scenario>,
    judge: Arc<Judge>,
    service: Arc<Service>,
}

/// Plays the scenario of this key; what was broken, and, if it is to be kept, all that happened.
pub fn play(system: System, key: &Key, keeps_trace: bool) -> (Vec<String>, Vec<String>) {
    // The SDK, tokio and hostler draw their random numbers from here.
    fastrand::seed(key.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let scenario = Arc::new(Scenario::of(key));
        let judge = Arc::new(Judge::new(Arc::clone(&scenario), keeps_trace));
        let service = Arc::new(Service::new(Arc::clone(&scenario), Arc::clone(&judge)));
        let mut world = World { system, lines: Vec::new(), origin: Instant::now(), scenario, judge, service };
        // The SDK reads the machine's files for it, on threads that know nothing of this clock.
        for life in 0..=world.scenario.turns.len() {
            let line = world.connect(life).await;
            world.lines.push(line);
        }
        world.play().await;
        world.judge.verdict()
    })
}

impl World {
    async fn play(&self) {
        let (service, messages) = (Arc::clone(&self.service), self.scenario.messages.clone());
        let started_at = Instant::now();
        tokio::spawn(async move {
            for message in messages {
                tokio::time::sleep_until(started_at + message.sent_at).await;
                service.put(&message.name, message.group.as_deref());
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
                Turn::Pause(duration) => {
                    self.judge.paused(duration);
                    tokio::time::advance(duration).await;
                    self.judge.paused(Duration::ZERO);
                }
                Turn::Hold(duration) => {
                    self.judge.held(process.life, true);
                    process.pause.send_replace(true);
                    sleep(duration).await;
                    process.pause.send_replace(false);
                    self.judge.held(process.life, false);
                }
                Turn::Outage(duration) => {
                    self.service.fail_for(duration);
                    self.judge.outage(duration);
                    sleep(duration).await;
                }
            }
            if self.is_over(&process) {
                return;
            }
        }
        if timeout(END, self.service.until_empty(self.scenario.messages.len())).await.is_err() {
            self.judge.note(|| "what is left is never done".into());
        }
        // Settlements that are under way are answered.
        sleep(self.scenario.lease).await;
        self.drain(process, Duration::from_secs(30)).await;
        self.judge.close();
    }

    /// A process ends only when it is told to.
    fn is_over(&self, process: &Process) -> bool {
        if process.running.is_finished() {
            self.judge.break_promise(format!("8: process {} ended by itself", process.life));
        }
        process.running.is_finished()
    }

    async fn connect(&self, life: usize) -> Line {
        let (dead, board) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Option<Board>>>::default());
        let shown: Shown = {
            let board = Arc::clone(&board);
            Arc::new(move || board.lock().unwrap().as_ref().map(|board| board().0))
        };
        let (scenario, service) = (Arc::clone(&self.scenario), Arc::clone(&self.service));
        let judge = Arc::clone(&self.judge);
        let wire = Wire { life, scenario, service, judge, dead: Arc::clone(&dead), shown: Arc::clone(&shown) };
        let broker = (self.system.connect)(SharedHttpClient::new(wire)).await.unwrap();
        Line { shown, dead, board, broker }
    }

    async fn start(&self) -> Process {
        let life = self.judge.born();
        let Line { shown, dead, board, broker } = &self.lines[life];
        let spec = ChannelSpec {
            ordered: self.scenario.ordered,
            max_receives: Some(self.scenario.max_receives),
            ..ChannelSpec::new("work".parse().unwrap())
        };
        let queue = broker.open(&spec).await.unwrap();
        let (scenario, judge) = (Arc::clone(&self.scenario), Arc::clone(&self.judge));
        let worker = Worker { life, scenario, judge, dead: Arc::clone(dead), shown: Arc::clone(shown) };
        let (pause, paused) = watch::channel(false);
        let (stage, watched) = watch::channel(Stage::Running);
        let parts = Parts {
            scenario: Arc::clone(&self.scenario),
            queue,
            handler: Arc::new(worker),
            replies: Some(Replies {
                producer: Producer::new(Arc::clone(broker), None),
                channel: "replies".parse().unwrap(),
                from: "work".into(),
            }),
            stage: watched,
            pause: paused,
            origin: self.origin,
            board: Arc::clone(board),
        };
        let running = tokio::spawn((self.system.consume)(parts));
        self.watch(life, Arc::clone(shown));
        Process { life, stage, pause, dead: Arc::clone(dead), board: Arc::clone(board), running }
    }

    /// Looks every second at what the health check would say of a process.
    fn watch(&self, life: usize, shown: Shown) {
        let judge = Arc::clone(&self.judge);
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_secs(1)).await;
                let Some(report) = shown() else { continue };
                if !judge.looked(life, report) {
                    return;
                }
            }
        });
    }

    async fn drain(&self, mut process: Process, grace: Duration) {
        self.judge.draining(process.life);
        let _ = process.stage.send(Stage::Draining);
        let mut exited = timeout(grace, &mut process.running).await;
        if exited.is_err() {
            self.judge.note(|| format!("the grace of process {} is over", process.life));
            let _ = process.stage.send(Stage::Deadline);
            exited = timeout(EXIT, &mut process.running).await;
        }
        match exited {
            Ok(Ok(())) => {
                let shown = process.board.lock().unwrap().as_ref().map(|board| board());
                let (in_flight, in_hand) = shown.map_or((0, 0), |(report, in_hand)| (report.in_flight, in_hand));
                self.judge.exited(process.life, in_flight as usize, in_hand);
            }
            Ok(Err(panic)) => self.judge.break_promise(format!("8: process {} panicked: {panic}", process.life)),
            Err(_) => {
                self.judge.break_promise(format!("6: process {} does not exit", process.life));
                self.kill(process);
            }
        }
    }

    fn kill(&self, process: Process) {
        self.judge.crashed(process.life);
        process.dead.store(true, Ordering::Relaxed);
        let _ = process.stage.send(Stage::Deadline);
        process.running.abort();
    }
}
