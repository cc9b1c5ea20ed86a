//! One queue for its consumer.

mod session;
mod settle;
mod shared;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::future::join_all;
use hostler_queue::{
    Delivery, LeaseError, LeaseHandle, Limits, Origin, Queue, QueueError, Receive, Settlement, Unsettled,
};
use hostler_types::message::MAX_DELAY;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::session::Session;
pub(crate) use self::shared::Shared;
use crate::Service;
use crate::api;
use crate::declare::missing;
use crate::forward::Forwarder;
use crate::hand::{Hand, Handed, Key};
use crate::line::{Line, Unanswered, Watch};
use crate::pulls::LONGEST;
use crate::source::Source;

/// Limits of this driver.
pub(crate) const LIMITS: Limits = Limits {
    receive_batch: 64,
    settle_batch: 64,
    settle_linger: Duration::ZERO,
    max_wait: Duration::from_secs(20),
    max_lease: Duration::from_secs(12 * 60 * 60),
    parallel_receives: 1,
    max_release: MAX_DELAY,
};

/// Age of a message in hand from which on its timer begins anew before it is handed out, so that its lease is a full one, and from
/// which on the server must answer before the message goes back.
const STALE: Duration = Duration::from_secs(1);

/// Messages of an ordered queue that may wait here for their groups, and their bytes. Beyond that, messages of groups whose first
/// one is elsewhere go back, and none are asked for if there are no such messages.
const MOST_HELD: (usize, usize) = (10_000, 64 << 20);

/// Maximum number of messages that go back at a time because too many wait.
const SURPLUS: usize = 512;

/// Time that the server may take to tell that nothing came in time.
const LATE: Duration = Duration::from_millis(100);

/// Maximum time to decide on the messages that came last, after a receive was stopped.
const LAST: Duration = Duration::from_secs(2);

/// Shortest wait for messages. A shorter one would end on the server before it began.
const SHORTEST: Duration = Duration::from_millis(20);

/// An opened queue. Receives nothing from the server until the first receive.
pub(crate) struct NatsQueue {
    shared: Arc<Shared>,
    /// The inbox. `None`: nothing is received now.
    session: Mutex<Option<Session>>,
    forwarder: Forwarder,
    /// Ends with this value.
    _clock: JoinSet<()>,
}

impl NatsQueue {
    pub(crate) fn new(service: Arc<Service>, source: Source) -> Self {
        let forwarder = Forwarder::new(&service, &source);
        let shared = Arc::new(Shared::new(service, source));
        let mut clock = JoinSet::new();
        clock.spawn(session::watch_clock(Arc::clone(&shared)));
        Self { shared, session: Mutex::default(), forwarder, _clock: clock }
    }

    /// Returns the shared state, for counting.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Decides on the messages that have come.
    async fn sort(&self) -> Result<(), QueueError> {
        let (shared, service) = (&self.shared, &self.shared.service);
        let stream = &shared.source.stream;
        let unknown = shared.lock().hand.uncounted(Instant::now());
        let reading = unknown
            .into_iter()
            .map(|(key, stored_at)| async move { (key, service.notes.read(stream, key, stored_at).await) });
        let counts = join_all(reading).await;
        let (now, clock) = (Instant::now(), SystemTime::now());
        if let Some(error) = counts.iter().find_map(|(_, count)| count.as_ref().err()) {
            shared.lock().uncounted = Some(error.clone());
        }
        let (early, asked) = shared.change(|hand| {
            counts.into_iter().for_each(|(key, count)| hand.count(key, count.ok(), now));
            let early = hand.early(|mail| mail.not_before.is_some_and(|at| at > clock));
            (early, hand.sort(now))
        });
        if !early.is_empty() {
            let shared = Arc::clone(shared);
            // A task, because the messages that can be handed out do not wait for it.
            tokio::spawn(async move { shared.postpone(early).await });
        }
        let mut asked = asked;
        while !asked.is_empty() {
            let asking = asked.into_iter().map(|(key, subject)| async move {
                Ok::<_, QueueError>((key, first_of_group(&service.line, stream, key, &subject).await?))
            });
            let answers: Vec<_> = join_all(asking).await.into_iter().collect::<Result<_, _>>()?;
            let now = Instant::now();
            asked = shared.change(|hand| {
                answers.iter().for_each(|(key, first)| hand.first_of_group(*key, first.0, first.1, now));
                hand.sort(now)
            });
        }
        Ok(())
    }

    /// Hands out messages that are ready.
    async fn take(&self, max: usize, lease: Duration) -> Vec<Delivery> {
        let shared = &self.shared;
        loop {
            let ready = shared.lock().hand.ready(max);
            let is_worn = |handed: &Handed| {
                shared.source.dead_letters.is_some()
                    && shared.source.max_receives.is_some_and(|most| handed.attempt > most)
            };
            let (worn, good): (Vec<_>, Vec<_>) = ready.into_iter().partition(is_worn);
            if !worn.is_empty() {
                shared.change(|hand| worn.iter().for_each(|handed| hand.set_aside(handed.key)));
                let shared = Arc::clone(shared);
                tokio::spawn(async move { shared.wear_out(worn).await });
                continue;
            }
            let deliveries = self.hand_out(good, lease).await;
            // Those that were not leased are no longer here.
            if !deliveries.is_empty() || shared.lock().hand.ready(1).is_empty() {
                return deliveries;
            }
        }
    }

    /// Leases messages. Dropping the future leases none.
    async fn hand_out(&self, ready: Vec<Handed>, lease: Duration) -> Vec<Delivery> {
        let shared = &self.shared;
        shared.refresh(&ready, STALE.min(lease / 10)).await;
        let now = Instant::now();
        shared.change(|hand| {
            let lease = |handed: Handed| {
                let (receipt, leased_at) = hand.lease(handed.key, lease, now)?;
                let (message, attempt) = (handed.mail.message, handed.attempt);
                Some(Delivery { message, receipt, attempt, leased_at, not_before: None, job: None })
            };
            ready.into_iter().filter_map(lease).collect()
        })
    }

    /// Makes sure that the server has a request for messages. Returns `false` if enough of them wait here.
    async fn ask(&self, max: usize, wait: Duration) -> Result<bool, QueueError> {
        let mut session = self.session.lock().await;
        if session.as_ref().is_some_and(|session| !session.is_alive()) {
            *session = None;
        }
        if self.holds_enough() {
            let surplus = self.shared.change(|hand| hand.surplus(SURPLUS));
            if surplus.is_empty() {
                return Ok(false);
            }
            let shared = Arc::clone(&self.shared);
            // A task, because others take their place meanwhile.
            tokio::spawn(async move { shared.send_away(surplus).await });
        }
        self.shared.screening.before_ask().await?;
        let open = match session.take() {
            Some(open) => open,
            None => Session::open(&self.shared).await?,
        };
        session.insert(open).ask(&self.shared, max, wait).await?;
        Ok(true)
    }

    /// Returns `true` if so many messages of an ordered queue wait here that no more are asked for.
    fn holds_enough(&self) -> bool {
        let (held, bytes) = self.shared.lock().hand.waiting();
        held >= MOST_HELD.0 || bytes >= MOST_HELD.1
    }

    /// Closes the inbox.
    async fn close(&self) {
        let session = self.session.lock().await.take();
        if let Some(session) = session {
            session.close(&self.shared).await;
        }
    }

    /// Makes sure that the server answers, and that the queue exists.
    async fn prove(&self) -> Result<(), QueueError> {
        let source = &self.shared.source;
        match api::consumer(&self.shared.service.line, &source.stream, &source.consumer).await? {
            Some(info) => {
                self.shared.learn_timer(&info);
                Ok(())
            }
            None => {
                self.shared.service.declarer.forget(&source.stream);
                Err(missing(&format!("queue `{}` with the consumer `{}`", source.stream, source.consumer)))
            }
        }
    }

    /// Returns the fault that ended a request. If the queue is gone, says so.
    async fn fault(&self) -> Result<(), QueueError> {
        let Some(fault) = self.shared.take_fault() else { return Ok(()) };
        self.prove().await?;
        Err(fault)
    }

    /// Gives up on a request whose end is overdue.
    async fn give_up(&self) -> Result<(), QueueError> {
        let given_up = self.shared.lock().pulls.give_up();
        self.prove().await?;
        given_up.map_err(|why| {
            QueueError::Unavailable(format!("cannot receive from `{}`: {why}", self.shared.source.stream))
        })
    }

    /// Waits for a loss of the connection, or a refusal of what the inbox needs.
    async fn trouble(&self, watch: &mut Watch) -> QueueError {
        let needs = self.session.lock().await.as_ref().map(Session::needs);
        let (subjects, since) = needs.unwrap_or_else(|| (Default::default(), Instant::now()));
        let fault = watch.fault_since(since, &[&subjects[0], &subjects[1]]).await;
        if matches!(fault, Unanswered::Denied(_)) {
            // The next receive tries again.
            self.session.lock().await.take();
            self.shared.lock().pulls.forget();
        }
        fault.of(&format!("receive from `{}`", self.shared.source.stream))
    }

    /// Returns no messages, unless there is a reason why none can be told apart or come.
    fn none(&self) -> Result<Vec<Delivery>, QueueError> {
        let uncounted = {
            let mut state = self.shared.lock();
            let error = state.uncounted.take();
            error.filter(|_| state.hand.has_uncounted())
        };
        match uncounted.or_else(|| self.forwarder.fault(Instant::now())) {
            Some(error) => Err(error),
            None => Ok(Vec::new()),
        }
    }

    /// Receives what the server has now.
    async fn receive_now(&self, max: usize, lease: Duration) -> Result<Vec<Delivery>, QueueError> {
        self.forwarder.catch_up().await?;
        let mut watch = self.shared.service.line.watch();
        loop {
            self.sort().await?;
            let taken = self.take(max, lease).await;
            if !taken.is_empty() {
                return Ok(taken);
            }
            if self.shared.is_asking() {
                // The server has nothing for the request that is open.
                self.prove().await?;
                break;
            }
            if !self.ask(max, Duration::ZERO).await? {
                self.prove().await?;
                return self.none();
            }
            if !self.answered(&mut watch).await? {
                break;
            }
        }
        self.sort().await?;
        let taken = self.take(max, lease).await;
        if taken.is_empty() { self.none() } else { Ok(taken) }
    }

    /// Waits for the answer to a request for what the server has. Returns `true` if the server may have more: it sent as many as
    /// were asked for.
    async fn answered(&self, watch: &mut Watch) -> Result<bool, QueueError> {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let Some(overdue) = self.shared.overdue_at() else {
                self.fault().await?;
                return Ok(self.shared.lock().pulls.is_full());
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(overdue) => {
                    self.give_up().await?;
                    return Ok(false);
                }
                error = self.trouble(watch) => return Err(error),
            }
        }
    }

    /// Waits for messages until `deadline`.
    async fn wait(&self, request: Receive, deadline: Instant) -> Result<Vec<Delivery>, QueueError> {
        let mut watch = self.shared.service.line.watch();
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.sort().await?;
            let taken = self.take(request.max, request.lease).await;
            if !taken.is_empty() {
                return Ok(taken);
            }
            self.fault().await?;
            let (now, overdue) = (Instant::now(), self.shared.overdue_at());
            let (is_open, look) = (overdue.is_some(), self.shared.lock().hand.next_look());
            if now >= deadline && (!is_open || now >= deadline + LATE) {
                // The server has answered that nothing came in time, unless it was not asked, or an earlier request is open.
                if is_open || self.holds_enough() {
                    self.prove().await?;
                }
                return self.none();
            }
            if overdue.is_some_and(|overdue| overdue <= now) {
                self.give_up().await?;
                continue;
            }
            if !is_open {
                self.ask(request.max, (deadline - now).clamp(SHORTEST, LONGEST)).await?;
            }
            let next = [Some(deadline + LATE), self.shared.overdue_at(), look].into_iter().flatten().min();
            tokio::select! {
                () = changed => {}
                () = sleep_until(next.unwrap_or(deadline)) => {}
                error = self.trouble(&mut watch) => return Err(error),
            }
        }
    }
}

/// Returns the number of the first message under the subject of a message's group, and if the message itself is stored.
async fn first_of_group(line: &Line, stream: &str, key: Key, subject: &str) -> Result<(Option<u64>, bool), QueueError> {
    let first = match api::next(line, stream, subject).await {
        Ok(Some(first)) => Some(first),
        // A server that has not yet heard of the message answered, or the message has a status. The leader knows.
        Ok(None) | Err(_) => api::first(line, stream, subject).await?,
    };
    let is_stored = match first {
        Some(first) if first <= key.sequence => first == key.sequence,
        _ => api::has(line, stream, key.sequence).await?,
    };
    Ok((first, is_stored))
}

#[async_trait]
impl Queue for NatsQueue {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn is_ordered(&self) -> bool {
        self.shared.source.ordered
    }

    fn origin(&self) -> Origin {
        self.shared.service.origin(&self.shared.source.channel)
    }

    async fn receive(&self, request: Receive, stop: &CancellationToken) -> Result<Vec<Delivery>, QueueError> {
        if stop.is_cancelled() {
            return Ok(Vec::new());
        }
        let deadline = Instant::now() + request.wait.min(LIMITS.max_wait);
        let Receive { wait, lease, .. } = request;
        let max = request.max.clamp(1, LIMITS.receive_batch);
        let _receiving = self.shared.receiving();
        let receive = async {
            self.shared.service.line.up(deadline).await?;
            self.forwarder.start();
            if wait.is_zero() {
                self.receive_now(max, lease).await
            } else {
                self.wait(Receive { max, wait, lease }, deadline).await
            }
        };
        tokio::select! {
            biased;
            // A message is leased in the step that returns it, so a stop drops none.
            received = receive => return received,
            () = stop.cancelled() => {}
        }
        self.close().await;
        // What is not decided on in time goes back.
        if timeout(LAST, self.sort()).await.is_err() {
            return Ok(Vec::new());
        }
        Ok(timeout(LAST, self.take(max, lease)).await.unwrap_or_default())
    }

    async fn extend(&self, leases: &[LeaseHandle], by: Duration) -> Vec<Result<(), LeaseError>> {
        self.shared.extend_all(leases, by).await
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Vec<Result<(), Unsettled>> {
        self.shared.settle_all(batch).await
    }

    async fn rest(&self) {
        self.forwarder.stop().await;
        self.close().await;
        let waiting = self.shared.change(Hand::give_back);
        self.shared.give_back(waiting).await;
    }

    async fn taken_back(&self) -> Vec<LeaseHandle> {
        self.shared.taken_back().await
    }
}
