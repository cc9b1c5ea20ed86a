//! Systems under test: drivers and a consumer. These may be copies with a planted fault.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_smithy_runtime_api::client::http::SharedHttpConnector;
use hostler_handler::Handler;
use hostler_health::ConsumerReport;
use hostler_queue::{Provisioner, Queue, QueueError, Records};
use hostler_queue_telemetry::{Producer, Replies};
use tokio::sync::watch;
use tokio::time::Instant;

use super::embedded::clock::ProcessClock;
use super::scenario::Scenario;

/// A boxed future.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A broker, or the reason why connecting failed.
pub type Connected = Result<Arc<dyn Provisioner>, QueueError>;

/// Phase of a process, independent of the types of the system under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Running,
    Draining,
    Deadline,
}

/// Parts of one process.
pub struct Parts {
    pub scenario: Arc<Scenario>,
    pub queue: Arc<dyn Queue>,
    pub handler: Arc<dyn Handler>,
    pub replies: Option<Replies>,
    /// Store of idempotency records, and the producer of what handlers send. `None`: the consumer has no idempotency.
    pub keyed: Option<(Arc<dyn Records>, Producer)>,
    pub stage: watch::Receiver<Stage>,
    pub pause: watch::Receiver<bool>,
    /// Start of the run.
    pub origin: Instant,
    /// Receives the function that reports the state of the consumer.
    pub board: Arc<Mutex<Option<Board>>>,
    /// Gets what asks the consumer for an operator.
    pub operator: Arc<Mutex<Option<Operator>>>,
}

/// A delivery in flight, as an operator sees it.
#[derive(Debug, Clone)]
pub struct Listed {
    pub delivery: u64,
    pub message_id: String,
    pub attempt: u32,
}

/// Asks a consumer for an operator.
pub struct Operator {
    /// Lists what is in flight; `None`: there is no answer.
    pub list: Box<dyn Fn() -> Boxed<Option<Vec<Listed>>> + Send>,
    /// Cancels a delivery; true if it is stopped for that.
    pub cancel: Box<dyn Fn(u64) -> Boxed<bool> + Send>,
}

/// The longest wait of an operator for an answer.
pub const ANSWER: Duration = Duration::from_secs(1);

/// The answer to an operator, once it is there; `None`: there is none in time, and none will be.
pub async fn answered<T>(answer: Receiver<T>) -> Option<T> {
    let until = Instant::now() + ANSWER;
    loop {
        tokio::time::sleep(Duration::from_millis(1)).await;
        match answer.try_recv() {
            Ok(answer) => return Some(answer),
            Err(TryRecvError::Empty) if Instant::now() <= until + ANSWER => {}
            Err(_) => return None,
        }
    }
}

/// Returns the health report of the consumer and its number of messages in hand.
pub type Board = Box<dyn Fn() -> (ConsumerReport, usize) + Send>;

/// The system under test: the drivers and a consumer.
#[derive(Clone, Copy)]
pub struct System {
    pub sqs: fn(SharedHttpConnector) -> Boxed<Connected>,
    pub embedded: fn(&Path, ProcessClock) -> Connected,
    pub consume: fn(Parts) -> Boxed<()>,
}

/// Interval at which a waiting receive of the embedded queue checks for messages of other processes. Longer than in production,
/// so that the simulation does not check constantly.
pub const POLL: Duration = Duration::from_secs(1);

/// Creates a [`System`] from the modules of a consumer, of the SQS driver, and of the embedded driver.
#[macro_export]
macro_rules! system {
    ($($consumer:ident)::+, $($sqs:ident)::+, $($embedded:ident)::+) => {{
        use $($consumer)::+ as consumer;
        use $($sqs)::+ as sqs;
        use $($embedded)::+ as embedded;
        /// Clocks of the machine, in the form that the driver needs.
        #[derive(Debug)]
        struct Clock($crate::embedded::clock::ProcessClock);
        impl embedded::Clock for Clock {
            fn monotonic(&self) -> std::time::Duration {
                self.0.monotonic()
            }
            fn wall(&self) -> std::time::SystemTime {
                self.0.wall()
            }
            fn origin(&self) -> Option<String> {
                Some(self.0.origin())
            }
        }
        $crate::system::System {
            embedded: |path, clock| {
                let worker = embedded::Worker::Task { poll: $crate::system::POLL };
                let clock = std::sync::Arc::new(Clock(clock));
                let options = embedded::Options { clock, worker, ..embedded::Options::default() };
                let broker = embedded::EmbeddedBroker::open_with(path, options)?;
                Ok(std::sync::Arc::new(broker) as std::sync::Arc<dyn hostler_queue::Provisioner>)
            },
            sqs: |http| {
                Box::pin(async move {
                    let options = sqs::Options {
                        region: Some("eu-central-1".into()),
                        endpoint_url: Some("http://sqs".into()),
                        credentials: Some(("key".into(), "secret".into())),
                        http: Some(http),
                        ..sqs::Options::default()
                    };
                    let broker = sqs::SqsBroker::connect(options).await?;
                    Ok(std::sync::Arc::new(broker) as std::sync::Arc<dyn hostler_queue::Provisioner>)
                })
            },
            consume: |mut parts| {
                let scenario = std::sync::Arc::clone(&parts.scenario);
                let status = consumer::StatusHandle::new(Default::default(), Default::default());
                let (shown, timeout) = (status.clone(), scenario.healthcheck_timeout());
                *parts.board.lock().unwrap() = Some(Box::new(move || {
                    let status = shown.get();
                    let wall = |at| $crate::progress::wall(parts.origin, at);
                    let (limit, now) = (timeout, tokio::time::Instant::now());
                    (status.report("work", limit, limit, now, wall), status.in_hand)
                }));
                let requests = consumer::Requests::default();
                let (lists, cancels) = (requests.clone(), requests.clone());
                *parts.operator.lock().unwrap() = Some($crate::system::Operator {
                    list: Box::new(move || {
                        let answer = lists.list();
                        Box::pin(async move {
                            let listed = $crate::system::answered(answer).await?;
                            let listed = listed.into_iter().map(|one| $crate::system::Listed {
                                delivery: one.delivery,
                                message_id: one.message_id,
                                attempt: one.attempt,
                            });
                            Some(listed.collect())
                        })
                    }),
                    cancel: Box::new(move |delivery| {
                        let until = tokio::time::Instant::now() + $crate::system::ANSWER;
                        let answer = cancels.cancel(delivery, until);
                        Box::pin(async move {
                            let answer = $crate::system::answered(answer).await;
                            answer == Some(consumer::Cancellation::Stopping)
                        })
                    }),
                });
                let (sender, phase) = tokio::sync::watch::channel(consumer::Phase::Running);
                tokio::spawn(async move {
                    while parts.stage.changed().await.is_ok() {
                        let _ = sender.send(match *parts.stage.borrow_and_update() {
                            $crate::system::Stage::Running => consumer::Phase::Running,
                            $crate::system::Stage::Draining => consumer::Phase::Draining,
                            $crate::system::Stage::Deadline => consumer::Phase::Deadline,
                        });
                    }
                });
                let spec = consumer::Spec {
                    name: "work".into(),
                    channel: "work".into(),
                    ordered: scenario.ordered,
                    batch: scenario.batch,
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
                    idempotency: parts.keyed.zip(scenario.keyed).map(|((records, producer), keyed)| consumer::Idempotency {
                        key: $crate::keyed::source(),
                        scope: $crate::keyed::SCOPE.into(),
                        records,
                        is_transactional: scenario.is_exact(),
                        ttl: keyed.ttl,
                        runs_again: keyed.runs_again,
                        producer,
                    }),
                    guests: hostler_handler::Pools::new(tokio::runtime::Handle::current(), None),
                    status,
                    metrics: None,
                    traces: None,
                    pause: parts.pause,
                    requests,
                    exit: Default::default(),
                };
                Box::pin(async move { _ = consumer.run(phase).await })
            },
        }
    }};
}
