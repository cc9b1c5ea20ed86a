//! The limits of requests, checked without I/O.

use std::collections::HashSet;

use crate::feed::{MAX_PARTS, Template};
use crate::ids::ItemRef;
use crate::json::RawJson;
use crate::json_text::storable;
use crate::types::{AddedItem, AddedTo, Callback, Feed, NewItem, NewJob, Progress};

/// The most jobs of a tree.
pub const MAX_JOBS: usize = 1_000;
/// The most levels of a tree.
pub const MAX_DEPTH: usize = 32;
/// The most items of a request.
pub const MAX_ITEMS: usize = 10_000;
/// The most bytes of a payload, a result, an error, or a job's or item's metadata.
pub const MAX_JSON: usize = 1 << 20;
/// The most items that the results of a request add.
pub const MAX_ADDED: usize = 100_000;
/// The most jobs that a result seals.
pub const MAX_SEALS: usize = 1_000;
/// The most bytes of a key or an id.
pub const MAX_KEY: usize = 200;
/// The most bytes of a type.
pub const MAX_TYPE: usize = 100;
/// The most items of a claim.
pub const MAX_CLAIM: usize = 1_000;
/// The most assignments of a settlement, a heartbeat or a release.
pub const MAX_ASSIGNMENTS: usize = 10_000;
/// The longest delay before the next attempt, in seconds: a year.
pub const MAX_DELAY: f64 = 31_536_000.0;

/// A field that breaks a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct Fault {
    /// The field, as a path such as `children[0].items[3].payload`.
    pub field: String,
    /// The limit.
    pub detail: String,
}

impl Fault {
    fn new(field: impl Into<String>, detail: impl Into<String>) -> Fault {
        Fault { field: field.into(), detail: detail.into() }
    }
}

/// Lists the jobs of a tree, each before those below it, with the position of its parent.
///
/// # Errors
/// [`Fault`] if the tree breaks a limit.
pub fn flatten(root: &NewJob) -> Result<Vec<(&NewJob, Option<usize>)>, Fault> {
    let mut walk =
        Walk { jobs: Vec::new(), items: 0, ids: HashSet::new(), keys: HashSet::new(), item_ids: HashSet::new() };
    walk.job(root, None, "", 1)?;
    Ok(walk.jobs)
}

struct Walk<'t> {
    jobs: Vec<(&'t NewJob, Option<usize>)>,
    items: usize,
    ids: HashSet<&'t str>,
    keys: HashSet<(&'t str, &'t str)>,
    item_ids: HashSet<&'t str>,
}

impl<'t> Walk<'t> {
    fn job(&mut self, job: &'t NewJob, parent: Option<usize>, at: &str, depth: usize) -> Result<(), Fault> {
        if depth > MAX_DEPTH {
            return Err(Fault::new(format!("{at}children"), format!("a tree has {MAX_DEPTH} levels at most")));
        }
        kind(&format!("{at}type"), &job.kind)?;
        optional_key(&format!("{at}id"), job.id.as_deref())?;
        optional_key(&format!("{at}dedupe_key"), job.dedupe_key.as_deref())?;
        object(&format!("{at}metadata"), &job.metadata)?;
        if let Some(given) = &job.callback {
            callback(&format!("{at}callback"), given, parent.is_none())?;
        }
        if let Some(given) = &job.feed {
            feed(given, job.sealed, at, parent.is_none())?;
        }
        if job.id.as_deref().is_some_and(|id| !self.ids.insert(id)) {
            return Err(Fault::new(format!("{at}id"), "another job of this tree has the same id"));
        }
        if job.dedupe_key.as_deref().is_some_and(|key| !self.keys.insert((&job.kind, key))) {
            return Err(Fault::new(
                format!("{at}dedupe_key"),
                "another job of this tree has the same type and dedupe key",
            ));
        }
        self.items += job.items.len();
        if self.items > MAX_ITEMS {
            return Err(Fault::new(format!("{at}items"), format!("a request has {MAX_ITEMS} items at most")));
        }
        check_items(&job.items, &mut self.item_ids, at)?;
        let place = self.jobs.len();
        self.jobs.push((job, parent));
        if self.jobs.len() > MAX_JOBS {
            return Err(Fault::new(format!("{at}children"), format!("a tree has {MAX_JOBS} jobs at most")));
        }
        for (number, child) in job.children.iter().enumerate() {
            self.job(child, Some(place), &format!("{at}children[{number}]."), depth + 1)?;
        }
        Ok(())
    }
}

/// Checks items to be added to a job.
///
/// # Errors
/// [`Fault`] if they break a limit.
pub fn items(items: &[NewItem]) -> Result<(), Fault> {
    if items.len() > MAX_ITEMS {
        return Err(Fault::new("items", format!("a request has {MAX_ITEMS} items at most")));
    }
    check_items(items, &mut HashSet::new(), "")
}

fn check_items<'t>(items: &'t [NewItem], ids: &mut HashSet<&'t str>, at: &str) -> Result<(), Fault> {
    for (number, item) in items.iter().enumerate() {
        check_item(item, ids)
            .map_err(|fault| Fault { field: format!("{at}items[{number}].{}", fault.field), ..fault })?;
    }
    Ok(())
}

fn check_item<'t>(item: &'t NewItem, ids: &mut HashSet<&'t str>) -> Result<(), Fault> {
    json("payload", &item.payload)?;
    object("metadata", &item.metadata)?;
    optional_key("dedupe_key", item.dedupe_key.as_deref())?;
    optional_key("serialize_key", item.serialize_key.as_deref())?;
    let Some(id) = item.id.as_deref() else { return Ok(()) };
    key("id", id)?;
    if ItemRef::parse(id).is_some() {
        return Err(Fault::new("id", "ids of the form i-…-… are given by the service"));
    }
    if !ids.insert(id) {
        return Err(Fault::new("id", "another item of this request has the same id"));
    }
    Ok(())
}

/// Checks the items that a result adds, and the jobs that it seals. Returns the number of items. `at`: the prefix of fields.
///
/// # Errors
/// [`Fault`] if they break a limit.
pub fn more(at: &str, added: &[AddedTo], seals: &[String]) -> Result<usize, Fault> {
    let count = added.iter().map(|to| to.items.len()).sum();
    if count > MAX_ITEMS || added.len() > MAX_ITEMS {
        return Err(Fault::new(format!("{at}add_items"), format!("a result adds {MAX_ITEMS} items at most")));
    }
    if seals.len() > MAX_SEALS {
        return Err(Fault::new(format!("{at}seal"), format!("a result seals {MAX_SEALS} jobs at most")));
    }
    for (number, to) in added.iter().enumerate() {
        key(&format!("{at}add_items[{number}].target"), &to.target)?;
        for (place, item) in to.items.iter().enumerate() {
            added_item(item).map_err(|fault| Fault {
                field: format!("{at}add_items[{number}].items[{place}].{}", fault.field),
                ..fault
            })?;
        }
    }
    for (number, target) in seals.iter().enumerate() {
        key(&format!("{at}seal[{number}]"), target)?;
    }
    Ok(count)
}

/// Checks an item that a result adds.
///
/// # Errors
/// [`Fault`] if it breaks a limit.
pub fn added_item(item: &AddedItem) -> Result<(), Fault> {
    json("payload", &item.payload)?;
    object("metadata", &item.metadata)?;
    optional_key("dedupe_key", item.dedupe_key.as_deref())?;
    optional_key("serialize_key", item.serialize_key.as_deref())
}

/// Checks the progress of an assignment.
///
/// # Errors
/// [`Fault`] if the fraction is not from 0 to 1, or the text is too long or contains NUL.
pub fn progress(field: &str, progress: &Progress) -> Result<(), Fault> {
    if !(0.0..=1.0).contains(&progress.fraction) {
        return Err(Fault::new(format!("{field}.fraction"), "has to be from 0 to 1"));
    }
    if progress.text.len() > MAX_KEY {
        return Err(Fault::new(format!("{field}.text"), format!("has {MAX_KEY} bytes at most")));
    }
    text(&format!("{field}.text"), &progress.text)
}

/// Checks the type of a job.
///
/// # Errors
/// [`Fault`] if it is not a type.
pub fn kind(field: &str, kind: &str) -> Result<(), Fault> {
    let plain = kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    if plain && !kind.is_empty() && kind.len() <= MAX_TYPE {
        return Ok(());
    }
    Err(Fault::new(field, format!("a type has 1 to {MAX_TYPE} characters of A-Z, a-z, 0-9, '.', '_' and '-'")))
}

/// Checks an id, a key or the name of a worker.
///
/// # Errors
/// [`Fault`] if it is empty, too long or contains NUL.
pub fn key(field: &str, key: &str) -> Result<(), Fault> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(Fault::new(field, format!("has to have 1 to {MAX_KEY} bytes")));
    }
    text(field, key)
}

fn optional_key(field: &str, given: Option<&str>) -> Result<(), Fault> {
    given.map_or(Ok(()), |given| key(field, given))
}

fn text(field: &str, text: &str) -> Result<(), Fault> {
    if text.contains('\0') { Err(Fault::new(field, "the NUL character is not allowed")) } else { Ok(()) }
}

fn object(field: &str, value: &RawJson) -> Result<(), Fault> {
    if value.is_object() { json(field, value) } else { Err(Fault::new(field, "has to be an object")) }
}

fn feed(feed: &Feed, is_sealed: bool, at: &str, is_root: bool) -> Result<(), Fault> {
    let field = format!("{at}feed");
    if is_root {
        return Err(Fault::new(field, "a root has no parent whose results could feed it"));
    }
    if is_sealed {
        let detail = "a job with a feed is sealed when its parent is complete; leave out sealed";
        return Err(Fault::new(format!("{at}sealed"), detail));
    }
    match feed {
        Feed::Applet(name) => key(&format!("{field}.applet"), name),
        Feed::Payload(payload) => {
            let field = format!("{field}.payload");
            json(&field, payload)?;
            if Template::parse(payload.text()).parts() > MAX_PARTS {
                return Err(Fault::new(field, format!("a template has {MAX_PARTS} parts at most")));
            }
            Ok(())
        }
    }
}

fn callback(field: &str, callback: &Callback, is_root: bool) -> Result<(), Fault> {
    if !is_root {
        return Err(Fault::new(field, "only the root of a tree has a callback"));
    }
    match callback {
        Callback::Url(url) => {
            let field = format!("{field}.url");
            let plain = url.bytes().all(|byte| byte.is_ascii_graphic());
            if !(url.starts_with("http://") || url.starts_with("https://")) || url.len() > 2_000 || !plain {
                return Err(Fault::new(field, "has to be an http or https URL of at most 2000 characters"));
            }
            Ok(())
        }
        Callback::Channel(channel) => key(&format!("{field}.channel"), channel),
    }
}

/// Checks a payload, a result or an error.
///
/// # Errors
/// [`Fault`] if it is too long or too deep, or contains NUL, half a surrogate pair or a number that is too large or too fine, which
/// PostgreSQL or readers of JSON cannot hold.
pub fn json(field: &str, value: &RawJson) -> Result<(), Fault> {
    json_text(field, value.text())
}

/// Checks the text of a payload, a result or an error, as [`json`] does.
///
/// # Errors
/// The same as those of [`json`].
pub fn json_text(field: &str, text: &str) -> Result<(), Fault> {
    if text.len() > MAX_JSON {
        return Err(Fault::new(field, format!("has {MAX_JSON} bytes at most")));
    }
    storable(text).map_err(|detail| Fault::new(field, detail))
}

/// Checks the delay that a worker asks for, in seconds.
///
/// # Errors
/// [`Fault`] if it is negative, not a number, or longer than a year.
pub fn delay(field: &str, seconds: Option<f64>) -> Result<(), Fault> {
    if seconds.is_none_or(|seconds| (0.0..=MAX_DELAY).contains(&seconds)) {
        return Ok(());
    }
    Err(Fault::new(field, format!("has to be from 0 to {MAX_DELAY}")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tree(value: Value) -> Result<Vec<(String, Option<usize>)>, String> {
        let job: NewJob = serde_json::from_str(&value.to_string()).unwrap();
        let flat = flatten(&job).map_err(|fault| fault.field)?;
        Ok(flat.into_iter().map(|(job, parent)| (job.kind.clone(), parent)).collect())
    }

    #[test]
    fn parents_come_before_children() {
        let root = json!({"type": "a", "children": [{"type": "b", "children": [{"type": "c"}]}, {"type": "d"}]});
        let expected = [("a", None), ("b", Some(0)), ("c", Some(1)), ("d", Some(0))];
        assert_eq!(tree(root).unwrap(), expected.map(|(kind, parent)| (kind.to_owned(), parent)));
    }

    #[test]
    fn faults_name_their_field() {
        let long = "x".repeat(201);
        for (root, field) in [
            (json!({"type": ""}), "type"),
            (json!({"type": "a b"}), "type"),
            (json!({"type": "a", "id": ""}), "id"),
            (json!({"type": "a", "dedupe_key": long}), "dedupe_key"),
            (json!({"type": "a", "dedupe_key": "a\0"}), "dedupe_key"),
            (json!({"type": "a", "metadata": []}), "metadata"),
            (json!({"type": "a", "feed": {"payload": "$"}}), "feed"),
            (json!({"type": "a", "children": [{"type": "b", "feed": {"applet": ""}}]}), "children[0].feed.applet"),
            (
                json!({"type": "a", "children": [{"type": "b", "sealed": true, "feed": {"applet": "x"}}]}),
                "children[0].sealed",
            ),
            (json!({"type": "a", "callback": {"url": "ftp://x"}}), "callback.url"),
            (
                json!({"type": "a", "children": [{"type": "b", "callback": {"url": "http://x"}}]}),
                "children[0].callback",
            ),
            (json!({"type": "a", "id": "1", "children": [{"type": "b", "id": "1"}]}), "children[0].id"),
            (
                json!({"type": "a", "dedupe_key": "1", "children": [{"type": "a", "dedupe_key": "1"}]}),
                "children[0].dedupe_key",
            ),
            (json!({"type": "a", "items": [{"payload": 1}, {"payload": 1, "id": "i-1-1"}]}), "items[1].id"),
            (
                json!({"type": "a", "children": [{"type": "b", "items": [{"payload": {"x": "\0"}}]}]}),
                "children[0].items[0].payload",
            ),
        ] {
            assert_eq!(tree(root.clone()), Err(field.to_owned()), "{root}");
        }
        assert!(tree(json!({"type": "a", "dedupe_key": "1", "children": [{"type": "b", "dedupe_key": "1"}]})).is_ok());
    }

    #[test]
    fn trees_are_bounded() {
        let wide = json!({"type": "a", "children": vec![json!({"type": "b"}); 1000]});
        assert_eq!(tree(wide), Err("children[999].children".to_owned()));
        let deep = |levels: usize| {
            (1..levels).fold(json!({"type": "a"}), |below, _| json!({"type": "a", "children": [below]}))
        };
        assert_eq!(tree(deep(32)).unwrap().len(), 32);
        assert!(tree(deep(33)).is_err());
        let item = json!({"payload": 1});
        assert!(tree(json!({"type": "a", "items": vec![item.clone(); 10_000]})).is_ok());
        assert!(tree(json!({"type": "a", "items": vec![item; 10_001]})).is_err());
    }

    #[test]
    fn json_is_bounded() {
        let check = |text: String| json("x", &RawJson::parse(text).unwrap());
        assert!(check(format!("\"{}\"", "x".repeat(MAX_JSON - 2))).is_ok());
        assert!(check(format!("\"{}\"", "x".repeat(MAX_JSON - 1))).is_err());
        assert_eq!(check(r#"{"a":"\u0000"}"#.to_owned()).unwrap_err().field, "x");
    }

    #[test]
    fn delays_are_bounded() {
        for good in [None, Some(0.0), Some(MAX_DELAY)] {
            assert!(delay("x", good).is_ok());
        }
        for bad in [-1.0, f64::NAN, f64::INFINITY, MAX_DELAY + 1.0] {
            assert!(delay("x", Some(bad)).is_err());
        }
    }
}
