//! A checker of recorded runs. It knows the rules of the job service, and nothing of the model.
//!
//! Each rule is an invariant with a name. Calls overlap, and some answers are lost, so the checker complains only if no order of
//! the calls obeys the rule.
//!
//! | file | rules about |
//! |---|---|
//! | `facts.rs` | none: it sorts a record by jobs, items and assignments |
//! | `assignments.rs` | assignments and their ends |
//! | `attempts.rs` | failures, their number and the time of the next attempt |
//! | `keys.rs` | serialize keys and dedupe keys |
//! | `trees.rs` | seals, completion, deletion, callbacks |
//! | `leftovers.rs` | the end of a run |

mod assignments;
mod attempts;
mod facts;
mod keys;
mod leftovers;
mod trees;

use std::fmt;

use crate::history::History;
use facts::Facts;

/// A rule that a run broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: &'static str,
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.rule, self.detail)
    }
}

/// Collects violations.
#[derive(Default)]
struct Verdict(Vec<Violation>);

impl Verdict {
    /// Records a violation unless a condition holds.
    fn require(&mut self, rule: &'static str, holds: bool, detail: impl FnOnce() -> String) {
        if !holds {
            self.0.push(Violation { rule, detail: detail() });
        }
    }
}

/// Returns the rules that a run broke.
pub fn check(history: &History) -> Vec<Violation> {
    let facts = Facts::of(history);
    let mut verdict = Verdict::default();
    assignments::check(&facts, &mut verdict);
    attempts::check(&facts, &mut verdict);
    keys::check(&facts, &mut verdict);
    trees::check(&facts, &mut verdict);
    leftovers::check(&facts, &mut verdict);
    verdict.0
}
