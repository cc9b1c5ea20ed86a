//! A user without a permission must not look like a consumer without messages.

use std::sync::Arc;
use std::time::Duration;

use async_nats::ConnectOptions;
use hostler_queue::request::Terms;
use hostler_queue::{Broker, ChannelSpec, Queue, QueueError, Receive, Request, SendError, Settlement, SubjectSpec};
use hostler_queue_nats::{NatsBroker, Options};
use tempfile::NamedTempFile;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::driver::{LONG, PATIENCE, send, settle, spec, text};
use crate::support::nats::{Nats, Version};

/// A server whose user `limited` has these permissions. The user `root` has all.
struct Limited {
    server: Nats,
    _config: NamedTempFile,
}

impl Limited {
    async fn start(version: Version, permissions: &str) -> Self {
        let config = NamedTempFile::new().unwrap();
        let users = format!(
            "authorization {{ users = [
                {{ user: root, password: p }}
                {{ user: limited, password: p, permissions: {{ {permissions} }} }}
            ] }}"
        );
        std::fs::write(config.path(), users).unwrap();
        let path = config.path().to_str().unwrap().to_owned();
        let server = tokio::task::spawn_blocking(move || Nats::start_with(version, &["-c", &path])).await.unwrap();
        Self { server, _config: config }
    }

    fn url(&self, user: &str) -> String {
        self.server.url().replace("nats://", &format!("nats://{user}:p@"))
    }

    async fn broker(&self, user: &str) -> NatsBroker {
        let options = Options { url: self.url(user), create_missing: true, ..Options::default() };
        NatsBroker::connect(options).await.unwrap()
    }
}

/// Receives until an error comes, and returns it.
async fn refusal(queue: &Arc<dyn Queue>) -> QueueError {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let request = Receive { max: 1, wait: Duration::from_secs(5), lease: LONG };
        match queue.receive(request, &CancellationToken::new()).await {
            Ok(none) => assert!(none.is_empty() && Instant::now() < deadline, "no error came"),
            Err(error) => return error,
        }
    }
}

fn is_denial(error: &QueueError, subject: &str) -> bool {
    matches!(error, QueueError::Refused(text) if text.contains(subject) && text.contains("permissions of the user"))
}

#[tokio::test]
async fn a_user_who_may_not_ask_for_messages_is_told_so() {
    for version in Version::ALL {
        let server = Limited::start(version, "publish: { deny: [\"$JS.API.CONSUMER.MSG.NEXT.>\"] }").await;
        let broker = server.broker("limited").await;
        let queue = broker.open(&spec("jobs")).await.unwrap();
        send(&broker, "jobs", vec![text("x")]).await;
        let error = refusal(&queue).await;
        assert!(is_denial(&error, "MSG.NEXT.jobs"), "{version:?}: {error:?}");
        assert!(is_denial(&refusal(&queue).await, "MSG.NEXT.jobs"), "the next receive says so again");
    }
}

fn listener(subject: &str) -> ChannelSpec {
    let of = SubjectSpec { subject: subject.to_owned(), queue_group: "all".to_owned() };
    ChannelSpec { subject: Some(of), ..spec("hooks") }
}

#[tokio::test]
async fn a_user_who_may_not_listen_on_a_subject_is_told_so() {
    for version in Version::ALL {
        let server = Limited::start(version, "subscribe: { deny: [\"hooks.>\"] }").await;
        let queue = server.broker("limited").await.open(&listener("hooks.a")).await.unwrap();
        let error = refusal(&queue).await;
        assert!(is_denial(&error, "hooks.a"), "{version:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_user_who_may_not_send_to_a_subject_is_told_so_at_once() {
    for version in Version::ALL {
        let server = Limited::start(version, "publish: { deny: [\"hooks.>\"] }").await;
        let (broker, begun) = (server.broker("limited").await, Instant::now());
        let request = Request { subject: "hooks.a".to_owned(), message: text("x"), terms: Terms::default() };
        let timeout = request.terms.timeout;
        let error = broker.request(request).await.unwrap_err();
        let is_told = |text: &String| text.contains("hooks.a") && text.contains("permissions of the user");
        assert!(
            matches!(&error, SendError::Queue(QueueError::Unavailable(text)) if is_told(text)),
            "{version:?}: {error:?}"
        );
        assert!(begun.elapsed() < timeout / 2, "{version:?}: {:?}", begun.elapsed());
    }
}

/// Nothing comes for it: the server refuses the subject for the answer, not the one that is asked.
#[tokio::test]
async fn a_user_without_an_inbox_may_listen_on_a_subject() {
    for version in Version::ALL {
        let server = Limited::start(version, "publish: [\">\"], subscribe: [\"hooks.>\"]").await;
        let queue = server.broker("limited").await.open(&listener("hooks.*")).await.unwrap();
        let request = Receive { max: 1, wait: Duration::ZERO, lease: LONG };
        let none = queue.receive(request, &CancellationToken::new()).await;
        assert!(none.as_ref().is_ok_and(Vec::is_empty), "{version:?}: {none:?}");
    }
}

/// Such a user may only answer.
#[tokio::test]
async fn a_subject_needs_no_more_than_the_right_to_answer() {
    for version in Version::ALL {
        let permissions = "publish: { deny: [\">\"] }, subscribe: [\"hooks.>\", \"_INBOX.>\"], allow_responses: true";
        let server = Limited::start(version, permissions).await;
        let queue = server.broker("limited").await.open(&listener("hooks.*")).await.unwrap();
        let request = Receive { max: 1, wait: Duration::ZERO, lease: LONG };
        let none = queue.receive(request, &CancellationToken::new()).await;
        assert!(none.as_ref().is_ok_and(Vec::is_empty), "{version:?}: {none:?}");
        // The client library takes no user from the URL.
        let user = ConnectOptions::with_user_and_password("root".to_owned(), "p".to_owned());
        let sender = user.connect(server.server.url()).await.unwrap();
        let asking = tokio::spawn(async move {
            loop {
                if let Ok(answer) = sender.request("hooks.a", "x".into()).await {
                    return answer.payload;
                }
                sleep(Duration::from_millis(10)).await;
            }
        });
        let request = Receive { wait: PATIENCE, ..request };
        let delivery = queue.receive(request, &CancellationToken::new()).await.unwrap().remove(0);
        settle(&queue, Settlement::Ack(delivery.receipt)).await;
        assert_eq!(asking.await.unwrap(), "+ACK", "{version:?}");
    }
}
