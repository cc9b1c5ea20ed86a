//! Items that results add in their transaction, by the feeds of children or as their workers ask, and jobs that they seal.

use std::collections::HashMap;
use std::iter;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use hostler_postgres::{Param, Type};

use crate::feed::Parsed;
use crate::limits::{self, MAX_JSON};
use crate::store::applet_runs::Runs;
use crate::store::ending::{Columns, Ending, Kind, Outcome, outcomes};
use crate::store::feeding::{Child, Entered, Feeds, Made, Rule};
use crate::store::{Store, StoreError};
use crate::types::AddedItem;

/// Maximum size of the payloads that one result feeds to all children together, in bytes.
const MAX_FED: usize = 16 << 20;

/// Size of an item beside its payload and metadata, at most, for the bound above.
const ROW: usize = 512;

/// Maximum number of results whose items' payloads are read at a time.
const PAYLOADS: usize = 64;

/// Maximum number of results of a request whose applets run at a time, also if an applet has more slots.
const RUNS: usize = 16;

const SETTLE_MORE: &str = "SELECT n, status, retry_at, job FROM hostler_jobs.settle_more($1, $2, $3, $4, $5, $6, $7, $8, $9, \
    $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)";

/// Items to be made by feeds: the position of the result (from 1), the child, the payload.
#[derive(Default)]
struct FedItems {
    positions: Vec<i32>,
    jobs: Vec<i64>,
    payloads: Vec<String>,
    /// The size of all payloads.
    bytes: usize,
}

/// Items and seals that workers ask for, with the positions of their results (from 1). A target without items has one row without
/// a payload, so that it is looked for.
#[derive(Default)]
struct AskedItems<'e> {
    positions: Vec<i32>,
    targets: Vec<&'e str>,
    /// Set for the items of applets, whose targets are ids of children.
    fed: Vec<bool>,
    payloads: Vec<Option<&'e str>>,
    dedupes: Vec<Option<&'e str>>,
    keys: Vec<Option<&'e str>>,
    priorities: Vec<i16>,
    metas: Vec<&'e str>,
    seal_positions: Vec<i32>,
    seal_targets: Vec<&'e str>,
}

/// A result with all that is needed to settle it.
struct Ready<'e> {
    /// The place of the result among those of the call.
    at: usize,
    ending: &'e Ending<'e>,
    children: &'e [Child],
    /// The payload of the result's item; `null` unless a child needs it.
    payload: String,
    made: Made<'e>,
    /// Keeps a repeated result from the applets meanwhile.
    _entered: Option<Entered>,
}

impl Store {
    /// Ends assignments by results that have more to do than to be stored. No two entries are of the same assignment.
    ///
    /// A result whose feeds would make payloads that are too long or too deep is recorded as a failure, and so is one whose applet
    /// fails. Many results, or those that make much, are several transactions, so that little of it lies in memory at a time.
    ///
    /// # Errors
    /// [`StoreError::Applet`] if an applet cannot run in this process: its results are left as they are, and all others are settled.
    pub(crate) async fn settle_with_extras(
        &self,
        endings: &[&Ending<'_>],
        job_of: &[i64],
    ) -> Result<Vec<Outcome>, StoreError> {
        let feeds = self.feeds(job_of).await?;
        if feeds.values().flatten().any(Child::has_applet) {
            let names = feeds.values().flatten().filter_map(Child::applet);
            let runs = Runs::new(endings, names, self.applets());
            return tokio::select! {
                ended = self.settle_with_applets(endings, job_of, &feeds, &runs) => ended,
                never = self.keep_alive(&runs) => match never {},
            };
        }
        let needs_payloads = feeds.values().flatten().any(Child::needs_payload);
        let size = if needs_payloads { PAYLOADS } else { endings.len().max(1) };
        let mut ended = vec![Outcome::default(); endings.len()];
        for (number, (part, job_of)) in endings.chunks(size).zip(job_of.chunks(size)).enumerate() {
            let mut payloads = if needs_payloads { self.payloads(part).await? } else { HashMap::new() };
            let ready = part.iter().zip(job_of).enumerate().map(|(place, (ending, job))| Ready {
                at: number * size + place,
                ending,
                children: feeds.get(job).map_or(&[][..], Vec::as_slice),
                payload: payloads.remove(&ending.place.item.seq).unwrap_or_else(|| "null".to_owned()),
                made: Made::Items(Vec::new()),
                _entered: None,
            });
            self.settle_ready(ready.collect(), &mut ended).await?;
        }
        Ok(ended)
    }

    /// Ends assignments by results of which some have applets. Each is settled soon after its applets have ended, so that a worker
    /// that gives up and repeats all of them finds those settled. Those whose assignments end meanwhile are stale.
    async fn settle_with_applets(
        &self,
        endings: &[&Ending<'_>],
        job_of: &[i64],
        feeds: &Feeds,
        runs: &Runs,
    ) -> Result<Vec<Outcome>, StoreError> {
        let mut ended = vec![Outcome::default(); endings.len()];
        let (mut left, mut fault) = (endings.iter().zip(job_of).enumerate(), None);
        // The runs wait while others are settled. So they must hold no connection, which the settlement may need.
        let mut running = FuturesUnordered::new();
        loop {
            // A run that has ended makes room for the next, so that a slow one holds up nothing else.
            let next: Vec<_> = left.by_ref().take(RUNS.saturating_sub(running.len())).collect();
            if !next.is_empty() {
                let of_next: Vec<&Ending<'_>> = next.iter().map(|(_, (ending, _))| **ending).collect();
                let mut payloads = self.payloads(&of_next).await?;
                running.extend(next.into_iter().map(|(at, (ending, job))| {
                    let children = feeds.get(job).map_or(&[][..], Vec::as_slice);
                    let payload = payloads.remove(&ending.place.item.seq).unwrap_or_else(|| "null".to_owned());
                    self.prepare(at, ending, children, payload, runs)
                }));
            }
            let Some(first) = running.next().await else { break };
            let mut ready = Vec::new();
            for prepared in iter::once(first).chain(iter::from_fn(|| running.next().now_or_never().flatten())) {
                match prepared {
                    Ok(one) => ready.extend(one),
                    Err(error) => fault = Some(error),
                }
            }
            // The order of the endings is that of the locks.
            ready.sort_by_key(|one: &Ready<'_>| one.at);
            self.settle_ready(ready, &mut ended).await?;
        }
        fault.map_or(Ok(ended), Err)
    }

    /// Runs the applets of a result. Does not use the database. `None`: the assignment has ended meanwhile.
    async fn prepare<'e>(
        &self,
        at: usize,
        ending: &'e Ending<'e>,
        children: &'e [Child],
        payload: String,
        runs: &Runs,
    ) -> Result<Option<Ready<'e>>, StoreError> {
        let applet = children.iter().find_map(Child::applet);
        let entered = match applet {
            Some(name) => Some(self.busy.enter(ending.place).ok_or_else(|| StoreError::Applet {
                name: name.to_owned(),
                reason: "the same result is with it already; ask again later".to_owned(),
            })?),
            None => None,
        };
        let made = tokio::select! {
            biased;
            made = self.run_applets(ending, &payload, children, runs) => made?,
            () = runs.stopped(ending.place) => return Ok(None),
        };
        Ok(Some(Ready { at, ending, children, payload, made, _entered: entered }))
    }

    /// Ends assignments by results that are ready. Writes the outcome of each to its place.
    async fn settle_ready(&self, ready: Vec<Ready<'_>>, ended: &mut [Outcome]) -> Result<(), StoreError> {
        let mut left = ready.into_iter().peekable();
        while left.peek().is_some() {
            let mut fed = FedItems::default();
            let (mut chunk, mut errors) = (Vec::new(), Vec::new());
            while let Some(one) = left.next_if(|_| fed.bytes < MAX_FED) {
                errors.push(match &one.made {
                    Made::Refused(reason) => Some(reason.clone()),
                    Made::Items(made) => {
                        fed.bytes += made
                            .iter()
                            .flat_map(|(_, items)| items)
                            .map(|item| item.payload.text().len() + item.metadata.text().len() + ROW)
                            .sum::<usize>();
                        fed.add(position(chunk.len()), one.ending, one.children, &one.payload)
                    }
                });
                chunk.push(one);
            }
            let outcomes = self.settle_chunk(&chunk, &fed, &errors).await?;
            for (one, outcome) in chunk.iter().zip(outcomes) {
                if let Some(place) = ended.get_mut(one.at) {
                    *place = outcome;
                }
            }
        }
        Ok(())
    }

    /// Ends assignments by results, with the items that their feeds make. `errors`: the reasons against results.
    async fn settle_chunk(
        &self,
        ready: &[Ready<'_>],
        fed: &FedItems,
        errors: &[Option<String>],
    ) -> Result<Vec<Outcome>, StoreError> {
        let refused: Vec<Option<String>> = errors
            .iter()
            .map(|error| error.as_ref().map(|text| serde_json::Value::from(text.as_str()).to_string()))
            .collect();
        let mut asked = AskedItems::default();
        let mut replaced = Vec::with_capacity(ready.len());
        for (number, (one, error)) in ready.iter().zip(&refused).enumerate() {
            replaced.push(match error {
                Some(error) => Ending::new(one.ending.place, Kind::Refused, error),
                None => {
                    asked.add(position(number), one.ending);
                    asked.add_made(position(number), &one.made);
                    Ending::new(one.ending.place, Kind::Success, one.ending.body)
                }
            });
        }
        let replaced: Vec<&Ending<'_>> = replaced.iter().collect();
        if asked.is_empty() {
            return self.call_settle(&replaced, Some(fed.params()), None).await;
        }
        self.call_settle_more(&replaced, fed, &asked).await
    }

    /// Calls `settle_more`.
    async fn call_settle_more(
        &self,
        endings: &[&Ending<'_>],
        fed: &FedItems,
        asked: &AskedItems<'_>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let columns = Columns::new(self, endings);
        let mut params = columns.params();
        params.extend(fed.params());
        params.extend(asked.params());
        Ok(outcomes(endings.len(), &self.call(SETTLE_MORE, &params).await?))
    }

    /// The payloads of the items of assignments, by the items' numbers.
    async fn payloads(&self, endings: &[&Ending<'_>]) -> Result<HashMap<i64, String>, StoreError> {
        let days: Vec<i32> = endings.iter().map(|ending| ending.place.item.day).collect();
        let seqs: Vec<i64> = endings.iter().map(|ending| ending.place.item.seq).collect();
        let sql = "SELECT i.seq, i.payload::text FROM unnest($1, $2) g (day, seq) CROSS JOIN LATERAL \
            (SELECT * FROM hostler_jobs.item i WHERE i.day = g.day AND i.seq = g.seq LIMIT 1) i";
        let rows = self.call(sql, &[(&days, Type::INT4_ARRAY), (&seqs, Type::INT8_ARRAY)]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }
}

impl FedItems {
    /// Adds the items that the templates make of a result. Returns the reason if one is too long or too deep; then there are none.
    fn add(&mut self, position: i32, ending: &Ending<'_>, children: &[Child], payload: &str) -> Option<String> {
        let (mut result, mut payload) = (Parsed::new(ending.body), Parsed::new(payload));
        let (mut made, mut bytes) = (Vec::with_capacity(children.len()), 0);
        for child in children {
            let Rule::Template(template) = &child.rule else { continue };
            let text = match template.expand(&mut result, &mut payload, MAX_JSON) {
                Ok(text) => text,
                Err(error) => return Some(error.to_string()),
            };
            if let Err(fault) = limits::json_text("payload", &text) {
                return Some(format!("the payload that the feed makes {}", fault.detail));
            }
            bytes += text.len();
            if bytes > MAX_FED {
                return Some(format!("the payloads that the feeds make are longer than {MAX_FED} bytes together"));
            }
            made.push((child.num, text));
        }
        self.bytes += bytes;
        for (job, text) in made {
            self.positions.push(position);
            self.jobs.push(job);
            self.payloads.push(text);
        }
        None
    }

    /// The columns of the items.
    fn params(&self) -> [Param<'_>; 3] {
        [(&self.positions, Type::INT4_ARRAY), (&self.jobs, Type::INT8_ARRAY), (&self.payloads, Type::TEXT_ARRAY)]
    }
}

impl<'e> AskedItems<'e> {
    /// Adds the items and seals that a worker asks for.
    fn add(&mut self, position: i32, ending: &Ending<'e>) {
        let (added, seals) = ending.more;
        for to in added {
            if to.items.is_empty() {
                self.row(position, &to.target, false, None);
            }
            for item in &to.items {
                self.row(position, &to.target, false, Some(item));
            }
        }
        for target in seals {
            self.seal_positions.push(position);
            self.seal_targets.push(target);
        }
    }

    /// Adds the items that applets have made.
    fn add_made(&mut self, position: i32, made: &'e Made<'e>) {
        let Made::Items(made) = made else { return };
        for (child, items) in made {
            for item in items {
                self.row(position, child, true, Some(item));
            }
        }
    }

    fn row(&mut self, position: i32, target: &'e str, is_fed: bool, item: Option<&'e AddedItem>) {
        self.positions.push(position);
        self.targets.push(target);
        self.fed.push(is_fed);
        self.payloads.push(item.map(|item| item.payload.text()));
        self.dedupes.push(item.and_then(|item| item.dedupe_key.as_deref()));
        self.keys.push(item.and_then(|item| item.serialize_key.as_deref()));
        self.priorities.push(item.map_or(0, |item| item.priority));
        self.metas.push(item.map_or("{}", |item| item.metadata.text()));
    }

    fn is_empty(&self) -> bool {
        self.positions.is_empty() && self.seal_positions.is_empty()
    }

    /// The columns of the items and of the seals.
    fn params(&self) -> [Param<'_>; 10] {
        [
            (&self.positions, Type::INT4_ARRAY),
            (&self.targets, Type::TEXT_ARRAY),
            (&self.fed, Type::BOOL_ARRAY),
            (&self.payloads, Type::TEXT_ARRAY),
            (&self.dedupes, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.priorities, Type::INT2_ARRAY),
            (&self.metas, Type::TEXT_ARRAY),
            (&self.seal_positions, Type::INT4_ARRAY),
            (&self.seal_targets, Type::TEXT_ARRAY),
        ]
    }
}

/// A position as the database counts.
fn position(number: usize) -> i32 {
    i32::try_from(number + 1).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AssignmentRef, ItemRef};

    #[test]
    fn what_one_result_feeds_is_bounded() {
        let place = AssignmentRef { item: ItemRef { day: 1, seq: 1 }, token: 1 };
        let large = format!("\"{}\"", "x".repeat((1 << 20) - 2));
        let ending = Ending::new(place, Kind::Success, &large);
        let feeds: Vec<Child> = (0..999).map(|num| Child::of_template(num, "\"$\"")).collect();
        let mut fed = FedItems::default();
        let refused = fed.add(1, &ending, &feeds, "null").unwrap();
        assert!(refused.contains("together") && fed.payloads.is_empty() && fed.bytes == 0, "{refused}");
        assert_eq!(fed.add(1, &ending, &feeds[..3], "null"), None);
        assert_eq!((fed.payloads.len(), fed.bytes), (3, 3 * large.len()));
    }
}
