//! Handlers out of bytes: loaded as `run` would, and run on one message for a moment.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use hostler_handler::{Bounds, Call, Outcome, Output};
use hostler_types::message::{AttributeValue, Message};
use hostler_wasm::{self as wasm, Definition, Engine, Fetched, Grants, LoadError, Loaded, Source};
use tokio::runtime::{Builder, Runtime};

/// Linear memory of a sandbox, in bytes.
const MEMORY: u64 = 16 << 20;

/// Time after which a guest is stopped.
const TIMEOUT: Duration = Duration::from_millis(20);

/// Time after which it must be gone. The promise is 50 ms and an epoch tick, without a sanitizer that slows the machine.
const GONE: Duration = Duration::from_secs(5);

/// Compiles on the thread that asks.
pub static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    wasm::compile_with(1);
    Engine::on_demand().expect("an engine")
});

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime"));

/// Loads the bytes of a handler's file, as fetched. `pinned`: compiled code among them is believed.
pub fn load(bytes: &[u8], pinned: bool) -> Result<Loaded, LoadError> {
    let bytes = Bytes::copy_from_slice(bytes);
    let definition = Definition {
        consumer: "fuzz".into(),
        source: Source::Fetched(Fetched { reference: "oci://fuzz/handler".into(), bytes, pinned }),
        sha256: None,
        hooks: None,
        hooks_sha256: None,
        grants: Grants::default(),
        messages_per_instance: 1,
        batches: false,
        reply_from_stdout: true,
        metrics: None,
    };
    wasm::load(&ENGINE, &definition)
}

/// Runs it on one message. `None`: it cannot run in a sandbox of this size, or it was stopped, and is gone in time.
pub fn run(loaded: &Loaded) -> Option<Outcome> {
    let handler = loaded.handler(MEMORY).ok()?;
    let message = Message {
        id: "1".into(),
        body: Bytes::from_static(b"{\"body\": true}"),
        attributes: [("a".to_owned(), AttributeValue::Binary(vec![0, 255]))].into(),
        enqueued_at: SystemTime::now(),
        group: None,
        routing_key: Some("A.B".to_owned()),
        claim: None,
        trace: None,
    };
    let call = Call::new(Arc::new(message), "fuzz".into(), 1, Bounds::new(TIMEOUT), Output::new(1024));
    let (guest, stop, started) = (call.clone(), call.bounds.stop.clone(), Instant::now());
    let outcome = RUNTIME.block_on(async move {
        let mut guest = tokio::spawn(async move { hostler_handler::run(&*handler, &guest).await });
        match tokio::time::timeout(TIMEOUT, &mut guest).await {
            Ok(ended) => ended.expect("the host does not panic"),
            Err(_) => {
                stop.force();
                guest.await.expect("the host does not panic")
            }
        }
    });
    assert!(started.elapsed() < GONE, "a guest ran on for {:?}", started.elapsed());
    let _ = call.output.take().lines().count();
    outcome
}
