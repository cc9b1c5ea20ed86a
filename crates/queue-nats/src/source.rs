//! A queue as its consumer asks for it.

use std::time::Duration;

use hostler_types::channel::{Channel, Filter};

/// The queue of a consumer, and the consumer's demands on it.
#[derive(Debug)]
pub(crate) struct Source {
    /// The channel, for the story of dead letters.
    pub(crate) channel: Channel,
    pub(crate) stream: String,
    /// Consumer that all receivers share.
    pub(crate) consumer: String,
    /// Name of the dead-letter queue, without the prefix. `None`: there is none.
    pub(crate) dead_letters: Option<String>,
    /// Number of attempts after which a message is dead-lettered when it is received again.
    pub(crate) max_receives: Option<u32>,
    pub(crate) ordered: bool,
    /// Exchanges that feed the queue. The filter is applied to their messages.
    pub(crate) exchanges: Vec<String>,
    pub(crate) filter: Filter,
    /// Time after which the server delivers a message again.
    pub(crate) server: Duration,
}
