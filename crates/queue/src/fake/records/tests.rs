//! Tests of the fake's store of records, and of acks that commit to it. All run in virtual time.

use tokio::time::{advance, timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::fake::{Ending, FakeBroker};
use crate::{Admin, Broker, ChannelSpec, Commit, Delivery, Queue, Receipt, Receive, Report, Settlement};
use hostler_types::channel::Channel;
use hostler_types::message::{AttributeValue, Attributes, Outgoing, TRACEPARENT, TraceContext};

const LEASE: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(3600);

fn hold(token: i64) -> Hold {
    Hold { record: RecordId::new("orders", "1"), token }
}

fn begin(token: i64) -> Begin {
    Begin { hold: hold(token), label: "orders 1".into(), body: [7; 32], lease: LEASE, ttl: TTL, takes_over: true }
}

fn finish(token: i64, reply: &[u8]) -> Finish {
    Finish { hold: hold(token), ttl: TTL, reply: Some(reply.to_vec()), unsent: Some(b"unsent".to_vec()) }
}

fn is_lost(results: &[Result<(), LeaseError>]) -> bool {
    matches!(results, [Err(LeaseError::Lost(_))])
}

#[tokio::test(start_paused = true)]
async fn a_record_is_held_by_one_run_at_a_time() {
    let records = FakeRecords::default();
    assert_eq!(records.begin(begin(1)).await, Ok(Begun::Started));
    assert_eq!(records.begin(begin(1)).await, Ok(Begun::Started), "a repeated call");
    advance(LEASE / 2).await;
    assert_eq!(records.begin(begin(2)).await, Ok(Begun::Busy(LEASE / 2)));
    assert_eq!(records.begin(Begin { body: [8; 32], ..begin(1) }).await, Ok(Begun::OtherBody));
    assert_eq!(
        records.extend(&[hold(1), hold(2)], LEASE).await.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, false]
    );
    advance(LEASE).await;
    assert_eq!(records.begin(Begin { takes_over: false, ..begin(2) }).await, Ok(Begun::Unknown));
    assert_eq!(records.extend(&[hold(1)], LEASE).await, [Ok(())], "nobody has taken over");
    advance(LEASE).await;
    assert_eq!(records.begin(begin(2)).await, Ok(Begun::TakenOver));
    assert!(is_lost(&records.extend(&[hold(1)], LEASE).await));
    assert!(is_lost(&records.finish(vec![finish(1, b"1")]).await));
    records.end(&[(hold(1), RunEnd::Forget), (hold(1), RunEnd::Lapse)]).await.unwrap();
    let state = records.state_of(hold(1).record).unwrap();
    assert_eq!((state.token, state.is_done, state.leased_until), (2, false, Instant::now() + LEASE));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_done_stays_so_for_its_ttl() {
    let records = FakeRecords::default();
    records.begin(begin(1)).await.unwrap();
    assert_eq!(records.finish(vec![finish(1, b"1")]).await, [Ok(())]);
    let done = |unsent: Option<&[u8]>| {
        let (reply, unsent) = (Some(b"1".to_vec()), unsent.map(<[u8]>::to_vec));
        Ok(Begun::Done(Done { hold: hold(1), reply, unsent }))
    };
    assert_eq!(records.begin(begin(2)).await, done(Some(b"unsent")));
    records.sent(&[hold(2)]).await.unwrap();
    assert_eq!(records.begin(begin(1)).await, done(Some(b"unsent")));
    records.sent(&[hold(1)]).await.unwrap();
    advance(TTL - Duration::from_millis(1)).await;
    assert_eq!(records.finish(vec![finish(1, b"other")]).await, [Ok(())], "a repeated call");
    assert!(is_lost(&records.extend(&[hold(1)], LEASE).await));
    records.end(&[(hold(1), RunEnd::Forget), (hold(1), RunEnd::Lapse)]).await.unwrap();
    assert_eq!(records.begin(begin(2)).await, done(None));
    assert_eq!(records.begin(Begin { body: [8; 32], ..begin(2) }).await, Ok(Begun::OtherBody));
    advance(Duration::from_millis(1)).await;
    assert_eq!(records.state_of(hold(1).record), None);
    assert!(is_lost(&records.finish(vec![finish(1, b"1")]).await));
    assert_eq!(records.begin(begin(2)).await, Ok(Begun::Started));
}

#[tokio::test(start_paused = true)]
async fn a_run_ends_without_a_success() {
    let records = FakeRecords::default();
    records.begin(begin(1)).await.unwrap();
    records.end(&[(hold(1), RunEnd::Lapse)]).await.unwrap();
    assert_eq!(records.begin(Begin { takes_over: false, ..begin(2) }).await, Ok(Begun::Unknown));
    assert_eq!(records.begin(begin(2)).await, Ok(Begun::TakenOver));
    records.end(&[(hold(2), RunEnd::Forget)]).await.unwrap();
    assert_eq!(records.state_of(hold(2).record), None);
    assert_eq!(records.begin(begin(3)).await, Ok(Begun::Started));
    let large = Finish { reply: Some(vec![0; MAX_MESSAGE]), unsent: Some(vec![0]), ..finish(3, b"") };
    assert!(matches!(records.finish(vec![large]).await[..], [Err(LeaseError::Unfit(_))]));
    assert!(!records.state_of(hold(3).record).unwrap().is_done);
    // A run that is extended outlives the ttl that it began with.
    assert_eq!(records.extend(&[hold(3)], TTL * 2).await, [Ok(())]);
    advance(TTL).await;
    assert_eq!(records.begin(begin(4)).await, Ok(Begun::Busy(TTL)));
    let endless =
        Begin { hold: Hold { record: RecordId::new("orders", "2"), token: 1 }, ttl: Duration::MAX, ..begin(1) };
    assert_eq!(records.begin(endless).await, Ok(Begun::Started));
}

#[tokio::test(start_paused = true)]
async fn calls_fail_before_or_after_their_change_and_wait_while_held() {
    let records = FakeRecords::default();
    let error = QueueError::Unavailable("gone".to_owned());
    records.fail_next(2, &error);
    records.fail_after(2, &error);
    records.fail_next(1, &QueueError::Refused("no".to_owned()));
    assert_eq!(records.prepare().await, Err(error.clone()));
    assert_eq!(records.begin(begin(1)).await, Err(error.clone()));
    assert_eq!(records.state_of(hold(1).record), None);
    assert_eq!(records.begin(begin(1)).await, Err(error));
    assert_eq!(records.state_of(hold(1).record).map(|record| record.is_done), Some(false));
    assert_eq!(records.finish(vec![finish(1, b"1")]).await, [Err(LeaseError::Retry("gone".to_owned()))]);
    assert_eq!(records.state_of(hold(1).record).map(|record| record.is_done), Some(true));
    assert_eq!(records.extend(&[hold(1)], LEASE).await, [Err(LeaseError::Refused("no".to_owned()))]);

    records.hold(true);
    let holds = [hold(1)];
    let mut held = std::pin::pin!(records.sent(&holds));
    assert!(timeout(Duration::from_secs(1), &mut held).await.is_err());
    assert!(records.state_of(hold(1).record).unwrap().unsent.is_some());
    records.hold(false);
    held.await.unwrap();
    assert_eq!(records.state_of(hold(1).record).unwrap().unsent, None);
}

struct Host {
    broker: FakeBroker,
    queue: Arc<dyn Queue>,
}

impl Host {
    async fn new() -> Self {
        let broker = FakeBroker::default();
        let queue = broker.open(&ChannelSpec::new(channel("jobs"))).await.unwrap();
        Self { broker, queue }
    }

    async fn deliver(&self) -> Delivery {
        self.broker.send(&channel("jobs"), vec![Outgoing::default()]).await.remove(0).unwrap();
        let request = Receive { max: 1, wait: Duration::ZERO, lease: LEASE };
        self.queue.receive(request, &CancellationToken::new()).await.unwrap().remove(0)
    }

    async fn ack(
        &self,
        receipt: Receipt,
        finish: Option<Finish>,
        messages: Vec<(Channel, Outgoing)>,
    ) -> Result<(), LeaseError> {
        let receipt = receipt.with_report(Report::Commit(Arc::new(Commit { finish, messages })));
        self.queue.settle(vec![Settlement::Ack(receipt)]).await.remove(0).map_err(|unsettled| unsettled.error)
    }

    async fn depth(&self, name: &str) -> u64 {
        let depth = self.broker.depths(&[channel(name)]).await.unwrap().remove(0);
        depth.visible + depth.in_flight.unwrap_or(0)
    }
}

fn channel(name: &str) -> Channel {
    name.parse().unwrap()
}

fn message(body: &[u8]) -> Outgoing {
    Outgoing { body: body.to_vec(), ..Outgoing::default() }
}

#[tokio::test(start_paused = true)]
async fn an_ack_commits_the_success_and_the_messages() {
    let host = Host::new().await;
    let records = host.broker.records().unwrap();
    records.begin(begin(1)).await.unwrap();
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let attributes = Attributes::from([(TRACEPARENT.to_owned(), AttributeValue::Text(trace.to_owned()))]);
    let context = TraceContext::of(&attributes).map(Arc::new);
    assert!(context.is_some());
    let messages =
        vec![(channel("one"), Outgoing { trace: context, ..message(b"1") }), (channel("two"), message(b"2"))];
    let delivery = host.deliver().await;
    assert_eq!(host.ack(delivery.receipt, Some(finish(1, b"1")), messages).await, Ok(()));
    assert!(host.broker.record_store().state_of(hold(1).record).unwrap().is_done);
    assert_eq!(host.broker.settled().len(), 1);
    assert_eq!(host.broker.settled()[0].what, Ending::Ack);
    assert_eq!((host.depth("jobs").await, host.depth("one").await, host.depth("two").await), (0, 1, 1));
    let mut traces = Vec::new();
    let mut note = |message: &hostler_types::message::Message| {
        traces.push(message.attributes.contains_key(TRACEPARENT));
        std::ops::ControlFlow::Continue(())
    };
    host.broker.peek(&channel("one"), &mut note).await.unwrap();
    assert_eq!(traces, [true]);

    // The success of the same run counts as recorded, and a key that was processed before needs none.
    let again = host.deliver().await;
    assert_eq!(host.ack(again.receipt, Some(finish(1, b"1")), Vec::new()).await, Ok(()));
    let again = host.deliver().await;
    assert_eq!(host.ack(again.receipt, None, vec![(channel("one"), message(b"1"))]).await, Ok(()));
    assert_eq!((host.depth("jobs").await, host.depth("one").await), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn an_ack_that_cannot_commit_changes_nothing() {
    let host = Host::new().await;
    let records = host.broker.record_store();
    records.begin(begin(1)).await.unwrap();
    let (first, second) = (host.deliver().await, host.deliver().await);
    let send = |size: usize| vec![(channel("one"), message(&vec![0; size]))];
    let handle = |delivery: &Delivery| Receipt::new(delivery.receipt.as_str());
    let other = host.ack(handle(&first), Some(finish(2, b"2")), send(1)).await;
    assert!(matches!(other, Err(LeaseError::Lost(_))), "{other:?}");
    let large = host.ack(handle(&first), Some(finish(1, b"1")), send(MAX_MESSAGE + 1)).await;
    assert!(matches!(large, Err(LeaseError::Unfit(_))), "{large:?}");
    host.broker.fail_message(&first.message.id, 1, &LeaseError::Retry("gone".to_owned()));
    let failed = host.ack(handle(&first), Some(finish(1, b"1")), send(1)).await;
    assert!(matches!(failed, Err(LeaseError::Retry(_))), "{failed:?}");
    host.broker.expire(&second.message.id);
    let late = host.ack(second.receipt, Some(finish(1, b"1")), send(1)).await;
    assert!(matches!(late, Err(LeaseError::Lost(_))), "{late:?}");
    assert_eq!((host.depth("jobs").await, host.depth("one").await, host.broker.settled().len()), (2, 0, 0));
    assert!(!records.state_of(hold(1).record).unwrap().is_done);
    assert_eq!(host.ack(first.receipt, Some(finish(1, b"1")), send(1)).await, Ok(()));
    assert!(records.state_of(hold(1).record).unwrap().is_done);
}
