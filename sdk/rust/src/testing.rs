//! Stand-in for the host in tests on a developer's machine. Guests do not contain this module.
//!
//! Each thread, and therefore each test, has its own values.

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
