//! Feeds the health file and the metrics of the retry service.

use std::time::Duration;

use tokio::time::Instant;

use hostler_consumer::{Failed, StatusHandle};
use hostler_retry::engine::{Ended, Observer};
use hostler_telemetry::metrics::{ConsumerMetrics, Ending, Shown};
use hostler_types::State;

/// Interval between two updates of the time at which the service was last seen to work.
const WORKS: Duration = Duration::from_secs(1);

/// A message that is delivered so long after it was due counts as late.
const LATE: Duration = Duration::from_secs(1);

/// Feeds the health file and the metrics.
pub(super) struct Watch {
    board: StatusHandle,
    metrics: Option<ConsumerMetrics>,
    shown: (usize, bool),
    worked_at: Option<Instant>,
}

impl Watch {
    pub(super) fn new(board: StatusHandle, metrics: Option<ConsumerMetrics>, slots: usize) -> Self {
        if let Some(metrics) = &metrics {
            let board = board.clone();
            metrics.show(move || {
                let status = board.get();
                Shown { slots, busy: status.in_flight, in_hand: status.in_hand, state: status.state.name() }
            });
        }
        Self { board, metrics, shown: (0, false), worked_at: None }
    }
}

impl Observer for Watch {
    fn stores(&mut self) {
        if let Some(metrics) = &self.metrics {
            metrics.consumed(1);
        }
    }

    fn delivers(&mut self, late: Duration) {
        if let Some(metrics) = &self.metrics {
            metrics.started(late, late > LATE);
        }
    }

    fn ended(&mut self, ended: Ended<'_>) {
        let Ended { id, outcome, disposition, attempt, reason } = ended;
        let (now, is_failure) = (Instant::now(), !outcome.is_success());
        self.board.update(now, |status| {
            status.processed += 1;
            status.failed += u64::from(is_failure);
        });
        if is_failure {
            let reason = reason[..reason.floor_char_boundary(256)].to_owned();
            let (message_id, outcome) = (id.to_owned(), outcome.name());
            self.board.failed(Failed { at: now, message_id, outcome, disposition, reason });
        }
        if let Some(metrics) = &self.metrics {
            metrics.ended(Ending { outcome, disposition, attempt, ran_for: None });
        }
    }

    fn refuses(&mut self) {
        if let Some(metrics) = &self.metrics {
            metrics.refused();
        }
    }

    fn works(&mut self, is_working: bool) {
        let now = Instant::now();
        if is_working && self.worked_at.is_none_or(|at| now.duration_since(at) >= WORKS) {
            self.worked_at = Some(now);
            self.board.update(now, |status| status.last_poll_at = Some(now));
        }
    }

    fn flying(&mut self, count: usize, oldest: Option<Duration>) {
        let shown = (count, self.board.get().paused);
        if count == 0 && self.shown == shown {
            return;
        }
        self.shown = shown;
        let now = Instant::now();
        self.board.update(now, |status| {
            (status.in_flight, status.in_hand) = (count, count);
            status.oldest_started_at = oldest.and_then(|oldest| now.checked_sub(oldest));
            status.state = match status.state {
                State::Exiting => State::Exiting,
                _ if count > 0 => State::Processing,
                State::Processing => State::Idle,
                state => state,
            };
        });
    }
}
