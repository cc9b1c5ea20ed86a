//! Messages out of items, and the handles of their leases. No I/O.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hostler_queue::{Delivery, LeaseHandle, Receipt};
use hostler_types::job::{BufferedJob, JobContext, JobInfo};
use hostler_types::message::{AttributeValue, Attributes, CONTENT_TYPE, Message, TraceContext};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::shapes::{Assigned, Item};

/// Attribute with the id of the item's job.
pub const JOB_ID: &str = "hostler-job-id";
/// Attribute with the id of the root of the job's tree.
pub const ROOT_ID: &str = "hostler-root-id";
/// Attribute with the type of the job.
pub const JOB_TYPE: &str = "hostler-job-type";
/// Attribute with the item's metadata as JSON. Missing if the item has none.
pub const METADATA: &str = "hostler-metadata";

/// Entries of the metadata that become attributes of their own, because they are a trace context.
const TRACE: [&str; 2] = ["traceparent", "tracestate"];

/// Number of heartbeats that a lease lasts. The service ends an assignment after three missed ones, so a handler is stopped a
/// heartbeat before another worker can have the item.
const BEATS: u32 = 2;

/// Longest interval of heartbeats that is believed.
const LONGEST: u64 = 24 * 60 * 60;

/// Makes a delivery out of an assignment, with the buffer of what its handler asks of the job. `leased_at`: a time before the service assigned the item, or extended the assignment.
pub(crate) fn delivery(
    assigned: Assigned,
    kind: &str,
    leased_at: Instant,
    now: SystemTime,
) -> (Delivery, Arc<BufferedJob>) {
    let Assigned { assignment_id, item, heartbeat_seconds } = assigned;
    let attempt = u32::try_from(item.failures.len()).unwrap_or(u32::MAX).saturating_add(1);
    let receipt = Receipt::new(format!("{} {assignment_id}", heartbeat_seconds.clamp(1, LONGEST)));
    let job = BufferedJob::new(JobInfo {
        job_id: item.job_id.clone(),
        root_id: item.root_id.clone(),
        job_type: kind.to_owned(),
        item_id: item.id.clone(),
        attempt,
    });
    let message = Arc::new(message(item, kind, now));
    let shared: Arc<dyn JobContext> = job.clone();
    (Delivery { message, receipt, attempt, leased_at, not_before: None, job: Some(shared) }, job)
}

fn message(item: Item, kind: &str, now: SystemTime) -> Message {
    let Item { id, job_id, root_id, payload, serialize_key, metadata, .. } = item;
    let mut attributes = metadata.as_deref().map(traced).unwrap_or_default();
    let own = [(CONTENT_TYPE, "application/json"), (JOB_ID, &job_id), (ROOT_ID, &root_id), (JOB_TYPE, kind)];
    let text = |(name, value): (&str, &str)| (name.to_owned(), AttributeValue::Text(value.to_owned()));
    attributes.extend(own.map(text));
    if let Some(metadata) = metadata.as_deref().filter(|metadata| !matches!(metadata.get(), "{}" | "null")) {
        attributes.extend([text((METADATA, metadata.get()))]);
    }
    Message {
        trace: TraceContext::of(&attributes).map(Arc::new),
        attributes,
        // The service does not tell when an item was added.
        enqueued_at: now,
        group: serialize_key,
        ..Message::new(id, String::from(Box::<str>::from(payload)))
    }
}

/// Returns the trace context of an item's metadata as attributes.
fn traced(metadata: &RawValue) -> Attributes {
    let entries: Map<String, Value> = serde_json::from_str(metadata.get()).unwrap_or_default();
    let text = |name: &str| Some((name.to_owned(), AttributeValue::Text(entries.get(name)?.as_str()?.to_owned())));
    TRACE.into_iter().filter_map(text).collect()
}

/// Returns the assignment's id of a lease.
pub(crate) fn assignment(handle: &str) -> &str {
    handle.split_once(' ').map_or(handle, |(_, id)| id)
}

/// Returns the interval of the heartbeats of a lease. `None`: the lease is not of this queue.
pub(crate) fn heartbeat(handle: &str) -> Option<Duration> {
    let (seconds, _) = handle.split_once(' ')?;
    Some(Duration::from_secs(seconds.parse().ok()?))
}

/// Returns the duration of a lease. `None`: the lease is not of this queue.
pub(crate) fn duration(lease: &LeaseHandle) -> Option<Duration> {
    heartbeat(lease.as_str()).map(|interval| BEATS * interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(item: &str) -> Delivery {
        let assigned = format!(r#"{{"assignment_id":"a-1","heartbeat_seconds":60,"item":{item}}}"#);
        delivery(serde_json::from_str(&assigned).unwrap(), "thumbnail", Instant::now(), SystemTime::UNIX_EPOCH).0
    }

    #[test]
    fn an_item_becomes_a_message() {
        let item = r#"{"id":"i-1","job_id":"j","root_id":"r","payload":{"n": 123456789012345678901234567890, "a":1.0},
            "state":"assigned","result":null,"failures":[{"error":"x"},{"error":"y"}],"retry_at":null,
            "dedupe_key":null,"serialize_key":"k","priority":3,
            "metadata":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","n":7},"new":[]}"#;
        let delivery = read(item);
        let message = &delivery.message;
        assert_eq!((&*message.id, delivery.attempt, message.group.as_deref()), ("i-1", 3, Some("k")));
        assert_eq!(&*message.body, br#"{"n": 123456789012345678901234567890, "a":1.0}"#, "as it was sent");
        assert_eq!(message.content_type(), Some("application/json"));
        let text = |name| message.attributes.get(name).and_then(AttributeValue::as_text);
        assert_eq!([text(JOB_ID), text(ROOT_ID), text(JOB_TYPE)], [Some("j"), Some("r"), Some("thumbnail")]);
        assert!(text(METADATA).is_some_and(|metadata| metadata.contains("\"n\":7")));
        assert!(message.trace.is_some());
        assert_eq!(delivery.receipt.as_str(), "60 a-1");
    }

    #[test]
    fn what_an_item_lacks_is_left_out() {
        let delivery = read(r#"{"id":"i","job_id":"j","root_id":"r","payload":null,"metadata":{}}"#);
        let message = &delivery.message;
        assert_eq!((&*message.body, delivery.attempt, &message.group), (&b"null"[..], 1, &None));
        assert!(!message.attributes.contains_key(METADATA) && message.trace.is_none());
    }

    #[test]
    fn a_lease_lasts_two_heartbeats_of_the_service() {
        let lease = |handle: &str| Receipt::new(handle).lease();
        assert_eq!(duration(&lease("60 a-1")), Some(Duration::from_secs(120)));
        assert_eq!((duration(&lease("a-1")), duration(&lease("x a-1"))), (None, None));
        assert_eq!((assignment("60 a-1"), assignment("a-1")), ("a-1", "a-1"));
    }
}
