//! The planted faults: a file, and the text to replace in it. Each is a plausible mistake.

use std::sync::LazyLock;

#[path = "faults/consumer.rs"]
mod consumer;
#[path = "faults/queues.rs"]
mod queues;
#[path = "faults/retry.rs"]
mod retry;
#[path = "faults/schedules.rs"]
mod schedules;

/// All of them. Their numbers are their places here.
pub static FAULTS: LazyLock<Vec<Fault>> =
    LazyLock::new(|| [consumer::FAULTS, queues::FAULTS, retry::FAULTS, schedules::FAULTS].concat());

/// A fault.
#[derive(Clone, Copy)]
pub struct Fault {
    pub name: &'static str,
    /// Below `src/`.
    pub file: &'static str,
    /// A text that the file has once.
    pub old: &'static str,
    pub new: &'static str,
}

impl Fault {
    /// Returns true if its name or its file contains this word.
    pub fn is_named(&self, word: &str) -> bool {
        self.name.contains(word) || self.file.contains(word)
    }
}

const fn fault(name: &'static str, file: &'static str, old: &'static str, new: &'static str) -> Fault {
    Fault { name, file, old, new }
}
