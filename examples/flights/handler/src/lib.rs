//! Checks one flight, a line of JSON, and adds its delays to the totals of its carrier in the granted folder `/totals`.
//!
//! Many instances do this at once, in several processes, and each may be killed at any point. So nothing is locked:
//! - A flight counts once its line is in the ledger `/totals/AA.ledger`, which one atomic append does.
//! - `/totals/AA.json` is the sum of the ledger up to the byte that it names. Each instance brings it up to date, for as
//!   long as the ledger is ahead (see `folder`). So once all messages are acked, it is the sum of all lines.
//! - A message delivered before (attempt > 1) adds no line when the ledger already has one with its id.
//!
//! So a flight counts exactly once, whoever is killed, as long as no instance outlives its lease; hostler sees to that.
//! The folder must be on a local file system. A power cut may lose lines: nothing is synced.

mod flight;
mod folder;
mod totals;

use std::path::Path;

use totals::Entry;

mod bindings {
    //! Code that wit-bindgen generates from the contract.
    #![allow(missing_docs, reason = "generated code")]
    wit_bindgen::generate!({ world: "consumer", path: "../../../wit" });
    export!(Flights with_types_in self);
    use super::Flights;
}

use bindings::exports::hostler::consumer::handler::{Guest, Message, Outcome};
use bindings::hostler::consumer::context;

const TOTALS: &str = "/totals";

struct Flights;

impl Guest for Flights {
    fn handle(message: Message) -> Result<Outcome, String> {
        let departed = match flight::parse(&message.body) {
            Ok(departed) => departed,
            Err(reject) => return Ok(Outcome::DeadLetter(reject.to_string())),
        };
        if context::should_stop() {
            return Ok(Outcome::Retry);
        }
        let carrier = &departed.carrier;
        let entry = Entry(&message.id, departed.dep_delay, departed.arr_delay);
        match folder::count(Path::new(TOTALS), carrier, &entry, message.attempt > 1) {
            Ok(()) => Ok(Outcome::Ack),
            Err(error) => Err(format!("the totals of {carrier}: {error}")),
        }
    }
}
