//! Messages of the queue. Created once, and delivered repeatedly by reference.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest as _, Md5};
use serde_json::{Value, json};
use work::Order;

use crate::Result;

/// Number of different messages. More than any contender holds at a time, because Celery distinguishes tasks by an id in the
/// body.
const KINDS: u32 = 4096;

/// Format of a body that a contender expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// The order as JSON.
    Plain,
    /// A call of the task `handle` with the order, as Celery sends it.
    Celery,
}

/// A message, prepared for an answer.
pub struct Made {
    /// Body as a JSON string.
    pub quoted: String,
    /// MD5 of the body, which clients verify.
    pub md5: String,
}

/// Maximum size of all bodies of plain messages together, in bytes.
const ROOM: usize = 32 << 20;

/// Creates all messages. Bodies of plain messages are filled up to `bytes` bytes.
pub fn make(form: Form, bytes: usize) -> Result<Vec<Made>> {
    let kinds = match form {
        Form::Plain => u32::try_from(ROOM / bytes.max(1)).unwrap_or(KINDS).clamp(1, KINDS),
        Form::Celery => KINDS,
    };
    (0..kinds)
        .map(|number| {
            let body = match form {
                Form::Plain => body(number, bytes)?,
                Form::Celery => celery(number)?,
            };
            let md5 = Md5::digest(body.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            Ok(Made { quoted: serde_json::to_string(&body)?, md5 })
        })
        .collect()
}

/// Returns the order with this number as JSON, filled up to `bytes` bytes.
pub fn body(number: u32, bytes: usize) -> Result<String> {
    Ok(filled(serde_json::to_string(&order(number))?, bytes))
}

/// Returns an order of about 200 bytes as JSON.
pub fn order(number: u32) -> Order {
    let mut state = number;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 16
    };
    let amounts = (0..12).map(|_| random() % 10_000).collect();
    let text = (0..64).filter_map(|_| char::from_u32(u32::from(b'a') + random() % 26)).collect();
    let mut order = Order { number, amounts, text, check: 0 };
    order.check = order.compute();
    order
}

/// Fills a JSON object up to `bytes` bytes with a list of lines, if enough room is left. Handlers ignore the list.
fn filled(mut body: String, bytes: usize) -> String {
    const LINE: &str = "Seven boxes, two of them open; the third one has to be weighed.";
    const FRAME: usize = r#","lines":[""]"#.len();
    let Some(mut room) = bytes.checked_sub(body.len() + FRAME) else { return body };
    body.pop();
    body.push_str(r#","lines":[""#);
    while let Some(rest) = room.checked_sub(LINE.len() + r#"",""#.len()) {
        body.push_str(LINE);
        body.push_str(r#"",""#);
        room = rest;
    }
    body.push_str(&".".repeat(room));
    body.push_str(r#""]}"#);
    body
}

/// Returns the message that `handle.delay(order)` sends with kombu's SQS transport.
fn celery(number: u32) -> Result<String> {
    let (call, id, headers) = celery_call(&body(number, 0)?, number);
    let message = json!({
        "body": STANDARD.encode(call),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": {
            "correlation_id": id, "reply_to": "00000000-0000-3000-8000-000000000000", "delivery_mode": 2,
            "delivery_info": { "exchange": "", "routing_key": "bench" }, "priority": 0, "body_encoding": "base64",
            "delivery_tag": id,
        },
    });
    Ok(STANDARD.encode(serde_json::to_string(&message)?))
}

/// Returns Celery's call of the task `handle` with an order: its body, its id and its headers.
pub fn celery_call(order: &str, number: u32) -> (String, String, Value) {
    let id = format!("{number:08x}-0000-4000-8000-000000000000");
    let call = format!(r#"[[{order}],{{}},{{"callbacks":null,"errbacks":null,"chain":null,"chord":null}}]"#);
    let headers = json!({
        "lang": "py", "task": "tasks.handle", "id": id, "shadow": null, "eta": null, "expires": null, "group": null,
        "group_index": null, "retries": 0, "timelimit": [null, null], "root_id": id, "parent_id": null,
        "argsrepr": "({…},)", "kwargsrepr": "{}", "origin": "gen1@producer", "ignore_result": true,
        "replaced_task_nesting": 0, "stamped_headers": null, "stamps": {},
    });
    (call, id, headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_body_has_its_size_and_is_the_same_order() {
        let plain = serde_json::to_string(&order(7)).unwrap();
        for more in [13, 14, 78, 79, 80, 1000] {
            let body = filled(plain.clone(), plain.len() + more);
            assert_eq!(body.len(), plain.len() + more);
            assert!(work::holds(body.as_bytes()), "{body}");
        }
        assert_eq!(filled(plain.clone(), plain.len() + 12), plain, "no room for a line");
    }

    #[test]
    fn large_bodies_are_fewer() {
        let made = make(Form::Plain, 8 << 20).unwrap();
        assert_eq!((made.len(), make(Form::Plain, 0).unwrap().len()), (4, 4096));
    }
}
