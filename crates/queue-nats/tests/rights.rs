//! Permissions that are missing, or withdrawn while hostler runs, on real servers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

mod support;

use std::time::Duration;

use async_nats::ConnectOptions;
use hostler_queue::{Broker as _, ChannelSpec, Finding, Provisioner as _, QueueError, Receive, SubjectSpec};
use hostler_queue_nats::{NatsBroker, Options};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use support::{PATIENCE, Server, VERSIONS};

/// Returns the config of a server whose user `limited` has these permissions. The user `root` has all.
fn users(permissions: &str) -> String {
    format!(
        "authorization {{ users: [{{ user: root, password: p }},
            {{ user: limited, password: p, permissions: {{ {permissions} }} }}] }}"
    )
}

async fn broker(server: &Server, user: &str) -> NatsBroker {
    let url = server.url().replace("nats://", &format!("nats://{user}:p@"));
    NatsBroker::connect(Options { url, create_missing: true, ..Options::default() }).await.unwrap()
}

fn queue(name: &str) -> ChannelSpec {
    ChannelSpec { max_receives: Some(3), ..ChannelSpec::new(name.parse().unwrap()) }
}

fn listener(subject: &str) -> ChannelSpec {
    let of = SubjectSpec { subject: subject.to_owned(), queue_group: "all".to_owned() };
    ChannelSpec { subject: Some(of), ..queue("hooks") }
}

/// Returns the fatal findings of a user with these permissions.
async fn faults(version: &str, permissions: &str, spec: &ChannelSpec) -> Vec<Finding> {
    let server = Server::start_of(version, &users(permissions));
    if spec.subject.is_none() {
        broker(&server, "root").await.open(spec).await.unwrap();
    }
    let mut findings = broker(&server, "limited").await.inspect(spec).await.unwrap();
    findings.retain(|finding| finding.fatal);
    findings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_names_the_permissions_that_receiving_needs() {
    for version in VERSIONS {
        for (denied, spec) in [
            ("$JS.API.CONSUMER.MSG.NEXT.jobs.hostler", "jobs"),
            ("$JS.ACK.>", "jobs"),
            ("$JS.API.CONSUMER.MSG.NEXT.shop~exchange.jobs", "shop.jobs"),
        ] {
            let found = faults(version, &format!("publish: {{ deny: [\"{denied}\"] }}"), &queue(spec)).await;
            let token = denied.trim_end_matches('>');
            let names =
                |finding: &Finding| finding.fault.contains(token) && finding.cure.contains("let the user publish to");
            assert_eq!(found.len(), 1, "{version} {denied}: {found:?}");
            assert!(found.iter().all(names), "{version} {denied}: {found:?}");
        }
        let least = "publish: [\"$JS.API.>\", \"$JS.ACK.jobs.hostler.>\"], subscribe: [\"_INBOX.>\"]";
        assert_eq!(faults(version, least, &queue("jobs")).await, [], "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_names_the_subject_on_which_the_user_may_not_listen() {
    for version in VERSIONS {
        for subject in ["hooks.a", "hooks.*"] {
            let found = faults(version, "subscribe: { deny: [\"hooks.>\"] }", &listener(subject)).await;
            let names = |finding: &Finding| finding.fault.contains(subject) && finding.cure.contains("subscribe");
            assert!(found.len() == 1 && found.iter().all(names), "{version}: {found:?}");
        }
        let least = "publish: { deny: [\">\"] }, subscribe: [\"hooks.> all\", \"_INBOX.>\"], allow_responses: true";
        for subject in ["hooks.a", "hooks.*", "hooks.>"] {
            assert_eq!(faults(version, least, &listener(subject)).await, [], "{version}: {subject}");
        }
    }
}

/// The server ends the subscription, and says so only once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_whose_permission_is_withdrawn_says_so_and_listens_again_later() {
    for version in VERSIONS {
        let server = Server::start_of(version, &users("publish: [\">\"]"));
        let queue = broker(&server, "limited").await.open(&listener("hooks.a")).await.unwrap();
        let receive = |wait: u64| {
            let queue = queue.clone();
            async move {
                let request = Receive { max: 1, wait: Duration::from_secs(wait), lease: Duration::from_secs(30) };
                queue.receive(request, &CancellationToken::new()).await
            }
        };
        assert!(receive(0).await.unwrap().is_empty(), "{version}: it listens");
        server.reload(&users("subscribe: { deny: [\"hooks.>\"] }"));
        let refused = async || loop {
            match receive(1).await {
                Ok(none) => assert!(none.is_empty()),
                Err(QueueError::Refused(why)) => return why,
                Err(other) => panic!("{other:?}"),
            }
        };
        let why = timeout(PATIENCE, refused()).await.expect("it is deaf, and does not say so");
        assert!(why.contains("hooks.a") && why.contains("permissions of the user"), "{version}: {why}");
        assert!(timeout(PATIENCE, refused()).await.is_ok(), "{version}: the next receives say so again");

        server.reload(&users("publish: [\">\"]"));
        let root = ConnectOptions::with_user_and_password("root".to_owned(), "p".to_owned());
        let sender = root.connect(server.url()).await.unwrap();
        let received = async || loop {
            let sent = sender.publish("hooks.a", "x".into()).await;
            assert!(sent.is_ok());
            if let Ok(Some(delivery)) = receive(1).await.map(|received| received.into_iter().next()) {
                return delivery;
            }
        };
        assert!(timeout(PATIENCE, received()).await.is_ok(), "{version}: it stays deaf");
    }
}
