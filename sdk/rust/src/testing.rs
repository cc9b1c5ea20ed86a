//! Stand-in for the host in tests on a developer's machine. Guests do not contain this module.
//!
//! Each thread, and therefore each test, has its own values.

use std::cell::RefCell;
use std::time::Duration;

use crate::job::{Item, Job, JobError};
use crate::{Failure, Outcome, Outgoing, SendError};

struct Host {
    remaining: Duration,
    should_stop: bool,
    traceparent: Option<String>,
    sent: Vec<Outgoing>,
    refusal: Option<SendError>,
    job: Option<Job>,
    added: Vec<(String, Vec<Item>)>,
    sealed: Vec<String>,
    progress: Option<(f64, String)>,
    done: Vec<(usize, Result<Outcome, Failure>)>,
    lost: Vec<usize>,
}

impl Host {
    const fn new() -> Self {
        Self {
            remaining: Duration::from_secs(60),
            should_stop: false,
            traceparent: None,
            sent: Vec::new(),
            refusal: None,
            job: None,
            added: Vec::new(),
            sealed: Vec::new(),
            progress: None,
            done: Vec::new(),
            lost: Vec::new(),
        }
    }
}

thread_local! {
    static HOST: RefCell<Host> = const { RefCell::new(Host::new()) };
}

/// Sets the time that [`context::remaining`](crate::context::remaining) returns. The default is 60 s.
pub fn set_remaining(time: Duration) {
    HOST.with_borrow_mut(|host| host.remaining = time);
}

/// Sets the value that [`context::should_stop`](crate::context::should_stop) returns. The default is `false`.
pub fn set_should_stop(stop: bool) {
    HOST.with_borrow_mut(|host| host.should_stop = stop);
}

/// Sets the trace context that [`context::traceparent`](crate::context::traceparent) returns. The default is `None`.
pub fn set_traceparent(traceparent: Option<String>) {
    HOST.with_borrow_mut(|host| host.traceparent = traceparent);
}

/// Makes every send fail with this error. `None`: sends succeed.
pub fn refuse_sends(error: Option<SendError>) {
    HOST.with_borrow_mut(|host| host.refusal = error);
}

/// Returns the messages that were sent since the last call, in order.
#[must_use]
pub fn take_sent() -> Vec<Outgoing> {
    HOST.with_borrow_mut(|host| std::mem::take(&mut host.sent))
}

/// Sets the job that [`job::current`](crate::job::current) returns. The default is `None`: requests to the job fail.
pub fn set_job(job: Option<Job>) {
    HOST.with_borrow_mut(|host| host.job = job);
}

/// Returns the items that were added since the last call, with their target, in order.
#[must_use]
pub fn take_added() -> Vec<(String, Vec<Item>)> {
    HOST.with_borrow_mut(|host| std::mem::take(&mut host.added))
}

/// Returns the jobs that were sealed since the last call, in order.
#[must_use]
pub fn take_sealed() -> Vec<String> {
    HOST.with_borrow_mut(|host| std::mem::take(&mut host.sealed))
}

/// Returns the latest progress that was reported since the last call.
#[must_use]
pub fn take_progress() -> Option<(f64, String)> {
    HOST.with_borrow_mut(|host| host.progress.take())
}

/// Makes [`batch::lost`](crate::batch::lost) return `true` for the message at this place, until the next [`take_done`].
pub fn lose(index: usize) {
    HOST.with_borrow_mut(|host| host.lost.push(index));
}

/// Returns the answers that [`batch::done`](crate::batch::done) has taken since the last call, with the places of their messages,
/// in order. After that, no message is done or lost.
#[must_use]
pub fn take_done() -> Vec<(usize, Result<Outcome, Failure>)> {
    HOST.with_borrow_mut(|host| {
        host.lost.clear();
        std::mem::take(&mut host.done)
    })
}

pub(crate) fn done(index: usize, answer: Result<Outcome, Failure>) -> bool {
    HOST.with_borrow_mut(|host| {
        let is_free = !host.lost.contains(&index) && host.done.iter().all(|(other, _)| *other != index);
        if is_free {
            host.done.push((index, answer));
        }
        is_free
    })
}

pub(crate) fn lost(index: usize) -> bool {
    HOST.with_borrow(|host| host.lost.contains(&index))
}

pub(crate) fn remaining() -> Duration {
    HOST.with_borrow(|host| host.remaining)
}

pub(crate) fn should_stop() -> bool {
    HOST.with_borrow(|host| host.should_stop)
}

pub(crate) fn traceparent() -> Option<String> {
    HOST.with_borrow(|host| host.traceparent.clone())
}

pub(crate) fn send(message: Outgoing) -> Result<String, SendError> {
    HOST.with_borrow_mut(|host| match &host.refusal {
        Some(error) => Err(error.clone()),
        None => {
            host.sent.push(message);
            Ok(format!("sent-{}", host.sent.len()))
        }
    })
}

pub(crate) fn current_job() -> Option<Job> {
    HOST.with_borrow(|host| host.job.clone())
}

pub(crate) fn add_items(target: &str, items: Vec<Item>) -> Result<(), JobError> {
    with_job(|host| host.added.push((target.to_owned(), items)))
}

pub(crate) fn seal(job: &str) -> Result<(), JobError> {
    with_job(|host| host.sealed.push(job.to_owned()))
}

pub(crate) fn progress(fraction: f64, text: &str) -> Result<(), JobError> {
    with_job(|host| host.progress = Some((fraction, text.to_owned())))
}

fn with_job(request: impl FnOnce(&mut Host)) -> Result<(), JobError> {
    HOST.with_borrow_mut(|host| match host.job {
        Some(_) => {
            request(host);
            Ok(())
        }
        None => Err(JobError::NoJob("the message is not an item of a job".to_owned())),
    })
}
