//! Calls a handler without a queue, always with the same message. Includes the whole cost of a sandbox per message. Used by the
//! benchmarks of this cost.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hostler_handler::{Bounds, Call, Handler, Outcome, Output};
use hostler_types::message::Message;
use hostler_wasm::{self as wasm, Definition, Engine, Grants, Pool, Source};

/// Memory of a sandbox in bytes, equal to the default of a consumer.
const MEMORY: u64 = 128 << 20;

/// A loaded handler with the arguments of its calls.
pub struct Caller {
    /// Runs the messages.
    pub handler: Arc<dyn Handler>,
    message: Arc<Message>,
    channel: Arc<str>,
}

impl Caller {
    /// Loads a handler without grants. Each sandbox handles `messages_per_instance` messages. Each message has this body.
    ///
    /// # Errors
    /// The engine cannot be set up, or the handler cannot be loaded.
    pub fn load(
        path: &Path,
        messages_per_instance: u32,
        body: &'static str,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let definition = Definition {
            consumer: "bench".into(),
            source: Source::from(path),
            sha256: None,
            hooks: None,
            hooks_sha256: None,
            grants: Grants::default(),
            messages_per_instance,
            batches: false,
            reply_from_stdout: false,
            metrics: None,
        };
        let handler = wasm::load(&Engine::new(Pool { sandboxes: 4 })?, &definition)?.handler(MEMORY)?;
        let message = Message {
            id: "bench".into(),
            body: body.into(),
            attributes: Default::default(),
            enqueued_at: SystemTime::now(),
            group: None,
            routing_key: None,
            claim: None,
            trace: None,
        };
        Ok(Self { handler, message: Arc::new(message), channel: "bench".into() })
    }

    /// Calls the handler once.
    pub async fn call(&self) -> Option<Outcome> {
        hostler_handler::run(&*self.handler, &self.of_message()).await
    }

    /// Creates the arguments of one call.
    pub fn of_message(&self) -> Call {
        let bounds = Bounds::new(Duration::from_secs(60));
        let output = Output::new(64 * 1024);
        Call::new(Arc::clone(&self.message), Arc::clone(&self.channel), 1, bounds, output)
    }
}
