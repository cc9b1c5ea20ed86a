//! Since when a receive could begin: what LISTENING and IDLE are judged by. No I/O.

use tokio::time::Instant;

/// What keeps a receive from beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Hold {
    /// Nothing, or one is under way.
    #[default]
    Free,
    /// All slots are taken, and no guest runs in any of them: a hook decides, or FIFO followers wait for their head. Both
    /// are bounded, so this excuses nothing.
    Taken,
    /// A pause, the breaker, the rate limit, or guests in all slots: a consumer that is not to poll is none the worse for it.
    Held,
}

/// The one place that knows since when a receive could begin.
#[derive(Debug, Default)]
pub(super) struct Polling {
    hold: Hold,
    could_poll_since: Option<Instant>,
}

impl Polling {
    /// Takes in how things are at `now`. Whenever that changes, the time that a receive may take begins anew.
    pub(super) fn observe(&mut self, hold: Hold, now: Instant) {
        if std::mem::replace(&mut self.hold, hold) != hold {
            self.could_poll_since = Some(now);
        }
    }

    /// Whether no receive is to begin.
    pub(super) fn is_held(&self) -> bool {
        self.hold == Hold::Held
    }

    /// Since when one could begin; `None`: it always could.
    pub(super) fn could_poll_since(&self) -> Option<Instant> {
        self.could_poll_since
    }
}
