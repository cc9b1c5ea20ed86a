//! The feeds of the children of jobs, and the runs of their applets.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use hostler_postgres::{Row, Type};
use hostler_types::printable::shortened;

use crate::applets::{self, AppletError, JobName, MAX_REPLY};
use crate::feed::Template;
use crate::ids::AssignmentRef;
use crate::limits::MAX_ITEMS;
use crate::store::applet_runs::Runs;
use crate::store::ending::Ending;
use crate::store::{Store, StoreError};
use crate::types::{AddedItem, Feed};

/// Maximum length of the reason that an applet gives for a failure, in bytes.
const MAX_REASON: usize = 4 << 10;

const FEEDS: &str = "SELECT c.parent, c.num, c.id, ct.name, p.id, pt.name, c.feed::text FROM hostler_jobs.job c \
    JOIN hostler_jobs.job_type ct ON ct.id = c.type JOIN hostler_jobs.job p ON p.num = c.parent \
    JOIN hostler_jobs.job_type pt ON pt.id = p.type WHERE c.parent = ANY ($1) AND c.feed IS NOT NULL ORDER BY c.num";

/// Assignments whose results are with applets, in this process.
#[derive(Clone, Default)]
pub(crate) struct Busy(Arc<Mutex<HashSet<AssignmentRef>>>);

impl Busy {
    /// Notes an assignment until the value is dropped. `None`: its result is with applets already.
    pub(crate) fn enter(&self, place: AssignmentRef) -> Option<Entered> {
        let is_new = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place);
        is_new.then(|| Entered { busy: self.clone(), place })
    }
}

/// An assignment whose result is with applets.
pub(crate) struct Entered {
    busy: Busy,
    place: AssignmentRef,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.busy.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.place);
    }
}

/// The feeds of the children of jobs.
pub(crate) type Feeds = HashMap<i64, Vec<Child>>;

/// A child with a feed.
pub(crate) struct Child {
    pub(crate) num: i64,
    pub(crate) id: String,
    kind: String,
    /// The id and the type of the job above.
    parent: (String, String),
    pub(crate) rule: Rule,
}

/// The way in which items are made of a result.
pub(crate) enum Rule {
    Template(Template),
    Applet(String),
}

/// The items that applets make of one result.
pub(crate) enum Made<'f> {
    /// Items for the children with these ids.
    Items(Vec<(&'f str, Vec<AddedItem>)>),
    /// The reason that the result becomes a failure.
    Refused(String),
}

impl Child {
    fn of(row: &Row) -> Result<Child, StoreError> {
        let text: &str = row.get(6);
        let feed = serde_json::from_str(text).map_err(|error| StoreError::Unexpected(format!("a feed: {error}")))?;
        let rule = match feed {
            Feed::Payload(payload) => Rule::Template(Template::parse(payload.text())),
            Feed::Applet(name) => Rule::Applet(name),
        };
        let parent = (row.get(4), row.get(5));
        Ok(Child { num: row.get(1), id: row.get(2), kind: row.get(3), parent, rule })
    }

    /// Returns `true` if the payloads of the parent's items are needed.
    pub(crate) fn needs_payload(&self) -> bool {
        match &self.rule {
            Rule::Template(template) => template.needs_payload(),
            Rule::Applet(_) => true,
        }
    }

    /// Returns `true` if an applet makes the items.
    pub(crate) fn has_applet(&self) -> bool {
        self.applet().is_some()
    }

    /// Returns the name of the applet that makes the items.
    pub(crate) fn applet(&self) -> Option<&str> {
        if let Rule::Applet(name) = &self.rule { Some(name) } else { None }
    }
}

impl Store {
    /// The feeds of the children of jobs, in the order of their creation.
    pub(crate) async fn feeds(&self, parents: &[i64]) -> Result<Feeds, StoreError> {
        let jobs: Vec<i64> = parents.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let mut feeds = Feeds::new();
        for row in self.call(FEEDS, &[(&jobs, Type::INT8_ARRAY)]).await? {
            feeds.entry(row.get(0)).or_default().push(Child::of(&row)?);
        }
        Ok(feeds)
    }

    /// Runs the applets of the children for a result, one after another.
    ///
    /// # Errors
    /// [`StoreError::Applet`] if one cannot run in this process: then the result must not be settled.
    pub(crate) async fn run_applets<'f>(
        &self,
        ending: &Ending<'_>,
        payload: &str,
        children: &'f [Child],
        runs: &Runs,
    ) -> Result<Made<'f>, StoreError> {
        let (mut made, mut count, mut size) = (Vec::new(), 0, 0);
        for child in children {
            let Rule::Applet(name) = &child.rule else { continue };
            let refused = |reason: &str| Made::Refused(refusal(name, &child.kind, reason));
            let turn = runs.turn(name).await;
            let reply = match self.run_applet(name, ending, payload, child).await {
                Ok(reply) => reply,
                Err(AppletError::Failed(reason)) => return Ok(refused(&reason)),
                Err(AppletError::Unavailable(reason)) => return Err(StoreError::Applet { name: name.clone(), reason }),
            };
            drop(turn);
            let items = match applets::items(&reply) {
                Ok(items) => items,
                Err(reason) => return Ok(refused(&reason)),
            };
            (count, size) = (count + items.len(), size + reply.len());
            if count > MAX_ITEMS || size > MAX_REPLY {
                let limit = format!("{MAX_ITEMS} items and {MAX_REPLY} bytes are allowed for a result");
                return Ok(refused(&format!("with it, the replies have {count} items and {size} bytes; {limit}")));
            }
            made.push((child.id.as_str(), items));
        }
        Ok(Made::Items(made))
    }

    async fn run_applet(
        &self,
        name: &str,
        ending: &Ending<'_>,
        payload: &str,
        child: &Child,
    ) -> Result<Vec<u8>, AppletError> {
        let Some(applets) = self.applets().filter(|applets| applets.knows(name)) else {
            return Err(AppletError::Unavailable("this instance of the service has none of this name".to_owned()));
        };
        let (id, kind) = &child.parent;
        let child = JobName { id: &child.id, kind: &child.kind };
        applets.run(name, applets::input(ending.body, payload, JobName { id, kind }, child)).await
    }
}

/// Words the failure that a result becomes. Text of the applet is cut, and has no NUL, which cannot be stored.
fn refusal(name: &str, kind: &str, reason: &str) -> String {
    let reason = shortened(reason, MAX_REASON).replace('\0', "\u{fffd}");
    format!("the applet {name:?}, which feeds the child {kind:?}, made no items: {reason}")
}

#[cfg(test)]
impl Child {
    /// Makes a child with a template.
    pub(crate) fn of_template(num: i64, template: &str) -> Child {
        let parent = ("p".to_owned(), "a".to_owned());
        Child {
            num,
            id: num.to_string(),
            kind: "b".to_owned(),
            parent,
            rule: Rule::Template(Template::parse(template)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_applet_and_stays_short() {
        let text = refusal("split", "links", &format!("no\0{}", "x".repeat(1 << 20)));
        assert!(text.starts_with("the applet \"split\", which feeds the child \"links\", made no items: no\u{fffd}xx"));
        assert!(text.len() < 2 * MAX_REASON && !text.contains('\0'), "{}", text.len());
    }
}
