//! Permissions that are missing, on real servers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

mod support;

use hostler_queue::{Broker as _, ChannelSpec, Finding, Provisioner as _, SubjectSpec};
use hostler_queue_nats::{NatsBroker, Options};

use support::{Server, VERSIONS};

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
