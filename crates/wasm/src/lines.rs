//! Batches of commands: the messages as lines of JSON on standard input, and the answers as lines of JSON on standard output.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use hostler_handler::{BatchCall, Call, Outcome, Stream};
use hostler_types::message::{AttributeValue, Plain};

/// Returns the lines for standard input: one message per line.
pub(super) fn input(batch: &BatchCall) -> Vec<u8> {
    let mut lines = Vec::new();
    for call in &batch.calls {
        lines.extend_from_slice(message(call).to_string().as_bytes());
        lines.push(b'\n');
    }
    lines
}

fn message(call: &Call) -> Value {
    let message = &*call.message;
    let attributes = message.attributes.iter().map(|(name, value)| (name.clone(), attribute(value)));
    let since_1970 = message.enqueued_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let enqueued_at = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
    let mut line = json!({
        "id": message.id,
        "channel": &*call.channel,
        "attempt": call.attempt,
        "enqueued_at": enqueued_at,
        "attributes": attributes.collect::<Map<_, _>>(),
    });
    let (key, body) = match std::str::from_utf8(&message.body) {
        Ok(text) => ("body", text.to_owned()),
        Err(_) => ("body_base64", STANDARD.encode(&message.body)),
    };
    line[key] = body.into();
    let optional = [
        ("content_type", message.content_type()),
        ("group_id", message.group.as_deref()),
        ("routing_key", message.routing_key.as_deref()),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            line[key] = value.into();
        }
    }
    if let Some(trace) = &call.trace {
        line["traceparent"] = trace.traceparent().into();
    }
    line
}

/// Returns the JSON of an attribute: text, or an object with the Base64 of its bytes.
pub(super) fn attribute(value: &AttributeValue) -> Value {
    match value.plain() {
        Plain::Text(text) => Value::from(text),
        Plain::Binary(bytes) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}

/// Takes the answers of a command from its standard output. All other lines are output. An answer counts as soon as its line is
/// complete, or at the end of the program if its TCP connections may still have to send what it wrote.
#[derive(Clone)]
pub(super) struct Lines(Arc<Mutex<State>>);

struct State {
    batch: Arc<BatchCall>,
    /// Places of the messages without an answer. The same message may have been received twice.
    places: HashMap<String, VecDeque<usize>>,
    /// Beginning of a line whose end has not been written yet.
    line: Vec<u8>,
    /// Maximum length of a line in bytes.
    longest: usize,
    is_too_long: bool,
    /// Answers that count at the end of the program, with the places of their messages. `None`: answers count at once.
    held: Option<Vec<(usize, Outcome)>>,
}

impl Lines {
    /// Creates the receiver of the answers for `batch`. `longest`: maximum length of a line in bytes. `holds`: answers count only
    /// at the end of the program.
    pub(super) fn new(batch: &Arc<BatchCall>, longest: usize, holds: bool) -> Self {
        let mut places: HashMap<_, VecDeque<_>> = HashMap::new();
        for (place, call) in batch.calls.iter().enumerate() {
            places.entry(call.message.id.clone()).or_default().push_back(place);
        }
        let (batch, held) = (Arc::clone(batch), holds.then(Vec::new));
        Self(Arc::new(Mutex::new(State { batch, places, line: Vec::new(), longest, is_too_long: false, held })))
    }

    /// Takes bytes that the command has written.
    pub(super) fn write(&self, bytes: &[u8]) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            state.is_too_long |= state.line.len() + text.len() > state.longest;
            if !state.is_too_long {
                state.line.extend_from_slice(text);
            }
            if text.len() < part.len() {
                state.end_line();
            }
        }
    }

    /// Takes the last line, which may lack a newline, and then the answers that were held. `is_sound`: `false` if those do not
    /// count, because the program failed.
    pub(super) fn end(&self, is_sound: bool) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.end_line();
        for (place, outcome) in state.held.take().filter(|_| is_sound).into_iter().flatten() {
            state.batch.answer(place, outcome);
        }
    }
}

impl State {
    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_too_long) {
            return self.tell(format!("a line longer than {} bytes was dropped", self.longest));
        }
        if line.trim_ascii().is_empty() {
            return;
        }
        match answer(&line) {
            None => {
                self.batch.output.write(Stream::Stdout, &line);
                self.batch.output.write(Stream::Stdout, b"\n");
            }
            Some((id, outcome)) => {
                let outcome = outcome.unwrap_or_else(|fault| Outcome::Failed(format!("its answer is faulty: {fault}")));
                let place = self.places.get_mut(&id).and_then(VecDeque::pop_front);
                if !place.is_some_and(|place| self.take(place, outcome)) {
                    self.tell(format!("an answer was ignored: no message {id:?} without an answer"));
                }
            }
        }
    }

    fn take(&mut self, place: usize, outcome: Outcome) -> bool {
        let Some(held) = &mut self.held else { return self.batch.answer(place, outcome) };
        held.push((place, outcome));
        true
    }

    /// Writes a line about the answers to the command's standard error. It never has the text of an answer, as that may be
    /// the body of a reply.
    fn tell(&self, text: String) {
        self.batch.output.write(Stream::Stderr, format!("hostler: {text}\n").as_bytes());
    }
}

/// Reads an answer: the id of its message, and the outcome or the fault of the answer. `None`: the line is not an answer, which is an
/// object with `id` and `outcome`.
fn answer(line: &[u8]) -> Option<(String, Result<Outcome, String>)> {
    let object: Map<String, Value> = serde_json::from_slice(line).ok()?;
    let (id, outcome) = (object.get("id")?.as_str()?, object.get("outcome")?.as_str()?);
    let text = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
    let reason = || text("reason");
    let outcome = match outcome {
        "ack" => Ok(Outcome::Ack),
        "reply" => reply(text("reply"), text("reply_base64")).map(Outcome::Reply),
        "retry" => Ok(Outcome::Retry(reason())),
        "delay" => match object.get("delay_seconds").and_then(Value::as_u64) {
            Some(seconds) if u32::try_from(seconds).is_ok() => Ok(Outcome::Delay(Duration::from_secs(seconds))),
            _ => Err("`delay` needs `delay_seconds`, a whole number".to_owned()),
        },
        "dead-letter" => Ok(Outcome::DeadLetter(reason().unwrap_or_else(|| "the program gave no reason".to_owned()))),
        "failed" => Ok(Outcome::Failed(reason().unwrap_or_else(|| "the program gave no reason".to_owned()))),
        _ => Err("its `outcome` is none of ack, reply, retry, delay, dead-letter, failed".to_owned()),
    };
    Some((id.to_owned(), outcome))
}

fn reply(text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, String> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(base64)) => STANDARD.decode(base64).map_err(|_| "`reply_base64` is not valid Base64".to_owned()),
        _ => Err("`reply` needs either `reply` or `reply_base64`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use hostler_handler::{Bounds, Output};
    use hostler_types::message::Message;

    use super::*;

    type Told = Arc<Mutex<Vec<(usize, Outcome)>>>;

    fn batch(messages: Vec<Message>) -> (Arc<BatchCall>, Told) {
        let bounds = || Bounds::new(Duration::from_secs(1));
        let call = |message| Arc::new(Call::new(Arc::new(message), "in".into(), 2, bounds(), Output::new(0)));
        let told = Told::default();
        let into = Arc::clone(&told);
        let early = Box::new(move |index, outcome| into.lock().unwrap().push((index, outcome)));
        let calls = messages.into_iter().map(call).collect();
        (Arc::new(BatchCall::new(calls, bounds(), Output::new(1024), early)), told)
    }

    #[test]
    fn a_message_is_a_line_of_json() {
        let binary = Message::new("b", vec![0xff, 0]);
        let mut text = Message::new("a", "line\n\"two\"");
        text.attributes.insert("n".to_owned(), AttributeValue::Binary(vec![1]));
        text.group = Some("g".to_owned());
        let input = input(&batch(vec![text, binary]).0);
        let lines: Vec<Value> =
            input.split_inclusive(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        let pick = |line: usize, key: &str| lines[line][key].clone();
        assert_eq!((pick(0, "id"), pick(0, "body")), (json!("a"), json!("line\n\"two\"")));
        assert_eq!((pick(0, "attributes"), pick(0, "group_id")), (json!({"n": {"base64": "AQ=="}}), json!("g")));
        assert_eq!((pick(0, "attempt"), pick(0, "channel")), (json!(2), json!("in")));
        assert_eq!(
            (pick(1, "body"), pick(1, "body_base64"), pick(1, "group_id")),
            (Value::Null, json!("/wA="), Value::Null)
        );
    }

    #[test]
    fn answers_count_as_soon_as_their_lines_are_complete() {
        let (batch, told) = batch(vec![Message::new("a", ""), Message::new("b", ""), Message::new("a", "")]);
        let lines = Lines::new(&batch, 100, false);
        lines.write(b"{\"id\":\"b\",\"outcome\":\"delay\",\"delay_seconds\":7}\n\n{\"id\":\"a\",");
        assert_eq!(*told.lock().unwrap(), [(1, Outcome::Delay(Duration::from_secs(7)))]);
        lines.write(
            b"\"outcome\":\"ack\"}\nworking on it\n{\"id\":\"a\",\"outcome\":\"reply\",\"reply_base64\":\"AQ==\"}",
        );
        assert_eq!(told.lock().unwrap().len(), 2);
        lines.end(true);
        assert_eq!(told.lock().unwrap()[1..], [(0, Outcome::Ack), (2, Outcome::Reply(vec![1]))]);
        let kept = batch.output.take();
        assert_eq!((&*kept.stdout, &*kept.stderr), (&b"working on it\n"[..], &b""[..]));
    }

    #[test]
    fn held_answers_count_at_the_end_of_a_program_that_did_not_fail() {
        for (is_sound, counted) in [(true, vec![(0, Outcome::Ack), (1, Outcome::Retry(None))]), (false, vec![])] {
            let (batch, told) = batch(vec![Message::new("a", ""), Message::new("b", "")]);
            let lines = Lines::new(&batch, 100, true);
            lines.write(b"{\"id\":\"a\",\"outcome\":\"ack\"}\n{\"id\":\"b\",\"outcome\":\"retry\"}");
            assert!(told.lock().unwrap().is_empty());
            lines.end(is_sound);
            assert_eq!(*told.lock().unwrap(), counted);
        }
    }

    #[test]
    fn a_faulty_answer_fails_its_message_with_the_fault() {
        for (rest, fault) in [
            ("\"outcome\":\"secret\"", "none of ack, reply"),
            ("\"outcome\":\"delay\"", "delay_seconds"),
            ("\"outcome\":\"reply\",\"reply_base64\":\"secret!\"", "Base64"),
        ] {
            let (batch, told) = batch(vec![Message::new("a", "")]);
            Lines::new(&batch, 100, false).write(format!("{{\"id\":\"a\",{rest}}}\n").as_bytes());
            let told = told.lock().unwrap();
            let [(0, Outcome::Failed(reason))] = &told[..] else { panic!("{told:?}") };
            assert!(reason.contains(fault) && !reason.contains("secret"), "{reason}");
        }
    }

    #[test]
    fn what_is_no_answer_is_told_without_its_text() {
        let (batch, told) = batch(vec![Message::new("a", "")]);
        let lines = Lines::new(&batch, 60, false);
        for line in ["{\"id\":\"b\",\"outcome\":\"ack\"}", &"secret".repeat(11)] {
            lines.write(format!("{line}\n").as_bytes());
        }
        assert!(told.lock().unwrap().is_empty());
        let kept = batch.output.take();
        let text = String::from_utf8(kept.stderr).unwrap();
        assert_eq!((text.lines().count(), kept.stdout.len(), text.contains("secret")), (2, 0, false), "{text}");
        lines.write(b"{\"id\":\"a\",\"outcome\":\"dead-letter\",\"reason\":\"bad\"}\n");
        assert_eq!(*told.lock().unwrap(), [(0, Outcome::DeadLetter("bad".into()))]);
    }
}
