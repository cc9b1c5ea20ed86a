use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::adoption::MESSAGES;
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

fn names() -> Names {
    let name = |name: &str| name.parse().unwrap();
    Names {
        priorities: vec![name("retry"), name("retry-high")],
        default: name("retry"),
        dead_letters: name("retry-dlq"),
    }
}

/// The result of a round.
#[derive(Debug, Default, PartialEq, Eq)]
struct Adopted {
    stores: usize,
    messages: usize,
    closed: Vec<String>,
}

/// Adopts what nobody has.
async fn adopt(adopter: &mut Adopter) -> Adopted {
    let mut adopted = Adopted::default();
    let mut tell = |progress| match progress {
        Progress::Moved(messages) => adopted.messages += messages,
        Progress::Adopted(_) => adopted.stores += 1,
        Progress::Closed(closed) => adopted.closed.extend(closed.into_iter().map(|(subject, _)| subject)),
    };
    adopter.round(&|| true, &mut tell).await.unwrap();
    adopted
}

/// A store with its queue, and what adopts for it.
struct Own {
    broker: Arc<EmbeddedBroker>,
    adopter: Adopter,
}

impl Own {
    fn of(store: Store) -> Self {
        let broker = Arc::new(EmbeddedBroker::open(&store.queue()).unwrap());
        let adopter = Adopter::new(Arc::new(store), Arc::clone(&broker), names(), Duration::ZERO);
        Self { broker, adopter }
    }
}

fn adopted(stores: usize, messages: usize) -> Adopted {
    Adopted { stores, messages, closed: Vec::new() }
}

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[tokio::test]
async fn a_store_belongs_to_one_instance_and_is_taken_over_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = claim(folder.path(), &names()).await.unwrap();
    let second = claim(folder.path(), &names()).await.unwrap();
    assert_ne!(first.store.id(), second.store.id());
    let id = first.store.id();
    drop(first);
    assert_eq!(claim(folder.path(), &names()).await.unwrap().store.id(), id);
    assert_eq!(entries(folder.path()), 2);
}

#[tokio::test]
async fn a_damaged_store_keeps_no_instance_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let damaged = Store::create(folder.path()).unwrap();
    fs::write(damaged.queue(), "this is not a database, however long it is looked at".repeat(99)).unwrap();
    let (id, mut sound) = (damaged.id(), Own::of(Store::create(folder.path()).unwrap()));
    drop(damaged);
    let claimed = claim(folder.path(), &names()).await.unwrap();
    assert!(claimed.store.id() != id && entries(folder.path()) == 3);
    drop(claimed);
    assert_eq!(adopt(&mut sound.adopter).await, adopted(1, 0), "the sound one is adopted");
    assert!(folder.path().join(id.to_string()).join(QUEUE).exists(), "the damaged one waits for an operator");
}

#[tokio::test]
async fn the_stores_of_dead_instances_are_adopted_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let [own, dead, alive] = [(); 3].map(|()| Store::create(folder.path()).unwrap());
    drop(fill(&own, 1).await);
    let mut own = Own::of(own);
    drop(fill(&dead, MESSAGES + 500).await);
    drop(fill(&alive, 5).await);
    drop(dead);
    assert_eq!(adopt(&mut own.adopter).await, adopted(1, MESSAGES + 503));
    let bodies = bodies(&own.broker).await;
    assert_eq!((bodies.len(), bodies.values().max()), (MESSAGES + 507, Some(&1)));
    assert_eq!(entries(folder.path()), 2, "the store of a living instance stays");
    assert_eq!(adopt(&mut own.adopter).await, Adopted::default());
    drop(alive);
    assert_eq!(adopt(&mut own.adopter).await, adopted(1, 8));
}

#[tokio::test]
async fn a_store_without_its_lock_belongs_to_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let [own, copied, taken] = [(); 3].map(|()| Store::create(folder.path()).unwrap());
    let mut own = Own::of(own);
    drop(fill(&copied, 10).await);
    fs::remove_file(copied.path(LOCK)).unwrap();
    assert_eq!(adopt(&mut own.adopter).await, adopted(1, 13));
    drop(fill(&taken, 10).await);
    fs::remove_file(taken.path(LOCK)).unwrap();
    assert_eq!(claim(folder.path(), &names()).await.unwrap().store.id(), taken.id());
}

#[tokio::test]
async fn a_folder_that_is_no_store_is_told_with_its_path_and_holds_up_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut own = Own::of(Store::create(folder.path()).unwrap());
    let [empty, file, lock, queue] = [(); 4].map(|()| Uuid::now_v7());
    let path = |id: Uuid| folder.path().join(id.to_string());
    fs::write(path(file), "x").unwrap();
    for (id, pipe) in [(empty, None), (lock, Some(LOCK)), (queue, Some(QUEUE))] {
        fs::create_dir(path(id)).unwrap();
        if let Some(pipe) = pipe {
            assert!(std::process::Command::new("mkfifo").arg(path(id).join(pipe)).status().unwrap().success());
        }
    }
    for (id, cause) in [(empty, "neither"), (file, "directory"), (lock, "regular file"), (queue, "regular file")] {
        let error = Store::lock(folder.path(), id).unwrap_err().to_string();
        assert!(error.contains(&path(id).display().to_string()) && error.contains(cause), "{error}");
    }
    let dead = Store::create(folder.path()).unwrap();
    drop(fill(&dead, 10).await);
    drop(dead);
    assert_eq!(adopt(&mut own.adopter).await, adopted(1, 13), "the store of a dead instance is adopted");
    assert_eq!(own.adopter.failures(), 4);
}

#[tokio::test]
async fn an_instance_that_restarts_takes_its_store_over_before_others_adopt_it() {
    let folder = tempfile::tempdir().unwrap();
    let [own, restarting] = [(); 2].map(|()| Arc::new(Store::create(folder.path()).unwrap()));
    let broker = Arc::new(EmbeddedBroker::open(&own.queue()).unwrap());
    let mut adopter = Adopter::new(own, broker, names(), Duration::from_secs(3600));
    let id = restarting.id();
    drop(restarting);
    adopter.round(&|| true, &mut |progress| panic!("{progress:?}")).await.unwrap();
    let claimed = claim(folder.path(), &names()).await.unwrap();
    assert_eq!(claimed.store.id(), id);
    adopter.round(&|| true, &mut |progress| panic!("{progress:?}")).await.unwrap();
}

#[tokio::test]
async fn closed_subjects_come_along() {
    let folder = tempfile::tempdir().unwrap();
    let (mut own, dead) = (Own::of(Store::create(folder.path()).unwrap()), Store::create(folder.path()).unwrap());
    let theirs = EmbeddedBroker::open(&dead.queue()).unwrap();
    theirs.close_subjects(vec![("webhooks.a".to_owned(), Duration::from_secs(600))]).await.unwrap();
    drop((dead, theirs));
    assert_eq!(adopt(&mut own.adopter).await.closed, ["webhooks.a"]);
    assert_eq!(own.broker.closed_subjects().await.unwrap().len(), 1);
}

#[tokio::test]
async fn messages_of_a_priority_that_is_gone_get_the_default_one() {
    let folder = tempfile::tempdir().unwrap();
    let (own, dead) = (Store::create(folder.path()).unwrap(), Store::create(folder.path()).unwrap());
    for store in [&own, &dead] {
        let broker = EmbeddedBroker::open(&store.queue()).unwrap();
        for channel in ["retry-low", "retry-high", "other"] {
            let message = Outgoing { body: channel.into(), ..Outgoing::default() };
            broker.send(&channel.parse().unwrap(), vec![message]).await.remove(0).unwrap();
        }
    }
    drop(dead);
    let mut own = Own::of(own);
    adopt(&mut own.adopter).await;
    let depths = ["retry", "retry-low", "retry-high", "other"].map(|name| name.parse().unwrap());
    let depths = own.broker.depths(&depths).await.unwrap();
    assert_eq!(depths.iter().map(|depth| depth.visible).collect::<Vec<_>>(), [2, 0, 2, 2]);
}

#[test]
fn remnants_are_removed_but_not_those_of_a_living_process() {
    let folder = tempfile::tempdir().unwrap();
    let old = SystemTime::now() - 2 * REMNANT;
    let remnant = |name: &str, has_lock: bool| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        let lock = has_lock.then(|| File::create(path.join(LOCK)).unwrap());
        File::open(&path).unwrap().set_modified(old).unwrap();
        lock
    };
    remnant(".new-a", false);
    remnant(".old-b", true);
    let alive = remnant(".new-c", true).unwrap();
    alive.try_lock_exclusive().unwrap();
    remnant("other", true);
    fs::create_dir(folder.path().join(".new-young")).unwrap();
    sweep(folder.path());
    let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".new-c", ".new-young", "other"]);
}

#[tokio::test]
async fn a_store_that_cannot_be_adopted_keeps_its_adopters_from_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [adopter, inherited] = [(); 2].map(|()| Store::create(folder.path()).unwrap());
    drop(fill(&adopter, 10).await);
    fs::write(inherited.queue(), "damaged".repeat(999)).unwrap();
    inherited.name_adopter(adopter.id()).unwrap();
    let id = inherited.id();
    drop((adopter, inherited));
    let mut own = Own::of(Store::create(folder.path()).unwrap());
    assert_eq!(adopt(&mut own.adopter).await, adopted(1, 13), "the other one is adopted");
    assert_eq!(
        super::adopter(folder.path(), id).unwrap(),
        Some(ids(folder.path()).unwrap()[1]),
        "it has a new adopter"
    );
}

/// Lets every look at a file fail, also for the superuser.
fn make_unreadable(path: &Path) {
    let _ = fs::remove_file(path);
    std::os::unix::fs::symlink(path, path).unwrap();
}

#[tokio::test]
async fn a_store_whose_queue_cannot_be_looked_at_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let [unreadable, dead] = [(); 2].map(|()| Store::create(folder.path()).unwrap());
    drop(fill(&unreadable, 10).await);
    let (queue, kept) = (unreadable.queue(), folder.path().join("kept"));
    fs::rename(&queue, &kept).unwrap();
    make_unreadable(&queue);
    let mut own = Own::of(Store::create(folder.path()).unwrap());
    drop((unreadable, dead));
    assert_eq!(adopt(&mut own.adopter).await, adopted(1, 0), "the other one is adopted");
    assert!(queue.symlink_metadata().is_ok(), "it is removed with its messages");
    fs::rename(&kept, &queue).unwrap();
    assert_eq!(adopt(&mut own.adopter).await, adopted(1, 13), "it is adopted after the fault");
}

#[tokio::test]
async fn a_store_whose_adoption_cannot_be_told_is_neither_taken_over_nor_adopted() {
    let folder = tempfile::tempdir().unwrap();
    let [unreadable, dead] = [(); 2].map(|()| Store::create(folder.path()).unwrap());
    drop(fill(&unreadable, 10).await);
    let adopter = unreadable.path(ADOPTER);
    make_unreadable(&adopter);
    let (id, mut own) = (unreadable.id(), Own::of(Store::create(folder.path()).unwrap()));
    drop((unreadable, dead));
    assert_ne!(claim(folder.path(), &names()).await.unwrap().store.id(), id);
    assert_eq!(adopt(&mut own.adopter).await, adopted(1, 0), "the other one is adopted");
    fs::remove_file(adopter).unwrap();
    assert_eq!(adopt(&mut own.adopter).await, adopted(1, 13));
}

#[tokio::test]
async fn a_damaged_adopter_does_not_keep_what_it_adopted() {
    let folder = tempfile::tempdir().unwrap();
    let [adopter, inherited] = [(); 2].map(|()| Store::create(folder.path()).unwrap());
    drop(fill(&inherited, 10).await);
    fs::write(adopter.queue(), "damaged".repeat(999)).unwrap();
    inherited.name_adopter(adopter.id()).unwrap();
    drop((adopter, inherited));
    let mut own = Own::of(Store::create(folder.path()).unwrap());
    assert_eq!(adopt(&mut own.adopter).await, adopted(1, 13));
}

#[tokio::test]
async fn what_is_due_and_counted_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let [own, dead] = [(); 2].map(|()| Store::create(folder.path()).unwrap());
    let mut own = Own::of(own);
    let theirs = EmbeddedBroker::open(&dead.queue()).unwrap();
    let delay = std::time::Duration::from_secs(3_600);
    let message = Outgoing { routing_key: Some("a".to_owned()), delay, ..Outgoing::default() };
    theirs.send(&"retry".parse().unwrap(), vec![message]).await.remove(0).unwrap();
    drop((dead, theirs));
    adopt(&mut own.adopter).await;
    let depth = own.broker.depths(&["retry".parse().unwrap()]).await.unwrap().remove(0);
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
                    let broker = Arc::new(EmbeddedBroker::open(&own.queue()).unwrap());
                    let adopter = Adopter::new(Arc::new(own), broker, names(), Duration::ZERO);
                    let mut adopter = adopter.in_batches_of(5 + round);
                    let mut batches = 0;
                    // The process ends after a batch was stored, before it is removed from the old store.
                    let mut tell = |progress| {
                        batches += usize::from(matches!(progress, Progress::Moved(_)));
                        assert!(batches <= kill_after, "killed");
                    };
                    adopter.round(&|| true, &mut tell).await.unwrap();
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
                let mut own = Own::of(store);
                while adopted.load(Ordering::Relaxed) < 6 {
                    adopted.fetch_add(adopt(&mut own.adopter).await.stores, Ordering::Relaxed);
                }
                bodies(&own.broker).await
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
