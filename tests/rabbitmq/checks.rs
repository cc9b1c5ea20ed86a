//! Findings of missing parts where hosts create nothing.

use hostler_queue::{Broker, ChannelSpec, Provisioner, QueueError};
use hostler_queue_rabbitmq::{Options, RabbitBroker};
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
