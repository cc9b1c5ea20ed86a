//! Findings of missing parts where hosts create nothing.

use hostler_queue::{Action, Broker, ChannelSpec, Provisioner, QueueError};
use hostler_queue_rabbitmq::{Options, RabbitBroker};
use hostler_types::channel::Filter;
use hostler_types::message::Outgoing;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties, ExchangeKind};
use tokio::task::spawn_blocking;

use super::driver::{broker, options, spec};
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

/// A narrower filter leaves the bindings of the last one, and the driver removes the messages that they bring.
#[tokio::test]
async fn bindings_of_an_earlier_filter_are_found_and_removed() {
    let server = spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("left"));
    let (creating, strict) = (broker(server, &prefix).await, strict(server, &prefix, true).await);
    creating.open(&filtered(&["EU", "US", "US.*"])).await.unwrap();
    bind_by_hand(server, &prefix).await;
    let (narrow, elsewhere) =
        (filtered(&["EU"]), ChannelSpec { channel: "direct.jobs".parse().unwrap(), ..filtered(&["EU"]) });
    strict.open(&narrow).await.unwrap();
    let findings = strict.inspect(&narrow).await.unwrap();
    let is_meant = |text: &str| text.contains("by the pattern `US") && text.contains("`hostler provision` unbinds it");
    assert!(findings.iter().all(|finding| !finding.fatal && is_meant(&finding.to_string())), "{findings:?}");
    assert_eq!(findings.len(), 2, "{findings:?}");
    let name = |pattern: &str| format!("binding of {prefix}jobs to {prefix}shop by {pattern}");
    let plan = strict.plan(std::slice::from_ref(&narrow)).await.unwrap();
    let planned: Vec<_> = plan.iter().map(|change| (change.action, change.resource.clone())).collect();
    assert_eq!(planned, [(Action::Update, name("US")), (Action::Update, name("US.*"))]);
    let mut done = Vec::new();
    strict.provision(std::slice::from_ref(&narrow), &mut |change| done.push(change.clone())).await.unwrap();
    assert_eq!(done, plan);
    assert_eq!(bound(server, &prefix, "shop").await, ["EU", "mine"]);
    assert_eq!((strict.inspect(&narrow).await.unwrap(), strict.plan(&[narrow]).await.unwrap()), (vec![], vec![]));

    let findings = strict.inspect(&elsewhere).await.unwrap();
    assert!(findings.iter().all(|finding| finding.fault.contains("is not bound")), "{findings:?}");
    strict.provision(&[elsewhere], &mut |_| {}).await.unwrap();
    assert_eq!(bound(server, &prefix, "direct").await, ["EU", "US"], "the exchange is someone else's");
}

/// A host that creates what is missing also removes what is left.
#[tokio::test]
async fn a_start_removes_the_bindings_of_an_earlier_filter() {
    let server = spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("tidy"));
    let with_management = Options { management_url: Some(server.management_url()), ..options(server.url(), &prefix) };
    let starting = RabbitBroker::connect(with_management).await.unwrap();
    starting.open(&filtered(&["EU", "US"])).await.unwrap();
    starting.open(&filtered(&["US", "ASIA"])).await.unwrap();
    assert_eq!(bound(server, &prefix, "shop").await, ["ASIA", "US"]);
    let message = Outgoing { routing_key: Some("EU".to_owned()), ..Outgoing::default() };
    let sent = starting.send(&"shop".parse().unwrap(), vec![message]).await.remove(0).unwrap();
    assert_eq!(sent.queues, Some(0));
    // Without the management API, nothing tells of the others.
    broker(server, &prefix).await.open(&filtered(&["ASIA"])).await.unwrap();
    assert_eq!(bound(server, &prefix, "shop").await, ["ASIA", "US"]);
    let gone = Options { management_url: Some("http://127.0.0.1:9".to_owned()), ..options(server.url(), &prefix) };
    RabbitBroker::connect(gone).await.unwrap().open(&filtered(&["ASIA"])).await.unwrap();
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
