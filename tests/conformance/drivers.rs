//! The drivers that the suite is asked of.

use std::sync::Arc;
use std::time::Duration;

use hostler::queue::embedded::{self, EmbeddedBroker, Options};
use hostler::queue::fake::{self, FakeBroker};
use hostler::queue::{Broker, DEDUPE_WINDOW};
use tempfile::TempDir;

use super::{Harness, suite};

/// One file, opened anew by each client.
pub struct Embedded(TempDir);

impl Harness for Embedded {
    const TICK: Duration = Duration::from_millis(250);
    const DEDUPE_WINDOW: Duration = Duration::from_millis(250);
    const MAX_MESSAGE: usize = embedded::MAX_MESSAGE;

    async fn start() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    async fn broker(&self) -> Arc<dyn Broker> {
        let options = Options { dedupe_window: Self::DEDUPE_WINDOW };
        Arc::new(EmbeddedBroker::open_with(&self.0.path().join("queue.db"), options).unwrap())
    }
}

/// In memory, on a paused clock.
pub struct Fake(FakeBroker);

impl Harness for Fake {
    const TICK: Duration = Duration::from_secs(1);
    const DEDUPE_WINDOW: Duration = DEDUPE_WINDOW;
    const MAX_MESSAGE: usize = fake::MAX_MESSAGE;

    async fn start() -> Self {
        Self(FakeBroker::default())
    }

    async fn broker(&self) -> Arc<dyn Broker> {
        Arc::new(self.0.clone())
    }
}

suite!(embedded_queue: Embedded, tokio::test);
suite!(fake_queue: Fake, tokio::test(start_paused = true));
