//! The worse state of two connections, for a user who has to know of either.

use hostler_queue::Link;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Follows the states of the connections for publishing and for consuming.
pub(super) struct Links {
    worse: watch::Receiver<Link>,
    /// Ends with this value.
    _follower: JoinSet<()>,
}

impl Links {
    /// Follows two states.
    pub(super) fn of(mut one: watch::Receiver<Link>, mut other: watch::Receiver<Link>) -> Self {
        let (shown, worse) = watch::channel(Link::Up);
        let mut follower = JoinSet::new();
        follower.spawn(async move {
            loop {
                let now = worse_of(&one.borrow_and_update(), &other.borrow_and_update());
                shown.send_if_modified(|shown| now != std::mem::replace(shown, now.clone()));
                let ended = tokio::select! {
                    changed = one.changed() => changed.is_err(),
                    changed = other.changed() => changed.is_err(),
                };
                if ended {
                    return;
                }
            }
        });
        Self { worse, _follower: follower }
    }

    /// Returns the worse of both states, and its changes.
    pub(super) fn worse(&self) -> watch::Receiver<Link> {
        self.worse.clone()
    }
}

/// Returns the longer loss, otherwise the block, if there is any of them.
fn worse_of(one: &Link, other: &Link) -> Link {
    match (one, other) {
        (Link::Down { since: first, .. }, Link::Down { since: second, .. }) => {
            if first <= second {
                one.clone()
            } else {
                other.clone()
            }
        }
        (Link::Down { .. }, _) | (_, Link::Up) => one.clone(),
        (_, Link::Down { .. }) | (Link::Up, _) => other.clone(),
        (Link::Blocked(_), Link::Blocked(_)) => one.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loss_of_either_connection_is_shown_before_a_block() {
        let lost = Link::Down { since: Instant::now(), why: "lost".to_owned() };
        let later = Link::Down { since: Instant::now() + Duration::from_secs(1), why: "lost later".to_owned() };
        let blocked = Link::Blocked("memory".to_owned());
        let (publishing, consuming) = (watch::Sender::new(Link::Up), watch::Sender::new(Link::Up));
        let links = Links::of(publishing.subscribe(), consuming.subscribe());
        let mut shown = links.worse();
        let steps = [
            (&publishing, &blocked, &blocked),
            (&consuming, &later, &later),
            (&publishing, &lost, &lost),
            (&publishing, &Link::Up, &later),
            (&consuming, &Link::Up, &Link::Up),
        ];
        for (connection, state, expected) in steps {
            connection.send_replace(state.clone());
            shown.wait_for(|shown| shown == expected).await.unwrap();
        }
    }
}
