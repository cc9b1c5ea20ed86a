//! Services that the consumers of the config receive from: the queue service, the job service, or both.

use std::sync::Arc;

use tokio::sync::watch;

use super::assemble::channel_spec_with;
use super::driver;
use super::resources::Share;
use hostler_config::{Config, Consumer};
use hostler_queue::parallel::{side_by_side, stopping};
use hostler_queue::{Broker, Link, Provisioner, Queue, QueueError};
#[cfg(feature = "jobs")]
use hostler_queue_jobs::{JobService, Options};

/// Value of `messaging.system` for consumers of jobs.
#[cfg(feature = "jobs")]
pub(super) const JOBS_SYSTEM: &str = hostler_queue_jobs::SYSTEM;
/// Value of `messaging.system` for consumers of jobs.
#[cfg(not(feature = "jobs"))]
pub(super) const JOBS_SYSTEM: &str = "hostler-jobs";

/// Maximum length of a worker's name in bytes.
#[cfg(feature = "jobs")]
const LONGEST_NAME: usize = 200;

/// The services, connected.
pub(super) struct Services {
    /// The queue service. `None`: every consumer processes jobs, and sends no messages.
    pub(super) queue: Option<Arc<dyn Provisioner>>,
    #[cfg(feature = "jobs")]
    pub(super) jobs: Option<Arc<JobService>>,
}

/// Returns `true` if any consumer receives from the queue service, or a consumer or a schedule sends messages to it.
pub fn needs_queue(config: &Config) -> bool {
    let sends = |consumer: &Consumer| {
        let allow = &consumer.allow;
        consumer.reply_channel.is_some() || !allow.send.is_empty() || !allow.subjects.is_empty()
    };
    !config.schedules.is_empty() || config.consumers.iter().any(|consumer| consumer.job.is_none() || sends(consumer))
}

/// Returns `true` if any consumer processes jobs.
pub fn needs_jobs(config: &Config) -> bool {
    config.consumers.iter().any(|consumer| consumer.job.is_some())
}

/// Connects to the job service, as its consumers do.
///
/// # Errors
/// [`QueueError`] if the service cannot be reached or refuses the token.
#[cfg(feature = "jobs")]
pub async fn connect_to_jobs(config: &Config) -> Result<JobService, QueueError> {
    let token = config.jobs.token.as_ref().map(|token| token.expose().to_owned());
    JobService::connect(&Options { url: config.jobs.url.clone(), token }).await
}

impl Services {
    /// Connects to the services that the consumers need.
    ///
    /// # Errors
    /// [`QueueError`] if a service cannot be reached, or if this build lacks it.
    pub(super) async fn connect(config: &Config) -> Result<Self, QueueError> {
        let queue =
            async { if needs_queue(config) { driver(config).connect(config).await.map(Some) } else { Ok(None) } };
        #[cfg(feature = "jobs")]
        {
            let jobs = async {
                if needs_jobs(config) {
                    connect_to_jobs(config).await.map(|jobs| Some(Arc::new(jobs)))
                } else {
                    Ok(None)
                }
            };
            let (queue, jobs) = tokio::try_join!(queue, jobs)?;
            Ok(Self { queue, jobs })
        }
        #[cfg(not(feature = "jobs"))]
        {
            if needs_jobs(config) {
                return Err(no_jobs());
            }
            Ok(Self { queue: queue.await? })
        }
    }

    /// Returns the service that messages are sent to.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if there is no service, because there is no consumer.
    pub(super) fn broker(&self) -> Result<Arc<dyn Broker>, QueueError> {
        #[cfg(feature = "jobs")]
        if let (None, Some(jobs)) = (&self.queue, &self.jobs) {
            return Ok(jobs.clone());
        }
        match &self.queue {
            Some(queue) => Ok(queue.clone()),
            None => Err(QueueError::Refused("the config has no consumer".to_owned())),
        }
    }

    /// Returns the state of the connections: the first one that is down, if any is. Must be called within the control runtime.
    pub(super) fn link(&self) -> watch::Receiver<Link> {
        let queue = self.queue.as_ref().map(|queue| queue.link());
        #[cfg(feature = "jobs")]
        let jobs = self.jobs.as_ref().map(|jobs| jobs.link());
        #[cfg(not(feature = "jobs"))]
        let jobs = None::<watch::Receiver<Link>>;
        match (queue, jobs) {
            (Some(queue), Some(jobs)) => both(queue, jobs),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => watch::channel(Link::Up).1,
        }
    }

    /// Opens the queues of all consumers concurrently, because opening one queue takes several calls in sequence. `shares` are
    /// those of the consumers. Returns the queues in the order of the config.
    ///
    /// # Errors
    /// Returns the error of a channel that cannot be opened. If several fail, returns the error of the first one in the config.
    pub(super) async fn open_all(&self, config: &Config, shares: &[Share]) -> Result<Vec<Arc<dyn Queue>>, QueueError> {
        let opening = config.consumers.iter().zip(shares).map(|(consumer, share)| {
            let (spec, of_jobs) = (channel_spec_with(consumer, share.slots), self.queue_of_jobs(consumer));
            let queue = self.queue.clone();
            async move {
                match (of_jobs, queue) {
                    (Some(queue), _) => queue,
                    (None, Some(service)) => service.open(&spec).await,
                    (None, None) => Err(QueueError::Refused(format!("no service has the channel `{}`", spec.channel))),
                }
            }
        });
        side_by_side(opening).await.into_iter().map(|opened| opened.ok_or_else(stopping)?).collect()
    }

    /// Returns the queue of a consumer of jobs. `None`: it receives from the queue service.
    #[cfg(feature = "jobs")]
    fn queue_of_jobs(&self, consumer: &Consumer) -> Option<Result<Arc<dyn Queue>, QueueError>> {
        let kind = consumer.job.as_ref()?;
        let jobs = self.jobs.as_ref();
        Some(jobs.map(|jobs| jobs.queue(kind, &worker(consumer))).ok_or_else(stopping))
    }

    /// Returns an error for a consumer of jobs, which this build lacks.
    #[cfg(not(feature = "jobs"))]
    fn queue_of_jobs(&self, consumer: &Consumer) -> Option<Result<Arc<dyn Queue>, QueueError>> {
        consumer.job.as_ref().map(|_| Err(no_jobs()))
    }
}

#[cfg(not(feature = "jobs"))]
fn no_jobs() -> QueueError {
    let text = "this build of hostler has no consumers of jobs; it was built without the feature `jobs`";
    QueueError::Refused(text.to_owned())
}

/// Returns the name of a consumer of this process in the job service. No two processes share it.
#[cfg(feature = "jobs")]
fn worker(consumer: &Consumer) -> String {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut name = format!("{}@{}-{}", consumer.name, machine.trim(), uuid::Uuid::now_v7());
    if name.len() > LONGEST_NAME {
        // The end differs between processes.
        name = name.split_off(name.ceil_char_boundary(name.len() - LONGEST_NAME));
    }
    name
}

/// Joins the states of two connections.
fn both(mut one: watch::Receiver<Link>, mut other: watch::Receiver<Link>) -> watch::Receiver<Link> {
    let (sender, joined) = watch::channel(worse(&one.borrow(), &other.borrow()));
    tokio::spawn(async move {
        // A service without lasting connections drops its sender.
        let (mut one_changes, mut other_changes) = (true, true);
        while one_changes || other_changes {
            let now = worse(&one.borrow_and_update(), &other.borrow_and_update());
            sender.send_if_modified(|link| {
                let is_new = *link != now;
                *link = now;
                is_new
            });
            tokio::select! {
                () = sender.closed() => return,
                changed = one.changed(), if one_changes => one_changes = changed.is_ok(),
                changed = other.changed(), if other_changes => other_changes = changed.is_ok(),
            }
        }
    });
    joined
}

/// Returns the state that the health file shows: the first connection that is down, or else that is blocked.
fn worse(one: &Link, other: &Link) -> Link {
    match (one, other) {
        (Link::Down { .. }, _) | (Link::Blocked(_), Link::Up | Link::Blocked(_)) | (Link::Up, Link::Up) => one.clone(),
        (Link::Up | Link::Blocked(_), _) => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    fn down(why: &str) -> Link {
        Link::Down { since: Instant::now(), why: why.to_owned() }
    }

    #[test]
    fn the_worse_of_two_connections_is_shown() {
        let blocked = Link::Blocked("full".to_owned());
        let lost = down("lost");
        for (one, other, expected) in [
            (&Link::Up, &Link::Up, &Link::Up),
            (&Link::Up, &lost, &lost),
            (&lost, &Link::Up, &lost),
            (&blocked, &Link::Up, &blocked),
            (&Link::Up, &blocked, &blocked),
            (&blocked, &lost, &lost),
            (&lost, &blocked, &lost),
        ] {
            assert_eq!(&worse(one, other), expected, "{one:?} {other:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_that_never_changes_hides_no_change_of_the_other() {
        let (sender, jobs) = watch::channel(Link::Up);
        let mut joined = both(watch::channel(Link::Up).1, jobs);
        sender.send_replace(down("lost"));
        assert!(joined.wait_for(|link| matches!(link, Link::Down { .. })).await.is_ok());
        sender.send_replace(Link::Up);
        assert!(joined.wait_for(|link| *link == Link::Up).await.is_ok());
    }
}
