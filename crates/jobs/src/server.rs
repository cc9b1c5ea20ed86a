//! The server: ties the listener, the API, the sweeps and the callbacks together.

mod idle;
pub mod stalls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api;
use crate::api::guard::Peer;
use crate::api::state::{App, Limits};
use crate::callbacks::{CallbackSettings, Callbacks, ClientError};
use crate::fanout::{self, Fanout, Ties};
use crate::server::idle::IdleConnections;
use crate::server::stalls::Stalls;
use crate::shards::Shards;
use crate::sweeps;

/// Maximum size of a request's head in bytes.
const HEAD_BYTES: usize = 64 * 1024;

/// Time limit for receiving the head of a request, and for an idle connection.
const HEAD: Duration = Duration::from_secs(60);

/// Maximum time for which a client reads nothing of an answer.
const STALL: Duration = Duration::from_secs(30);

/// Time for an idle connection to close.
const CLOSING: Duration = Duration::from_secs(2);

/// Pause after a connection could not be accepted or no more may be open, because file descriptors may have run out.
const REST: Duration = Duration::from_millis(100);

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// The limits of callers.
    pub limits: Limits,
    /// The settings of callbacks.
    pub callbacks: CallbackSettings,
    /// The way in which idle workers learn of ready items.
    pub fanout: Fanout,
    /// Maximum number of open connections. Beyond it, idle ones are closed, and further clients wait.
    pub connections: usize,
    /// Maximum time between the stop and the end of requests under way.
    pub grace: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            callbacks: CallbackSettings::default(),
            fanout: Fanout::default(),
            connections: 4096,
            grace: Duration::from_secs(20),
        }
    }
}

/// The reason that a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can be reached from outside, and there are no tokens.
    #[error("without tokens, the job service listens on loopback addresses only, and {0} is none")]
    Exposed(SocketAddr),
    /// The listener has no address.
    #[error("the listener of the job service cannot be used: {0}")]
    Listener(#[from] std::io::Error),
    /// Callbacks cannot be sent.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Serves the API, and runs sweeps and callbacks, until `cancel`.
///
/// After `cancel`, the listener is closed, long polls answer at once, and requests under way have the grace to end.
///
/// # Errors
/// If the server cannot start. Faults of the database end nothing: requests are answered 503 meanwhile.
pub async fn serve(
    settings: ServerSettings,
    listener: TcpListener,
    store: impl Into<Shards>,
    cancel: CancellationToken,
) -> Result<(), ServeError> {
    let shards: Shards = store.into();
    let address = listener.local_addr()?;
    if settings.limits.tokens.is_empty() && !address.ip().to_canonical().is_loopback() {
        return Err(ServeError::Exposed(address));
    }
    let has_channels = settings.callbacks.channels.is_some();
    let callbacks = shards.stores().iter().map(|store| Callbacks::new(store.clone(), settings.callbacks.clone()));
    let callbacks = callbacks.collect::<Result<Vec<_>, _>>()?;
    let (router, app) = api::router(shards.clone(), settings.limits, has_channels, cancel.clone());
    let background = TaskTracker::new();
    for callbacks in callbacks {
        background.spawn(callbacks.run(cancel.clone()));
    }
    for store in shards.stores() {
        background.spawn(fanout::run(store.clone(), settings.fanout.clone(), ties(&app), cancel.clone()));
        let swept = app.clone();
        background.spawn(sweeps::run(store.clone(), move || swept.waiting.wake(), cancel.clone()));
    }
    let (carried, stop) = (app.clone(), cancel.clone());
    background.spawn(async move { shards.carry(|| carried.waiting.wake(), stop).await });
    background.close();

    let connections = Connections {
        router,
        open: TaskTracker::new(),
        permits: Arc::new(Semaphore::new(settings.connections)),
        idle: IdleConnections::default(),
        stop: cancel.clone(),
        abort: CancellationToken::new(),
    };
    tracing::info!(%address, "the job service listens");
    tokio::select! {
        () = connections.accept(&listener) => {}
        () = cancel.cancelled() => {}
    }
    drop(listener);

    let deadline = Instant::now() + settings.grace;
    connections.open.close();
    if timeout_at(deadline, connections.open.wait()).await.is_err() {
        let open = connections.open.len();
        tracing::warn!(open, "the grace of the job service is over; closing the connections of requests under way");
        connections.abort.cancel();
        connections.open.wait().await;
    }
    // Assignments that were not taken are given back by tasks, so these end last.
    app.tasks.close();
    let rest = deadline.max(Instant::now() + Duration::from_secs(1));
    let ended = timeout_at(rest, async {
        app.tasks.wait().await;
        background.wait().await;
    });
    if ended.await.is_err() {
        tracing::warn!("the grace of the job service is over; leaving transactions to their deadlines");
    }
    Ok(())
}

/// Ties the fan-out to the long polls and the state of a server.
fn ties(app: &App) -> Ties {
    let woken = app.clone();
    Ties {
        wake: Arc::new(move |types| woken.waiting.hint(types)),
        committed: app.waiting.committed(),
        state: app.fanout.clone(),
    }
}

/// The open connections of a server.
struct Connections {
    router: Router,
    open: TaskTracker,
    permits: Arc<Semaphore>,
    idle: IdleConnections,
    /// Cancelled when connections must end after their request.
    stop: CancellationToken,
    /// Cancelled when connections must end at once.
    abort: CancellationToken,
}

impl Connections {
    /// Accepts connections for as long as the future is polled.
    async fn accept(&self, listener: &TcpListener) {
        // The semaphore is never closed.
        while let Ok(permit) = self.permit().await {
            match listener.accept().await {
                Ok((stream, peer)) => self.spawn(stream, peer, permit),
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    sleep(REST).await;
                }
            }
        }
    }

    /// Waits for a permit. Without a free one, the connection that has been idle for longest is closed.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        loop {
            match Arc::clone(&self.permits).try_acquire_owned() {
                Ok(permit) => return Ok(permit),
                Err(_) => self.idle.close_longest(),
            }
            if let Ok(permit) = timeout(REST, Arc::clone(&self.permits).acquire_owned()).await {
                return permit;
            }
        }
    }

    /// Serves a connection in a task of its own.
    fn spawn(&self, stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit) {
        // Answers are written whole, so waiting for more to send only delays them.
        let _ = stream.set_nodelay(true);
        let routes = TowerToHyperService::new(self.router.clone());
        let idle = self.idle.enter();
        let (close, activity) = (idle.close.clone(), idle.clone());
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            let (busy, answer) = (activity.busy(), routes.call(request));
            async move {
                let answer = answer.await;
                drop(busy);
                answer
            }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
        let stream = TokioIo::new(Stalls::new(stream, STALL));
        let connection = builder.serve_connection(stream, service);
        let (stop, abort) = (self.stop.clone(), self.abort.clone());
        self.open.spawn(async move {
            let mut connection = std::pin::pin!(connection);
            let (mut stopping, mut closing) = (false, false);
            loop {
                tokio::select! {
                    // A disconnect by the client is not an error of hostler.
                    _ = connection.as_mut() => break,
                    () = abort.cancelled() => break,
                    () = stop.cancelled(), if !stopping => {
                        stopping = true;
                        connection.as_mut().graceful_shutdown();
                    }
                    // An answer that is being sent has a while to end.
                    () = close.cancelled(), if !closing => {
                        closing = true;
                        connection.as_mut().graceful_shutdown();
                    }
                    () = sleep(CLOSING), if closing => break,
                }
            }
            drop((permit, idle));
        });
    }
}
