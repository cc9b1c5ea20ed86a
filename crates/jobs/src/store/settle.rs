//! Results, failures and missed heartbeats, and the items that feeds make of results.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use hostler_postgres::{Param, Type};

use crate::backoff::ceilings;
use crate::feed::Template;
use crate::ids::AssignmentRef;
use crate::json::RawJson;
use crate::limits::{self, MAX_ASSIGNMENTS, MAX_JSON};
use crate::store::{Store, StoreError};
use crate::types::{Failure, Settled, SettledStatus, Success};

const SETTLE: &str = "SELECT n, status, retry_at, job FROM hostler_jobs.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
    $12, $13)";

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

/// A result or a failure of an assignment.
pub(crate) struct Ending<'e> {
    /// The assignment.
    pub(crate) place: AssignmentRef,
    /// Whether `body` is a result; an error otherwise.
    pub(crate) ok: bool,
    /// JSON text.
    pub(crate) body: &'e str,
    /// Seconds before the next attempt; the back-off otherwise.
    pub(crate) delay: Option<f64>,
}

/// The database's answer for one of them.
struct Outcome {
    status: i16,
    retry_at: Option<String>,
    /// The job, if its children's feeds are needed.
    job: Option<i64>,
}

const ACCEPTED: i16 = 1;
const NEEDS_FEED: i16 = 3;

/// Items to be made of results: the position of the result (from 1), the child, the payload.
#[derive(Default)]
struct FedItems {
    positions: Vec<i32>,
    jobs: Vec<i64>,
    payloads: Vec<String>,
}

impl Store {
    /// Ends assignments by results and failures. All is one transaction, except results that feed children, which are another. Each
    /// assignment ends at once with all that follows from it. Returns an entry for each result, then for each failure.
    ///
    /// A result whose feed would make a payload that is too long is recorded as a failure.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if one breaks a limit: then none is accepted. [`StoreError::Database`]: the same call may be repeated.
    pub async fn settle(&self, results: Vec<Success>, failures: Vec<Failure>) -> Result<Vec<Settled>, StoreError> {
        if results.len() + failures.len() > MAX_ASSIGNMENTS {
            return Err(StoreError::invalid("results", format!("at most {MAX_ASSIGNMENTS} results and failures")));
        }
        for (number, success) in results.iter().enumerate() {
            limits::json(&format!("results[{number}].result"), &success.result)?;
        }
        for (number, failure) in failures.iter().enumerate() {
            limits::json(&format!("failures[{number}].error"), &failure.error)?;
            limits::delay(&format!("failures[{number}].retry_in_seconds"), failure.retry_in_seconds)?;
        }
        let ids: Vec<&str> = results
            .iter()
            .map(|success| success.assignment_id.as_str())
            .chain(failures.iter().map(|failure| failure.assignment_id.as_str()))
            .collect();
        let successes = results.iter().map(|success| (true, &success.result, None));
        let all = successes.chain(failures.iter().map(|failure| (false, &failure.error, failure.retry_in_seconds)));
        let mut numbers = Vec::with_capacity(ids.len());
        let mut endings = Vec::with_capacity(ids.len());
        for (number, (id, (ok, body, delay))) in ids.iter().zip(all).enumerate() {
            if let Some(place) = AssignmentRef::parse(id) {
                numbers.push(number);
                endings.push(Ending { place, ok, body: body.text(), delay });
            }
        }
        let mut statuses = vec![SettledStatus::Stale; ids.len()];
        for (number, settlement) in numbers.into_iter().zip(self.end(&endings, None).await?) {
            if let (Some(status), Settlement::Ok { .. }) = (statuses.get_mut(number), settlement) {
                *status = SettledStatus::Ok;
            }
        }
        let settled = ids.iter().zip(statuses);
        Ok(settled.map(|(id, status)| Settled { assignment_id: (*id).to_owned(), status }).collect())
    }

    /// Ends an assignment by a result.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the result breaks a limit; [`StoreError::Database`]: the same call may be repeated.
    pub async fn succeed(&self, assignment: &str, result: RawJson) -> Result<Settlement, StoreError> {
        limits::json("result", &result)?;
        self.end_one(assignment, true, &result, None).await
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
        limits::json("error", &error)?;
        let delay = retry_in.map(|delay| delay.as_secs_f64());
        limits::delay("retry_in_seconds", delay)?;
        self.end_one(assignment, false, &error, delay).await
    }

    async fn end_one(&self, id: &str, ok: bool, body: &RawJson, delay: Option<f64>) -> Result<Settlement, StoreError> {
        let Some(place) = AssignmentRef::parse(id) else { return Ok(Settlement::Stale) };
        let ended = self.end(&[Ending { place, ok, body: body.text(), delay }], None).await?;
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
        // Sorted, so that two calls lock rows in the same order.
        let mut order: Vec<usize> = (0..endings.len()).collect();
        order.sort_by_key(|number| endings.get(*number).map(|ending| (ending.place.item.seq, !ending.ok)));
        let sorted: Vec<&Ending<'_>> = order.iter().filter_map(|number| endings.get(*number)).collect();
        let mut outcomes = self.call_settle(&sorted, None, age).await?;
        let needing: Vec<usize> = positions(&outcomes, |outcome| outcome.status == NEEDS_FEED);
        if !needing.is_empty() {
            let fed: Vec<&Ending<'_>> = needing.iter().filter_map(|at| sorted.get(*at).copied()).collect();
            let jobs: BTreeSet<i64> = outcomes.iter().filter_map(|outcome| outcome.job).collect();
            let job_of: Vec<i64> = needing.iter().filter_map(|at| outcomes.get(*at)?.job).collect();
            let later = self.settle_fed(&fed, &job_of, &jobs).await?;
            for (at, outcome) in needing.into_iter().zip(later) {
                if let Some(place) = outcomes.get_mut(at) {
                    *place = outcome;
                }
            }
        }
        let mut ended = vec![Settlement::Stale; endings.len()];
        for (number, outcome) in order.into_iter().zip(outcomes) {
            if let (Some(place), ACCEPTED) = (ended.get_mut(number), outcome.status) {
                *place = Settlement::Ok { retry_at: outcome.retry_at };
            }
        }
        Ok(ended)
    }

    /// Ends assignments by results of jobs whose children have feeds.
    async fn settle_fed(
        &self,
        endings: &[&Ending<'_>],
        job_of: &[i64],
        jobs: &BTreeSet<i64>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let jobs: Vec<i64> = jobs.iter().copied().collect();
        let sql = "SELECT parent, num, feed::text FROM hostler_jobs.job WHERE parent = ANY ($1) AND feed IS NOT NULL ORDER BY num";
        let mut feeds: HashMap<i64, Vec<(i64, Template)>> = HashMap::new();
        for row in self.call(sql, &[(&jobs, Type::INT8_ARRAY)]).await? {
            let template = Template::parse(row.get(2));
            feeds.entry(row.get(0)).or_default().push((row.get(1), template));
        }
        let days: Vec<i32> = endings.iter().map(|ending| ending.place.item.day).collect();
        let seqs: Vec<i64> = endings.iter().map(|ending| ending.place.item.seq).collect();
        let sql = "SELECT i.seq, i.payload::text FROM unnest($1, $2) g (day, seq) CROSS JOIN LATERAL \
            (SELECT * FROM hostler_jobs.item i WHERE i.day = g.day AND i.seq = g.seq LIMIT 1) i";
        let rows = self.call(sql, &[(&days, Type::INT4_ARRAY), (&seqs, Type::INT8_ARRAY)]).await?;
        let payloads: HashMap<i64, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let mut items = FedItems::default();
        let mut changed = Vec::with_capacity(endings.len());
        for (number, (ending, job)) in endings.iter().zip(job_of).enumerate() {
            let payload = payloads.get(&ending.place.item.seq).map_or("null", String::as_str);
            let feeds = feeds.get(job).map_or(&[][..], Vec::as_slice);
            changed.push(items.add(number, ending, feeds, payload));
        }
        let refused: Vec<Option<String>> = changed
            .iter()
            .map(|error| error.as_ref().map(|text| serde_json::Value::from(text.as_str()).to_string()))
            .collect();
        let replaced: Vec<Ending<'_>> = endings
            .iter()
            .zip(&refused)
            .map(|(ending, error)| Ending {
                place: ending.place,
                ok: error.is_none(),
                body: error.as_deref().unwrap_or(ending.body),
                delay: None,
            })
            .collect();
        self.call_settle(&replaced.iter().collect::<Vec<_>>(), Some(&items), None).await
    }

    async fn call_settle(
        &self,
        endings: &[&Ending<'_>],
        fed: Option<&FedItems>,
        age: Option<Duration>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let column = |read: fn(&AssignmentRef) -> i64| endings.iter().map(|ending| read(&ending.place)).collect();
        let days: Vec<i32> = endings.iter().map(|ending| ending.place.item.day).collect();
        let seqs: Vec<i64> = column(|place| place.item.seq);
        let tokens: Vec<i64> = column(|place| place.token);
        let oks: Vec<bool> = endings.iter().map(|ending| ending.ok).collect();
        let bodies: Vec<&str> = endings.iter().map(|ending| ending.body).collect();
        let delays: Vec<Option<f64>> = endings.iter().map(|ending| ending.delay).collect();
        let jitters: Vec<f64> = endings.iter().map(|_| fastrand::f64()).collect();
        let ceilings = ceilings(self.settings.backoff, self.settings.backoff_max);
        let (is_fed, none) = (fed.is_some(), FedItems::default());
        let fed = fed.unwrap_or(&none);
        let age = age.map(|age| age.as_secs_f64());
        let params: [Param<'_>; 13] = [
            (&days, Type::INT4_ARRAY),
            (&seqs, Type::INT8_ARRAY),
            (&tokens, Type::INT8_ARRAY),
            (&oks, Type::BOOL_ARRAY),
            (&bodies, Type::TEXT_ARRAY),
            (&delays, Type::FLOAT8_ARRAY),
            (&jitters, Type::FLOAT8_ARRAY),
            (&ceilings, Type::FLOAT8_ARRAY),
            (&is_fed, Type::BOOL),
            (&fed.positions, Type::INT4_ARRAY),
            (&fed.jobs, Type::INT8_ARRAY),
            (&fed.payloads, Type::TEXT_ARRAY),
            (&age, Type::FLOAT8),
        ];
        let mut outcomes: Vec<Outcome> =
            endings.iter().map(|_| Outcome { status: 0, retry_at: None, job: None }).collect();
        for row in self.call(SETTLE, &params).await? {
            let position = usize::try_from(row.get::<_, i32>(0)).unwrap_or_default();
            if let Some(outcome) = position.checked_sub(1).and_then(|at| outcomes.get_mut(at)) {
                *outcome = Outcome { status: row.get(1), retry_at: row.get(2), job: row.get(3) };
            }
        }
        Ok(outcomes)
    }
}

impl FedItems {
    /// Adds the items of a result. Returns the reason if one is too long; then there are none.
    fn add(&mut self, number: usize, ending: &Ending<'_>, feeds: &[(i64, Template)], payload: &str) -> Option<String> {
        let mut made = Vec::with_capacity(feeds.len());
        for (job, template) in feeds {
            match template.expand(ending.body, payload, MAX_JSON) {
                Ok(text) => made.push((*job, text)),
                Err(error) => return Some(error.to_string()),
            }
        }
        let position = i32::try_from(number + 1).unwrap_or(i32::MAX);
        for (job, text) in made {
            self.positions.push(position);
            self.jobs.push(job);
            self.payloads.push(text);
        }
        None
    }
}

fn positions(outcomes: &[Outcome], wanted: impl Fn(&Outcome) -> bool) -> Vec<usize> {
    outcomes.iter().enumerate().filter(|(_, outcome)| wanted(outcome)).map(|(at, _)| at).collect()
}
