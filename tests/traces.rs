//! Traces: real spans to a collector of others, from producers of others, and what a collector that fails does to a host.

use std::fs;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::http::HOSTILE;
use crate::support::hostler::{Host, PATIENCE, SECOND, World, until};
use crate::support::rotel::{CONVENTION, Collector, Span};
use crate::support::servers::{Kind, installed};
use crate::support::sqs::Aws;
use crate::support::web::{Reply, Web};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// A consumer `jobs` of the guest that does what its message's attribute `do` says, and replies to `done`.
static JOBS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "
        [consumers.jobs]
        channel = 'jobs'
        handler = '{}'
        reply_channel = 'done'
        allow.send = ['others']
        ",
        HOSTILE.display()
    )
});

/// A consumer whose handler acks what begins with an `a`.
const PLAIN: &str = "
    [consumers.jobs]
    channel = 'jobs'
    handler = 'guests/run-word.wat'
";

/// The same, of a host that sends its spans there.
fn acking(endpoint: &str) -> String {
    format!("telemetry.otlp_endpoint = '{endpoint}'\n{PLAIN}")
}

/// The one span of this name.
fn one<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

/// Sends one message; more arguments follow.
fn send(world: &World, args: &[&str]) {
    let said = world.output(&[&["send"], args].concat());
    assert_eq!(said.code, 0, "{said:?}");
}

/// Checks that every span has the attributes of the conventions, and no unknown ones.
fn is_by_the_convention(span: &Span, system: &str) {
    let known = |name: &&String| !CONVENTION.contains(*name) && !name.starts_with("hostler.");
    let unknown: Vec<_> = span.attributes.keys().chain(span.resource.keys()).filter(known).collect();
    assert!(unknown.is_empty(), "{}: {unknown:?}", span.name);
    assert!(span.start <= span.end && span.start > 0, "{span:?}");
    let Some((operation, destination)) = span.name.split_once(' ') else { return };
    let kind = match operation {
        "send" => "PRODUCER",
        "process" => "CONSUMER",
        _ => "CLIENT",
    };
    assert_eq!(span.kind, kind, "{}", span.name);
    let expected = [
        ("messaging.system", system),
        ("messaging.operation.name", operation),
        ("messaging.operation.type", operation),
        ("messaging.destination.name", destination),
    ];
    for (name, value) in expected {
        assert_eq!(span.attributes[name], value, "{}", span.name);
    }
}

fn of_one_trace(endpoint: &str, collector: &Collector, variables: &[(&str, &str)]) {
    let web = Web::start(|_, _| Reply::ok("answer"));
    let world = World::new(&format!(
        "telemetry.otlp_endpoint = '{endpoint}'\n{}\nallow.http = ['http://{}']",
        *JOBS, web.address
    ));
    let url = format!("http://{}/a?token=secret", web.address);
    let mut command = world.command(&["send", "jobs", "--attr", "do=get", "--body", &url]);
    assert!(command.envs(variables.iter().copied()).status().unwrap().success());
    let mut command = world.command(&["run"]);
    command.envs(variables.iter().copied());
    let mut host = Host::start(command);
    let line = host.settled(1).remove(0);
    assert_eq!(host.stop(), 0);
    let names = ["send jobs", "receive jobs", "process jobs", "GET", "send done", "settle jobs"];
    let spans = collector.wait_for(&names);
    assert_eq!(spans.len(), names.len(), "{spans:#?}");
    let [sent, received, processed, get, replied, settled] = names.map(|name| one(&spans, name));
    for span in [sent, processed, get, replied, settled] {
        assert_eq!(span.trace, sent.trace, "{}", span.name);
    }
    let parents = [&sent.parent, &received.parent, &processed.parent, &get.parent, &replied.parent, &settled.parent];
    assert_eq!(parents, ["", "", &sent.id, &processed.id, &processed.id, &processed.id]);
    for span in [received, processed, settled] {
        assert_eq!(span.links, [&*sent.id], "{}", span.name);
        assert_eq!(span.attributes["hostler.consumer"], "jobs");
    }
    spans.iter().for_each(|span| is_by_the_convention(span, "hostler"));
    assert!(!spans.iter().any(|span| span.error), "{spans:#?}");
    assert_eq!(get.attributes["url.full"], url.replace("secret", "REDACTED"));
    assert_eq!((&get.attributes["http.response.status_code"], &*get.kind), (&Value::from(200), "CLIENT"));
    assert_eq!(processed.attributes["messaging.message.id"], line["message_id"]);
    assert_eq!(processed.attributes["messaging.message.body.size"], url.len());
    assert!(processed.start <= get.start && get.end <= processed.end);
    // What the other side of the call sees, and what the log says.
    let header = format!("00-{}-{}-01", get.trace, get.id);
    assert_eq!(web.requests("token=secret")[0].headers["traceparent"], header);
    assert_eq!((&line["trace_id"], &line["span_id"]), (&processed.trace.clone().into(), &processed.id.clone().into()));
}

#[test]
fn one_trace_joins_producer_queue_consumer_and_what_the_guest_calls() {
    let collector = Collector::start();
    of_one_trace(&collector.http(), &collector, &[]);
    let resource = &collector.spans()[0].resource;
    assert_eq!(
        (&resource["service.name"], &resource["telemetry.sdk.name"]),
        (&"hostler".into(), &"opentelemetry".into())
    );
}

#[test]
fn the_same_over_grpc_as_the_service_that_the_environment_names() {
    let collector = Collector::start();
    let variables = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_SERVICE_NAME", "billing"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.version=7"),
    ];
    of_one_trace(&collector.grpc(), &collector, &variables);
    let resource = &collector.spans()[0].resource;
    let named = ["service.name", "service.version", "deployment.environment.name"].map(|name| &resource[name]);
    assert_eq!(named, ["billing", "7", "test"]);
}

/// Sends to the queue `argv[1]`, by boto3 as OpenTelemetry instruments it; `argv[2]` is the collector.
const PRODUCE: &str = "
import sys
import boto3
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.boto3sqs import Boto3SQSInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider(resource=Resource.create({'service.name': 'producer'}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(sys.argv[2] + '/v1/traces')))
sqs = boto3.client('sqs')
url = sqs.get_queue_url(QueueName=sys.argv[1])['QueueUrl']
Boto3SQSInstrumentor().instrument(tracer_provider=provider)
sqs = boto3.client('sqs')
do = {'do': {'DataType': 'String', 'StringValue': 'send'}}
sqs.send_message(QueueUrl=url, MessageBody='others', MessageAttributes=do)
provider.shutdown()
";

#[test]
fn a_message_of_an_instrumented_program_is_processed_in_its_trace_on_sqs() {
    let collector = Collector::start();
    let head = format!("telemetry.otlp_endpoint = '{}'\n", collector.http());
    let world = Aws::new(Kind::Ministack, &format!("{head}{}", *JOBS));
    let mut host = world.started();
    let python = installed("otel").join("bin/python");
    let queue = format!("{}jobs", world.prefix);
    let mut command = world.program(python.to_str().unwrap(), &["-c", PRODUCE, &queue, &collector.http()]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    host.settled(1);
    assert_eq!(host.stop(), 0);
    let spans = collector.wait_for(&["process jobs", "send others", "settle jobs"]);
    let produced = spans.iter().find(|span| span.resource["service.name"] == "producer").unwrap();
    let (processed, sent) = (one(&spans, "process jobs"), one(&spans, "send others"));
    assert_eq!((&processed.trace, &processed.parent), (&produced.trace, &produced.id));
    assert_eq!((&sent.trace, &sent.parent), (&produced.trace, &processed.id));
    for span in spans.iter().filter(|span| span.scope == "hostler") {
        is_by_the_convention(span, "aws_sqs");
        assert_eq!(span.attributes["server.address"], "127.0.0.1", "{}", span.name);
        assert_eq!(span.attributes["server.port"], world.server.address().port(), "{}", span.name);
        assert!(span.attributes["aws.sqs.queue.url"].as_str().unwrap().contains(&world.prefix));
    }
}

/// Sends to `keep` in traces of the kinds that AWS itself carries: the system attribute of X-Ray, and an envelope of SNS.
const OF_AWS: &str = "
sqs.send_message(QueueUrl=url(prefix + 'jobs'), MessageBody='a trace of X-Ray', MessageSystemAttributes={'AWSTraceHeader': {
    'DataType': 'String', 'StringValue': 'Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1'}})
topic = sns.create_topic(Name=prefix + 'topic')['TopicArn']
sns.subscribe(TopicArn=topic, Protocol='sqs', Endpoint=arn(url(prefix + 'jobs')))
sns.publish(TopicArn=topic, Message='in an envelope', MessageAttributes={'traceparent': {
    'DataType': 'String', 'StringValue': sys.argv[1]}})
";

#[test]
fn traces_that_aws_carries_are_in_the_log() {
    let world = Aws::new(Kind::LocalStack, PLAIN);
    let host = world.started();
    world.python(OF_AWS, &[PARENT]);
    let lines = host.settled(2);
    let mut traces: Vec<_> = lines.iter().map(|line| line["trace_id"].as_str().unwrap_or("none")).collect();
    traces.sort_unstable();
    assert_eq!(traces, [TRACE, "5759e988bd862e3fe1be46a994272793"], "{lines:?}");
    // Nothing is exported, so there is no span of ours to name.
    assert!(lines.iter().all(|line| line.get("span_id").is_none()));
}

#[test]
fn what_its_producer_does_not_sample_is_not_exported_and_goes_on_unsampled() {
    let (collector, web) = (Collector::start(), Web::start(|_, _| Reply::ok("")));
    let head = format!("telemetry.otlp_endpoint = '{}'", collector.http());
    let world = World::new(&format!("{head}\n{}\nallow.http = ['http://{}']", *JOBS, web.address));
    let unsampled = format!("traceparent={}", PARENT.replace("-01", "-00"));
    send(&world, &["jobs", "--attr", "do=get", "--attr", &unsampled, "--body", &format!("http://{}/no", web.address)]);
    let mut host = world.started();
    assert_eq!(host.settled(1)[0]["trace_id"], TRACE);
    send(&world, &["jobs", "--body", "", "--attr", "do=ack"]);
    host.settled(2);
    assert_eq!(host.stop(), 0);
    let header = web.requests("/no")[0].headers["traceparent"].clone();
    assert!(header.starts_with(&format!("00-{TRACE}-")) && header.ends_with("-00"), "{header}");
    // The spans of the second message come after those of the first.
    let spans = collector.wait_for(&["settle jobs"]);
    let of_the_first: Vec<_> = spans.iter().filter(|span| span.trace == TRACE && span.name != "send jobs").collect();
    assert!(of_the_first.is_empty(), "{of_the_first:#?}");
    assert_eq!(spans.iter().filter(|span| span.name == "process jobs").count(), 1);
}

#[test]
fn variables_can_switch_traces_off_and_wrong_ones_are_named() {
    let web = Web::start(|_, _| Reply::ok(""));
    let world = World::new(&acking(&format!("http://{}", web.address)));
    send(&world, &["jobs", "--body", "ack"]);
    let sent = web.requests("/v1/traces").len();
    assert_eq!(sent, 1, "the command's own span");
    let mut command = world.command(&["run"]);
    command.env("OTEL_SDK_DISABLED", "true").env("OTEL_TRACES_SAMPLER", "sometimes");
    let mut host = Host::start(command);
    host.settled(1);
    assert_eq!(host.stop(), 0);
    assert_eq!(web.requests("/v1/traces").len(), sent);
    let warned = |line: &Value| line["level"] == "WARN" && line["message"].as_str().unwrap().contains("`sometimes`");
    assert!(host.lines().iter().any(warned), "{:?}", host.lines());
}

#[test]
fn headers_for_the_collector_are_the_environments() {
    let web = Web::start(|_, _| Reply::ok(""));
    let world = World::new(&acking(&format!("http://{}/base/", web.address)));
    let mut command = world.command(&["send", "jobs", "--body", "ack"]);
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=of%20ours");
    assert!(command.status().unwrap().success());
    let request = web.requests("/base/v1/traces").remove(0);
    let headers = ["x-api-key", "content-type"].map(|name| request.headers[name].as_str());
    assert_eq!(headers, ["of ours", "application/x-protobuf"]);
}

/// The names of a process's threads.
fn threads(host: &Host) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", host.pid)).unwrap().map(|task| task.unwrap().path());
    tasks.filter_map(|task| fs::read_to_string(task.join("comm")).ok()).map(|name| name.trim().to_owned()).collect()
}

#[test]
fn without_an_endpoint_nothing_is_made() {
    let [with, without] = [acking("http://127.0.0.1:9"), PLAIN.to_owned()].map(|config| World::new(&config));
    let of_traces = |world: &World| {
        let threads = threads(&world.started());
        threads.iter().filter(|name| name.contains("otlp") || name.contains("OpenTel")).count()
    };
    assert_eq!((of_traces(&with), of_traces(&without)), (2, 0));
}

/// A command that sends nothing of itself, and soon what it has.
fn quick(world: &World, args: &[&str]) -> Command {
    let mut command = world.command(args);
    command.env("OTEL_BSP_SCHEDULE_DELAY", "50");
    if args[0] == "send" {
        command.env("OTEL_SDK_DISABLED", "true");
    }
    command
}

/// Returns the time in which a host settles messages, the end of its log once that contains `until`, and the time of its drain.
fn drained(world: &World, until: Option<&str>) -> (Duration, Vec<Value>, Duration) {
    const COUNT: usize = 3_000;
    fs::write(world.path("messages"), "ack\n".repeat(COUNT)).unwrap();
    assert!(quick(world, &["send", "jobs", "--lines", "--file", "messages"]).status().unwrap().success());
    let mut host = Host::start(quick(world, &["run"]));
    host.wait_for(PATIENCE, |line| line["message"] == "consuming");
    let since = Instant::now();
    host.settled(COUNT);
    let took = since.elapsed();
    if let Some(text) = until {
        host.wait_for(PATIENCE, |line| said(line).contains(text));
    }
    let since = Instant::now();
    assert_eq!(host.stop(), 0);
    (took, host.lines(), since.elapsed())
}

fn said(line: &Value) -> &str {
    line["message"].as_str().unwrap_or_default()
}

/// Log lines of a host about a failing collector, and proof that the host is no slower.
fn against(endpoint: &str, until: Option<&str>) -> Vec<Value> {
    let (plain, ..) = drained(&World::new(PLAIN), None);
    let (took, lines, ended) = drained(&World::new(&acking(endpoint)), until);
    // Generous, as the machine is not ours alone; whoever waits for the collector waits for 10 s.
    assert!(took < plain * 4 + 2 * SECOND, "it took {took:?}, and {plain:?} without a collector");
    assert!(ended < 4 * SECOND, "it took {ended:?} to end");
    lines.into_iter().filter(|line| said(line).contains("spans")).collect()
}

/// One warning, which says why.
fn is_told_once(lines: &[Value], why: &str) {
    let told: Vec<_> = lines.iter().filter(|line| said(line).contains("cannot export spans")).collect();
    assert_eq!(told.len(), 1, "{lines:?}");
    assert_eq!(told[0]["level"], "WARN");
    assert!(told[0]["error"].as_str().unwrap().contains(why), "{:?}", told[0]);
}

#[test]
fn a_collector_that_is_down_is_told_of_once_and_delays_nothing() {
    is_told_once(&against("http://127.0.0.1:9", Some("cannot export spans")), "refused");
}

#[test]
fn a_collector_that_says_nothing_delays_nothing() {
    let web = Web::start(|_, _| Reply::Silence);
    // Its silence outlasts the host, whose last word is that the rest was not sent.
    let lines = against(&format!("http://{}", web.address), None);
    assert!(lines.iter().any(|line| said(line).contains("in time")), "{lines:?}");
}

#[test]
fn a_collector_that_answers_errors_is_told_of_once() {
    let web = Web::start(|_, _| Reply::status(500));
    is_told_once(&against(&format!("http://{}", web.address), Some("cannot export spans")), "500");
}

#[test]
fn a_collector_that_comes_back_is_told_of_as_well() {
    let web = Web::start(|_, before| if before == 0 { Reply::status(400) } else { Reply::ok("") });
    let world = World::new(&acking(&format!("http://{}", web.address)));
    let host = Host::start(quick(&world, &["run"]));
    let send = || assert!(quick(&world, &["send", "jobs", "--body", "ack"]).status().unwrap().success());
    send();
    host.wait_for(PATIENCE, |line| said(line).contains("cannot export spans"));
    send();
    let again = host.wait_for(PATIENCE, |line| said(line).contains("again"));
    assert!(again["lost"].as_u64().unwrap() > 0, "{again}");
}

#[test]
fn a_context_that_finds_no_room_keeps_no_message_from_being_sent() {
    let collector = Collector::start();
    let head = format!("telemetry.otlp_endpoint = '{}'\n", collector.http());
    let world = Aws::new(Kind::Ministack, &format!("{head}{}", *JOBS));
    let host = world.started();
    // SQS takes 10 attributes.
    for (own, links) in [(10, 0), (9, 1)] {
        let attributes: Vec<String> = (1..own).map(|n| format!("--attr=a{n}=x")).collect();
        let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
        send(&world, &[&["jobs", "--body", "x", "--attr=do=ack"], &attributes[..]].concat());
        let id = host.settled(1 + links).pop().unwrap()["message_id"].clone();
        let processed = until("its span", PATIENCE, || {
            let of_it = |span: &Span| span.name == "process jobs" && span.attributes["messaging.message.id"] == id;
            collector.spans().into_iter().find(of_it)
        });
        assert_eq!(processed.links.len(), links, "{processed:?}");
    }
}
