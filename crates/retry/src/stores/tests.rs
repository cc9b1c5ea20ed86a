use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use hostler_queue::{Admin as _, Broker as _};
use hostler_types::message::{Message, Outgoing};

async fn fill(store: &Store, count: usize) -> EmbeddedBroker {
    let broker = EmbeddedBroker::open(&store.queue()).unwrap();
    for (channel, count) in [("retry", count), ("retry-dlq", 3)] {
        let message = |n: usize| Outgoing { body: format!("{channel} {} {n}", store.id).into(), ..Outgoing::default() };
        let sent = broker.send(&channel.parse().unwrap(), (0..count).map(message).collect()).await;
        assert!(sent.iter().all(Result::is_ok));
    }
    broker
}

/// Returns how often each body is in the queues of a file.
async fn bodies(broker: &EmbeddedBroker) -> BTreeMap<String, usize> {
    let mut bodies = BTreeMap::new();
    for channel in broker.channels().await.unwrap() {
        let mut count = |message: &Message| {
            let body = String::from_utf8_lossy(&message.body).into_owned();
            assert!(body.starts_with(&format!("{channel} ")), "{body} is in {channel}");
            *bodies.entry(body).or_default() += 1;
            ControlFlow::Continue(())
        };
        broker.peek(&channel, &mut count).await.unwrap();
    }
    bodies
}

async fn adopt(store: &Store, own: &EmbeddedBroker) -> Adopted {
    store.adopt(own, &|| true, &mut |_| {}).await.unwrap()
}

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_store_belongs_to_one_instance_and_is_taken_over_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = Store::claim(folder.path()).unwrap();
    let second = Store::claim(folder.path()).unwrap();
    assert_ne!(first.id(), second.id());
    let id = first.id();
    drop(first);
    assert_eq!(Store::claim(folder.path()).unwrap().id(), id);
    assert_eq!(entries(folder.path()), 2);
}

#[tokio::test]
async fn the_stores_of_dead_instances_are_adopted_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let [own, dead, alive] = [(); 3].map(|()| Store::claim(folder.path()).unwrap());
    let broker = fill(&own, 1).await;
    drop(fill(&dead, MESSAGES + 500).await);
    drop(fill(&alive, 5).await);
    drop(dead);
    assert_eq!(adopt(&own, &broker).await, Adopted { stores: 1, messages: MESSAGES + 503 });
    let bodies = bodies(&broker).await;
    assert_eq!((bodies.len(), bodies.values().max()), (MESSAGES + 507, Some(&1)));
    assert_eq!(entries(folder.path()), 2, "the store of a living instance stays");
    assert_eq!(adopt(&own, &broker).await, Adopted::default());
    drop(alive);
    assert_eq!(adopt(&own, &broker).await, Adopted { stores: 1, messages: 8 });
}

#[tokio::test]
async fn what_is_due_and_counted_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let [own, dead] = [(); 2].map(|()| Store::claim(folder.path()).unwrap());
    let broker = EmbeddedBroker::open(&own.queue()).unwrap();
    let theirs = EmbeddedBroker::open(&dead.queue()).unwrap();
    let delay = std::time::Duration::from_secs(3_600);
    let message = Outgoing { routing_key: Some("a".to_owned()), delay, ..Outgoing::default() };
    theirs.send(&"retry".parse().unwrap(), vec![message]).await.remove(0).unwrap();
    drop((dead, theirs));
    adopt(&own, &broker).await;
    let depth = broker.depths(&["retry".parse().unwrap()]).await.unwrap().remove(0);
    assert_eq!((depth.visible, depth.delayed), (0, Some(1)));
}

/// An adoption that is killed at any point, over and over, by instances that are killed too.
#[test]
fn an_adoption_that_is_killed_is_continued_without_losses_and_duplicates() {
    for seed in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut expected = BTreeMap::new();
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for _ in 0..3 {
            runtime().block_on(async {
                // Kept locked until all are filled, so that each is a store of its own.
                let store = Store::create(folder.path()).unwrap();
                let broker = fill(&store, rng.usize(..60)).await;
                expected.extend(bodies(&broker).await);
            });
        }
        for round in 0.. {
            assert!(round < 200, "seed {seed}: the adoption never ends");
            let kill_after = rng.usize(..8);
            let ended = std::panic::catch_unwind(|| {
                runtime().block_on(async {
                    let own = Store::create(folder.path()).unwrap();
                    let broker = EmbeddedBroker::open(&own.queue()).unwrap();
                    let mut batches = 0;
                    // The process ends after a batch was stored, before it is removed from the old store.
                    let mut moved = |_| {
                        batches += 1;
                        assert!(batches <= kill_after, "killed");
                    };
                    own.adopt_in_batches_of(5 + round, &broker, &mut moved).await;
                    (entries(folder.path()) == 1).then_some(())
                })
            });
            if let Ok(Some(())) = ended {
                break;
            }
        }
        let last = ids(folder.path()).unwrap()[0];
        let found = runtime().block_on(async {
            bodies(&EmbeddedBroker::open(&folder.path().join(last.to_string()).join(QUEUE)).unwrap()).await
        });
        assert_eq!(found, expected, "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_that_want_the_same_stores_share_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = BTreeMap::new();
    let dead: Vec<_> = (0..6).map(|_| Store::create(folder.path()).unwrap()).collect();
    for store in &dead {
        expected.extend(bodies(&fill(store, 300).await).await);
    }
    let own: Vec<_> = (0..2).map(|_| Store::create(folder.path()).unwrap()).collect();
    drop(dead);
    let adopted = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = own
        .into_iter()
        .map(|store| {
            let adopted = Arc::clone(&adopted);
            tokio::spawn(async move {
                let broker = EmbeddedBroker::open(&store.queue()).unwrap();
                adopted.fetch_add(adopt(&store, &broker).await.stores, Ordering::Relaxed);
                bodies(&broker).await
            })
        })
        .collect();
    let mut found = BTreeMap::new();
    for task in tasks {
        for (body, count) in task.await.unwrap() {
            *found.entry(body).or_default() += count;
        }
    }
    assert_eq!((found, adopted.load(Ordering::Relaxed)), (expected, 6));
}
