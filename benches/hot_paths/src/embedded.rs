//! The embedded queue: sends, receives and acks ten messages. Each of the three steps is durable before the next.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{Broker, ChannelSpec, Queue};
use hostler_queue_embedded::EmbeddedBroker;
use hostler_types::channel::Channel;
use hostler_types::message::Outgoing;
use tokio::runtime::Runtime;

use crate::acked::{self, BODY};
use crate::{Result, Step};

/// Resources that live as long as the benchmark.
struct World {
    runtime: Runtime,
    broker: EmbeddedBroker,
    queue: Arc<dyn Queue>,
    channel: Channel,
    batch: Vec<Outgoing>,
    _folder: tempfile::TempDir,
}

pub fn ten() -> Result<Step> {
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let broker = EmbeddedBroker::open(&folder.path().join("queue.db"))?;
    let channel: Channel = "bench".parse()?;
    let queue = runtime.block_on(broker.open(&ChannelSpec::new(channel.clone())))?;
    let batch = vec![Outgoing { body: BODY.into(), ..Outgoing::default() }; 10];
    let world = World { runtime, broker, queue, channel, batch, _folder: folder };
    Ok(Box::new(move || assert_eq!(world.runtime.block_on(world.go()), 10)))
}

impl World {
    async fn go(&self) -> usize {
        let sent = self.broker.send(&self.channel, self.batch.clone()).await;
        assert!(sent.iter().all(|result| result.is_ok()));
        acked::ten(&*self.queue, Duration::ZERO).await
    }
}
