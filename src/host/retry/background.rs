//! Work beside the engine of the retry service: pauses, the space of the store, counts, adoption.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::host::instrumentation::see;
use hostler_consumer::StatusHandle;
use hostler_queue::Admin;
use hostler_queue_embedded::{EmbeddedBroker, OwnedQueues, Sharing};
use hostler_retry::engine::Event;
use hostler_retry::room::Space;
use hostler_retry::stores::{Adopter, Names, Progress, Store};
use hostler_telemetry::metrics::{ConsumerMetrics, Depths};
use hostler_types::channel::Channel;

/// Interval between two counts of the store, for metrics.
const COUNT: Duration = Duration::from_secs(30);

/// Interval between two looks at the space of the store.
const MEASURE: Duration = Duration::from_secs(1);

/// Passes the pauses of operators on to the engine.
pub(super) async fn pass_on_pauses(mut pause: watch::Receiver<bool>, board: StatusHandle, events: mpsc::Sender<Event>) {
    loop {
        let is_paused = *pause.borrow_and_update();
        board.update(Instant::now(), |status| status.paused = is_paused);
        if events.send(Event::Pause(is_paused)).await.is_err() || pause.changed().await.is_err() {
            return;
        }
    }
}

/// Measures the space of the store at intervals, forever.
pub(super) async fn measure(store: Arc<Store>, queues: OwnedQueues, max: Option<u64>, events: mpsc::Sender<Event>) {
    let mut looks = interval(MEASURE);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = None;
    loop {
        looks.tick().await;
        // If the store fails, the engine refuses messages anyway.
        let Ok(used) = queues.used_bytes().await else { continue };
        let store = Arc::clone(&store);
        let Ok(Ok(space)) = spawn_blocking(move || Space::measure(store.folder(), used)).await else { continue };
        let shortage = space.shortage(max);
        if shortage.is_some() != known.is_some() && events.send(Event::Full(shortage.clone())).await.is_err() {
            return;
        }
        known = shortage;
    }
}

/// Passes the news of adoptions on to the engine.
pub(super) async fn pass_on_news(mut news: mpsc::UnboundedReceiver<Event>, events: mpsc::Sender<Event>) {
    while let Some(event) = news.recv().await {
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// Starts to adopt the stores of dead instances, again and again, with pauses. The work has a thread of its own, because a network file
/// system may block for long. The returned receiver is closed once it has ended.
pub(super) fn start_adoption(
    mut adopter: Adopter,
    pause: Duration,
    events: mpsc::UnboundedSender<Event>,
    stop: CancellationToken,
) -> std::io::Result<oneshot::Receiver<()>> {
    let (running, ended) = oneshot::channel();
    let runtime = Builder::new_current_thread().enable_time().build()?;
    let adopt = async move {
        loop {
            let mut tell = |progress| {
                let _ = events.send(match progress {
                    Progress::Moved(0) | Progress::Adopted(_) => return,
                    Progress::Moved(_) => Event::Adopted,
                    Progress::Closed(subjects) => Event::Closed(subjects),
                });
            };
            if let Err(error) = adopter.round(&|| !stop.is_cancelled(), &mut tell).await {
                tracing::warn!(error, "cannot look for the stores of other instances");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    };
    std::thread::Builder::new().name("hostler-adopt".to_owned()).spawn(move || {
        runtime.block_on(adopt);
        drop(running);
    })?;
    Ok(ended)
}

/// Counts the messages of the store at intervals, forever.
pub(super) async fn count(store: Arc<Store>, queues: OwnedQueues, names: Names, metrics: ConsumerMetrics) {
    // A connection of its own, because a count of millions of messages takes a while. A network file system allows none.
    let folder = store.folder().to_owned();
    let other = match spawn_blocking(move || Sharing::at(&folder)).await {
        Ok(Sharing::Processes) => EmbeddedBroker::open_to_look(&store.queue()).ok(),
        _ => None,
    };
    let mut counts = interval(COUNT);
    counts.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        counts.tick().await;
        let depths = match &other {
            Some(broker) => depths(broker, &names.priorities).await,
            None => queues.count().await.ok().map(|counts| {
                let age = counts.oldest.map(|at| u64::try_from(queues.now().saturating_sub(at)).unwrap_or(0));
                Depths {
                    visible: counts.visible,
                    delayed: Some(counts.delayed),
                    in_flight: Some(0),
                    dead_lettered: counts.dead_lettered,
                    oldest_age: age.map(Duration::from_millis),
                }
            }),
        };
        metrics.queue_seen(depths, Instant::now());
    }
}

/// Returns the counts of all priorities together.
async fn depths(broker: &EmbeddedBroker, channels: &[Channel]) -> Option<Depths> {
    let mut total: Option<Depths> = None;
    for channel in channels {
        let Some(depths) = see(broker as &dyn Admin, channel).await else { continue };
        total = Some(match total {
            None => depths,
            Some(so_far) => Depths {
                visible: so_far.visible + depths.visible,
                delayed: so_far.delayed.zip(depths.delayed).map(|(a, b)| a + b),
                in_flight: so_far.in_flight,
                dead_lettered: so_far.dead_lettered + depths.dead_lettered,
                oldest_age: so_far.oldest_age.max(depths.oldest_age),
            },
        });
    }
    total
}
