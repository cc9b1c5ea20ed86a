//! Findings of missing parts where hosts create nothing.

use hostler_queue::{Action, Broker, ChannelSpec, Provisioner, QueueError};
use hostler_queue_rabbitmq::{Options, RabbitBroker};
use hostler_types::channel::Filter;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties, ExchangeKind};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

use super::driver::{broker, options, spec};
use super::{world, world_at};
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::unique;

fn fanned(exchange: &str) -> ChannelSpec {
    ChannelSpec { max_receives: Some(5), ..ChannelSpec::new(format!("{exchange}.jobs").parse().unwrap()) }
}

async fn strict(server: &RabbitMq, prefix: &str, with_management: bool) -> RabbitBroker {
    let management_url = with_management.then(|| server.management_url());
    let options = Options { create_missing: false, management_url, ..options(server.url(), prefix) };
    RabbitBroker::connect(options).await.unwrap()
}

async fn refusal(broker: &RabbitBroker, spec: &ChannelSpec) -> String {
    match broker.open(spec).await.map(drop) {
        Err(QueueError::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// Such a consumer would be healthy, and receive nothing.
#[tokio::test]
async fn a_missing_exchange_and_a_missing_binding_are_found() {
    let server = spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("bound"));
    let creating = broker(server, &prefix).await;
    creating.open(&spec(false)).await.unwrap();
    let (blind, strict) = (strict(server, &prefix, false).await, strict(server, &prefix, true).await);
    assert!(refusal(&blind, &fanned("shop")).await.contains("there is no exchange"));
    let findings = blind.inspect(&fanned("shop")).await.unwrap();
    assert!(findings.iter().any(|finding| finding.fatal && finding.fault.contains("no exchange")), "{findings:?}");

    let other = ChannelSpec::new("shop.other".parse().unwrap());
    creating.open(&other).await.unwrap();
    assert!(refusal(&strict, &fanned("shop")).await.contains("is not bound to the exchange"));
    let findings = strict.inspect(&fanned("shop")).await.unwrap();
    assert!(findings.iter().any(|finding| finding.fatal && finding.fault.contains("not bound")), "{findings:?}");
    let plan = strict.plan(&[fanned("shop")]).await.unwrap();
    let planned: Vec<_> = plan.iter().map(|change| change.resource.as_str()).collect();
    assert_eq!(planned, [format!("binding of {prefix}jobs to {prefix}shop by #")]);

    creating.open(&fanned("shop")).await.unwrap();
    strict.open(&fanned("shop")).await.unwrap();
    assert_eq!(strict.inspect(&fanned("shop")).await.unwrap(), []);
    assert_eq!(strict.plan(&[fanned("shop")]).await.unwrap(), []);
}

/// A channel whose filter has these keys.
fn filtered(keys: &[&str]) -> ChannelSpec {
    ChannelSpec { filter: Filter::Exact(keys.iter().map(|key| (*key).to_owned()).collect()), ..fanned("shop") }
}

/// Lists the patterns by which the queue is bound to an exchange, on all channels of the prefix.
async fn bound(server: &'static RabbitMq, prefix: &str, exchange: &str) -> Vec<String> {
    let columns = ["list_bindings", "source_name", "destination_name", "routing_key", "--silent"];
    let listed = spawn_blocking(move || server.ctl(&columns)).await.unwrap();
    let begin = format!("{prefix}{exchange}\t{prefix}jobs\t");
    let mut patterns: Vec<_> = listed.lines().filter_map(|line| line.strip_prefix(&begin)).map(str::to_owned).collect();
    patterns.sort_unstable();
    patterns
}

/// Binds the queue by hand: to the channel's exchange with an argument, and to an exchange of another type.
async fn bind_by_hand(server: &RabbitMq, prefix: &str) {
    let client = Connection::connect(&server.url(), ConnectionProperties::default()).await.unwrap();
    let channel = client.create_channel().await.unwrap();
    let (queue, shop, direct) = (format!("{prefix}jobs"), format!("{prefix}shop"), format!("{prefix}direct"));
    let (options, none) = (ExchangeDeclareOptions::default(), FieldTable::default());
    channel.exchange_declare(direct.as_str().into(), ExchangeKind::Direct, options, none).await.unwrap();
    let mut marked = FieldTable::default();
    marked.insert("by".into(), AMQPValue::LongString("hand".into()));
    for (exchange, key, arguments) in [(&shop, "mine", marked), (&direct, "US", FieldTable::default())] {
        let (queue, exchange) = (queue.as_str().into(), exchange.as_str().into());
        channel.queue_bind(queue, exchange, key.into(), QueueBindOptions::default(), arguments).await.unwrap();
    }
}

/// The binding of the queue to the channel's exchange by a pattern, as a plan names it.
fn named(prefix: &str, pattern: &str) -> String {
    format!("binding of {prefix}jobs to {prefix}shop by {pattern}")
}

/// A narrower filter leaves the bindings of the last one. They may also be those of another worker, or of hosts that still run.
#[tokio::test]
async fn bindings_of_an_earlier_filter_are_named_and_stay() {
    let server = spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("left"));
    let (creating, strict) = (broker(server, &prefix).await, strict(server, &prefix, true).await);
    creating.open(&filtered(&["EU", "US", "US.*"])).await.unwrap();
    bind_by_hand(server, &prefix).await;
    let (narrow, elsewhere) =
        (filtered(&["EU"]), ChannelSpec { channel: "direct.jobs".parse().unwrap(), ..filtered(&["EU"]) });
    strict.open(&narrow).await.unwrap();
    let findings = strict.inspect(&narrow).await.unwrap();
    let is_meant = |text: &str| {
        ["by the pattern `US", "brings messages that the filter refuses", "`hostler provision`", "by hand"]
            .iter()
            .all(|part| text.contains(part))
    };
    assert!(findings.iter().all(|finding| !finding.fatal && is_meant(&finding.to_string())), "{findings:?}");
    assert_eq!(findings.len(), 2, "{findings:?}");
    let plan = strict.plan(std::slice::from_ref(&narrow)).await.unwrap();
    let planned: Vec<_> = plan.iter().map(|change| (change.action, change.resource.clone())).collect();
    assert_eq!(planned, [(Action::Leave, named(&prefix, "US")), (Action::Leave, named(&prefix, "US.*"))]);
    assert!(plan.iter().all(|change| is_meant(&change.detail)), "{plan:?}");
    let mut done = Vec::new();
    strict.provision(std::slice::from_ref(&narrow), &mut |change| done.push(change.clone())).await.unwrap();
    assert_eq!(done, plan);
    assert_eq!(bound(server, &prefix, "shop").await, ["EU", "US", "US.*", "mine"]);

    let findings = strict.inspect(&elsewhere).await.unwrap();
    assert!(findings.iter().all(|finding| finding.fault.contains("is not bound")), "{findings:?}");
    strict.provision(&[elsewhere], &mut |_| {}).await.unwrap();
    assert_eq!(bound(server, &prefix, "direct").await, ["EU", "US"], "the exchange is someone else's");
}

/// Hosts of the wider filter may still run, or run again after a rollback.
#[tokio::test]
async fn a_start_with_another_filter_unbinds_nothing() {
    let server = spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("start"));
    let with_management = Options { management_url: Some(server.management_url()), ..options(server.url(), &prefix) };
    let starting = RabbitBroker::connect(with_management).await.unwrap();
    starting.open(&filtered(&["EU", "US"])).await.unwrap();
    starting.open(&filtered(&["US", "ASIA"])).await.unwrap();
    assert_eq!(bound(server, &prefix, "shop").await, ["ASIA", "EU", "US"]);
}

/// Without it, and without a binding of its own, the queue would get nothing.
#[tokio::test]
async fn a_general_binding_that_is_left_stands_in_for_no_other() {
    let server = spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("general"));
    let (creating, strict) = (broker(server, &prefix).await, strict(server, &prefix, true).await);
    creating.open(&fanned("shop")).await.unwrap();
    let narrow = filtered(&["EU"]);
    strict.open(&narrow).await.unwrap();
    let faults = async || -> Vec<String> {
        let findings = strict.inspect(&narrow).await.unwrap();
        assert!(findings.iter().all(|finding| !finding.fatal), "{findings:?}");
        findings.into_iter().map(|finding| finding.fault).collect()
    };
    let before = faults().await;
    assert!(before.iter().any(|fault| fault.contains("is not bound") && fault.contains("`EU`")), "{before:?}");
    assert!(before.iter().any(|fault| fault.contains("`#`")) && before.len() == 2, "{before:?}");
    let plan = strict.plan(std::slice::from_ref(&narrow)).await.unwrap();
    let planned: Vec<_> = plan.iter().map(|change| (change.action, change.resource.clone())).collect();
    assert_eq!(planned, [(Action::Create, named(&prefix, "EU")), (Action::Leave, named(&prefix, "#"))]);
    strict.provision(std::slice::from_ref(&narrow), &mut |_| {}).await.unwrap();
    let after = faults().await;
    assert!(after.len() == 1 && after[0].contains("`#`"), "{after:?}");
}

/// Answers as a management API: with this status where the path contains `refused`, and else with these bindings, or with a queue
/// without arguments. Returns the address.
async fn partial_api(refused: &'static str, status: &'static str, bindings: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(client.read_u8().await.unwrap());
            }
            let request = String::from_utf8(request).unwrap();
            let path = request.split(' ').nth(1).unwrap();
            let (status, body) = match path {
                _ if path.contains(refused) => (status, "{}"),
                _ if path.contains("/bindings") => ("200 OK", &*bindings),
                _ => ("200 OK", r#"{"arguments": {}}"#),
            };
            let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            client.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        }
    });
    url
}

/// A consumer works without it.
#[tokio::test]
async fn a_management_api_that_does_not_answer_refuses_no_start() {
    let server = spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("api"));
    broker(server, &prefix).await.open(&filtered(&["EU", "US"])).await.unwrap();
    let (narrow, unfiltered) = (filtered(&["EU"]), fanned("shop"));
    let keys = ["EU", "US"].map(|key| json!({"source": format!("{prefix}shop"), "routing_key": key, "arguments": {}}));
    let bindings = serde_json::to_string(&keys).unwrap();
    let mut urls = vec!["http://127.0.0.1:9".to_owned()];
    for refused in ["/bindings", "/exchanges/"] {
        for status in ["401 Unauthorized", "403 Forbidden", "500 Internal Server Error"] {
            urls.push(partial_api(refused, status, bindings.clone()).await);
        }
    }
    for management_url in urls {
        let options = Options {
            create_missing: false,
            management_url: Some(management_url.clone()),
            ..options(server.url(), &prefix)
        };
        let strict = RabbitBroker::connect(options).await.unwrap();
        strict.open(&narrow).await.unwrap();
        strict.open(&unfiltered).await.unwrap();
        let unknown = async |spec: &ChannelSpec| {
            let findings = strict.inspect(spec).await.unwrap();
            assert!(findings.iter().all(|finding| !finding.fatal), "{management_url}: {findings:?}");
            findings.iter().filter(|finding| finding.fault.contains("cannot be compared with the filter")).count()
        };
        assert_eq!((unknown(&narrow).await, unknown(&unfiltered).await), (1, 0), "{management_url}");
        strict.provision(std::slice::from_ref(&narrow), &mut |_| {}).await.unwrap();
    }
}

/// Nothing else tells the operator at a start.
#[test]
fn a_host_that_creates_nothing_warns_of_a_binding_that_is_left() {
    let server = RabbitMq::shared();
    let filter = |values: &str| {
        let channel = "[consumers.jobs]\nchannel = 'shop.jobs'\nhandler = 'guests/run-word.wat'";
        format!("{channel}\nfilter = {{ type = 'exact', values = [{values}] }}\n")
    };
    let (mut wide, mut narrow) = (world(server, &filter("'EU', 'US'")), world(server, &filter("'EU'")));
    let prefix = format!("{}-", unique("warned"));
    for world in [&mut wide, &mut narrow] {
        world.set("HOSTLER_QUEUE__RABBITMQ__PREFIX", prefix.clone());
        world.set("HOSTLER_QUEUE__RABBITMQ__PROVISION", "check".to_owned());
        world.set("HOSTLER_QUEUE__RABBITMQ__MANAGEMENT_URL", server.management_url());
    }
    let provisioned = wide.output(&["provision"]);
    assert_eq!(provisioned.code, 0, "{provisioned:?}");
    let mut host = narrow.started();
    let warns = |line: &serde_json::Value| {
        let text = line["message"].as_str().unwrap_or_default();
        text.contains("by the pattern `US`") && text.contains("brings messages that the filter refuses")
    };
    assert!(host.lines().iter().any(warns), "{:?}", host.lines());
    assert_eq!(host.stop(), 0);
}

#[tokio::test]
async fn a_queue_that_is_ordered_is_not_opened_as_another() {
    let server = spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("form"));
    broker(server, &prefix).await.open(&spec(true)).await.unwrap();
    let strict = strict(server, &prefix, true).await;
    strict.open(&spec(true)).await.unwrap();
    assert!(refusal(&strict, &spec(false)).await.contains("single active consumer"));
}

/// Such a user may consume, and not see the bindings.
#[test]
fn a_user_whom_the_management_api_refuses_is_named_with_the_way_out() {
    let server = RabbitMq::shared();
    let config = "[consumers.jobs]\nchannel = 'shop.jobs'\nhandler = 'guests/run-word.wat'\n";
    let filter = "filter = { type = 'exact', values = ['EU'] }\n";
    for config in [config.to_owned(), format!("{config}{filter}")] {
        let (mut world, _) = world_at(server, &config);
        world.provision();
        let user = unique("untagged");
        server.ctl(&["add_user", &user, "secret"]);
        server.ctl(&["set_permissions", &user, ".*", ".*", ".*"]);
        world.set("HOSTLER_QUEUE__RABBITMQ__URL", server.url().replace("guest:guest", &format!("{user}:secret")));
        world.set("HOSTLER_QUEUE__RABBITMQ__MANAGEMENT_URL", server.management_url());
        let said = world.output(&["check"]);
        let is_told = said.stderr.contains("the bindings of the queue") && said.stderr.contains("the tag `monitoring`");
        assert!(said.code == 0 && is_told && said.stderr.contains(&server.management_url()), "{said:?}");
        assert!(said.stdout.contains("(see the warnings above)"), "{said:?}");
    }
}

#[tokio::test]
async fn a_form_that_may_not_be_compared_is_named() {
    let server = spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("unknown"));
    broker(server, &prefix).await.open(&spec(false)).await.unwrap();
    let user = unique("user");
    let url = server.url().replace("guest:guest", &format!("{user}:secret"));
    spawn_blocking(move || {
        server.ctl(&["add_user", &user, "secret"]);
        server.ctl(&["set_permissions", &user, "^$", ".*", ".*"]);
    })
    .await
    .unwrap();
    let broker = RabbitBroker::connect(options(url, &prefix)).await.unwrap();
    let findings = broker.inspect(&spec(false)).await.unwrap();
    let unknown = findings.iter().filter(|finding| !finding.fatal && finding.fault.contains("is not known"));
    assert_eq!(unknown.count(), 2, "{findings:?}");
}
