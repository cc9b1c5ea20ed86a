//! Items that results add in their transaction, by the feeds of children or as their workers ask, and jobs that they seal.

use std::collections::{BTreeSet, HashMap};

use hostler_postgres::{Param, Type};

use crate::feed::{Parsed, Template};
use crate::limits::{self, MAX_JSON};
use crate::store::ending::{Columns, Ending, Kind, Outcome, outcomes};
use crate::store::{Store, StoreError};

/// Maximum size of the payloads that one result feeds to all children together, in bytes.
const MAX_FED: usize = 16 << 20;

/// Maximum number of results whose items' payloads are read at a time.
const PAYLOADS: usize = 64;

const SETTLE_MORE: &str = "SELECT n, status, retry_at, job FROM hostler_jobs.settle_more($1, $2, $3, $4, $5, $6, $7, $8, $9, \
    $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)";

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
    payloads: Vec<Option<&'e str>>,
    dedupes: Vec<Option<&'e str>>,
    keys: Vec<Option<&'e str>>,
    priorities: Vec<i16>,
    seal_positions: Vec<i32>,
    seal_targets: Vec<&'e str>,
}

/// The feeds of the children of jobs.
type Feeds = HashMap<i64, Vec<(i64, Template)>>;

impl Store {
    /// Ends assignments by results that have more to do than to be stored. No two entries are of the same assignment.
    ///
    /// A result whose feeds would make payloads that are too long or too deep is recorded as a failure. Many results, or those that make
    /// much, are several transactions, so that little of it lies in memory at a time.
    pub(crate) async fn settle_with_extras(
        &self,
        endings: &[&Ending<'_>],
        job_of: &[i64],
    ) -> Result<Vec<Outcome>, StoreError> {
        let feeds = self.feeds(job_of).await?;
        let needs_payloads = feeds.values().flatten().any(|(_, template)| template.needs_payload());
        let size = if needs_payloads { PAYLOADS } else { endings.len().max(1) };
        let mut ended = Vec::with_capacity(endings.len());
        for (endings, job_of) in endings.chunks(size).zip(job_of.chunks(size)) {
            let payloads = if needs_payloads { self.payloads(endings).await? } else { HashMap::new() };
            let mut left = endings.iter().zip(job_of).peekable();
            while left.peek().is_some() {
                let mut fed = FedItems::default();
                let (mut chunk, mut errors) = (Vec::new(), Vec::new());
                while let Some((ending, job)) = left.next_if(|_| fed.bytes < MAX_FED) {
                    let payload = payloads.get(&ending.place.item.seq).map_or("null", String::as_str);
                    let feeds = feeds.get(job).map_or(&[][..], Vec::as_slice);
                    errors.push(fed.add(position(chunk.len()), ending, feeds, payload));
                    chunk.push(*ending);
                }
                ended.extend(self.settle_chunk(&chunk, &fed, &errors).await?);
            }
        }
        Ok(ended)
    }

    /// Ends assignments by results, with the items that their feeds make. `errors`: the reasons against results.
    async fn settle_chunk(
        &self,
        endings: &[&Ending<'_>],
        fed: &FedItems,
        errors: &[Option<String>],
    ) -> Result<Vec<Outcome>, StoreError> {
        let refused: Vec<Option<String>> = errors
            .iter()
            .map(|error| error.as_ref().map(|text| serde_json::Value::from(text.as_str()).to_string()))
            .collect();
        let mut asked = AskedItems::default();
        let mut replaced = Vec::with_capacity(endings.len());
        for (number, (ending, error)) in endings.iter().zip(&refused).enumerate() {
            replaced.push(match error {
                Some(error) => Ending::new(ending.place, Kind::Refused, error),
                None => {
                    asked.add(position(number), ending);
                    Ending::new(ending.place, Kind::Success, ending.body)
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

    async fn feeds(&self, parents: &[i64]) -> Result<Feeds, StoreError> {
        let jobs: Vec<i64> = parents.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let sql = "SELECT parent, num, feed::text FROM hostler_jobs.job WHERE parent = ANY ($1) AND feed IS NOT NULL ORDER BY num";
        let mut feeds = Feeds::new();
        for row in self.call(sql, &[(&jobs, Type::INT8_ARRAY)]).await? {
            let template = Template::parse(row.get(2));
            feeds.entry(row.get(0)).or_default().push((row.get(1), template));
        }
        Ok(feeds)
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
    /// Adds the items of a result. Returns the reason if one is too long or too deep; then there are none.
    fn add(&mut self, position: i32, ending: &Ending<'_>, feeds: &[(i64, Template)], payload: &str) -> Option<String> {
        let (mut result, mut payload) = (Parsed::new(ending.body), Parsed::new(payload));
        let (mut made, mut bytes) = (Vec::with_capacity(feeds.len()), 0);
        for (job, template) in feeds {
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
            made.push((*job, text));
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
    fn add(&mut self, position: i32, ending: &Ending<'e>) {
        let (added, seals) = ending.more;
        for to in added {
            if to.items.is_empty() {
                self.row(position, &to.target, None, (None, None), 0);
            }
            for item in &to.items {
                let keys = (item.dedupe_key.as_deref(), item.serialize_key.as_deref());
                self.row(position, &to.target, Some(item.payload.text()), keys, item.priority);
            }
        }
        for target in seals {
            self.seal_positions.push(position);
            self.seal_targets.push(target);
        }
    }

    fn row(
        &mut self,
        position: i32,
        target: &'e str,
        payload: Option<&'e str>,
        (dedupe, key): (Option<&'e str>, Option<&'e str>),
        priority: i16,
    ) {
        self.positions.push(position);
        self.targets.push(target);
        self.payloads.push(payload);
        self.dedupes.push(dedupe);
        self.keys.push(key);
        self.priorities.push(priority);
    }

    fn is_empty(&self) -> bool {
        self.positions.is_empty() && self.seal_positions.is_empty()
    }

    /// The columns of the items and of the seals.
    fn params(&self) -> [Param<'_>; 8] {
        [
            (&self.positions, Type::INT4_ARRAY),
            (&self.targets, Type::TEXT_ARRAY),
            (&self.payloads, Type::TEXT_ARRAY),
            (&self.dedupes, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.priorities, Type::INT2_ARRAY),
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
        let feeds: Vec<(i64, Template)> = (0..999).map(|job| (job, Template::parse("\"$\""))).collect();
        let mut fed = FedItems::default();
        let refused = fed.add(1, &ending, &feeds, "null").unwrap();
        assert!(refused.contains("together") && fed.payloads.is_empty() && fed.bytes == 0, "{refused}");
        assert_eq!(fed.add(1, &ending, &feeds[..3], "null"), None);
        assert_eq!((fed.payloads.len(), fed.bytes), (3, 3 * large.len()));
    }
}
