//! The transport of serialize keys' steps between databases. Any number of processes may run it.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::shards::Shards;
use crate::shards::keys::{BATCH, Pending};
use crate::store::StoreError;

/// The pause of a database for which nothing is to be carried.
const PERIOD: Duration = Duration::from_millis(200);

/// The longest time that a request waits for tickets. It is answered then, and the tickets are taken later. Longer than the patience
/// with one database, so that one that hangs is left out.
const TICKETS: Duration = Duration::from_secs(3);

/// The period of forgetting grants that ended.
const FORGET: Duration = Duration::from_secs(10);

/// The age at which they are forgotten. A grant that is older and was never told is made anew.
const AGE: Duration = Duration::from_secs(3600);

/// The most rounds in which a request takes tickets, also those of others.
const ROUNDS: usize = 100;

impl Shards {
    /// Carries serialize keys between the databases until cancelled. `wake` is called after items became ready. Returns at once if
    /// there is one database.
    pub async fn carry(&self, wake: impl Fn(), cancel: CancellationToken) {
        if self.single().is_some() {
            return;
        }
        tokio::select! {
            () = cancel.cancelled() => {}
            _ = join_all((0..self.count()).map(|at| self.carry_from(at, &wake))) => {}
        }
    }

    /// Carries until nothing moves. Returns the number of messages.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn carry_all(&self) -> Result<usize, StoreError> {
        let mut all = 0;
        loop {
            let mut moved = 0;
            for at in 0..self.count() {
                moved += self.carry_round(at).await?;
            }
            if moved == 0 {
                return Ok(all);
            }
            all += moved;
        }
    }

    async fn carry_from(&self, at: usize, wake: &impl Fn()) {
        let mut changed = self.changed.subscribe();
        let (mut is_failing, mut forgotten) = (false, Instant::now());
        loop {
            if forgotten.elapsed() >= FORGET {
                forgotten = Instant::now();
                if let Err(error) = self.forget_all(at).await {
                    tracing::debug!(database = at, %error, "old grants of serialize keys are not forgotten");
                }
            }
            match self.carry_round(at).await {
                Ok(0) => is_failing = false,
                Ok(_) => {
                    is_failing = false;
                    wake();
                    self.changed.send_replace(());
                    continue;
                }
                Err(error) => {
                    // A database that does not answer is logged by itself.
                    if !error.is_outage() && !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(database = at, %error, "serialize keys are not carried; trying again");
                    }
                    tokio::time::sleep(PERIOD).await;
                }
            }
            // An error means that the sender is gone; this value holds it.
            let _ = timeout(PERIOD, changed.changed()).await;
        }
    }

    /// Forgets all old grants. A call gives way to one that opens keys, and is made again soon.
    async fn forget_all(&self, at: usize) -> Result<(), StoreError> {
        while self.forget(at, AGE).await? > 0 {}
        Ok(())
    }

    /// Carries once what a database has for others, and what it grants. Returns the number of messages. An error of another database
    /// is returned after the rest has been carried.
    async fn carry_round(&self, at: usize) -> Result<usize, StoreError> {
        let mut pending = self.pending(at).await?;
        if pending.is_free {
            self.grant_keys(at).await?;
            pending = self.pending(at).await?;
        }
        let Pending { outgoing, due, .. } = pending;
        // A database that hangs holds only its own keys up.
        let answering = |numbers: Vec<usize>| numbers.into_iter().filter(|number| !self.is_away(*number));
        let (sent, granted) = tokio::join!(
            join_all(answering(outgoing).map(|home| self.ask(home, self.send(at, home)))),
            join_all(answering(due).map(|holder| self.ask(holder, self.offer(at, holder))))
        );
        let mut moved = 0;
        let mut failed = None;
        for one in sent.into_iter().chain(granted) {
            match one {
                Ok(count) => moved += count,
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if moved == 0 => Err(error),
            _ => Ok(moved),
        }
    }

    /// Carries requests for tickets, then ended grants, to a home.
    async fn send(&self, at: usize, home: usize) -> Result<usize, StoreError> {
        let wanted = self.send_wants(at, home).await?;
        let returned = self.returned(at, home).await?;
        if !returned.is_empty() {
            self.answer(home, at, &returned).await?;
            self.note_told(at, &returned).await?;
        }
        Ok(wanted + returned.len())
    }

    /// Carries requests for tickets to a home.
    async fn send_wants(&self, at: usize, home: usize) -> Result<usize, StoreError> {
        let wants = self.wants(at, home).await?;
        if !wants.is_empty() {
            self.register(home, at, &wants).await?;
            self.drop_wants(at, &wants).await?;
        }
        Ok(wants.len())
    }

    /// Carries grants to their holder, and its answers back.
    async fn offer(&self, home: usize, holder: usize) -> Result<usize, StoreError> {
        let grants = self.due_grants(home, holder).await?;
        if grants.is_empty() {
            return Ok(0);
        }
        let answers = self.open_keys(holder, home, &grants).await?;
        self.answer(home, holder, &answers).await?;
        Ok(grants.len())
    }

    /// Takes the tickets of items that a database has just got, so that their order is that of the requests' answers. Without an
    /// answer of a home in time, its tickets are taken later.
    pub(super) async fn take_tickets(&self, at: usize) {
        let mut fault = None;
        let taken = timeout(TICKETS, async {
            while let Err(error) = self.take_all(at).await {
                // A home that starts anew is back before long.
                fault = Some(error);
                tokio::time::sleep(TICKETS / 20).await;
            }
        });
        if taken.await.is_err() {
            // A database that does not answer has been logged: requests do not repeat it.
            match fault.filter(|error| !error.is_outage()) {
                Some(error) => tracing::warn!(database = at, %error, "tickets of serialize keys are taken later"),
                None => tracing::debug!(database = at, "tickets of serialize keys are taken later: no answer in time"),
            }
        }
        self.note_change();
    }

    async fn take_all(&self, at: usize) -> Result<(), StoreError> {
        for _ in 0..ROUNDS {
            let homes = self.pending(at).await?.outgoing;
            let homes = homes.into_iter().filter(|home| !self.is_long_away(*home));
            let sent = join_all(homes.map(|home| self.patiently(home, self.send_wants(at, home)))).await;
            let most = sent.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or_default();
            // Fewer than a batch: nothing is left of what was there.
            if most < usize::try_from(BATCH).unwrap_or_default() {
                break;
            }
        }
        Ok(())
    }

    /// Tells the transport that something may have changed.
    pub(super) fn note_change(&self) {
        self.changed.send_replace(());
    }
}
