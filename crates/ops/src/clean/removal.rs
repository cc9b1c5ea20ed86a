//! Deletes the resources that two surveys agree on.

use std::collections::BTreeSet;

use tokio_util::sync::CancellationToken;

use super::survey::{QueueFinding, Survey};
use hostler_queue::{Body, Disposal, Removal};
use hostler_types::BoxFuture;

/// Maximum number of bodies deleted between two checks of `stop`.
const BODIES_AT_ONCE: usize = 1000;

/// The resources to delete.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Agreed {
    /// Names of the queues, as the service knows them. Each queue precedes its dead-letter queue.
    pub queues: Vec<String>,
    /// Stored bodies.
    pub bodies: Vec<Body>,
}

impl Agreed {
    /// Returns `true` if there is nothing to delete.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.bodies.is_empty()
    }
}

/// Returns the resources that both surveys found deletable. If one of the surveys found no usage record at all, the
/// result contains no queues.
pub fn agreed(first: &Survey, second: &Survey) -> Agreed {
    let record = first.has_record() && second.has_record();
    let may_go = |survey: &Survey| -> BTreeSet<String> {
        let queues = survey.queues.iter().filter(|finding| record && finding.may_go());
        queues.map(|finding: &QueueFinding| finding.queue.clone()).collect()
    };
    let bodies = |survey: &Survey| -> BTreeSet<Body> {
        survey.bodies.iter().flat_map(|stored| stored.bodies.iter().cloned()).collect()
    };
    let mut queues: Vec<_> = may_go(first).intersection(&may_go(second)).cloned().collect();
    // Dead-letter queues come last, because a dead-letter queue is kept while another queue redrives to it.
    queues.sort_by_key(|name| name.trim_end_matches(".fifo").ends_with("-dlq"));
    Agreed { queues, bodies: bodies(first).intersection(&bodies(second)).cloned().collect() }
}

/// Result of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// Names of the deleted queues.
    pub removed: BTreeSet<String>,
    /// Names of queues that the surveys found deletable but that were kept, each with the reason.
    pub kept: Vec<(String, String)>,
    /// Resources that could not be deleted, each with the reason.
    pub failed: Vec<(String, String)>,
    /// Number of deleted bodies.
    pub bodies: usize,
}

/// Deletes the resources one after the other, until `stop` is cancelled. If the deletion of a queue fails, continues
/// with the next queue. If the deletion of a batch of bodies fails, deletes no further bodies.
pub fn remove<'a>(inventory: &'a dyn Disposal, agreed: &'a Agreed, stop: &'a CancellationToken) -> BoxFuture<'a, Done> {
    Box::pin(async move {
        let mut done = Done::default();
        for name in &agreed.queues {
            if stop.is_cancelled() {
                return done;
            }
            match inventory.remove_queue(name, &done.removed).await {
                Ok(Removal::Removed) => {
                    done.removed.insert(name.clone());
                }
                Ok(Removal::Kept(reason)) => done.kept.push((name.clone(), reason)),
                Err(error) => done.failed.push((name.clone(), error.to_string())),
            }
        }
        for batch in agreed.bodies.chunks(BODIES_AT_ONCE) {
            if stop.is_cancelled() {
                return done;
            }
            match inventory.remove_bodies(batch).await {
                Ok(count) => done.bodies += count,
                Err(error) => {
                    done.failed.push(("stored bodies".to_owned(), error.to_string()));
                    return done;
                }
            }
        }
        done
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use async_trait::async_trait;

    use super::*;
    use crate::clean::Class;
    use hostler_queue::{Inventory, Listing, ManagedQueue, ManagedTopic, QueueError, QueueUse, StoredBodies};

    /// A service that deletes queues whose names begin with `go`, and keeps queues whose names begin with `keep`. Fails
    /// for all other queues and for bodies.
    struct Scripted;

    #[async_trait]
    impl Inventory for Scripted {
        async fn queues(&self) -> Result<Listing<ManagedQueue>, QueueError> {
            Ok(Listing::default())
        }
    }

    #[async_trait]
    impl Disposal for Scripted {
        async fn topics(&self) -> Result<Listing<ManagedTopic>, QueueError> {
            Ok(Listing::default())
        }

        async fn subscribed(&self) -> Result<BTreeSet<String>, QueueError> {
            Ok(BTreeSet::new())
        }

        async fn queue_use(&self, _: &[String], _: Duration) -> Result<Vec<Option<QueueUse>>, QueueError> {
            Ok(Vec::new())
        }

        async fn published(&self, _: &[String], _: Duration) -> Result<Vec<Option<u64>>, QueueError> {
            Ok(Vec::new())
        }

        async fn stored_before(&self, _: SystemTime, _: usize) -> Result<Option<StoredBodies>, QueueError> {
            Ok(None)
        }

        async fn remove_queue(&self, name: &str, gone: &BTreeSet<String>) -> Result<Removal, QueueError> {
            match name {
                _ if name.starts_with("go") => Ok(Removal::Removed),
                _ if name.starts_with("keep") => Ok(Removal::Kept(format!("{} are gone", gone.len()))),
                _ => Err(QueueError::Refused("denied".into())),
            }
        }

        async fn remove_bodies(&self, _: &[Body]) -> Result<usize, QueueError> {
            Err(QueueError::Unavailable("busy".into()))
        }
    }

    #[tokio::test]
    async fn one_that_fails_leaves_the_others_to_be_removed() {
        let queues = ["go-1", "fail", "keep", "go-2"].map(str::to_owned).into();
        let bodies = vec![Body { key: "hostler/a".into(), stored_at: 1, bytes: 1 }];
        let agreed = Agreed { queues, bodies };
        let done = remove(&Scripted, &agreed, &CancellationToken::new()).await;
        assert_eq!(done.removed, ["go-1", "go-2"].map(str::to_owned).into());
        assert_eq!(done.kept, [("keep".to_owned(), "1 are gone".to_owned())]);
        let failed =
            [("fail", "denied"), ("stored bodies", "busy")].map(|(name, why)| (name.to_owned(), why.to_owned()));
        assert_eq!((&done.failed[..], done.bodies), (&failed[..], 0));
        let stopped = CancellationToken::new();
        stopped.cancel();
        assert_eq!(remove(&Scripted, &agreed, &stopped).await, Done::default());
    }

    fn finding(queue: &str, class: Class) -> QueueFinding {
        QueueFinding {
            queue: queue.into(),
            class,
            named_by_config: false,
            messages: 0,
            subscribed: Some(false),
            used: Some(QueueUse::default()),
            consumer: None,
            owner: None,
        }
    }

    fn survey(queues: Vec<QueueFinding>, bodies: &[(&str, u64)]) -> Survey {
        let body = |(key, stored_at): &(&str, u64)| Body { key: (*key).into(), stored_at: *stored_at, bytes: 1 };
        let bodies = bodies.iter().map(body).collect();
        Survey { queues, bodies: Some(StoredBodies { bodies, ..StoredBodies::default() }), ..Survey::default() }
    }

    #[test]
    fn only_what_both_looks_say_goes_and_dead_letter_queues_last() {
        let all = |classes: [Class; 5]| {
            let names = ["a-dlq", "b", "c-dlq.fifo", "c.fifo", "d"];
            survey(names.into_iter().zip(classes).map(|(name, class)| finding(name, class)).collect(), &[])
        };
        let (yes, no) = (Class::Deletable, Class::InUse);
        let (first, second) = (all([yes, yes, yes, yes, no]), all([yes, no, yes, yes, yes]));
        assert_eq!(agreed(&first, &second).queues, ["c.fifo", "a-dlq", "c-dlq.fifo"]);
        assert!(agreed(&first, &Survey::default()).is_empty());
    }

    #[test]
    fn what_the_config_names_never_goes() {
        let named = QueueFinding { named_by_config: true, ..finding("orders", Class::Deletable) };
        let looks = survey(vec![named], &[]);
        assert!(agreed(&looks, &looks).is_empty());
    }

    #[test]
    fn without_any_record_of_use_no_queue_goes() {
        let unknown = |name| QueueFinding { used: None, ..finding(name, Class::Deletable) };
        let blind = survey(vec![unknown("a"), unknown("b")], &[]);
        assert!(agreed(&blind, &blind).is_empty());
        let partly = survey(vec![unknown("a"), finding("b", Class::InUse)], &[]);
        assert_eq!(agreed(&partly, &partly).queues, ["a"], "there is a record, and it does not know this queue");
        assert!(agreed(&partly, &blind).is_empty());
    }

    #[test]
    fn a_body_that_was_stored_anew_stays() {
        let first = survey(vec![], &[("hostler/a", 1), ("hostler/b", 1)]);
        let second = survey(vec![], &[("hostler/a", 2), ("hostler/b", 1), ("hostler/c", 1)]);
        let keys: Vec<_> = agreed(&first, &second).bodies.into_iter().map(|body| body.key).collect();
        assert_eq!(keys, ["hostler/b"]);
    }
}
