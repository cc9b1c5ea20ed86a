//! The ends of assignments as rows of the database's function `settle`.

use std::time::Duration;

use hostler_postgres::{Param, Row, Type};

use crate::backoff::ceilings;
use crate::ids::AssignmentRef;
use crate::store::{Store, StoreError};
use crate::types::{AddedTo, Failure, Success};

const SETTLE: &str = "SELECT n, status, retry_at, job FROM hostler_jobs.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
    $12, $13)";
/// The way in which an assignment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A result.
    Success,
    /// A result that adds items to jobs of the tree, or seals some.
    More,
    /// A failure that the worker reports.
    Failure,
    /// A failure after which there is no attempt.
    Final,
    /// A failure in place of a result.
    Refused,
    /// A failure by missed heartbeats.
    Expired,
}

impl Kind {
    /// The word that the database's functions know.
    fn word(self) -> &'static str {
        match self {
            Kind::Success => "success",
            Kind::More => "more",
            Kind::Failure => "failure",
            Kind::Final => "final",
            Kind::Refused => "refused",
            Kind::Expired => "expired",
        }
    }
}

/// A result or a failure of an assignment.
pub(crate) struct Ending<'e> {
    /// The assignment.
    pub(crate) place: AssignmentRef,
    pub(crate) kind: Kind,
    /// JSON text: the result or the error.
    pub(crate) body: &'e str,
    /// Seconds before the next attempt; the back-off otherwise.
    pub(crate) delay: Option<f64>,
    /// The items to add, and the jobs to seal.
    pub(crate) more: (&'e [AddedTo], &'e [String]),
}

impl<'e> Ending<'e> {
    /// An end without a delay of its own, and without items.
    pub(crate) fn new(place: AssignmentRef, kind: Kind, body: &'e str) -> Ending<'e> {
        Ending { place, kind, body, delay: None, more: (&[], &[]) }
    }

    /// The end by a result. `None`: there is no such assignment.
    pub(crate) fn of_result(success: &'e Success) -> Option<Ending<'e>> {
        let more = (success.add_items.as_slice(), success.seal.as_slice());
        let kind = if more.0.is_empty() && more.1.is_empty() { Kind::Success } else { Kind::More };
        let place = AssignmentRef::parse(&success.assignment_id)?;
        Some(Ending { more, ..Ending::new(place, kind, success.result.text()) })
    }

    /// The end by a failure. `None`: there is no such assignment.
    pub(crate) fn of_failure(failure: &'e Failure) -> Option<Ending<'e>> {
        let kind = if failure.is_final { Kind::Final } else { Kind::Failure };
        let place = AssignmentRef::parse(&failure.assignment_id)?;
        Some(Ending { delay: failure.retry_in_seconds, ..Ending::new(place, kind, failure.error.text()) })
    }

    /// Set if the worker gave a result.
    pub(crate) fn is_result(&self) -> bool {
        matches!(self.kind, Kind::Success | Kind::More)
    }
}

/// The database's answer for one of them.
#[derive(Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) status: i16,
    pub(crate) retry_at: Option<String>,
    /// The job, if its children's feeds are needed.
    pub(crate) job: Option<i64>,
}

/// The status of an end that was accepted, now or before.
pub(crate) const ACCEPTED: i16 = 1;

/// The status of a result that needs a second call, with all that it adds.
pub(crate) const NEEDS_EXTRAS: i16 = 3;

impl Store {
    /// Calls `settle`. `fed`: the items of feeds; without, results that need extras are left as they are.
    pub(crate) async fn call_settle(
        &self,
        endings: &[&Ending<'_>],
        fed: Option<[Param<'_>; 3]>,
        age: Option<Duration>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let columns = Columns::new(self, endings);
        let is_fed = fed.is_some();
        let (no_positions, no_jobs, no_payloads): (Vec<i32>, Vec<i64>, Vec<&str>) = Default::default();
        let none: [Param<'_>; 3] =
            [(&no_positions, Type::INT4_ARRAY), (&no_jobs, Type::INT8_ARRAY), (&no_payloads, Type::TEXT_ARRAY)];
        let age = age.map(|age| age.as_secs_f64());
        let mut params = columns.params();
        params.push((&is_fed, Type::BOOL));
        params.extend(fed.unwrap_or(none));
        params.push((&age, Type::FLOAT8));
        Ok(outcomes(endings.len(), &self.call(SETTLE, &params).await?))
    }
}

/// The columns of ends.
pub(crate) struct Columns<'e> {
    days: Vec<i32>,
    seqs: Vec<i64>,
    tokens: Vec<i64>,
    kinds: Vec<&'static str>,
    bodies: Vec<&'e str>,
    delays: Vec<Option<f64>>,
    jitters: Vec<f64>,
    ceilings: Vec<f64>,
}

impl<'e> Columns<'e> {
    pub(crate) fn new(store: &Store, endings: &[&Ending<'e>]) -> Columns<'e> {
        Columns {
            days: endings.iter().map(|ending| ending.place.item.day).collect(),
            seqs: endings.iter().map(|ending| ending.place.item.seq).collect(),
            tokens: endings.iter().map(|ending| ending.place.token).collect(),
            kinds: endings.iter().map(|ending| ending.kind.word()).collect(),
            bodies: endings.iter().map(|ending| ending.body).collect(),
            delays: endings.iter().map(|ending| ending.delay).collect(),
            jitters: endings.iter().map(|_| fastrand::f64()).collect(),
            ceilings: ceilings(store.settings.backoff, store.settings.backoff_max),
        }
    }

    pub(crate) fn params(&self) -> Vec<Param<'_>> {
        vec![
            (&self.days, Type::INT4_ARRAY),
            (&self.seqs, Type::INT8_ARRAY),
            (&self.tokens, Type::INT8_ARRAY),
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.bodies, Type::TEXT_ARRAY),
            (&self.delays, Type::FLOAT8_ARRAY),
            (&self.jitters, Type::FLOAT8_ARRAY),
            (&self.ceilings, Type::FLOAT8_ARRAY),
        ]
    }
}

/// Reads the outcome of each of `count` ends.
pub(crate) fn outcomes(count: usize, rows: &[Row]) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::default(); count];
    for row in rows {
        let position = usize::try_from(row.get::<_, i32>(0)).unwrap_or_default();
        if let Some(outcome) = position.checked_sub(1).and_then(|at| outcomes.get_mut(at)) {
            *outcome = Outcome { status: row.get(1), retry_at: row.get(2), job: row.get(3) };
        }
    }
    outcomes
}
