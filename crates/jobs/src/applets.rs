//! Applets: guests that make the items of a child of a result. Their calls and replies are built and read here, without I/O.
//!
//! The service runs an applet before the result is settled, and adds its items in the same transaction as the result.

use async_trait::async_trait;
pub use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::limits::{self, Fault, MAX_ITEMS};
use crate::types::{AddedItem, Feed, NewJob};

/// Maximum size of an applet's reply in bytes.
pub const MAX_REPLY: usize = 16 << 20;

/// The applets of a process.
#[async_trait]
pub trait Applets: Send + Sync + 'static {
    /// Returns `true` if an applet has this name.
    fn knows(&self, name: &str) -> bool;

    /// Returns how many runs of an applet there may be at a time, 1 at least.
    fn slots(&self, name: &str) -> usize;

    /// Runs an applet in a sandbox of its own. Returns its reply to `input`, the text of [`input`]. Dropping the future stops it.
    ///
    /// # Errors
    /// [`AppletError`], by the one who is at fault.
    async fn run(&self, name: &str, input: Bytes) -> Result<Vec<u8>, AppletError>;
}

/// The reason that an applet made no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppletError {
    /// The applet is at fault: it failed, trapped or ran for too long. The result becomes a failure.
    #[error("{0}")]
    Failed(String),
    /// The applet cannot run in this process now. The result may come again, here or elsewhere.
    #[error("{0}")]
    Unavailable(String),
}

/// The name of a job in an applet's input.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct JobName<'a> {
    /// The id of the job.
    pub id: &'a str,
    /// The type of the job.
    #[serde(rename = "type")]
    pub kind: &'a str,
}

/// Returns the input of an applet: the result and the payload it came of, the item's job, and the child that gets the items.
/// `result` and `payload` are JSON texts, and pass as they are.
pub fn input(result: &str, payload: &str, job: JobName<'_>, child: JobName<'_>) -> Bytes {
    let text = |name: JobName<'_>| serde_json::to_string(&name).unwrap_or_default();
    let (job, child) = (text(job), text(child));
    format!(r#"{{"result":{result},"payload":{payload},"job":{job},"child":{child}}}"#).into()
}

/// Reads the reply of an applet, an array of items.
///
/// # Errors
/// The fault of the reply, with the place of a faulty item. It may quote the reply.
pub fn items(reply: &[u8]) -> Result<Vec<AddedItem>, String> {
    if reply.len() > MAX_REPLY {
        return Err(format!("its reply has {} bytes, and {MAX_REPLY} are allowed", reply.len()));
    }
    let parts: Vec<&RawValue> =
        serde_json::from_slice(reply).map_err(|error| format!("its reply is not a JSON array of items: {error}"))?;
    if parts.len() > MAX_ITEMS {
        return Err(format!("its reply has {} items, and {MAX_ITEMS} are allowed", parts.len()));
    }
    let read = |(place, part): (usize, &&RawValue)| {
        let item = serde_json::from_str::<AddedItem>(part.get())
            .map_err(|error| format!("item {place} of its reply, counted from 0: {error}"))?;
        limits::added_item(&item)
            .map_err(|fault| format!("item {place} of its reply, counted from 0: {} {}", fault.field, fault.detail))?;
        Ok(item)
    };
    parts.iter().enumerate().map(read).collect()
}

/// Checks that the applets of a tree are known.
///
/// # Errors
/// [`Fault`] of the first job that names another one.
pub fn known(root: &NewJob, knows: impl Fn(&str) -> bool) -> Result<(), Fault> {
    let mut left = vec![(root, String::new())];
    while let Some((job, at)) = left.pop() {
        if let Some(Feed::Applet(name)) = &job.feed
            && !knows(name)
        {
            let detail = format!("the service has no applet {name:?}; [jobs.applets] of its config names them");
            return Err(Fault { field: format!("{at}feed.applet"), detail });
        }
        let children = job.children.iter().enumerate().rev();
        left.extend(children.map(|(number, child)| (child, format!("{at}children[{number}]."))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_input_passes_values_as_they_are() {
        let (job, child) = (JobName { id: "a\"1", kind: "pages" }, JobName { id: "b", kind: "links" });
        let text = input(r#"{"n": 12345678901234567890.5}"#, "null", job, child);
        assert!(
            text.starts_with(br#"{"result":{"n": 12345678901234567890.5},"payload":null,"job":{"id":"#),
            "{text:?}"
        );
        let read: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(read["job"], json!({ "id": "a\"1", "type": "pages" }));
        assert_eq!(read["child"], json!({ "id": "b", "type": "links" }));
    }

    #[test]
    fn replies_are_arrays_of_items() {
        assert_eq!(items(b" [] ").unwrap(), []);
        let whole = json!([{ "payload": null, "dedupe_key": "d", "serialize_key": "s", "priority": -3, "metadata": { "a": 1 } }]);
        let [read] = items(whole.to_string().as_bytes()).unwrap().try_into().unwrap();
        assert_eq!((read.payload.text(), read.priority, read.metadata.text()), ("null", -3, r#"{"a":1}"#));
        assert_eq!((read.dedupe_key.as_deref(), read.serialize_key.as_deref()), (Some("d"), Some("s")));
        let [least] = items(br#"[{"payload": 1}]"#).unwrap().try_into().unwrap();
        assert_eq!((least.priority, least.metadata.text()), (0, "{}"));
    }

    #[test]
    fn faulty_replies_name_the_place() {
        let long = format!("[{}]", vec![r#"{"payload":1}"#; MAX_ITEMS + 1].join(","));
        for (reply, expected) in [
            ("", "not a JSON array of items"),
            ("{}", "not a JSON array of items"),
            ("[1] 2", "not a JSON array of items"),
            ("[1]", "item 0 of its reply, counted from 0"),
            (r#"[{"payload":1},{"payload":1,"id":"x"}]"#, "item 1 of its reply, counted from 0: unknown field `id`"),
            (r#"[{"priority":1}]"#, "missing field `payload`"),
            (r#"[{"payload":1,"metadata":[]}]"#, "metadata has to be an object"),
            (r#"[{"payload":"\u0000"}]"#, "payload the NUL character is not allowed"),
            (r#"[{"payload":[1e999]}]"#, "item 0 of its reply, counted from 0: payload has a number that is too large"),
            (&long, "10001 items"),
        ] {
            let fault = items(reply.as_bytes()).unwrap_err();
            assert!(fault.contains(expected), "{fault}");
        }
        assert!(items(b"[\xff]").unwrap_err().contains("not a JSON array"));
        assert!(items(&vec![b' '; MAX_REPLY + 1]).unwrap_err().contains("bytes"));
    }

    #[test]
    fn an_unknown_applet_is_a_fault_of_its_field() {
        let root = json!({ "type": "a", "children": [
            { "type": "b", "feed": { "applet": "known" } },
            { "type": "c", "children": [{ "type": "d", "feed": { "applet": "other" } }] },
        ] });
        let root: NewJob = serde_json::from_value(root).unwrap();
        assert_eq!(known(&root, |_| true), Ok(()));
        let fault = known(&root, |name| name == "known").unwrap_err();
        assert_eq!(fault.field, "children[1].children[0].feed.applet");
        assert_eq!(known(&root, |_| false).unwrap_err().field, "children[0].feed.applet");
    }
}
