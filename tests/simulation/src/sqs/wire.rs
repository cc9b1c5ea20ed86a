//! Network between the SDK and the model. Requests and answers may be late, refused or lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::super::calls::{Answered, Asked};
use super::super::judge::Judge;
use super::super::scenario::Scenario;
use super::super::site::Line;
use super::service::{INVALID_RECEIPT, NOT_IN_FLIGHT, Service};

/// Network of one process.
#[derive(Clone)]
pub struct Wire {
    pub line: Line,
    pub scenario: Arc<Scenario>,
    pub service: Arc<Service>,
    pub judge: Arc<Judge>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "wire of process {}", self.line.life)
    }
}

impl HttpConnector for Wire {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::new(self.clone().carry(request))
    }
}

/// A call in progress. When dropped, reports the result to the judge, because the caller may cancel the call at any time.
struct UnderWay {
    wire: Wire,
    asked: Asked,
    answer: Option<Value>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let of = |index: usize| match &self.answer {
            None => Answered::Failed,
            Some(answer) => entry(answer, index),
        };
        if !self.wire.line.is_dead() {
            self.wire.judge.answered(self.wire.line.life, &self.asked, &of);
        }
    }
}

fn entry(answer: &Value, index: usize) -> Answered {
    let id = index.to_string();
    let failed = answer["Failed"].as_array().into_iter().flatten().find(|entry| entry["Id"].as_str() == Some(&id));
    match failed.map(|entry| entry["Code"].as_str().unwrap_or_default()) {
        None => Answered::Done,
        Some(INVALID_RECEIPT | NOT_IN_FLIGHT) => Answered::Stale,
        Some(_) => Answered::Failed,
    }
}

impl Wire {
    async fn carry(self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        if self.line.is_dead() {
            return Err(ConnectorError::io("the process is gone".into()));
        }
        let action = request.headers().get("x-amz-target").and_then(|target| target.rsplit('.').next());
        let action = action.unwrap_or_default().to_owned();
        let input: Value = serde_json::from_slice(request.body().bytes().unwrap_or_default()).unwrap_or_default();
        let again = request.headers().get("amz-sdk-request").is_some_and(|text| !text.contains("attempt=1"));
        let (asked, asked_at) = (asked(&action, &input), Instant::now());
        self.judge.asked(self.line.life, &asked, again, self.line.shown().as_ref());
        let mut under_way = UnderWay { wire: self.clone(), asked, answer: None };

        if action.starts_with("GetQueue") {
            return Ok(self.respond(200, &self.apply(&action, &input).await, Instant::now()));
        }
        if self.service.denies(&under_way.asked) {
            sleep(self.latency()).await;
            let refusal = json!({ "__type": "com.amazonaws.sqs#AccessDenied", "message": "not authorized" });
            return Ok(self.respond(400, &refusal, Instant::now()));
        }
        let rates = &self.scenario.rates;
        if self.service.is_out() || self.service.is_struck(rates.refusals) {
            sleep(self.latency()).await;
            if self.service.is_out() && self.service.random() < 0.3 {
                return std::future::pending().await;
            }
            let (status, code) = [(503, "ServiceUnavailable"), (400, "ThrottlingException"), (500, "InternalError")]
                [(self.service.random() * 3.0) as usize];
            let refusal = json!({ "__type": format!("com.amazonaws.sqs#{code}"), "message": code });
            return Ok(self.respond(status, &refusal, Instant::now()));
        }
        // A request that was sent arrives, even if the caller no longer waits for the answer.
        let (there, back) = (self.latency(), self.latency());
        let is_lost = self.service.is_struck(rates.lost_requests);
        let (wire, action) = (self.clone(), action);
        let applied = tokio::spawn(async move {
            sleep(there).await;
            let is_lost = is_lost || (wire.line.is_dead() && wire.service.random() < 0.5);
            if is_lost { None } else { Some(wire.apply(&action, &input).await) }
        });
        let answer = applied.await.ok().flatten();
        let answered_at = Instant::now();
        sleep(back).await;
        match answer {
            Some(answer) if !self.service.is_struck(rates.lost_answers) && !self.line.is_dead() => {
                self.tell_received(&answer, asked_at);
                let response = self.respond(200, &answer, answered_at);
                under_way.answer = Some(answer);
                Ok(response)
            }
            _ if self.service.random() < 0.5 => Err(ConnectorError::io("connection reset".into())),
            _ => std::future::pending().await,
        }
    }

    /// An answer of the service, made at this time.
    fn respond(&self, status: u16, body: &Value, at: Instant) -> HttpResponse {
        let mut response = HttpResponse::new(status.try_into().unwrap(), body.to_string().into());
        response.headers_mut().insert("content-type", "application/x-amz-json-1.0");
        response.headers_mut().insert("date", http_date(&self.service.wall(at).to_string()));
        response
    }

    /// Returns a random latency: usually milliseconds, sometimes seconds.
    fn latency(&self) -> Duration {
        let most = if self.service.is_struck(self.scenario.rates.latency) { 8.0 } else { 0.02 };
        Duration::from_secs_f64(self.service.random() * most)
    }

    async fn apply(&self, action: &str, input: &Value) -> Value {
        let number = |name: &str| input[name].as_u64().unwrap_or(0);
        let service = &self.service;
        match action {
            "GetQueueUrl" => json!({ "QueueUrl": format!("http://sqs/{}", input["QueueName"].as_str().unwrap()) }),
            "GetQueueAttributes" => json!({ "Attributes": { "MaximumMessageSize": "1048576" } }),
            "ReceiveMessage" => {
                let (max, attempt) = (number("MaxNumberOfMessages"), input["ReceiveRequestAttemptId"].as_str());
                let (wait, lease) = (number("WaitTimeSeconds"), number("VisibilityTimeout"));
                let max = usize::try_from(max).unwrap();
                json!({ "Messages": service.receive(self.line.life, max, wait, lease, attempt).await })
            }
            "DeleteMessageBatch" => self.each(input, |entry| service.delete(receipt(entry))),
            "ChangeMessageVisibilityBatch" => {
                self.each(input, |entry| service.change(receipt(entry), entry["VisibilityTimeout"].as_u64().unwrap()))
            }
            "SendMessageBatch" => {
                let to = input["QueueUrl"].as_str().unwrap_or_default().to_owned();
                self.each(input, |entry| {
                    if is_burial(input) {
                        self.judge.copied(name(entry));
                    } else if to.ends_with("/out") {
                        self.judge.arrived(entry["MessageBody"].as_str().unwrap());
                    } else {
                        self.judge.replied(name(entry));
                    }
                    Ok(())
                })
            }
            _ => panic!("the model has no {action}"),
        }
    }

    /// Executes each entry of a batch. Some entries fail. The results are in random order.
    fn each(&self, input: &Value, act: impl Fn(&Value) -> Result<(), &'static str>) -> Value {
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for entry in input["Entries"].as_array().unwrap() {
            let result = match self.service.is_struck(self.scenario.rates.entries) {
                true => Err("InternalError"),
                false => act(entry),
            };
            match result {
                Ok(()) => done.push(json!({ "Id": entry["Id"], "MessageId": "x", "MD5OfMessageBody": "x" })),
                Err(code) => {
                    failed.push(json!({ "Id": entry["Id"], "Code": code, "SenderFault": code != "InternalError" }))
                }
            }
        }
        done.reverse();
        json!({ "Successful": done, "Failed": failed })
    }

    fn tell_received(&self, answer: &Value, asked_at: Instant) {
        let messages = answer["Messages"].as_array().into_iter().flatten();
        let receipts: BTreeSet<_> = messages.map(|message| receipt(message).to_owned()).collect();
        if !receipts.is_empty() {
            self.judge.received(self.line.life, &receipts, asked_at);
        }
    }
}

fn receipt(entry: &Value) -> &str {
    entry["ReceiptHandle"].as_str().unwrap()
}

/// Returns the name of the message that is copied or answered: in its attributes, or its body.
fn name(entry: &Value) -> &str {
    let text = |name: &str| entry["MessageAttributes"][name]["StringValue"].as_str();
    let answered = || text("correlation-id")?.strip_prefix("id-");
    text("name").or_else(answered).or_else(|| entry["MessageBody"].as_str()).unwrap()
}

fn is_burial(input: &Value) -> bool {
    input["QueueUrl"].as_str().is_some_and(|url| url.trim_end_matches(".fifo").ends_with("-dlq"))
}

/// Returns the content of a request.
fn asked(action: &str, input: &Value) -> Asked {
    let entries = || input["Entries"].as_array().into_iter().flatten();
    match action {
        "ReceiveMessage" => Asked::Receive,
        "DeleteMessageBatch" => Asked::Delete(entries().map(|entry| receipt(entry).to_owned()).collect()),
        "ChangeMessageVisibilityBatch" => Asked::Change(
            entries()
                .map(|entry| (receipt(entry).to_owned(), entry["VisibilityTimeout"].as_u64().unwrap_or(0)))
                .collect(),
        ),
        "SendMessageBatch" if is_burial(input) => Asked::Bury(entries().map(name).map(str::to_owned).collect()),
        _ => Asked::Other,
    }
}

/// An RFC 3339 time as a `Date` header has it, in whole seconds. Nobody reads the day of the week.
fn http_date(time: &str) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (year, month, day) = (&time[..4], time[5..7].parse::<usize>().unwrap(), &time[8..10]);
    format!("Mon, {day} {} {year} {} GMT", MONTHS[month - 1], &time[11..19])
}
