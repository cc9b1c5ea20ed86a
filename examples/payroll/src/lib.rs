//! Processes two levels of a payroll. A time sheet becomes the checks of an employee, which are added to the level below, and a
//! check is sent to the bank.

mod bank;
#[cfg(target_family = "wasm")]
mod http;
mod pay;

use hostler_guest::job::{self, Item};
use hostler_guest::{Failure, Message, Outcome, handler};
use serde::Serialize;

use crate::bank::judge;
use crate::pay::{Check, TimeSheet};

/// The result of a time sheet.
#[derive(Debug, Serialize)]
struct Calculated {
    /// Number of checks.
    checks: usize,
    /// Sum of the checks.
    cents: u64,
}

#[handler]
fn handle(message: Message) -> Result<Outcome, Failure> {
    let job = job::current().ok_or_else(|| Failure::dead_letter("the message is not an item of a job"))?;
    match job.kind.as_str() {
        "calculatePayroll" => calculate(&message),
        "sendCheck" => send(&message),
        other => Err(Failure::dead_letter(format!("jobs of the type {other} are for others"))),
    }
}

/// Adds the checks of a time sheet to the level below. They are committed with the result, so an attempt that dies adds none. The
/// bank gets the checks of an account one after another.
fn calculate(message: &Message) -> Result<Outcome, Failure> {
    let checks = message.json::<TimeSheet>()?.checks();
    let item = |check: &Check| Ok(Item::json(check)?.dedupe_key(check.number()).serialize_key(&check.account));
    job::add("sendCheck", checks.iter().map(item).collect::<Result<Vec<_>, Failure>>()?)?;
    let cents = checks.iter().map(|check| check.cents).sum();
    Ok(Outcome::json(&Calculated { checks: checks.len(), cents })?)
}

/// Sends a check to the bank. The item's id is the same in each attempt, so the bank pays once.
fn send(message: &Message) -> Result<Outcome, Failure> {
    let bank = std::env::var("BANK").map_err(|_| Failure::error("allow.env gives no BANK"))?;
    judge(&post(&format!("{}/checks", bank.trim_end_matches('/')), message)?)
}

#[cfg(target_family = "wasm")]
fn post(url: &str, message: &Message) -> Result<bank::Response, Failure> {
    http::post(url, &message.id, &message.body).map_err(|why| Failure::error(format!("no response: {why}")))
}

/// Answers in place of the bank. A test has none.
#[cfg(not(target_family = "wasm"))]
fn post(_: &str, _: &Message) -> Result<bank::Response, Failure> {
    Ok(bank::Response { status: 200, retry_after: None, body: br#"{"receipt":"r-1"}"#.to_vec() })
}

#[cfg(test)]
mod tests {
    use hostler_guest::job::Job;
    use hostler_guest::testing;

    use super::*;

    const SHEET: &str = r#"{"employee": 7, "account": "CH-7", "cents_per_hour": 4000, "minutes": [60, 90]}"#;

    #[test]
    fn a_time_sheet_becomes_checks_of_the_level_below() {
        testing::set_job(Some(Job::test("calculatePayroll")));
        let outcome = handle(Message::test(SHEET));
        assert_eq!(outcome, Ok(Outcome::reply(r#"{"checks":2,"cents":8750}"#)));
        let added = testing::take_added();
        let [(target, items)] = &added[..] else { panic!("{added:?}") };
        assert_eq!((target.as_str(), items.len()), ("sendCheck", 2));
        assert_eq!(items[1].payload, r#"{"employee":7,"month":2,"account":"CH-7","cents":5250}"#);
        let keys = (items[1].dedupe_key.as_deref(), items[1].serialize_key.as_deref());
        assert_eq!(keys, (Some("7/2"), Some("CH-7")));
    }

    #[test]
    fn messages_for_others_are_dead_lettered() {
        for job in [None, Some(Job::test("notify"))] {
            testing::set_job(job);
            assert!(matches!(handle(Message::test(SHEET)), Err(Failure::DeadLetter(_))));
        }
    }
}
