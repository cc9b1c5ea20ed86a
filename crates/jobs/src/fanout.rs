//! Fan-out: hints that items are ready, for other instances of the service and for workers at a broker.
//!
//! The database stays the only truth. A hint that is lost costs time, and one that is doubled costs a request. No hint is sent in the
//! transaction that makes an item ready, and nobody waits for one to be sent.
//!
//! | file | job |
//! |---|---|
//! | `fanout/notify.rs` | notifications of PostgreSQL between the instances |
//! | `fanout/note.rs` | the text of a notification |
//! | `fanout/sender.rs` | the way from the outbox to the broker |
//! | `fanout/broker.rs` | the connection to RabbitMQ |
//! | `fanout/address.rs` | its address |
//! | `fanout/state.rs` | the state for health checks and metrics |

mod address;
mod broker;
mod note;
mod notify;
mod sender;
pub mod state;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub use address::AddressError;
use broker::Broker;
use state::FanoutState;

use crate::store::Store;

/// Interval of attempts to end an outbox that no instance needs any more. An attempt gives up as soon as it would have to wait.
const END: Duration = Duration::from_secs(5);

/// The way in which idle workers learn of ready items.
#[derive(Clone, Debug, Default)]
pub enum Fanout {
    /// Each instance asks the database at intervals.
    #[default]
    Poll,
    /// Each instance also notifies the others, by PostgreSQL.
    Notify,
    /// Each instance notifies the others, and publishes the ids of items to a queue for each type.
    RabbitMq(RabbitMq),
}

/// The fan-out by RabbitMQ.
#[derive(Clone)]
pub struct RabbitMq {
    broker: Broker,
    /// The period of searches for lost messages.
    pub search: Duration,
    /// Maximum number of entries of the outbox. While it is full, items are not written, and found by searches later.
    pub most: i32,
}

impl RabbitMq {
    /// Reads an `amqp(s)://` URL, which may name several nodes separated by commas. Connects to nothing yet.
    ///
    /// # Errors
    /// [`AddressError`], whose text does not contain the URL.
    pub fn new(url: &str) -> Result<Self, AddressError> {
        let broker = Broker::new(address::nodes(url)?);
        Ok(Self { broker, search: Duration::from_secs(60), most: 100_000 })
    }
}

impl fmt::Debug for RabbitMq {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("RabbitMq").field(&self.broker.place()).finish()
    }
}

/// Wakes long polls for some types of jobs; `None`: for all.
pub type Wake = Arc<dyn Fn(Option<&[&str]>) + Send + Sync>;

/// The ties between the fan-out and an instance.
#[derive(Clone)]
pub struct Ties {
    /// Wakes long polls for these types; `None`: for all.
    pub wake: Wake,
    /// Changes with each commit of this instance that may have made items ready.
    pub committed: watch::Receiver<()>,
    /// The state, which this module writes.
    pub state: FanoutState,
}

/// Runs the fan-out until cancelled. Its faults are logged and shown in the state, and end nothing.
pub async fn run(store: Store, fanout: Fanout, ties: Ties, cancel: CancellationToken) {
    let work = async {
        match fanout {
            Fanout::Poll => end_outbox(&store).await,
            Fanout::Notify => {
                tokio::join!(notify::run(&store, &ties), end_outbox(&store));
            }
            Fanout::RabbitMq(settings) => {
                tokio::join!(
                    notify::run(&store, &ties),
                    sender::keep(&store, &settings, &ties.state),
                    sender::send(&store, &settings, &ties)
                );
            }
        }
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = work => {}
    }
}

/// Ends the outbox that is left of a fan-out by a broker.
async fn end_outbox(store: &Store) {
    loop {
        match store.end_outbox().await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "the outbox of the fan-out is not ended"),
        }
        sleep(END).await;
    }
}
