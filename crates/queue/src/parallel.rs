//! Parallel calls to a queue service, with a limit on the number of concurrent calls.

use tokio::task::JoinSet;

use super::QueueError;

/// Maximum number of calls that run at the same time.
const AT_ONCE: usize = 8;

/// Runs all futures, up to eight at the same time (`AT_ONCE`). Returns the results in the order of `work`. A result is
/// `None` if the future panicked, or if the runtime is shutting down.
pub async fn side_by_side<T: Send + 'static>(
    work: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<Option<T>> {
    let (mut under_way, mut answers) = (JoinSet::new(), Vec::new());
    for (n, one) in work.into_iter().enumerate() {
        answers.push(None);
        if under_way.len() >= AT_ONCE {
            keep(&mut answers, under_way.join_next().await);
        }
        under_way.spawn(async move { (n, one.await) });
    }
    while !under_way.is_empty() {
        keep(&mut answers, under_way.join_next().await);
    }
    answers
}

/// Returns the error for work for which [`side_by_side`] returned no result.
pub fn stopping() -> QueueError {
    QueueError::Unavailable("hostler is shutting down".to_owned())
}

fn keep<T>(answers: &mut [Option<T>], joined: Option<Result<(usize, T), tokio::task::JoinError>>) {
    if let Some(Ok((n, answer))) = joined
        && let Some(place) = answers.get_mut(n)
    {
        *place = Some(answer);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn answers_come_in_order_and_not_too_much_is_done_at_once() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let work = (0..50_usize).map(|n| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                for _ in 0..=n % 7 {
                    tokio::task::yield_now().await;
                }
                now.fetch_sub(1, Ordering::Relaxed);
                n
            }
        });
        assert_eq!(side_by_side(work).await, (0..50).map(Some).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::Relaxed), AT_ONCE);
    }
}
