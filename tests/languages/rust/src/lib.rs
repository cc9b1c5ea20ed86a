//! The conformance guest in Rust: the text attribute `do` says what to do.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hostler_guest::{
    Failure, Malformed, Message, Outcome, Report, Value, context, handler, job, message_end, message_start,
};
use serde_json::{Map, json};

/// Set if this instance logs its calls.
static TELLS: AtomicBool = AtomicBool::new(false);

#[handler]
fn handle(message: Message) -> Result<Outcome, Failure> {
    Ok(match message.attribute("do").ok_or_else(|| Failure::dead_letter("no attribute `do`"))? {
        "ack" => Outcome::Ack,
        "reply" => Outcome::Reply(message.body),
        "retry" => return Err(Failure::retry()),
        "delay" => {
            let seconds = message.text()?.trim().parse();
            let seconds =
                seconds.map_err(|error| Malformed::new(format!("the body is no number of seconds: {error}")))?;
            Outcome::Delay(Duration::from_secs(seconds))
        }
        "dead-letter" => Outcome::dead_letter(message.text()?),
        "error" => return Err(Failure::error(message.text()?)),
        "trap" => panic!("told to trap"),
        "loop" => loop {
            std::hint::spin_loop();
        },
        "length" => Outcome::reply(message.body.len().to_string()),
        "attributes" => {
            let text = |value: &Value| match value {
                Value::Text(text) => Some(json!(text)),
                Value::Binary(_) => None,
            };
            let all = message.attributes.iter().filter_map(|one| Some((one.name.clone(), text(&one.value)?)));
            Outcome::json(&all.collect::<Map<_, _>>())?
        }
        "context" => Outcome::json(&json!({
            "attempt": message.attempt,
            "remaining": context::remaining() > Duration::ZERO,
            "stop": context::should_stop(),
        }))?,
        "connect" => {
            let mut answer = String::new();
            let mut stream = TcpStream::connect(message.text()?).map_err(failed)?;
            stream.write_all(b"hello").and_then(|()| stream.shutdown(Shutdown::Write)).map_err(failed)?;
            stream.read_to_string(&mut answer).map_err(failed)?;
            Outcome::reply(answer)
        }
        "job" => match job::add("child", [job::Item::new("1").dedupe_key("one")]) {
            Err(job::JobError::NoJob(_)) if job::current().is_none() => Outcome::reply("no-job"),
            other => return Err(Failure::error(format!("{other:?}"))),
        },
        "hooks" => {
            eprintln!("handle");
            Outcome::Ack
        }
        other => return Err(Failure::dead_letter(format!("`do` is `{other}`"))),
    })
}

fn failed(error: io::Error) -> Failure {
    Failure::error(error.to_string())
}

#[message_start]
fn start(message: Message) {
    let tells = message.attribute("do") == Some("hooks");
    TELLS.store(tells, Ordering::Relaxed);
    if tells {
        eprintln!("start");
    }
}

#[message_end]
fn end(report: Report) {
    if TELLS.load(Ordering::Relaxed) {
        eprintln!("end {}", report.outcome);
    }
}
