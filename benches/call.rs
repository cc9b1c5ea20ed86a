//! A handler without a queue, called with one and the same message: all that a message pays for its sandbox. For the benchmarks
//! that measure it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hostler_handler::{Bounds, Call, Handler, Outcome, Output};
use hostler_types::message::Message;
use hostler_wasm::{self as wasm, Definition, Engine, Grants, Pool, Source};

/// Bytes of a sandbox's memory, as a consumer's by default.
const MEMORY: u64 = 128 << 20;

/// A loaded handler, and what it is called with.
pub struct Caller {
    handler: Arc<dyn Handler>,
    message: Arc<Message>,
    channel: Arc<str>,
}

impl Caller {
    /// Loads a handler that is granted nothing, with so many messages to a sandbox; they have this body.
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

    /// Calls it once.
    pub async fn call(&self) -> Option<Outcome> {
        let bounds = Bounds::new(Duration::from_secs(60));
        let output = Output::new(64 * 1024);
        let call = Call::new(Arc::clone(&self.message), Arc::clone(&self.channel), 1, bounds, output);
        hostler_handler::run(&*self.handler, &call).await
    }
}
