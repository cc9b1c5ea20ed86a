//! The host's part in tests that run on a developer's machine. It is not there in a guest.
//!
//! All of it belongs to the thread that sets it, and so to one test.

use std::cell::RefCell;
use std::time::Duration;

use crate::{Outgoing, SendError};

struct Host {
    remaining: Duration,
    should_stop: bool,
    traceparent: Option<String>,
    sent: Vec<Outgoing>,
    refusal: Option<SendError>,
}

thread_local! {
    static HOST: RefCell<Host> =
        const { RefCell::new(Host { remaining: Duration::from_secs(60), should_stop: false, traceparent: None, sent: Vec::new(), refusal: None }) };
}

/// Sets what [`context::remaining`](crate::context::remaining) answers: 60 s if a test sets nothing.
pub fn set_remaining(time: Duration) {
    HOST.with_borrow_mut(|host| host.remaining = time);
}

/// Sets what [`context::should_stop`](crate::context::should_stop) answers: `false` if a test sets nothing.
pub fn set_should_stop(stop: bool) {
    HOST.with_borrow_mut(|host| host.should_stop = stop);
}

/// Sets what [`context::traceparent`](crate::context::traceparent) answers: nothing if a test sets nothing.
pub fn set_traceparent(traceparent: Option<String>) {
    HOST.with_borrow_mut(|host| host.traceparent = traceparent);
}

/// Lets every send fail so, or none.
pub fn refuse_sends(error: Option<SendError>) {
    HOST.with_borrow_mut(|host| host.refusal = error);
}

/// What was sent since the last call, in order.
#[must_use]
pub fn take_sent() -> Vec<Outgoing> {
    HOST.with_borrow_mut(|host| std::mem::take(&mut host.sent))
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
