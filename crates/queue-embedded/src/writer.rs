//! The worker that owns the file. Runs all pending writes in one transaction, and answers waiting receive calls.

mod checks;
mod flushes;
mod threads;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rusqlite::{Transaction, TransactionBehavior};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};

use super::Worker;
use super::clock::{Job, QueueTime, Session};
use super::file::Opened;
use super::registration::Registration;
use super::stranded::Stranded;
use super::waiting::{Take, Waiting, give_back};
use checks::CHECK;
use flushes::Flushes;
use hostler_queue::{Delivery, QueueError};
pub(super) use threads::close_all;

/// Interval at which a worker thread checks whether another process has written messages. Applies only while receive
/// calls wait.
const POLL: Duration = Duration::from_millis(15);

/// File access that a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// The command only reads.
    Read,
    /// The command writes. A power failure may undo the write.
    Write,
    /// The command writes. The command is answered only after its data is on the disk.
    Durable,
}

/// A job whose caller waits for an answer.
trait Command: Job {
    fn answer(self: Box<Self>, outcome: Result<(), QueueError>);
}

struct Call<T, W> {
    work: W,
    answer: Option<T>,
    reply: oneshot::Sender<Result<T, QueueError>>,
}

impl<T: Send, W: FnMut(&Session<'_>) -> rusqlite::Result<T> + Send> Job for Call<T, W> {
    fn run(&mut self, db: &Session<'_>) -> rusqlite::Result<()> {
        self.answer = Some((self.work)(db)?);
        Ok(())
    }
}

impl<T: Send, W: FnMut(&Session<'_>) -> rusqlite::Result<T> + Send> Command for Call<T, W> {
    fn answer(self: Box<Self>, outcome: Result<(), QueueError>) {
        let Self { answer, reply, .. } = *self;
        // If the caller no longer waits, its work remains done.
        let _ = reply.send(outcome.and_then(|()| answer.ok_or_else(ended)));
    }
}

enum Request {
    Call(Need, Box<dyn Command>),
    Receive(Waiting),
    /// Wakes the worker, because a receive call was stopped.
    Look,
    /// Ends the worker once it has finished its work, even if handles are left.
    Close,
}

/// Handle to the worker. The worker ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    orders: Orders,
    time: QueueTime,
    /// Closed once the worker has closed the file.
    end: watch::Receiver<()>,
}

#[derive(Debug, Clone)]
enum Orders {
    Thread(Arc<mpsc::Sender<Request>>),
    Task(UnboundedSender<Request>),
}

impl Writer {
    /// Starts a worker that owns the file.
    pub(super) fn start(file: Opened, worker: Worker) -> std::io::Result<Self> {
        let time = file.time.clone();
        let core = Core {
            file,
            waiting: Vec::new(),
            durable: None,
            seen: 0,
            changes: 0,
            registered: HashSet::new(),
            flushes: Flushes::default(),
            next_check: Duration::ZERO,
            stranded: Stranded::default(),
            poll: if let Worker::Task { poll } = worker { poll } else { POLL },
            is_closing: false,
        };
        let (alive, end) = watch::channel(());
        let orders = match worker {
            Worker::Thread => {
                let (orders, inbox) = mpsc::channel();
                let orders = Arc::new(orders);
                let ended = threads::remember(&orders);
                let thread = Thread { core, inbox };
                thread::Builder::new().name("hostler-queue".to_owned()).spawn(move || {
                    thread.run();
                    drop((ended, alive));
                })?;
                Orders::Thread(orders)
            }
            Worker::Task { .. } => {
                let (orders, inbox) = unbounded_channel();
                tokio::spawn(async move {
                    run_task(core, inbox).await;
                    drop(alive);
                });
                Orders::Task(orders)
            }
        };
        Ok(Self { orders, time, end })
    }

    /// Finishes the work, and closes the file. A worker on a thread ends even if other handles are left.
    pub(super) async fn close(self) {
        let Self { orders, mut end, .. } = self;
        if let Orders::Thread(orders) = &orders {
            // If the worker has ended, the file is closed.
            let _ = orders.send(Request::Close);
        }
        drop(orders);
        while end.changed().await.is_ok() {}
    }

    /// Returns the monotonic time.
    pub(super) fn monotonic(&self) -> Duration {
        self.time.monotonic()
    }

    /// Returns the time of the queue's clock in milliseconds.
    pub(super) fn now(&self) -> i64 {
        self.time.now()
    }

    /// Runs `work` on the worker. Writes share a transaction with other pending writes.
    pub(super) async fn call<T, W>(&self, need: Need, work: W) -> Result<T, QueueError>
    where
        T: Send + 'static,
        W: FnMut(&Session<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.order(Request::Call(need, Box::new(Call { work, answer: None, reply })));
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Passes a receive call to the worker. The worker answers when a message is visible, or when the call ends without
    /// messages.
    pub(super) fn receive(&self, waiting: Waiting) {
        self.order(Request::Receive(waiting));
    }

    /// Wakes the worker to check the waiting receive calls now.
    pub(super) fn look(&self) {
        self.order(Request::Look);
    }

    /// Makes the messages of a dropped receive call visible again. If this fails, the messages become visible when
    /// their leases end.
    pub(super) fn give_back(&self, queue: i64, taken: Vec<Delivery>) {
        let (reply, _) = oneshot::channel();
        let call = Call { work: give_back(queue, &taken), answer: None, reply };
        self.order(Request::Call(Need::Write, Box::new(call)));
    }

    fn order(&self, order: Request) {
        // If the worker has ended, the request is dropped with its reply channel. The caller then receives an error.
        match &self.orders {
            Orders::Thread(orders) => drop(orders.send(order)),
            Orders::Task(orders) => drop(orders.send(order)),
        }
    }
}

/// Returns the error for a request to a worker that has ended. A worker ends early only because of a bug.
pub(super) fn ended() -> QueueError {
    QueueError::Unavailable("the embedded queue's thread has ended".to_owned())
}

/// The file and the pending work.
struct Core {
    file: Opened,
    waiting: Vec<Waiting>,
    /// Current setting of `PRAGMA synchronous`: `true` for FULL, `false` for NORMAL. `None`: the setting is unknown.
    durable: Option<bool>,
    /// Last value of `PRAGMA data_version`. The value changes when another connection commits.
    seen: i64,
    /// Number of changes of the file that this worker made or noticed.
    changes: u64,
    /// Rows of the table of queues that are unchanged since another connection last changed the file.
    registered: HashSet<Registration>,
    flushes: Flushes,
    /// Time of the next check of the file, by the monotonic clock.
    next_check: Duration,
    stranded: Stranded,
    /// Interval at which a waiting receive call checks for messages from other processes.
    poll: Duration,
    /// Set if the worker must end once no command waits for a flush.
    is_closing: bool,
}

/// Worker on a separate thread, which may block.
struct Thread {
    core: Core,
    inbox: mpsc::Receiver<Request>,
}

impl Thread {
    // Never inlined, because profiles and `benches/instructions.sh` identify the thread by the name of this function.
    #[inline(never)]
    fn run(mut self) {
        while let Some(orders) = self.next_orders() {
            self.core.turn(orders);
            if self.core.is_closing && self.core.flushes.held.is_empty() {
                return;
            }
        }
    }

    /// Waits for requests, but not longer than the receive calls and flushes allow. Returns the pending requests.
    /// `None`: all senders are dropped, and no command waits for a flush.
    fn next_orders(&self) -> Option<Vec<Request>> {
        let first = match self.inbox.recv_timeout(self.core.patience().unwrap_or(CHECK)) {
            Ok(order) => Some(order),
            Err(RecvTimeoutError::Timeout) => None,
            // All senders are dropped, but the commands that wait for a flush must still be carried out.
            Err(RecvTimeoutError::Disconnected) if !self.core.flushes.held.is_empty() => None,
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        Some(first.into_iter().chain(self.inbox.try_iter()).collect())
    }
}

/// Runs the worker on the caller's runtime, with the runtime's clock.
async fn run_task(mut core: Core, mut inbox: UnboundedReceiver<Request>) {
    loop {
        let first = match core.patience() {
            None => inbox.recv().await.map(Some),
            Some(patience) => match tokio::time::timeout(patience, inbox.recv()).await {
                Ok(None) if core.flushes.held.is_empty() => None,
                Ok(order) => Some(order),
                Err(_) => Some(None),
            },
        };
        let Some(first) = first else { return };
        let rest = std::iter::from_fn(|| inbox.try_recv().ok());
        core.turn(first.into_iter().chain(rest).collect());
    }
}

impl Core {
    /// Returns the maximum time to wait for the next request. `None`: no limit.
    fn patience(&self) -> Option<Duration> {
        let receives = self.waiting.iter().map(|waiting| waiting.patience(&self.file.time).min(self.poll)).min();
        receives.into_iter().chain(self.flushes.patience(self.file.time.monotonic())).min()
    }

    /// Carries out the requests, and answers the receive calls that can be answered. `orders` is empty after a timeout.
    fn turn(&mut self, orders: Vec<Request>) {
        let mut changed = false;
        let mut writes = VecDeque::new();
        let idle = orders.is_empty();
        for order in orders {
            match order {
                Request::Call(Need::Read, mut command) => {
                    let read = |()| command.run(&self.session()).map_err(|error| self.file.fault(&error));
                    let outcome = self.file.still_there().and_then(read);
                    command.answer(outcome);
                }
                Request::Call(Need::Write, command) => writes.push_back(command),
                Request::Call(Need::Durable, command) => self.flushes.held.push_back(command),
                Request::Receive(waiting) => self.waiting.push(waiting),
                Request::Look => {}
                Request::Close => self.is_closing = true,
            }
        }
        let durable = self.flushes.are_due(idle, self.file.time.monotonic());
        if durable {
            writes.append(&mut self.flushes.held);
        }
        if !writes.is_empty() {
            changed = true;
            let started = self.file.time.monotonic();
            let lost = if durable { self.file.still_there().err() } else { None };
            let outcomes = match lost {
                Some(error) => vec![Err(error); writes.len()],
                None => self.transact(durable, writes.make_contiguous()),
            };
            for outcome in outcomes {
                if let Some(command) = writes.pop_front() {
                    command.answer(outcome);
                }
            }
            if durable {
                self.flushes.flushed(started, self.file.time.monotonic());
            }
        }
        changed |= !self.waiting.is_empty() && self.others_wrote();
        // Without receives, the check still saves the messages of a `-wal` that was removed.
        match self.check() {
            Ok(has_freed) => changed |= has_freed,
            Err(error) => self.waiting.drain(..).for_each(|waiting| waiting.answer(Err(error.clone()))),
        }
        if self.waiting.is_empty() {
            return;
        }
        // If messages were moved to a dead-letter queue, a receive call on that queue may be answered too.
        while self.serve(changed) {
            changed = true;
        }
    }

    fn session(&self) -> Session<'_> {
        Session { db: &self.file.db, time: &self.file.time }
    }

    /// Returns `true` if other connections changed the file since the last call.
    fn others_wrote(&mut self) -> bool {
        let version = self
            .file
            .db
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut pragma| pragma.query_row([], |row| row.get(0)))
            // If the query fails, assumes that the file has changed. The receive calls then read the file and report
            // the error.
            .unwrap_or(self.seen.wrapping_add(1));
        let has_changed = std::mem::replace(&mut self.seen, version) != version;
        if has_changed {
            self.changes += 1;
            self.registered.clear();
        }
        has_changed
    }

    /// Answers the receive calls that can be answered. Returns `true` if messages were moved to a dead-letter queue.
    fn serve(&mut self, changed: bool) -> bool {
        let mut takes = Vec::new();
        for mut waiting in std::mem::take(&mut self.waiting) {
            let mut looked = waiting.look(&self.session(), changed);
            if looked.as_ref().is_err_and(|error| self.file.restore_indexes(error)) {
                looked = waiting.look(&self.session(), true);
            }
            match looked {
                Ok(true) => takes.push(Take::new(waiting)),
                Ok(false) if waiting.is_over(&self.file.time) => waiting.answer(Ok(Vec::new())),
                Ok(false) => self.waiting.push(waiting),
                Err(error) => waiting.answer(Err(self.file.fault(&error))),
            }
        }
        if takes.is_empty() {
            return false;
        }
        let outcomes = self.transact(false, &mut takes);
        let buried = takes.iter().any(Take::has_buried);
        for (take, outcome) in takes.into_iter().zip(outcomes) {
            match take.end(outcome, &self.file.time) {
                Ok(None) => {}
                Ok(Some(waiting)) => self.waiting.push(waiting),
                // If this fails, the messages become visible when their leases end.
                Err(unclaimed) => drop(self.transact(false, &mut [unclaimed])),
            }
        }
        buried
    }

    /// Runs the jobs in one transaction. If an index is missing, creates it and runs the jobs again. If a job fails, runs
    /// each job again in a separate transaction, so that the failed job does not undo the other jobs.
    fn transact<J: Job>(&mut self, durable: bool, jobs: &mut [J]) -> Vec<Result<(), QueueError>> {
        let mut committed = self.commit(durable, jobs);
        if committed.as_ref().is_err_and(|error| self.file.restore_indexes(error.cause())) {
            committed = self.commit(durable, jobs);
        }
        match committed {
            Ok(()) => jobs.iter().map(|_| Ok(())).collect(),
            Err(CommitError::Job(_)) if jobs.len() > 1 => jobs
                .iter_mut()
                .map(|job| self.commit(durable, std::slice::from_mut(job)).map_err(|error| error.fault(self)))
                .collect(),
            Err(error) => {
                let fault = error.fault(self);
                jobs.iter().map(|_| Err(fault.clone())).collect()
            }
        }
    }

    fn commit<J: Job>(&mut self, durable: bool, jobs: &mut [J]) -> Result<(), CommitError> {
        if self.durable != Some(durable) {
            self.durable = None;
            let level = if durable { "FULL" } else { "NORMAL" };
            self.file.db.pragma_update(None, "synchronous", level).map_err(CommitError::Begin)?;
            self.durable = Some(durable);
        }
        let tx =
            Transaction::new_unchecked(&self.file.db, TransactionBehavior::Immediate).map_err(CommitError::Begin)?;
        for job in jobs {
            job.run(&Session { db: &tx, time: &self.file.time }).map_err(CommitError::Job)?;
        }
        tx.commit().map_err(CommitError::Job)?;
        self.changes += 1;
        Ok(())
    }
}

enum CommitError {
    /// The transaction could not start.
    Begin(rusqlite::Error),
    Job(rusqlite::Error),
}

impl CommitError {
    fn cause(&self) -> &rusqlite::Error {
        let (Self::Begin(error) | Self::Job(error)) = self;
        error
    }

    fn fault(&self, core: &Core) -> QueueError {
        core.file.fault(self.cause())
    }
}

impl Job for Box<dyn Command> {
    fn run(&mut self, db: &Session<'_>) -> rusqlite::Result<()> {
        (**self).run(db)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sharing, SystemClock, file};
    use std::sync::Arc;

    /// Checks the setting of SQLite, because a test cannot cut the power. FULL (2) flushes each commit to the disk.
    /// NORMAL (1) does not.
    #[tokio::test]
    async fn only_durable_calls_flush() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue.db");
        let opened = file::open(&path, Arc::new(SystemClock), Worker::Thread, Sharing::Processes).unwrap();
        let writer = Writer::start(opened, Worker::Thread).unwrap();
        for (need, expected) in [(Need::Durable, 2), (Need::Write, 1), (Need::Durable, 2)] {
            let level: i64 =
                writer.call(need, |db| db.pragma_query_value(None, "synchronous", |row| row.get(0))).await.unwrap();
            assert_eq!(level, expected, "{need:?}");
        }
    }
}
