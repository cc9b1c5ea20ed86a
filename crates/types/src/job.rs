//! Requests of a handler to the job whose item it processes, kept until the item is acked.
//!
//! Nothing here reaches the job service at once. New items and seals are committed with the item's result, so an attempt
//! that fails leaves no trace, and a retry adds nothing twice.

mod json;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Maximum number of items that one attempt may add.
pub const MAX_ITEMS: usize = 10_000;

/// Maximum size in bytes of everything that one attempt may add: payloads, keys and targets.
pub const MAX_BUFFERED: usize = 16 * 1024 * 1024;

/// Maximum number of jobs that one attempt may seal: the jobs of the largest tree.
pub const MAX_SEALS: usize = 1_000;

/// Maximum size in bytes of an item's payload.
pub const MAX_PAYLOAD: usize = 1024 * 1024;

/// Maximum length in bytes of a key, of a target and of the text of a progress report.
pub const MAX_TEXT: usize = 200;

/// The job of an item, and the item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobInfo {
    /// Id of the job that the item belongs to.
    pub job_id: String,
    /// Id of the root of the job's tree. The root's own id if the job is the root.
    pub root_id: String,
    /// Type of the job.
    pub job_type: String,
    /// Id of the item.
    pub item_id: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
}

/// An item to add to a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewJobItem {
    /// JSON text, at most [`MAX_PAYLOAD`] bytes.
    pub payload: Bytes,
    /// A second item with this key in the same job is not added.
    pub dedupe_key: Option<String>,
    /// Items with the same key are processed one at a time, in the order in which they were added.
    pub serialize_key: Option<String>,
    /// Items with a lower number are processed first. The usual number is 0.
    pub priority: i16,
}

/// The progress of an item, as its handler last reported it.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Share of the work that is done, from 0 to 1.
    pub fraction: f64,
    /// A note for people, at most [`MAX_TEXT`] bytes. May be empty.
    pub text: String,
}

/// The reason why a handler's request was not accepted. Nothing of the request was kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The handler does not process an item of a job. The same handler in a consumer with `job` may make the request.
    #[error("the message is not an item of a job: name the job's type as `job` of the consumer, in place of `channel`")]
    NoJob,
    /// The request breaks a rule, and always will: the handler must make another.
    #[error("{0}")]
    Invalid(String),
    /// The attempt has asked for as much as one attempt may. The handler should return, and leave the rest to the items that
    /// it has added.
    #[error("{0}")]
    Full(String),
    /// The item is already being settled, so nothing more can be committed with its result.
    #[error("the item is already settled")]
    Settled,
}

/// Operations of a handler on the job whose item it processes. No function waits.
pub trait JobContext: Debug + Send + Sync {
    /// Returns the job and the item.
    fn info(&self) -> &JobInfo;

    /// Adds items to a job when the item is acked. Keeps all of them or none. `target`: id of a job in the same tree, or the
    /// type of a child of the current job.
    ///
    /// # Errors
    /// [`JobError::Invalid`] names the first item that breaks a rule. [`JobError::Full`]: beyond [`MAX_ITEMS`] or
    /// [`MAX_BUFFERED`].
    fn add_items(&self, target: &str, items: Vec<NewJobItem>) -> Result<(), JobError>;

    /// Seals a job when the item is acked, after the items are added: no more can be added to it. `job`: as `target` of
    /// [`Self::add_items`].
    ///
    /// # Errors
    /// [`JobError::Invalid`]: no job can have this id or type. [`JobError::Full`]: beyond [`MAX_SEALS`].
    fn seal(&self, job: &str) -> Result<(), JobError>;

    /// Reports the progress of the item. The latest report replaces the others. It is shown at once or a little later,
    /// whether or not the attempt succeeds.
    ///
    /// # Errors
    /// [`JobError::Invalid`]: the fraction is not from 0 to 1, or the text is too long.
    fn progress(&self, fraction: f64, text: &str) -> Result<(), JobError>;
}

/// Items and seals to commit with the result of an item.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buffered {
    /// The items of each call, with their target, in the order of the calls. Calls with the same target that follow one
    /// another are one entry.
    pub items: Vec<(String, Vec<NewJobItem>)>,
    /// The jobs to seal after the items are added, each once.
    pub seals: BTreeSet<String>,
}

impl Buffered {
    /// Returns `true` if there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.seals.is_empty()
    }
}

/// The requests of one attempt, kept in memory until the queue takes them.
#[derive(Debug)]
pub struct BufferedJob {
    info: JobInfo,
    state: Mutex<Requests>,
}

#[derive(Debug, Default)]
struct Requests {
    buffered: Buffered,
    items: usize,
    bytes: usize,
    progress: Option<Progress>,
    is_taken: bool,
}

impl BufferedJob {
    /// Creates an empty buffer for one attempt.
    pub fn new(info: JobInfo) -> Arc<Self> {
        Arc::new(Self { info, state: Mutex::default() })
    }

    /// Takes the items and seals, for the call that acks the item. From then on the handler's requests fail. A second call
    /// returns nothing, so a queue whose ack failed must keep what it took, or [put it back](Self::put_back).
    pub fn take(&self) -> Buffered {
        let mut state = self.state();
        state.is_taken = true;
        std::mem::take(&mut state.buffered)
    }

    /// Puts back what [`Self::take`] has returned, for the next attempt to ack. The handler's requests still fail.
    pub fn put_back(&self, buffered: Buffered) {
        self.state().buffered = buffered;
    }

    /// Returns the latest progress. `None`: the handler has reported none.
    pub fn latest_progress(&self) -> Option<Progress> {
        self.state().progress.clone()
    }

    fn state(&self) -> MutexGuard<'_, Requests> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobContext for BufferedJob {
    fn info(&self) -> &JobInfo {
        &self.info
    }

    fn add_items(&self, target: &str, items: Vec<NewJobItem>) -> Result<(), JobError> {
        check_text("the target", target)?;
        // Checked without the lock, because reading the payloads takes time.
        if items.len() <= MAX_ITEMS {
            items.iter().enumerate().try_for_each(|(place, item)| check(place, item))?;
        }
        self.state().add(target, items)
    }

    fn seal(&self, job: &str) -> Result<(), JobError> {
        check_text("the job", job)?;
        self.state().seal(job)
    }

    fn progress(&self, fraction: f64, text: &str) -> Result<(), JobError> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(JobError::Invalid(format!("a progress of {fraction} is not between 0 and 1")));
        }
        if !text.is_empty() {
            check_text("the text of the progress", text)?;
        }
        self.state().progress = Some(Progress { fraction, text: text.to_owned() });
        Ok(())
    }
}

impl Requests {
    fn add(&mut self, target: &str, items: Vec<NewJobItem>) -> Result<(), JobError> {
        self.open()?;
        if items.is_empty() {
            return Ok(());
        }
        let count = self.items + items.len();
        if count > MAX_ITEMS {
            return Err(JobError::Full(format!(
                "one attempt adds at most {MAX_ITEMS} items, and these would make it {count}"
            )));
        }
        let bytes = self.bytes + target.len() + items.iter().map(size).sum::<usize>();
        if bytes > MAX_BUFFERED {
            return Err(JobError::Full(format!("one attempt adds at most {} MiB of items", MAX_BUFFERED >> 20)));
        }
        (self.items, self.bytes) = (count, bytes);
        match self.buffered.items.last_mut() {
            Some((last, list)) if last == target => list.extend(items),
            _ => self.buffered.items.push((target.to_owned(), items)),
        }
        Ok(())
    }

    fn seal(&mut self, job: &str) -> Result<(), JobError> {
        self.open()?;
        let seals = &mut self.buffered.seals;
        if seals.len() >= MAX_SEALS && !seals.contains(job) {
            return Err(JobError::Full(format!("one attempt seals at most {MAX_SEALS} jobs")));
        }
        seals.insert(job.to_owned());
        Ok(())
    }

    fn open(&self) -> Result<(), JobError> {
        if self.is_taken { Err(JobError::Settled) } else { Ok(()) }
    }
}

/// Returns the size in bytes that counts against [`MAX_BUFFERED`].
fn size(item: &NewJobItem) -> usize {
    let keys = [&item.dedupe_key, &item.serialize_key].into_iter().flatten();
    item.payload.len() + keys.map(String::len).sum::<usize>()
}

/// Checks the rules of the job service here, because an item that it refuses would make the ack of a finished item fail.
fn check(place: usize, item: &NewJobItem) -> Result<(), JobError> {
    let of_item = |name: &str| format!("{name} of item {}", place + 1);
    json::check(&item.payload).map_err(|fault| JobError::Invalid(format!("{} {fault}", of_item("the payload"))))?;
    for (name, key) in [("dedupe key", &item.dedupe_key), ("serialize key", &item.serialize_key)] {
        if let Some(key) = key {
            check_text(&of_item(&format!("the {name}")), key)?;
        }
    }
    Ok(())
}

fn check_text(name: &str, text: &str) -> Result<(), JobError> {
    let fault = if text.is_empty() {
        "is empty".to_owned()
    } else if text.len() > MAX_TEXT {
        format!("has {} bytes, of which {MAX_TEXT} are the most", text.len())
    } else if text.contains('\0') {
        "contains a NUL character, which the job service cannot store".to_owned()
    } else {
        return Ok(());
    };
    Err(JobError::Invalid(format!("{name} {fault}")))
}

#[cfg(test)]
mod tests;
