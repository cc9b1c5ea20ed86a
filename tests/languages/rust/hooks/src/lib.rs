//! All four lifecycle hooks, and no handler. What they see goes to standard error and to the channel `audit`.

#![forbid(unsafe_code)]

use std::time::Duration;

use hostler_guest::{
    Attribute, Failure, Message, Outcome, Outgoing, Report, State, message_end, message_start, processing_timeout,
    state_changed,
};

#[message_start]
fn start(message: Message) -> Result<(), Failure> {
    eprintln!("start {}", message.id == message.attribute("id").unwrap_or(&message.id));
    if let Some(reason) = message.attribute("refuse") {
        return Err(Failure::error(reason));
    }
    let mut copy = Outgoing::to("audit", message.body).delay(Duration::from_millis(100)).dedupe_key(message.id);
    copy.attributes = message.attributes;
    copy.attributes.push(Attribute::new("bytes", vec![0, 255]));
    copy.routing_key = message.routing_key;
    copy.group = message.group;
    copy.send()?;
    Ok(())
}

#[message_end]
fn end(report: Report) {
    eprintln!("end {} {} {:?}", report.attempt, report.outcome, report.reason);
}

#[processing_timeout]
fn late(message: Message, elapsed: Duration) -> Outcome {
    Outcome::dead_letter(format!("{} was late: {}", message.channel, elapsed >= Duration::from_secs(1)))
}

#[state_changed]
fn changed(from: State, to: State) {
    eprintln!("{from}, now {to}");
}
