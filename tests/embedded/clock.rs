//! Steps of the wall clock, which hold up no message and end no lease.

use hostler_queue::Admin;
use std::sync::Mutex;
use std::time::SystemTime;

use hostler_queue_embedded::{Clock, Options, SystemClock};
use hostler_types::message::Message;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// The machine's clocks, of which the wall clock can be set.
#[derive(Debug)]
struct Machine {
    wall_ahead: Mutex<(Duration, Duration)>,
    boot: &'static str,
}

impl Machine {
    fn boot(name: &'static str) -> Arc<Self> {
        Arc::new(Self { wall_ahead: Mutex::default(), boot: name })
    }

    /// Sets the wall clock forward and back by so much.
    fn set(&self, forward: Duration, back: Duration) {
        *self.wall_ahead.lock().unwrap() = (forward, back);
    }

    async fn open(self: &Arc<Self>, path: &Path) -> (EmbeddedBroker, Arc<dyn Queue>) {
        let options = Options { clock: Arc::clone(self) as Arc<dyn Clock>, ..Options::default() };
        let broker = EmbeddedBroker::open_with(path, options).unwrap();
        let queue = broker.open(&ChannelSpec { max_receives: Some(9), ..ChannelSpec::new(jobs()) }).await.unwrap();
        (broker, queue)
    }
}

impl Clock for Machine {
    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }

    fn wall(&self) -> SystemTime {
        let (forward, back) = *self.wall_ahead.lock().unwrap();
        SystemTime::now() + forward - back
    }

    fn origin(&self) -> Option<String> {
        Some(self.boot.to_owned())
    }
}

#[tokio::test]
async fn a_clock_set_back_holds_up_no_message() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::boot("one");
    let (broker, queue) = machine.open(&folder.path().join("queue.db")).await;
    send(&broker, 1).await;
    machine.set(Duration::ZERO, HOUR);
    assert_eq!(receive(&queue, Duration::ZERO).await.len(), 1, "sent before the step");
    send(&broker, 1).await;
    let received = receive(&queue, Duration::ZERO).await;
    assert_eq!(received.len(), 1, "sent after the step");
    let batch = received.into_iter().map(|delivery| Settlement::Release(delivery.receipt, Duration::ZERO)).collect();
    assert!(queue.settle(batch).await.iter().all(Result::is_ok));
    assert_eq!(receive(&queue, Duration::ZERO).await.len(), 1, "released");
}

#[tokio::test]
async fn a_clock_set_forward_ends_no_lease_and_no_delay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let machine = Machine::boot("one");
    let (broker, queue) = machine.open(&path).await;
    send(&broker, 1).await;
    let delayed = Outgoing { delay: LEASE, ..message("later") };
    assert!(broker.send(&jobs(), vec![delayed]).await.iter().all(Result::is_ok));
    let leased = receive(&queue, Duration::ZERO).await;
    assert_eq!(leased.len(), 1);
    machine.set(HOUR, Duration::ZERO);
    assert!(receive(&queue, Duration::ZERO).await.is_empty());
    // A process that starts after the step counts as the others do.
    let (_broker, other) = machine.open(&path).await;
    assert!(receive(&other, Duration::ZERO).await.is_empty());
    assert_eq!(queue.extend(&[leased[0].receipt.lease()], LEASE).await, [Ok(())]);
    ack(&queue, leased).await;
}

#[tokio::test]
async fn time_never_goes_back_from_one_boot_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queue.db");
    let (broker, queue) = Machine::boot("one").open(&path).await;
    send(&broker, 1).await;
    drop((broker, queue));
    let machine = Machine::boot("two");
    machine.set(Duration::ZERO, HOUR);
    let (_broker, queue) = machine.open(&path).await;
    assert_eq!(receive(&queue, Duration::ZERO).await.len(), 1);
}

#[tokio::test]
async fn ages_are_right_by_the_clock_as_it_is_set_now() {
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::boot("one");
    let (broker, _queue) = machine.open(&folder.path().join("queue.db")).await;
    send(&broker, 1).await;
    for (forward, back) in [(Duration::ZERO, HOUR), (HOUR, Duration::ZERO)] {
        machine.set(forward, back);
        let mut ages = Vec::new();
        let mut each = |message: &Message| {
            ages.push(machine.wall().duration_since(message.enqueued_at).unwrap());
            std::ops::ControlFlow::Continue(())
        };
        broker.peek(&jobs(), &mut each).await.unwrap();
        assert!(ages.len() == 1 && ages[0] < HOUR / 2, "{ages:?}");
        assert!(broker.depths(&[jobs()]).await.unwrap()[0].oldest_age.unwrap() < HOUR / 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_waits_by_the_clock_of_the_runtime() {
    /// Virtual time.
    #[derive(Debug)]
    struct Virtual(tokio::time::Instant);
    impl Clock for Virtual {
        fn monotonic(&self) -> Duration {
            self.0.elapsed()
        }
        fn wall(&self) -> SystemTime {
            UNIX_EPOCH + HOUR + self.0.elapsed()
        }
        fn origin(&self) -> Option<String> {
            Some("virtual".to_owned())
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let begun = tokio::time::Instant::now();
    let worker = hostler_queue_embedded::Worker::Task { poll: Duration::from_millis(15) };
    let options = Options { clock: Arc::new(Virtual(begun)), worker, ..Options::default() };
    let broker = EmbeddedBroker::open_with(&folder.path().join("queue.db"), options).unwrap();
    let queue = broker.open(&ChannelSpec { max_receives: Some(9), ..ChannelSpec::new(jobs()) }).await.unwrap();
    let delayed = Outgoing { delay: Duration::from_secs(10), ..message("later") };
    assert!(broker.send(&jobs(), vec![delayed]).await.iter().all(Result::is_ok));
    let received = receive(&queue, Duration::from_secs(20)).await;
    assert_eq!(received.len(), 1);
    assert!((10..11).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}
