//! Tests of the effects: the order of rests and receive calls, and lost leases.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;

use super::*;
use crate::trial::{SECOND, consumer, fake};
use hostler_queue::{Limits, Origin, Receipt};

#[test]
fn what_a_limit_of_the_host_prevents_is_no_failure_of_the_handler() {
    let fault = || "S3 cannot be reached".to_owned();
    assert_eq!(unfit(fault(), None), Outcome::Failed(fault()));
    assert_eq!(unfit(fault(), Some(Limit::Descriptors)), Outcome::HostLimit(Limit::Descriptors, fault()));
    assert_eq!(unsent(&"full", None), Outcome::Failed("its reply was not sent: full".into()));
    assert!(matches!(unsent(&"full", Some(Limit::Threads)), Outcome::HostLimit(Limit::Threads, _)));
}

const ONE: Receive = Receive { max: 1, wait: Duration::ZERO, lease: Duration::from_secs(30) };

#[tokio::test(start_paused = true)]
async fn every_receive_waits_for_the_rest_before_it() {
    let (broker, queue) = fake(&[]).await;
    let mut effects = Effects::new(&consumer(queue), None, Arc::default());
    broker.hold_rests(true);
    effects.rest();
    for _ in 0..3 {
        effects.receive(ONE);
    }
    sleep(SECOND).await;
    assert_eq!(broker.calls().receive, 0, "the rest would end what a receive call begins");
    broker.hold_rests(false);
    sleep(SECOND).await;
    assert_eq!(broker.calls().receive, 3);
}

#[tokio::test(start_paused = true)]
async fn rests_reach_the_queue_one_after_another_although_a_receive_came_between() {
    let (broker, queue) = fake(&[]).await;
    let mut effects = Effects::new(&consumer(queue), None, Arc::default());
    broker.hold_rests(true);
    effects.rest();
    effects.receive(ONE);
    effects.stop_polling.cancel();
    effects.rest();
    sleep(SECOND).await;
    assert_eq!(broker.calls().rest, 1, "two rests at once");
    broker.hold_rests(false);
    effects.rested().await;
    assert_eq!(broker.calls().rest, 2);
}

/// Answer to one call of `taken_back`.
enum Answer {
    Panic,
    Nothing,
    Lease(&'static str),
}

/// A queue that breaks the contract.
struct Odd {
    answers: Mutex<VecDeque<Answer>>,
    asked: AtomicUsize,
}

#[async_trait]
impl Queue for Odd {
    fn limits(&self) -> Limits {
        hostler_queue::fake::LIMITS
    }

    fn is_ordered(&self) -> bool {
        false
    }

    fn origin(&self) -> Origin {
        Origin::default()
    }

    async fn receive(&self, _: Receive, _: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        Ok(Vec::new())
    }

    async fn extend(&self, _: &[LeaseHandle], _: Duration) -> Vec<Result<(), LeaseError>> {
        Vec::new()
    }

    async fn settle(&self, _: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        Vec::new()
    }

    async fn taken_back(&self) -> Vec<LeaseHandle> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let answer = self.answers.lock().unwrap().pop_front();
        match answer {
            Some(Answer::Panic) => resume_unwind(Box::new("as told")),
            Some(Answer::Nothing) => Vec::new(),
            Some(Answer::Lease(name)) => vec![Receipt::new(name).lease()],
            None => std::future::pending().await,
        }
    }
}

/// The leases of each signal, and the number of calls.
async fn told(answers: impl IntoIterator<Item = Answer>) -> (Vec<Vec<LeaseHandle>>, usize) {
    let queue = Arc::new(Odd { answers: Mutex::new(answers.into_iter().collect()), asked: AtomicUsize::new(0) });
    let (signals, mut came, mut told) = (Arc::default(), VecDeque::new(), Vec::new());
    let _effects = Effects::new(&consumer(queue.clone()), None, Arc::clone(&signals));
    while timeout(60 * SECOND, signals.recv(&mut came)).await.is_ok() {
        told.extend(came.drain(..).map(|signal| match signal {
            Signal::TakenBack(leases) => leases,
            _ => panic!("another signal"),
        }));
    }
    (told, queue.asked.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_panics_is_asked_again_which_leases_it_lost() {
    let answers = [Answer::Lease("1"), Answer::Panic, Answer::Panic, Answer::Lease("2")];
    let lease = |name| vec![Receipt::new(name).lease()];
    assert_eq!(told(answers).await, (vec![lease("1"), lease("2")], 5));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_names_no_lease_is_asked_again_after_a_while() {
    let (begin, answers) = (Instant::now(), [Answer::Nothing, Answer::Nothing, Answer::Lease("1")]);
    let (told, asked) = told(answers).await;
    assert_eq!((told, asked), (vec![vec![Receipt::new("1").lease()]], 4), "an empty answer says nothing");
    assert!(begin.elapsed() >= 2 * AGAIN, "it would take a whole CPU");
}
