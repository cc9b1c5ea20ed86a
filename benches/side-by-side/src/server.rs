//! The SQS server: one queue for all names, over HTTP on the loopback interface, on one thread. `GET /stats` returns its counts.
//!
//! The queue never becomes empty, so that it keeps a contender busy during the measurement. The measurement begins some time
//! after the first delete (`--warm-up-ms`), and ends some seconds later. Then the queue is empty until it is fed at a steady
//! rate. A comparison that lets several contenders take turns closes and opens the queue itself (`/close`, `/open`).

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::messages::{self, Form, Made};
use crate::queue::Queue;
use crate::wire::{ACTIONS, Action, Request};
use crate::{Result, process};

/// Maximum size of the bodies in an answer with several messages, in bytes. Equals SQS's limit for a batch (1 MiB).
const MAX_ANSWER: usize = 1 << 20;

/// Options of `serve`.
#[derive(Debug)]
pub struct Options {
    /// Format of the bodies.
    pub form: Form,
    /// Minimum size of plain bodies in bytes.
    pub body_bytes: usize,
    /// Minimum duration of every call: half before the call takes effect, and half after.
    pub latency: Duration,
    /// Time from the first delete to the start of the measurement.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub window: Duration,
}

/// State of the contender at one time.
struct Sample {
    at: Instant,
    deleted: u64,
    calls: [u64; ACTIONS.len()],
    cpu: Duration,
}

struct Server {
    options: Options,
    made: Vec<Made>,
    queue: RefCell<Queue>,
    /// Notified for each message that is fed or returned.
    arrived: Notify,
    /// Notified by the first delete.
    begun: Notify,
    /// Process id of the contender, with its start time.
    contender: RefCell<Option<(i32, SystemTime)>>,
    /// Samples at the start and the end of the measurement.
    samples: RefCell<Vec<Sample>>,
    /// Both clocks at the same time, to convert between them.
    clocks: (Instant, SystemTime),
}

/// Serves until standard input ends. Prints the port to standard output.
pub fn serve(options: Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Ends this process with its parent, whose end closes standard input.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    LocalSet::new().block_on(&runtime, async move {
        let server = Rc::new(Server {
            made: messages::make(options.form, options.body_bytes)?,
            options,
            queue: RefCell::new(Queue::endless()),
            arrived: Notify::new(),
            begun: Notify::new(),
            contender: RefCell::default(),
            samples: RefCell::default(),
            clocks: (Instant::now(), SystemTime::now()),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?.port());
        tokio::task::spawn_local(Rc::clone(&server).count());
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::task::spawn_local(Rc::clone(&server).connection(stream));
        }
    })
}

impl Server {
    async fn connection(self: Rc<Self>, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let service = service_fn(|request| self.answer(request));
        // A contender that has ended closes its connections.
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    async fn answer(&self, request: hyper::Request<Incoming>) -> Result<Response<Full<Bytes>>> {
        let answered = if request.method() == Method::GET {
            self.control(request.uri().path(), request.uri().query().unwrap_or_default())
                .await
                .map(|told| told.to_string())
        } else if request.uri().path().starts_with("/v1/") {
            // The server also acts as a collector that discards its data.
            request.into_body().collect().await?;
            Ok(String::new())
        } else {
            self.call(request).await
        };
        let (status, text) = match answered {
            Ok(text) => (200, text),
            Err(error) => {
                let refused = json!({ "__type": "com.amazonaws.sqs#InvalidAction", "message": error.to_string() });
                (400, refused.to_string())
            }
        };
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status.try_into()?;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-amz-json-1.0"));
        let id = HeaderValue::from_static("00000000-0000-4000-8000-000000000000");
        headers.insert(HeaderName::from_static("x-amzn-requestid"), id);
        Ok(response)
    }

    /// Handles a call of SQS.
    async fn call(&self, request: hyper::Request<Incoming>) -> Result<String> {
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (action, host) = (Action::of(header("x-amz-target")), header("host").to_owned());
        let body = request.into_body().collect().await?.to_bytes();
        self.on_the_way().await;
        self.queue.borrow_mut().count(action);
        let answer = self.carry_out(action, &serde_json::from_slice(&body)?, &host).await;
        self.on_the_way().await;
        answer
    }

    async fn on_the_way(&self) {
        if !self.options.latency.is_zero() {
            sleep(self.options.latency / 2).await;
        }
    }

    async fn carry_out(&self, action: Action, request: &Request<'_>, host: &str) -> Result<String> {
        match action {
            Action::ReceiveMessage => return request.messages(&self.receive(request).await, &self.made),
            Action::DeleteMessage | Action::DeleteMessageBatch => {
                let mut queue = self.queue.borrow_mut();
                let first = queue.deleted == 0;
                request.named().for_each(|(number, _)| queue.delete(number));
                if first {
                    self.begun.notify_one();
                }
            }
            Action::ChangeMessageVisibility | Action::ChangeMessageVisibilityBatch => {
                for (number, _) in request.named().filter(|(_, timeout)| *timeout == Some(0)) {
                    self.queue.borrow_mut().put_back(number);
                    self.arrived.notify_one();
                }
            }
            Action::GetQueueUrl => {
                return Ok(
                    json!({ "QueueUrl": format!("http://{host}/000000000000/{}", request.queue_name) }).to_string()
                );
            }
            Action::GetQueueAttributes => {
                let attributes = json!({
                    "ApproximateNumberOfMessages": "1000", "MaximumMessageSize": "1048576", "VisibilityTimeout": "30",
                });
                return Ok(json!({ "Attributes": attributes }).to_string());
            }
            Action::Other => return Err("this server has no such call".into()),
        }
        match action {
            Action::DeleteMessageBatch | Action::ChangeMessageVisibilityBatch => request.all_done(),
            _ => Ok("{}".to_owned()),
        }
    }

    /// Returns messages as soon as any are available.
    async fn receive(&self, request: &Request<'_>) -> Vec<u64> {
        let fit = (MAX_ANSWER / self.options.body_bytes.max(1)).max(1);
        let max = request.max_number_of_messages.unwrap_or(1).clamp(1, 10).min(fit);
        let wait = async {
            loop {
                let taken = self.queue.borrow_mut().take(max);
                if !taken.is_empty() {
                    return taken;
                }
                self.arrived.notified().await;
            }
        };
        let taken = timeout(Duration::from_secs(request.wait_time_seconds), wait).await.unwrap_or_default();
        if self.queue.borrow().has_more() {
            self.arrived.notify_one();
        }
        taken
    }

    /// Takes the two samples. After the second, ends the supply of messages.
    async fn count(self: Rc<Self>) {
        self.begun.notified().await;
        for pause in [self.options.warm_up, self.options.window] {
            sleep(pause).await;
            let pid = self.contender.borrow().map_or(0, |(pid, _)| pid);
            let queue = self.queue.borrow();
            let sample = Sample {
                at: Instant::now(),
                deleted: queue.deleted,
                calls: queue.calls,
                cpu: process::cpu(pid).unwrap_or_default(),
            };
            self.samples.borrow_mut().push(sample);
        }
        self.queue.borrow_mut().end();
    }

    /// Handles a request of the comparison.
    async fn control(&self, path: &str, query: &str) -> Result<Value> {
        let query: HashMap<&str, u64> = query
            .split('&')
            .filter_map(|pair| pair.split_once('=').and_then(|(key, value)| Some((key, value.parse().ok()?))))
            .collect();
        let value = |key: &str| query.get(key).copied().ok_or_else(|| format!("{path} needs {key}"));
        match path {
            "/stats" => {}
            "/watch" => {
                let started = UNIX_EPOCH + Duration::from_micros(value("started")?);
                *self.contender.borrow_mut() = Some((i32::try_from(value("pid")?)?, started));
            }
            "/open" => {
                self.queue.borrow_mut().open();
                self.arrived.notify_one();
            }
            "/close" => self.queue.borrow_mut().end(),
            "/feed" => self.feed(value("milliseconds")?, value("count")?).await,
            _ => return Err(format!("no {path} here").into()),
        }
        Ok(self.stats())
    }

    /// Sends `count` messages at a steady rate over `milliseconds`.
    async fn feed(&self, milliseconds: u64, count: u64) {
        self.queue.borrow_mut().latencies.clear();
        let mut turns = interval(Duration::from_micros(milliseconds * 1000 / count.max(1)));
        turns.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for _ in 0..count {
            turns.tick().await;
            self.queue.borrow_mut().feed();
            self.arrived.notify_one();
        }
    }

    fn stats(&self) -> Value {
        let queue = self.queue.borrow();
        let started = self.contender.borrow().map(|(_, started)| started);
        // Seconds since the start of the contender.
        let since = |at: Instant| {
            let at = self.clocks.1 + (at - self.clocks.0);
            started.and_then(|started| at.duration_since(started).ok()).map(|time| time.as_secs_f64())
        };
        let calls = |calls: &[u64]| -> Value {
            ACTIONS.iter().zip(calls).map(|((_, name), count)| ((*name).to_owned(), json!(count))).collect()
        };
        let samples: Vec<_> = self
            .samples
            .borrow()
            .iter()
            .map(|sample| {
                json!({
                    "at_seconds": since(sample.at), "deleted": sample.deleted, "calls": calls(&sample.calls),
                    "cpu_seconds": sample.cpu.as_secs_f64(),
                })
            })
            .collect();
        let mut latencies = queue.latencies.clone();
        latencies.sort_unstable();
        let part = |percent: usize| {
            latencies.get(latencies.len() * percent / 100).map(|latency| latency.as_secs_f64() * 1000.0)
        };
        json!({
            "deleted": queue.deleted, "in_flight": queue.in_flight(), "ready": queue.has_more(),
            "calls": calls(&queue.calls), "first_receive_seconds": queue.first_receive.and_then(since),
            "first_delete_seconds": queue.first_delete.and_then(since), "samples": samples,
            "settled": latencies.len(), "p50_ms": part(50), "p99_ms": part(99),
        })
    }
}
