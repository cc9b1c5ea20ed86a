//! The calls of the job service that the load consists of.

use std::fmt::Write as _;

use serde::Deserialize;

use crate::failure::Failure;
use crate::http::Connection;

/// The type of all jobs of the load.
pub const KIND: &str = "load";

/// An item that a worker has.
pub struct Taken {
    pub assignment: String,
    /// The item's number, which its payload has.
    pub number: u64,
}

/// A client of the job service.
pub struct Client(Connection);

#[derive(Deserialize)]
struct Created {
    id: String,
    jobs: Vec<CreatedJob>,
}

#[derive(Deserialize)]
struct CreatedJob {
    id: String,
}

#[derive(Deserialize)]
struct Added {
    item_ids: Vec<String>,
}

#[derive(Deserialize)]
struct Claimed {
    assignments: Vec<Assigned>,
}

#[derive(Deserialize)]
struct Assigned {
    assignment_id: String,
    item: Item,
}

#[derive(Deserialize)]
struct Item {
    payload: Payload,
}

#[derive(Deserialize)]
struct Payload {
    n: u64,
}

#[derive(Deserialize)]
struct SettleAnswer {
    settled: Vec<Settled>,
}

#[derive(Deserialize)]
struct Settled {
    status: String,
}

#[derive(Deserialize)]
struct Status {
    tree_complete: bool,
}

impl Client {
    /// Connects to `host:port`.
    ///
    /// # Errors
    /// [`Failure::Connection`].
    pub fn open(host: &str) -> Result<Self, Failure> {
        Ok(Self(Connection::open(host)?))
    }

    /// Creates a tree: a root and `children` below it, without items. Returns the ids of all jobs, the root's first.
    ///
    /// # Errors
    /// [`Failure`] if the call fails, as for all calls.
    pub fn create(&mut self, children: usize) -> Result<Vec<String>, Failure> {
        let below = vec![format!("{{\"type\":\"{KIND}\"}}"); children].join(",");
        let body = format!("{{\"type\":\"{KIND}\",\"children\":[{below}]}}");
        let created: Created = self.post("/job", &body)?;
        let others = created.jobs.into_iter().map(|job| job.id).filter(|id| *id != created.id);
        Ok([created.id.clone()].into_iter().chain(others).collect())
    }

    /// Creates a sealed tree of one job with the items `numbers`. Returns the items' ids.
    ///
    /// # Errors
    /// As above.
    pub fn create_with(&mut self, numbers: std::ops::Range<u64>) -> Result<Vec<String>, Failure> {
        let body = format!("{{\"type\":\"{KIND}\",\"sealed\":true,\"items\":{}}}", items(numbers, 0));
        Ok(self.post::<Added>("/job", &body)?.item_ids)
    }

    /// Adds the items `numbers` to a job. `keys`: number of serialize keys; 0 for items without one. Returns the items' ids.
    ///
    /// # Errors
    /// As above.
    pub fn add(&mut self, job: &str, numbers: std::ops::Range<u64>, keys: u64) -> Result<Vec<String>, Failure> {
        let body = format!("{{\"items\":{}}}", items(numbers, keys));
        Ok(self.post::<Added>(&format!("/job/{job}/items"), &body)?.item_ids)
    }

    /// Seals a job.
    ///
    /// # Errors
    /// As above.
    pub fn seal(&mut self, job: &str) -> Result<(), Failure> {
        self.post::<serde::de::IgnoredAny>(&format!("/job/{job}/seal"), "").map(drop)
    }

    /// Claims up to `max` items, and waits up to `wait` seconds for a first one.
    ///
    /// # Errors
    /// As above.
    pub fn claim(&mut self, max: u64, wait: f64) -> Result<Vec<Taken>, Failure> {
        let body = format!("{{\"types\":[\"{KIND}\"],\"worker_id\":\"load\",\"max\":{max},\"wait_seconds\":{wait}}}");
        let claimed: Claimed = self.post("/claim", &body)?;
        Ok(claimed.assignments.into_iter().map(Taken::from).collect())
    }

    /// Assigns an item.
    ///
    /// # Errors
    /// As above.
    pub fn assign(&mut self, item: &str) -> Result<Taken, Failure> {
        Ok(self.post::<Assigned>(&format!("/job_item/{item}/worker/load"), "")?.into())
    }

    /// Settles items by results: one by a call of its own, more by one call for all.
    ///
    /// # Errors
    /// As above; [`Failure::Lost`] if an assignment is stale.
    pub fn settle(&mut self, taken: &[Taken]) -> Result<(), Failure> {
        if let [one] = taken {
            let path = format!("/assignment/{}/result", one.assignment);
            return self.post::<serde::de::IgnoredAny>(&path, "{\"result\":{\"ok\":true}}").map(drop);
        }
        let mut body = "{\"results\":[".to_owned();
        for (place, one) in taken.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            let _ = write!(body, "{comma}{{\"assignment_id\":\"{}\",\"result\":{{\"ok\":true}}}}", one.assignment);
        }
        body.push_str("]}");
        let answer: SettleAnswer = self.post("/settle", &body)?;
        let accepted = answer.settled.iter().filter(|settled| settled.status == "ok").count();
        if accepted == taken.len() {
            Ok(())
        } else {
            Err(Failure::Lost(format!("{accepted} of {} results were accepted", taken.len())))
        }
    }

    /// Returns whether a tree is complete.
    ///
    /// # Errors
    /// As above.
    pub fn status(&mut self, job: &str) -> Result<bool, Failure> {
        let status: Status = self.call("GET", &format!("/job/{job}/status"), "")?;
        Ok(status.tree_complete)
    }

    fn post<T: for<'a> Deserialize<'a>>(&mut self, path: &str, body: &str) -> Result<T, Failure> {
        self.call("POST", path, body)
    }

    fn call<T: for<'a> Deserialize<'a>>(&mut self, method: &str, path: &str, body: &str) -> Result<T, Failure> {
        let answer = self.0.call(method, path, body)?;
        if (200..300).contains(&answer.status) {
            return Ok(serde_json::from_slice(&answer.body)?);
        }
        let call = format!("{method} {path}");
        Err(Failure::Refused { call, status: answer.status, body: String::from_utf8_lossy(&answer.body).into_owned() })
    }
}

impl From<Assigned> for Taken {
    fn from(assigned: Assigned) -> Self {
        Self { assignment: assigned.assignment_id, number: assigned.item.payload.n }
    }
}

/// Writes items as JSON. Each has its number in the payload. Neighbours have different keys.
fn items(numbers: std::ops::Range<u64>, keys: u64) -> String {
    let mut text = "[".to_owned();
    for number in numbers {
        if text.len() > 1 {
            text.push(',');
        }
        let _ = write!(text, "{{\"payload\":{{\"n\":{number},\"text\":\"a payload of some length, as they are\"}}");
        if keys > 0 {
            let _ = write!(text, ",\"serialize_key\":\"key {}\"", number % keys);
        }
        text.push('}');
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn items_are_json_with_a_number_and_a_key() {
        let plain: Value = serde_json::from_str(&items(7..9, 0)).unwrap();
        assert_eq!(plain[1]["payload"]["n"], 8);
        assert_eq!(plain[1]["serialize_key"], Value::Null);
        let keyed: Value = serde_json::from_str(&items(7..9, 2)).unwrap();
        assert_eq!((&keyed[0]["serialize_key"], &keyed[1]["serialize_key"]), (&"key 1".into(), &"key 0".into()));
        assert_eq!(items(3..3, 0), "[]");
    }
}
