//! The runs of applets for the results of one request: their turns, and their stop once an assignment has ended.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::future::pending;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use crate::applets::Applets;
use crate::ids::AssignmentRef;
use crate::store::Store;
use crate::store::ending::Ending;

/// The runs for the results of one request.
pub(crate) struct Runs {
    /// One permit for each run of an applet that may be under way, so that the results of a request do not keep each other waiting
    /// for longer than the applet's host lets them.
    turns: HashMap<String, Semaphore>,
    /// Cancelled once the assignment has ended in another way.
    stops: HashMap<AssignmentRef, CancellationToken>,
}

impl Runs {
    /// Prepares the runs of the applets with these names. Starts none.
    pub(crate) fn new<'n>(
        endings: &[&Ending<'_>],
        names: impl Iterator<Item = &'n str>,
        applets: Option<&dyn Applets>,
    ) -> Runs {
        let slots = |name: &str| applets.map_or(1, |applets| applets.slots(name)).max(1);
        Runs {
            turns: names.map(|name| (name.to_owned(), Semaphore::new(slots(name)))).collect(),
            stops: endings.iter().map(|ending| (ending.place, CancellationToken::new())).collect(),
        }
    }

    /// Waits until one more run of an applet may begin. The run ends with the permit.
    pub(crate) async fn turn(&self, applet: &str) -> Option<SemaphorePermit<'_>> {
        // None of the semaphores is closed.
        self.turns.get(applet)?.acquire().await.ok()
    }

    /// Waits until an assignment has ended in another way.
    pub(crate) async fn stopped(&self, place: AssignmentRef) {
        match self.stops.get(&place) {
            Some(stop) => stop.cancelled().await,
            None => pending().await,
        }
    }
}

impl Store {
    /// Extends the assignments of runs again and again, so that they outlast the applets, and stops the runs of those that have
    /// ended. Never returns.
    pub(crate) async fn keep_alive(&self, runs: &Runs) -> Infallible {
        let mut alive: Vec<String> = runs.stops.keys().map(ToString::to_string).collect();
        let mut failures = 0_u32;
        while !alive.is_empty() {
            tokio::time::sleep(self.settings.heartbeat).await;
            match self.heartbeat(&alive).await {
                Ok(ended) => {
                    if failures > 0 {
                        tracing::info!(failures, "the assignments whose results are with applets are extended again");
                    }
                    failures = 0;
                    for stop in ended.iter().filter_map(|id| runs.stops.get(&AssignmentRef::parse(id)?)) {
                        stop.cancel();
                    }
                    let ended: HashSet<String> = ended.into_iter().collect();
                    alive.retain(|id| !ended.contains(id));
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(%error, "cannot extend the assignments whose results are with applets; trying again");
                    }
                    failures += 1;
                }
            }
        }
        pending().await
    }
}
