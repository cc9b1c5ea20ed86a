//! States of schedules, and the messages that they make due, on real servers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

mod support;

use std::time::{Duration, UNIX_EPOCH};

use async_nats::{Client, ConnectOptions};
use hostler_queue::{
    Admin as _, Advance, Advanced, Agreement, Broker, ChannelSpec, QueueError, Schedules as _, SendError,
};
use hostler_queue_nats::{NatsBroker, Options};
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, Outgoing};
use hostler_types::{ScheduleState, Timestamp};
use serde_json::{Value, json};
use tokio::time::timeout;

use support::{PATIENCE, Server, VERSIONS};

const STREAM: &str = "p-hostler~schedules";

fn channel() -> Channel {
    "work".parse().unwrap()
}

async fn broker_at(url: String, create_missing: bool) -> NatsBroker {
    let options = Options { url, create_missing, prefix: "p-".to_owned(), ..Options::default() };
    NatsBroker::connect(options).await.unwrap()
}

/// Connects to a server that creates what is missing, and opens the queue.
async fn host(server: &Server) -> NatsBroker {
    let broker = broker_at(server.url(), true).await;
    broker.open(&ChannelSpec::new(channel())).await.unwrap();
    broker.prepare().await.unwrap();
    broker
}

fn minute(minute: u64) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_secs(60 * minute))
}

/// Returns a state that was settled, and seen, up to this minute.
fn state(handled: u64) -> ScheduleState {
    let sent = (handled > 0).then(|| minute(handled));
    ScheduleState { definition: "d1".to_owned(), handled: minute(handled), sent, seen: minute(handled) }
}

/// Returns the step to a minute. It makes one message due, unless it is the first.
fn step(from: Option<u64>, to: u64) -> Advance {
    let message = Outgoing { body: format!("{to}").into_bytes(), ..Outgoing::default() };
    Advance {
        name: "nightly.report".to_owned(),
        from: from.map(state),
        to: state(to),
        channel: channel(),
        messages: from.map(|_| (minute(to), message)).into_iter().collect(),
    }
}

async fn stored(broker: &NatsBroker) -> Option<ScheduleState> {
    broker.look(&["nightly.report".to_owned()]).await.unwrap().remove(0)
}

/// Returns the number of messages in the queue. A missing queue has none.
async fn waiting(broker: &NatsBroker) -> u64 {
    broker.each_depth(&[channel()]).await.unwrap().remove(0).unwrap().visible
}

fn is_done(result: &Result<Advanced, SendError>) -> bool {
    matches!(result, Ok(Advanced::Done(_)))
}

fn refusal(result: Result<Advanced, SendError>) -> String {
    match result {
        Err(SendError::Queue(QueueError::Refused(why))) => why,
        other => panic!("{other:?}"),
    }
}

async fn client(server: &Server) -> Client {
    async_nats::connect(server.url()).await.unwrap()
}

async fn api(client: &Client, operation: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = client.request(format!("$JS.API.{operation}"), body.into()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    assert!(answer.get("error").is_none(), "{operation}: {answer}");
    answer
}

/// Changes a setting of a stream.
async fn set(client: &Client, stream: &str, name: &str, value: Value) {
    let mut config = api(client, &format!("STREAM.INFO.{stream}"), &Value::Null).await["config"].take();
    config[name] = value;
    api(client, &format!("STREAM.UPDATE.{stream}"), &config).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_hosts_that_take_the_same_step_one_sends() {
    for version in VERSIONS {
        let server = Server::start_of(version, "");
        let hosts = [host(&server).await, host(&server).await];
        assert_eq!(hosts[0].agreement(), Agreement::DuplicateWindow);
        let mut from = None;
        for to in 0..20 {
            let race = tokio::join!(hosts[0].advance(step(from, to)), hosts[1].advance(step(from, to)));
            let (winner, loser) = if is_done(&race.0) { race } else { (race.1, race.0) };
            let Ok(Advanced::Done(sent)) = winner else { panic!("{version}, step to {to}: {winner:?}") };
            assert_eq!(sent.len(), usize::from(from.is_some()));
            assert_eq!(loser, Ok(Advanced::Changed), "{version}, step to {to}");
            for host in &hosts {
                assert_eq!(stored(host).await, Some(state(to)), "{version}");
            }
            assert_eq!(waiting(&hosts[0]).await, to, "{version}: each due time is sent once");
            from = Some(to);
        }
        let info = api(&client(&server).await, &format!("STREAM.INFO.{STREAM}"), &Value::Null).await;
        assert_eq!(info["state"]["messages"], 1, "{version}: the stream keeps the last state alone");
    }
}

/// A host that writes no more than the time at which it has seen the state takes no step from another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_is_taken_though_another_host_refreshes_the_state() {
    for version in VERSIONS {
        let server = Server::start_of(version, "");
        let hosts = [host(&server).await, host(&server).await];
        assert!(is_done(&hosts[0].advance(step(None, 0)).await));
        for to in 1..20 {
            let seen = ScheduleState { seen: minute(999), ..state(to - 1) };
            let refresh = Advance { to: seen, messages: Vec::new(), ..step(Some(to - 1), to) };
            let (refreshed, taken) = tokio::join!(hosts[0].advance(refresh), hosts[1].advance(step(Some(to - 1), to)));
            assert!(is_done(&taken), "{version}, step to {to}: {taken:?}");
            assert!(refreshed.is_ok(), "{version}, step to {to}: {refreshed:?}");
            assert_eq!(stored(&hosts[0]).await, Some(state(to)), "{version}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_from_another_state_changes_nothing() {
    for version in VERSIONS {
        let server = Server::start_of(version, "");
        let host = host(&server).await;
        assert_eq!(host.advance(step(Some(1), 2)).await, Ok(Advanced::Changed), "{version}: there is no state");
        assert!(is_done(&host.advance(step(None, 1)).await));
        let other = ScheduleState { definition: "d2".to_owned(), ..state(1) };
        for stale in [step(None, 2), step(Some(0), 2), Advance { from: Some(other), ..step(Some(1), 2) }] {
            assert_eq!(host.advance(stale.clone()).await, Ok(Advanced::Changed), "{version}: {stale:?}");
        }
        assert_eq!((stored(&host).await, waiting(&host).await), (Some(state(1)), 0), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_with_an_invalid_message_changes_nothing() {
    let server = Server::start();
    let host = host(&server).await;
    assert!(is_done(&host.advance(step(None, 1)).await));
    let mut invalid = step(Some(1), 3);
    invalid.messages.push((minute(2), Outgoing { body: vec![b'x'; 2 << 20], ..Outgoing::default() }));
    let refused = host.advance(invalid).await;
    assert!(matches!(refused, Err(SendError::Invalid(Invalid::TooLarge { .. }))), "{refused:?}");
    assert_eq!((stored(&host).await, waiting(&host).await), (Some(state(1)), 0));
}

/// The host before ended between the send and the new state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_an_interrupted_step_sent_is_not_sent_again() {
    for version in VERSIONS {
        let server = Server::start_of(version, "");
        let host = host(&server).await;
        assert!(is_done(&host.advance(step(None, 1)).await));
        let next = step(Some(1), 2);
        let (due, message) = next.messages[0].clone();
        let dedupe = Some(next.message_key(due));
        assert!(host.send(&channel(), vec![Outgoing { dedupe, ..message }]).await[0].is_ok());
        assert!(is_done(&host.advance(next).await), "{version}");
        assert_eq!((stored(&host).await, waiting(&host).await), (Some(state(2)), 1), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_stream_no_schedule_has_a_state_and_no_step_is_taken() {
    for version in VERSIONS {
        let server = Server::start_of(version, "");
        broker_at(server.url(), true).await.open(&ChannelSpec::new(channel())).await.unwrap();
        let checking = broker_at(server.url(), false).await;
        assert_eq!(checking.look(&["a".to_owned(), "b".to_owned()]).await, Ok(vec![None, None]), "{version}");
        let planned = checking.planned_changes().await.unwrap();
        assert_eq!(planned.iter().map(ToString::to_string).collect::<Vec<_>>(), [format!("+ stream {STREAM}")]);
        let why = checking.prepare().await.unwrap_err().to_string();
        assert!(why.contains(STREAM) && why.contains("hostler provision"), "{version}: {why}");
        let why = refusal(checking.advance(Advance { from: None, ..step(Some(1), 2) }).await);
        assert!(why.contains(STREAM) && why.contains("hostler provision"), "{version}: {why}");
        assert_eq!(waiting(&checking).await, 0, "{version}: it would be sent again and again");

        assert_eq!(checking.make_changes().await, Ok(planned), "{version}");
        assert_eq!(checking.planned_changes().await, Ok(Vec::new()), "{version}");
        assert_eq!(checking.prepare().await, Ok(()), "{version}");
        assert!(is_done(&checking.advance(step(None, 1)).await), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_removed_comes_back_with_the_next_steps() {
    let server = Server::start();
    let host = host(&server).await;
    assert!(is_done(&host.advance(step(None, 1)).await));
    api(&client(&server).await, &format!("STREAM.DELETE.{STREAM}"), &Value::Null).await;
    assert_eq!(stored(&host).await, None);
    let why = refusal(host.advance(step(None, 2)).await);
    assert!(why.contains(STREAM), "{why}");
    assert!(is_done(&host.advance(step(None, 2)).await));
    assert_eq!(stored(&host).await, Some(state(2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_would_forget_states_is_corrected_or_refused() {
    for version in VERSIONS {
        let server = Server::start_of(version, "");
        let host = host(&server).await;
        for (name, bad) in [("max_age", json!(3_600_000_000_000_u64)), ("max_msgs_per_subject", json!(5))] {
            set(&client(&server).await, STREAM, name, bad).await;
            let why = broker_at(server.url(), false).await.prepare().await.unwrap_err().to_string();
            assert!(why.contains(STREAM) && why.contains(name), "{version}: {why}");
            host.prepare().await.unwrap();
            assert_eq!(host.planned_changes().await, Ok(Vec::new()), "{version}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_state_is_named_and_stays() {
    for version in VERSIONS {
        let server = Server::start_of(version, "");
        let (host, client) = (host(&server).await, client(&server).await);
        let subject = format!("{STREAM}.nightly=2Ereport");
        client.request(subject.clone(), "{}".into()).await.unwrap();
        let names_all = |why: &str| {
            let words = [STREAM, &subject, "nightly.report", "nats stream purge"];
            assert!(words.iter().all(|word| why.contains(word)), "{version}: {why}");
        };
        names_all(&host.look(&["nightly.report".to_owned()]).await.unwrap_err().to_string());
        for from in [None, Some(1)] {
            names_all(&refusal(host.advance(Advance { from: from.map(state), ..step(Some(1), 2) }).await));
        }
        let last = api(&client, &format!("STREAM.MSG.GET.{STREAM}"), &json!({ "last_by_subj": subject })).await;
        assert_eq!((&last["message"]["seq"], waiting(&host).await), (&json!(1), 0), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stream_of_states_is_no_queue() {
    for version in VERSIONS {
        let server = Server::start_of(version, "");
        let host = host(&server).await;
        assert!(is_done(&host.advance(step(None, 1)).await));
        assert_eq!(host.channels().await, Ok(vec![channel()]), "{version}");
        for name in ["hostler-schedules", "hostler"] {
            let sent =
                broker_at(server.url(), false).await.send(&name.parse().unwrap(), vec![Outgoing::default()]).await;
            assert!(matches!(sent[..], [Err(SendError::Queue(QueueError::Refused(_)))]), "{version} {name}: {sent:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_forgets_duplicates_too_early_gets_no_message() {
    for version in VERSIONS {
        let server = Server::start_of(version, "");
        let host = host(&server).await;
        assert!(is_done(&host.advance(step(None, 1)).await));
        let client = client(&server).await;
        set(&client, "p-work", "duplicate_window", json!(120_000_000_000_u64)).await;
        let why = refusal(host.advance(step(Some(1), 2)).await);
        assert!(["p-work", "2m", "duplicate_window", "5m"].iter().all(|word| why.contains(word)), "{version}: {why}");
        assert_eq!((stored(&host).await, waiting(&host).await), (Some(state(1)), 0), "{version}");
        set(&client, "p-work", "duplicate_window", json!(300_000_000_000_u64)).await;
        assert!(is_done(&host.advance(step(Some(1), 2)).await), "{version}");
    }
}

/// Sent again at each attempt, the message would be a duplicate once the server forgets its id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_may_not_write_the_state_sends_nothing() {
    let users = |permissions: &str| {
        format!(
            "authorization {{ users: [{{ user: root, password: p }},
                {{ user: limited, password: p, permissions: {{ {permissions} }} }}] }}"
        )
    };
    let denied = users(&format!("publish: {{ deny: [\"{STREAM}.>\"] }}"));
    for version in VERSIONS {
        let server = Server::start_of(version, &denied);
        let url = |user: &str| server.url().replace("nats://", &format!("nats://{user}:p@"));
        let root = broker_at(url("root"), true).await;
        root.open(&ChannelSpec::new(channel())).await.unwrap();
        root.prepare().await.unwrap();
        assert!(is_done(&root.advance(step(None, 1)).await));
        let limited = broker_at(url("limited"), false).await;
        let why = refusal(limited.advance(step(Some(1), 2)).await);
        assert!(why.contains(STREAM) && why.contains("permissions"), "{version}: {why}");
        assert_eq!((stored(&root).await, waiting(&root).await), (Some(state(1)), 0), "{version}");
    }
}

/// The least permissions, on the newest server and on the oldest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_permissions_are_enough() {
    let subjects = |more: &[&str]| {
        let stream = ["INFO", "MSG.GET"].map(|operation| format!("$JS.API.STREAM.{operation}.{STREAM}"));
        let sending = ["$JS.API.STREAM.INFO.p-work", "$JS.API.STREAM.MSG.GET.p-work", "p-work", "p-work~group.*"];
        let all = stream.into_iter().chain([format!("{STREAM}.*")]).chain(sending.map(str::to_owned));
        let all = all.chain(more.iter().map(|operation| format!("$JS.API.STREAM.{operation}.{STREAM}")));
        all.map(|subject| format!("\"{subject}\"")).collect::<Vec<_>>().join(", ")
    };
    let user = |name: &str, publish: &str| {
        format!("{{ user: {name}, password: p, permissions: {{ publish: [{publish}], subscribe: [\"_INBOX.>\"] }} }}")
    };
    let users = [
        "{ user: root, password: p }".to_owned(),
        user("least", &subjects(&[])),
        user("creator", &subjects(&["CREATE", "UPDATE"])),
    ];
    for version in VERSIONS {
        let server = Server::start_of(version, &format!("authorization {{ users: [{}] }}", users.join(", ")));
        let url = |user: &str| server.url().replace("nats://", &format!("nats://{user}:p@"));
        broker_at(url("root"), true).await.open(&ChannelSpec::new(channel())).await.unwrap();
        broker_at(url("creator"), true).await.prepare().await.unwrap();
        let root = ConnectOptions::with_user_and_password("root".to_owned(), "p".to_owned());
        set(&root.connect(server.url()).await.unwrap(), STREAM, "max_age", json!(3_600_000_000_000_u64)).await;
        broker_at(url("creator"), true).await.prepare().await.unwrap();
        let least = broker_at(url("least"), false).await;
        let took = timeout(PATIENCE, async {
            least.prepare().await.unwrap();
            assert!(is_done(&least.advance(step(None, 1)).await), "{version}");
            least.advance(step(Some(1), 2)).await
        });
        assert!(is_done(&took.await.unwrap()), "{version}");
        assert_eq!(stored(&least).await, Some(state(2)), "{version}");
    }
}
