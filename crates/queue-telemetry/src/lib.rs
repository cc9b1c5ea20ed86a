//! The queue contract, observed: calls measured for a consumer ([`MeteredQueue`], [`MeteredBroker`]), and messages that handlers and
//! people send, each within a span ([`Producer`], [`Replies`]).

mod metered;
mod producer;
mod replies;

use std::sync::Arc;

pub use metered::{MeteredBroker, MeteredQueue};
pub use producer::Producer;
pub use replies::Replies;

use hostler_queue::Origin;
use hostler_telemetry::traces::Destination;

/// A channel of the service of this origin as spans name it, and the consumer that is at work on it.
pub fn destination(origin: Origin, name: Arc<str>, consumer: Option<Arc<str>>) -> Destination {
    let Origin { system, address } = origin;
    Destination { system, name, address, consumer }
}
