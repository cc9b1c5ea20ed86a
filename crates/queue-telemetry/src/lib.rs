//! Instrumentation for the queue contract. [`MeteredQueue`] and [`MeteredBroker`] record metrics for the calls of one
//! consumer. [`Producer`] and [`Replies`] send messages for handlers and users, and record a span for each send call.

mod metered;
mod producer;
mod replies;

use std::sync::Arc;

pub use metered::{MeteredBroker, MeteredQueue};
pub use producer::Producer;
pub use replies::{CORRELATION_ATTRIBUTE, Replies};

use hostler_queue::Origin;
use hostler_telemetry::traces::Destination;

/// Returns the destination to record in a span for the channel `name`. `origin`: the service that stores the channel's
/// messages. `consumer`: the consumer that makes the call, if any.
pub fn destination(origin: Origin, name: Arc<str>, consumer: Option<Arc<str>>) -> Destination {
    let Origin { system, address } = origin;
    Destination { system, name, address, consumer }
}
