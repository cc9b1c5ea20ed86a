//! Bindings of a queue that was deleted and declared again while its consumer received nothing from it.
//!
//! A queue takes its bindings along when it is deleted. AMQP does not tell that a queue is another one than before, so the bindings
//! are looked after whenever a consumer receives again after a loss or a rest.

use hostler_queue::{ChannelSpec, QueueError};

use super::{Service, provision};

impl Service {
    /// Makes sure that the queue of a channel, which was opened before and exists, has its bindings. Makes those that are missing if
    /// missing parts are created. Otherwise only lets the delay ladder deliver to the queue, and compares the others as far as the
    /// management API tells. `was_deleted`: the queue is known to have been deleted since.
    ///
    /// # Errors
    /// The queue lacks a binding without which it gets no messages, or the server cannot be asked.
    pub(super) async fn rebind(&self, spec: &ChannelSpec, was_deleted: bool) -> Result<(), QueueError> {
        if self.options.create_missing {
            return self.declarer.bind_channel(spec).await;
        }
        let queue = self.names.full(spec.channel.queue());
        if provision::needs_ladder(spec) {
            self.land(&queue).await?;
        }
        if was_deleted && spec.channel.exchange().is_some() && self.management.is_none() {
            tracing::warn!(
                queue,
                "the queue was deleted and declared again; without queue.rabbitmq.management_url, it is not known whether its exchange \
                 still delivers to it: run `hostler provision`"
            );
        }
        self.check_bindings(spec).await
    }

    /// Logs what is wrong with the bindings of a channel, as far as the management API tells.
    ///
    /// # Errors
    /// The queue gets no messages, or the server cannot be asked.
    pub(super) async fn check_bindings(&self, spec: &ChannelSpec) -> Result<(), QueueError> {
        let (findings, _) = self.inspect_bindings(spec).await?;
        if let Some(finding) = findings.iter().find(|finding| finding.fatal) {
            return Err(QueueError::Refused(finding.to_string()));
        }
        for finding in findings {
            tracing::warn!("{finding}");
        }
        Ok(())
    }
}
