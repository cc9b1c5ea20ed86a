//! Instruments the queue contract. [`MeteredQueue`] and [`MeteredBroker`] record metrics of a consumer's calls.
//! [`Producer`] and [`Replies`] send the messages of handlers and users. Each send call has a span.

mod metered;
mod producer;
mod replies;

use std::sync::Arc;

pub use metered::{MeteredBroker, MeteredQueue};
pub use producer::Producer;
pub use replies::{CORRELATION_ATTRIBUTE, Replies};

use hostler_queue::Origin;
use hostler_telemetry::traces::Destination;

/// Returns the destination of a span for the channel `name`. `origin`: the queue service. `consumer`: the consumer that
/// makes the call, if any.
pub fn destination(origin: Origin, name: Arc<str>, consumer: Option<Arc<str>>) -> Destination {
    let Origin { system, address } = origin;
    Destination { system, name, address, consumer }
}
