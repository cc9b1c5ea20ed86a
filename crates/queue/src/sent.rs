//! The result of a send.

/// The result of a send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Id of the message. The message has this id in all queues that the message reached. With SNS, the message has
    /// another id in each queue.
    pub id: String,
    /// Number of queues that the message reached: 1 for a plain channel, any number for an exchange, and 0 for a
    /// duplicate. `None`: the service does not report the number. This is the case for SNS, and for a FIFO queue if the
    /// message has a deduplication key.
    pub queues: Option<usize>,
}
