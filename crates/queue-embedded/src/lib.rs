//! Embedded queue driver: stores all queues in one SQLite file that several processes may share.

mod clock;
mod commit;
mod companions;
mod depth;
mod file;
mod lease;
mod look;
mod owned;
mod provision;
mod queue;
mod records;
mod registration;
mod rows;
mod schedules;
mod schema;
mod send;
mod stranded;
mod topology;
mod waiting;
mod writer;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use file::Opened;
use hostler_queue::{
    Admin, Advance, Advanced, Agreement, Broker, Change, ChannelSpec, DEDUPE_WINDOW, Depth, Finding, Origin,
    Provisioner, Queue, QueueError, Records, Schedules, SendError, Sent, no_queue,
};
use hostler_types::ScheduleState;
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, MAX_ATTRIBUTES, Message, Outgoing};
use lease::Source;
use queue::EmbeddedQueue;
use records::EmbeddedRecords;
use registration::Registration;
use topology::Target;
use writer::{Need, Writer, close_all};

pub use clock::{Clock, SystemClock};
pub use owned::{
    Batch, Counts, Cursor, Load, Moved, NewMessage, OwnedQueues, Page, Place, Step, Stored, Turn, Turned, Wanted,
};

/// Maximum size of a message in bytes, with its attributes: 16 MiB (limit of this driver).
pub const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// Options of an embedded queue file.
#[derive(Debug, Clone)]
pub struct Options {
    /// Period after a message is sent in which another message with the same deduplication key counts as a duplicate.
    /// The default is 5 minutes. Tests may set a shorter period.
    pub dedupe_window: Duration,
    /// Clocks that the driver reads.
    pub clock: Arc<dyn Clock>,
    /// Kind of worker that runs the driver's operations.
    pub worker: Worker,
    /// Processes that may have the file open at the same time.
    pub sharing: Sharing,
}

/// Processes that may have a queue's file open at the same time as this one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Any processes of this machine. The file must be on a local disk.
    #[default]
    Processes,
    /// None. The file may be on a network file system.
    None,
}

impl Sharing {
    /// Returns the sharing that the file system at `path` allows: on a network file system, SQLite cannot share a file
    /// between processes. One in user space (FUSE) counts as a network file system, because it may be one.
    pub fn at(path: &Path) -> Self {
        // Magic numbers of statfs(2): NFS, SMB, SMB 2, CIFS, Ceph, AFS, 9P, Lustre, GPFS, FUSE.
        const NETWORK: [u64; 10] = [
            0x6969,
            0x517b,
            0xfe53_4d42,
            0xff53_4d42,
            0x00c3_6400,
            0x5346_414f,
            0x0102_1997,
            0x0bd0_0bd0,
            0x4750_4653,
            0x6573_5546,
        ];
        let is_network = |found: rustix::fs::StatFs| NETWORK.contains(&(found.f_type as u64 & 0xffff_ffff));
        if rustix::fs::statfs(path).is_ok_and(is_network) { Self::None } else { Self::Processes }
    }
}

/// Kind of worker that runs the driver's operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Worker {
    /// A separate thread. File access therefore never blocks a caller.
    #[default]
    Thread,
    /// A task on the caller's runtime. The task waits by tokio's clock, so tests can run in virtual time. If another
    /// process has locked the file, operations fail at once instead of waiting.
    Task {
        /// Interval at which a waiting receive call checks for messages from other processes.
        poll: Duration,
    },
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dedupe_window: DEDUPE_WINDOW,
            clock: Arc::new(SystemClock),
            worker: Worker::Thread,
            sharing: Sharing::default(),
        }
    }
}

/// Closes all files that worker threads of this process have open, so that the messages in a `-wal` file are written into
/// the queue's file. Waits for this, but not longer than `patience`. All queues return errors from then on. A process calls
/// this before it ends.
pub fn close(patience: Duration) {
    close_all(patience);
}

/// All queues of one file. The worker ends when the broker, and all queues that were opened from it, are dropped.
#[derive(Debug)]
pub struct EmbeddedBroker {
    writer: Writer,
    options: Options,
}

impl EmbeddedBroker {
    /// Opens the file. Creates a missing file with access for the current user only. Waits up to 5 seconds while
    /// another process has locked the file.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the file cannot be read and written, or is not a hostler queue of this version.
    /// [`QueueError::Unavailable`] if the file stays locked.
    pub fn open(path: &Path) -> Result<Self, QueueError> {
        Self::open_with(path, Options::default())
    }

    /// Opens the file like [`EmbeddedBroker::open`], with the given options.
    ///
    /// # Errors
    /// Same as [`EmbeddedBroker::open`].
    pub fn open_with(path: &Path, options: Options) -> Result<Self, QueueError> {
        Self::over(file::open(path, Arc::clone(&options.clock), options.worker, options.sharing)?, options)
    }

    /// Opens the file read-only. If the file is missing, opens an empty queue instead of creating the file.
    ///
    /// # Errors
    /// Same as [`EmbeddedBroker::open`].
    pub fn open_to_look(path: &Path) -> Result<Self, QueueError> {
        let options = Options::default();
        Self::over(file::open_to_look(path, Arc::clone(&options.clock))?, options)
    }

    /// Finishes the work, and closes the file. Returns once it is closed, so that it can be moved or removed. Queues that were
    /// opened from this broker return errors from then on.
    pub async fn close(self) {
        self.writer.close().await;
    }

    fn over(file: Opened, options: Options) -> Result<Self, QueueError> {
        let writer = Writer::start(file, options.worker)
            .map_err(|error| QueueError::Unavailable(format!("cannot start the queue's thread: {error}")))?;
        Ok(Self { writer, options })
    }
}

#[async_trait]
impl Broker for EmbeddedBroker {
    async fn open(&self, spec: &ChannelSpec) -> Result<Arc<dyn Queue>, QueueError> {
        let wanted = spec.clone();
        let queues = self.writer.call(Need::Write, move |db| topology::establish(db, &wanted)).await?;
        let registration = |target: Target, name| Registration { id: target.id, name };
        let dead_letter_queue = queues.dead_letters.map(|it| registration(it, spec.channel.dead_letter_queue()));
        let own = registration(queues.queue, spec.channel.queue().to_owned());
        let source = Source {
            queue: queues.queue.id,
            name: spec.channel.to_string(),
            dead_letter_name: spec.channel.dead_letter_queue(),
            ordered: spec.ordered,
            dead_letter: queues.dead_letters.map(|target| target.id).zip(spec.max_receives),
            registrations: std::iter::once(own).chain(dead_letter_queue).collect(),
        };
        Ok(Arc::new(EmbeddedQueue::new(self.writer.clone(), source, self.options.dedupe_window)))
    }

    async fn send(&self, channel: &Channel, batch: Vec<Outgoing>) -> Vec<Result<Sent, SendError>> {
        let checked: Vec<_> = batch.iter().map(|message| message.validate(MAX_MESSAGE)).collect();
        let valid = batch.into_iter().zip(&checked).filter_map(|(message, check)| check.is_ok().then_some(message));
        let carrying = |mut message: Outgoing| {
            message.carry_trace(MAX_ATTRIBUTES);
            message
        };
        let valid: Vec<Outgoing> = valid.map(carrying).collect();
        let (channel, window) = (channel.clone(), self.options.dedupe_window);
        let sent = self.writer.call(Need::Durable, move |db| send::send(db, &channel, &valid, window)).await;
        let mut sent = sent.map(Vec::into_iter);
        checked
            .into_iter()
            .map(|check| {
                check?;
                let next = sent.as_mut().map_err(|error| error.clone())?.next();
                Ok(next.ok_or_else(writer::ended)?)
            })
            .collect()
    }

    fn schedules(&self) -> Result<&dyn Schedules, QueueError> {
        Ok(self)
    }

    fn records(&self) -> Result<Arc<dyn Records>, QueueError> {
        Ok(Arc::new(EmbeddedRecords::new(self.writer.clone())))
    }

    fn check(&self, _: &Channel, message: &Outgoing) -> Result<(), Invalid> {
        message.validate(MAX_MESSAGE)
    }

    fn origin(&self, _: &Channel) -> Origin {
        Origin::default()
    }
}

#[async_trait]
impl Schedules for EmbeddedBroker {
    fn agreement(&self) -> Agreement {
        Agreement::Transaction
    }

    async fn prepare(&self) -> Result<(), QueueError> {
        self.writer.call(Need::Write, |db| schema::create_schedules(db)).await
    }

    async fn look(&self, names: &[String]) -> Result<Vec<Option<ScheduleState>>, QueueError> {
        let names = names.to_vec();
        self.writer.call(Need::Read, move |db| schedules::look(db, &names)).await
    }

    async fn advance(&self, mut step: Advance) -> Result<Advanced, SendError> {
        for (_, message) in &mut step.messages {
            message.validate(MAX_MESSAGE)?;
            message.carry_trace(MAX_ATTRIBUTES);
        }
        let window = self.options.dedupe_window;
        let batch: Vec<Outgoing> = step.messages.drain(..).map(|(_, message)| message).collect();
        Ok(self.writer.call(Need::Durable, move |db| schedules::advance(db, &step, &batch, window)).await?)
    }
}

#[async_trait]
impl Admin for EmbeddedBroker {
    async fn channels(&self) -> Result<Vec<Channel>, QueueError> {
        let names = self.writer.call(Need::Read, |db| topology::channels(db)).await?;
        // Leaves out queues whose names are not valid channel names.
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    async fn each_depth(&self, channels: &[Channel]) -> Result<Vec<Result<Depth, QueueError>>, QueueError> {
        let channels = channels.to_vec();
        let depths = self.writer.call(Need::Read, move |db| depth::depths(db, &channels)).await?;
        Ok(depths.into_iter().map(Ok).collect())
    }

    async fn destinations(&self) -> Result<Option<Vec<Channel>>, QueueError> {
        let names = self.writer.call(Need::Read, |db| topology::destinations(db)).await?;
        Ok(Some(names.iter().filter_map(|name| name.parse().ok()).collect()))
    }

    async fn open_stored(&self, channel: &Channel) -> Result<Arc<dyn Queue>, QueueError> {
        let found = self.find(channel).await?;
        let source = Source {
            queue: found.id,
            name: channel.to_string(),
            dead_letter_name: channel.dead_letter_queue(),
            ordered: found.ordered,
            dead_letter: None,
            registrations: vec![Registration { id: found.id, name: channel.queue().to_owned() }],
        };
        Ok(Arc::new(EmbeddedQueue::new(self.writer.clone(), source, self.options.dedupe_window)))
    }

    async fn peek(
        &self,
        channel: &Channel,
        each: &mut (dyn for<'m> FnMut(&'m Message) -> ControlFlow<()> + Send),
    ) -> Result<bool, QueueError> {
        let queue = self.find(channel).await?.id;
        let mut after: look::Place = (i64::MIN, 0);
        loop {
            let page = self.writer.call(Need::Read, move |db| look::page(db, queue, after)).await?;
            let Some((last, _)) = page.last() else { return Ok(true) };
            after = *last;
            if page.iter().any(|(_, message)| each(message).is_break()) {
                return Ok(true);
            }
        }
    }
}

#[async_trait]
impl Provisioner for EmbeddedBroker {
    async fn declare(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        let wanted = spec.clone();
        self.writer.call(Need::Write, move |db| topology::declare(db, &wanted).map(drop)).await
    }

    async fn plan(&self, wanted: &[ChannelSpec]) -> Result<Vec<Change>, QueueError> {
        let wanted = wanted.to_vec();
        self.writer.call(Need::Read, move |db| provision::plan(db, &wanted)).await
    }

    async fn provision(
        &self,
        wanted: &[ChannelSpec],
        done: &mut (dyn for<'c> FnMut(&'c Change) + Send),
    ) -> Result<(), QueueError> {
        let wanted = wanted.to_vec();
        let changes = self.writer.call(Need::Durable, move |db| provision::apply(db, &wanted)).await?;
        changes.iter().for_each(done);
        Ok(())
    }

    async fn inspect(&self, spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
        let spec = spec.clone();
        self.writer.call(Need::Read, move |db| provision::inspect(db, &spec)).await
    }
}

impl EmbeddedBroker {
    async fn find(&self, channel: &Channel) -> Result<Target, QueueError> {
        let name = channel.queue().to_owned();
        let found = self.writer.call(Need::Read, move |db| topology::find(db, &name)).await?;
        found.ok_or_else(|| no_queue(channel))
    }
}
