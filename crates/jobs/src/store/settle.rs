//! Results, failures and missed heartbeats.

use std::time::Duration;

use crate::json::RawJson;
use crate::limits::{self, MAX_ADDED, MAX_ASSIGNMENTS};
use crate::store::ending::{ACCEPTED, Ending, NEEDS_EXTRAS, Outcome};
use crate::store::joined::End;
use crate::store::{Store, StoreError};
use crate::types::{Failure, Settled, SettledStatus, Success};

/// The end of a single assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The result or failure was accepted, now or before.
    Ok {
        /// The time of the next attempt, RFC 3339. `None`: there is none.
        retry_at: Option<String>,
    },
    /// The assignment had ended in another way.
    Stale,
}

impl Store {
    /// Ends assignments by results and failures. All is one transaction, except results that feed children, add items or seal jobs,
    /// which are others. Each assignment ends at once with all that follows from it. Of several ends of one assignment, the first
    /// counts. Returns an entry for each result, then for each failure.
    ///
    /// A result whose feed would make a payload that is too long or too deep is recorded as a failure. So is one that adds items to a
    /// job that is unknown or sealed, or seals an open job that has a feed.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if one breaks a limit: then none is accepted. [`StoreError::Database`]: the same call may be repeated.
    pub async fn settle(&self, results: Vec<Success>, failures: Vec<Failure>) -> Result<Vec<Settled>, StoreError> {
        check(&results, &failures)?;
        let ids = results.iter().map(|success| &success.assignment_id);
        let ids: Vec<&String> = ids.chain(failures.iter().map(|failure| &failure.assignment_id)).collect();
        let all = results.iter().map(Ending::of_result).chain(failures.iter().map(Ending::of_failure));
        let (numbers, endings): (Vec<usize>, Vec<Ending<'_>>) =
            all.enumerate().filter_map(|(number, ending)| Some((number, ending?))).unzip();
        let mut statuses = vec![SettledStatus::Stale; ids.len()];
        for (number, settlement) in numbers.into_iter().zip(self.end(&endings, None).await?) {
            if let (Some(status), Settlement::Ok { .. }) = (statuses.get_mut(number), settlement) {
                *status = SettledStatus::Ok;
            }
        }
        let settled = ids.into_iter().zip(statuses);
        Ok(settled.map(|(id, status)| Settled { assignment_id: id.clone(), status }).collect())
    }

    /// Ends an assignment by a result.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the result breaks a limit; [`StoreError::Database`]: the same call may be repeated.
    pub async fn succeed(&self, assignment: &str, result: RawJson) -> Result<Settlement, StoreError> {
        self.end_by_result(Success { assignment_id: assignment.to_owned(), result, ..Success::default() }).await
    }

    /// Ends an assignment by a failure. The next attempt is after `retry_in`, or after the back-off.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the error or the delay breaks a limit; [`StoreError::Database`]: the same call may be repeated.
    pub async fn fail(
        &self,
        assignment: &str,
        error: RawJson,
        retry_in: Option<Duration>,
    ) -> Result<Settlement, StoreError> {
        let retry_in_seconds = retry_in.map(|delay| delay.as_secs_f64());
        self.end_by_failure(Failure { assignment_id: assignment.to_owned(), error, retry_in_seconds, is_final: false })
            .await
    }

    /// Ends an assignment by a result, which may add items to jobs of its tree and seal some. See [`Store::settle`].
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the result breaks a limit; [`StoreError::Database`]: the same call may be repeated.
    pub async fn end_by_result(&self, success: Success) -> Result<Settlement, StoreError> {
        check_result("", &success)?;
        if success.add_items.is_empty() && success.seal.is_empty() {
            return self.end_with_others(End::Result(success)).await;
        }
        self.end_one(Ending::of_result(&success)).await
    }

    /// Ends an assignment by a failure, which may be final.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the error or the delay breaks a limit; [`StoreError::Database`]: the same call may be repeated.
    pub async fn end_by_failure(&self, failure: Failure) -> Result<Settlement, StoreError> {
        check_failure("", &failure)?;
        self.end_with_others(End::Failure(failure)).await
    }

    /// Ends an assignment in a transaction of its own. `None`: there is no such assignment.
    pub(crate) async fn end_one(&self, ending: Option<Ending<'_>>) -> Result<Settlement, StoreError> {
        let Some(ending) = ending else { return Ok(Settlement::Stale) };
        let ended = self.end(&[ending], None).await?;
        Ok(ended.into_iter().next().unwrap_or(Settlement::Stale))
    }

    /// Ends assignments. `age`: only those without a heartbeat for so long.
    pub(crate) async fn end(
        &self,
        endings: &[Ending<'_>],
        age: Option<Duration>,
    ) -> Result<Vec<Settlement>, StoreError> {
        if endings.is_empty() {
            return Ok(Vec::new());
        }
        let (order, sorted) = sorted(endings);
        // A result that is left for its feeds would lose against a failure of the same call.
        let (firsts, repeats) = split_repeats(&sorted);
        let mut ended = vec![Settlement::Stale; endings.len()];
        for part in [firsts, repeats] {
            let picked: Vec<&Ending<'_>> = part.iter().filter_map(|at| sorted.get(*at).copied()).collect();
            let outcomes = self.end_distinct(&picked, age).await?;
            for (at, outcome) in part.into_iter().zip(outcomes) {
                let place = order.get(at).and_then(|number| ended.get_mut(*number));
                if let (Some(place), ACCEPTED) = (place, outcome.status) {
                    *place = Settlement::Ok { retry_at: outcome.retry_at };
                }
            }
        }
        Ok(ended)
    }

    /// Ends assignments. Those that are alive have one end each.
    async fn end_distinct(&self, sorted: &[&Ending<'_>], age: Option<Duration>) -> Result<Vec<Outcome>, StoreError> {
        if sorted.is_empty() {
            return Ok(Vec::new());
        }
        let mut outcomes = self.call_settle(sorted, None, age).await?;
        self.add_extras(sorted, &mut outcomes).await?;
        Ok(outcomes)
    }

    /// Ends those of the assignments that one call ends. `None`: the result feeds children, and the assignment is as it was.
    pub(crate) async fn end_without_extras(
        &self,
        endings: &[Ending<'_>],
    ) -> Result<Vec<Option<Settlement>>, StoreError> {
        if endings.is_empty() {
            return Ok(Vec::new());
        }
        let (order, sorted) = sorted(endings);
        let mut ended = vec![Some(Settlement::Stale); endings.len()];
        for (number, outcome) in order.into_iter().zip(self.call_settle(&sorted, None, None).await?) {
            if let Some(place) = ended.get_mut(number) {
                *place = match outcome.status {
                    NEEDS_EXTRAS => None,
                    ACCEPTED => Some(Settlement::Ok { retry_at: outcome.retry_at }),
                    _ => Some(Settlement::Stale),
                };
            }
        }
        Ok(ended)
    }

    /// Ends those of the assignments that need more than one call.
    async fn add_extras(&self, sorted: &[&Ending<'_>], outcomes: &mut [Outcome]) -> Result<(), StoreError> {
        let (mut left, mut job_of, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (ending, outcome)) in sorted.iter().zip(outcomes.iter()).enumerate() {
            let (NEEDS_EXTRAS, Some(job)) = (outcome.status, outcome.job) else { continue };
            left.push(*ending);
            job_of.push(job);
            places.push(at);
        }
        if left.is_empty() {
            return Ok(());
        }
        for (at, settled) in places.into_iter().zip(self.settle_with_extras(&left, &job_of).await?) {
            if let Some(outcome) = outcomes.get_mut(at) {
                *outcome = settled;
            }
        }
        Ok(())
    }
}

/// Splits the positions of sorted ends: the first of each assignment, and all others.
fn split_repeats(sorted: &[&Ending<'_>]) -> (Vec<usize>, Vec<usize>) {
    let place = |at: usize| sorted.get(at).map(|ending| ending.place);
    (0..sorted.len()).partition(|at| *at == 0 || place(*at) != place(at - 1))
}

/// Sorts ends, so that two calls lock rows in the same order. Returns the position of each as well.
fn sorted<'e, 's>(endings: &'s [Ending<'e>]) -> (Vec<usize>, Vec<&'s Ending<'e>>) {
    let mut sorted: Vec<(usize, &Ending<'e>)> = endings.iter().enumerate().collect();
    sorted.sort_by_key(|(_, ending)| (ending.place.item.seq, ending.place.token, !ending.is_result()));
    sorted.into_iter().unzip()
}

/// Checks results and failures against the limits of a request.
///
/// # Errors
/// [`StoreError::Invalid`].
pub(crate) fn check(results: &[Success], failures: &[Failure]) -> Result<(), StoreError> {
    if results.len() + failures.len() > MAX_ASSIGNMENTS {
        return Err(StoreError::invalid("results", format!("at most {MAX_ASSIGNMENTS} results and failures")));
    }
    let mut added = 0;
    for (number, success) in results.iter().enumerate() {
        added += check_result(&format!("results[{number}]."), success)?;
    }
    if added > MAX_ADDED {
        return Err(StoreError::invalid("results", format!("the results of a request add {MAX_ADDED} items at most")));
    }
    for (number, failure) in failures.iter().enumerate() {
        check_failure(&format!("failures[{number}]."), failure)?;
    }
    Ok(())
}

/// Checks a result against the limits. Returns the number of items that it adds.
fn check_result(at: &str, success: &Success) -> Result<usize, StoreError> {
    limits::json(&format!("{at}result"), &success.result)?;
    Ok(limits::more(at, &success.add_items, &success.seal)?)
}

/// Checks a failure against the limits.
fn check_failure(at: &str, failure: &Failure) -> Result<(), StoreError> {
    limits::json(&format!("{at}error"), &failure.error)?;
    Ok(limits::delay(&format!("{at}retry_in_seconds"), failure.retry_in_seconds)?)
}
