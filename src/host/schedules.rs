//! Sends the messages of schedules when they are due. The decisions are made in `hostler_schedules`.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use hostler_config::{Config, Schedule};
use hostler_queue::{Advance, Advanced, Agreement, Provisioner, QueueError, SendError, Sent};
use hostler_schedules::{LIFE_SIGN, Notice, Step, TAKE_OVER};
use hostler_types::{Backoff, ScheduleState, Timestamp};

/// Maximum time between two looks at the clock. A step of the clock delays a message by at most this time.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(5);

/// Waits after failures of the queue.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Waits after a step that came too late.
const CONTENTION: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(2));

/// Number of steps in a row that came too late after which the state counts as damaged.
const CONTENDED: u32 = 20;

/// Interval at which a lasting failure is logged.
const REMINDER: Duration = Duration::from_secs(5 * 60);

/// Maximum time after which a message is sent late, if each host sends and the queue drops the duplicates of 5 minutes.
const STATELESS_CATCH_UP: Duration = Duration::from_secs(4 * 60);

/// The task that sends the messages of schedules.
pub(super) struct Scheduling {
    stop: CancellationToken,
    /// `None`: there are no schedules.
    task: Option<JoinHandle<()>>,
}

impl Scheduling {
    /// Starts the task on the current runtime. `None`: there is nothing to do.
    pub(super) fn start(scheduler: Option<Scheduler>) -> Self {
        let stop = CancellationToken::new();
        let task = scheduler.map(|scheduler| tokio::spawn(scheduler.run(stop.clone())));
        Self { stop, task }
    }

    /// Waits until the task ends although it should not: it has panicked.
    pub(super) async fn failed(&mut self) {
        match &mut self.task {
            Some(task) => {
                if let Err(error) = task.await {
                    tracing::error!(%error, "the schedules failed: this is a bug in hostler, please report it");
                }
                self.task = None;
            }
            None => pending().await,
        }
    }

    /// Lets the task send nothing more. Another host sends what becomes due.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until the task has ended its last step, at most until `end`.
    pub(super) async fn ended(self, end: Instant) {
        self.stop.cancel();
        if let Some(task) = self.task {
            // A step that is not finished by then is repeated by another host.
            let _ = timeout_at(end, task).await;
        }
    }
}

/// Sends the messages of all schedules of a host.
pub(super) struct Scheduler {
    service: Arc<dyn Provisioner>,
    schedules: Vec<Schedule>,
    /// Schedules of which this host has seen or written a state with its own definition.
    known: BTreeSet<String>,
    /// Schedules that hosts with another definition send, each with the time since when.
    superseded: BTreeMap<String, Superseded>,
    /// Schedules whose last step failed, each with the time of the last log line about it. The empty name stands for reading the states.
    failing: BTreeMap<String, Timestamp>,
    /// Schedules whose last steps came too late, each with their number.
    contended: BTreeMap<String, u32>,
    /// Number of passes in a row with a failure.
    failures: u32,
}

/// A schedule that hosts with another definition send.
struct Superseded {
    since: Timestamp,
    is_warned_of: bool,
}

impl Scheduler {
    /// Prepares the store of the schedules. `None`: the config has no schedules.
    ///
    /// # Errors
    /// [`QueueError::Refused`]: the queue cannot keep schedules, or the store is missing and may not be created.
    pub(super) async fn prepare(
        service: Option<&Arc<dyn Provisioner>>,
        config: &Config,
    ) -> Result<Option<Self>, QueueError> {
        let (Some(service), false) = (service, config.schedules.is_empty()) else { return Ok(None) };
        let store = service.schedules()?;
        store.prepare().await?;
        for schedule in &config.schedules {
            if let Some(warning) = schedule.times.cron.warning() {
                tracing::warn!(schedule = schedule.times.name, cron = schedule.cron, "{warning}");
            }
        }
        let mut schedules = config.schedules.clone();
        if store.agreement() == Agreement::Stateless {
            for schedule in &mut schedules {
                schedule.times.catch_up = schedule.times.catch_up.min(STATELESS_CATCH_UP);
            }
        }
        Ok(Some(Self {
            service: Arc::clone(service),
            schedules,
            known: BTreeSet::new(),
            superseded: BTreeMap::new(),
            failing: BTreeMap::new(),
            contended: BTreeMap::new(),
            failures: 0,
        }))
    }

    /// Sends messages until `stop` is cancelled. Finishes the step that is under way then.
    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let next = self.pass(&stop).await;
            stop.run_until_cancelled(wait_until(next)).await;
        }
    }

    /// Takes at most one step of each schedule, so that none waits for the backlog of another. Returns the time of the next pass.
    async fn pass(&mut self, stop: &CancellationToken) -> Timestamp {
        let service = Arc::clone(&self.service);
        let mut next = Timestamp::now().plus(LIFE_SIGN);
        let mut has_failed = false;
        match self.states(&*service).await {
            Ok(states) => {
                for (schedule, state) in self.schedules.clone().iter().zip(states) {
                    if stop.is_cancelled() {
                        break;
                    }
                    let taken = match state {
                        Ok(state) => self.advance(&*service, schedule, state).await,
                        Err(error) => Err(error.into()),
                    };
                    match taken {
                        Ok(at) => {
                            next = next.min(at);
                            self.works_again(&schedule.times.name);
                        }
                        Err(error) => {
                            has_failed = true;
                            self.log_failure(&error, Some(schedule));
                        }
                    }
                }
            }
            Err(error) => {
                has_failed = true;
                self.log_failure(&error.into(), None);
            }
        }
        if has_failed {
            let wait = RETRY.rest(self.failures, fastrand::f64());
            self.failures = self.failures.saturating_add(1);
            return next.min(Timestamp::now().plus(wait));
        }
        self.failures = 0;
        next
    }

    /// Reads the states of all schedules. If that fails, reads each by itself, because one of them may be damaged.
    async fn states(
        &mut self,
        service: &dyn Provisioner,
    ) -> Result<Vec<Result<Option<ScheduleState>, QueueError>>, QueueError> {
        let store = service.schedules()?;
        let names: Vec<String> = self.schedules.iter().map(|schedule| schedule.times.name.clone()).collect();
        let error = match store.look(&names).await {
            Ok(states) => {
                self.works_again("");
                return Ok(states.into_iter().map(Ok).collect());
            }
            // Without a connection, each would fail.
            Err(error @ QueueError::Unavailable(_)) => return Err(error),
            Err(error) => error,
        };
        let mut states = Vec::new();
        for name in &names {
            states.push(store.look(std::slice::from_ref(name)).await.map(|mut states| states.pop().flatten()));
        }
        if states.iter().all(Result::is_err) { Err(error) } else { Ok(states) }
    }

    /// Takes the next step of a schedule. Returns the time of the next look.
    async fn advance(
        &mut self,
        service: &dyn Provisioner,
        schedule: &Schedule,
        state: Option<ScheduleState>,
    ) -> Result<Timestamp, SendError> {
        let (name, now) = (&schedule.times.name, Timestamp::now());
        let (to, due, notice) = match schedule.times.step(state.as_ref(), !self.known.contains(name), now) {
            Step::Wait(at) => {
                self.known.insert(name.clone());
                self.contended.remove(name);
                self.superseded.remove(name);
                return Ok(at);
            }
            Step::Superseded(at) => {
                self.leave_to_others(name, now);
                return Ok(at);
            }
            Step::Advance { to, due, notice } => (to, due, notice),
        };
        let messages = due.iter().map(|due| (*due, schedule.message(*due))).collect();
        let step = Advance { name: name.clone(), from: state, to, channel: schedule.channel.clone(), messages };
        let store = service.schedules()?;
        match store.advance(step).await? {
            Advanced::Done(sent) => {
                self.known.insert(name.clone());
                self.contended.remove(name);
                report(schedule, &due, &sent, notice.as_ref(), store.agreement());
                Ok(Timestamp::now())
            }
            Advanced::Changed => self.contend(name),
        }
    }

    /// Returns the time of the next look at a schedule whose state another host changed meanwhile. Fails if that happens again and again,
    /// because then the state is damaged: it is never found as it was read.
    fn contend(&mut self, name: &str) -> Result<Timestamp, SendError> {
        let times = self.contended.entry(name.to_owned()).or_default();
        *times += 1;
        if *times >= CONTENDED {
            let text = format!(
                "the state of the schedule `{name}` is never found as it was read: remove it, and the schedule begins anew"
            );
            return Err(QueueError::Refused(text).into());
        }
        Ok(Timestamp::now().plus(CONTENTION.rest(*times, fastrand::f64())))
    }

    /// Logs that hosts with another definition send, and warns if that lasts longer than a rollout.
    fn leave_to_others(&mut self, name: &str, now: Timestamp) {
        if let Some(superseded) = self.superseded.get_mut(name) {
            if !superseded.is_warned_of && now.since(superseded.since) > 2 * TAKE_OVER {
                superseded.is_warned_of = true;
                tracing::warn!(
                    schedule = name,
                    "hosts with another definition still send the schedule's messages: finish the rollout, or rename the schedule \
                     if another application uses the name"
                );
            }
            return;
        }
        self.superseded.insert(name.to_owned(), Superseded { since: now, is_warned_of: false });
        tracing::info!(schedule = name, "hosts with another definition of the schedule send its messages");
    }

    /// Logs a failure, and repeats it every [`REMINDER`]. `schedule`: `None` if no state can be read.
    fn log_failure(&mut self, error: &SendError, schedule: Option<&Schedule>) {
        let name = schedule.map_or("", |schedule| schedule.times.name.as_str());
        let now = Timestamp::now();
        if self.failing.get(name).is_some_and(|logged| now.since(*logged) < REMINDER) {
            return;
        }
        self.failing.insert(name.to_owned(), now);
        match schedule {
            Some(schedule) => tracing::error!(
                schedule = name,
                channel = %schedule.channel,
                %error,
                "the schedule cannot go on; hostler tries again"
            ),
            None => tracing::error!(%error, "the states of the schedules cannot be read; hostler tries again"),
        }
    }

    fn works_again(&mut self, name: &str) {
        if self.failing.remove(name).is_some() {
            match name {
                "" => tracing::info!("the states of the schedules can be read again"),
                name => tracing::info!(schedule = name, "the schedule works again"),
            }
        }
    }
}

/// Logs a step.
fn report(schedule: &Schedule, due: &[Timestamp], sent: &[Sent], notice: Option<&Notice>, agreement: Agreement) {
    let (name, channel) = (&schedule.times.name, schedule.channel.to_string());
    match notice {
        Some(Notice::Skipped(first)) => tracing::warn!(
            schedule = name,
            first = %first,
            missed = schedule.times.missed.word(),
            "due times were skipped, because no host could send then"
        ),
        Some(Notice::Ahead(handled)) => tracing::warn!(
            schedule = name,
            %handled,
            "the schedule was ahead of this host's clock by more than a day; it goes on from now"
        ),
        Some(Notice::TookOver) => {
            tracing::info!(
                schedule = name,
                "took the schedule over, because the hosts with another definition are gone"
            );
        }
        None => {}
    }
    for (due, Sent { id, queues }) in due.iter().zip(sent) {
        // Otherwise, another host may have sent it.
        if *queues == Some(0) && agreement == Agreement::Transaction {
            tracing::warn!(schedule = name, channel, %due, message_id = id, "no queue took the scheduled message");
        } else {
            tracing::info!(schedule = name, channel, %due, message_id = id, "scheduled message sent");
        }
    }
}

/// Waits until the wall clock shows a time. Notices steps of the clock.
async fn wait_until(time: Timestamp) {
    loop {
        let left = time.since(Timestamp::now());
        if left.is_zero() {
            return;
        }
        sleep(left.min(LOOK_AT_CLOCK)).await;
    }
}
