//! Handlers composed of several components. Data that one passes to another is copied in one go, so a guest that copies much
//! may be stopped late.
//!
//! The engine makes these copies itself, and does not check meanwhile whether the guest must stop.

use std::fmt;

use bytesize::ByteSize;

use super::artifact::Artifact;
use super::source::Source;

/// The memory, in bytes, above which a copy may take longer than the 50 ms by which a guest may outlive its processing
/// timeout. book/src/reliability.md has the measurements.
const PROMPT: u64 = 16 << 20;

/// A handler, or separate hooks, whose guest may outlive its processing timeout by the time that a copy takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongCopies {
    file: String,
    memory: u64,
}

impl LongCopies {
    /// Examines a file whose sandboxes have `memory` bytes; `None`: its copies are short.
    pub(super) fn of(source: &Source, artifact: &Artifact, memory: u64) -> Option<Self> {
        let can = memory > PROMPT && is_composed(artifact);
        can.then(|| Self { file: source.to_string(), memory })
    }

    /// Returns the advice for the user.
    pub fn cure(&self) -> String {
        format!("set limits.memory to {}MiB or less, or build it as one component", PROMPT >> 20)
    }
}

impl fmt::Display for LongCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, memory } = self;
        write!(
            f,
            "{file} is composed of several components: what one passes to another is copied in one go, up to limits.memory \
             ({}), and the guest cannot be stopped meanwhile, so it may outlive its processing timeout",
            ByteSize(*memory)
        )
    }
}

/// Returns `true` if its instances have several memories. Components share nothing, so each component with code has at least
/// one memory. The modules of one component share the memory of their language's runtime.
fn is_composed(artifact: &Artifact) -> bool {
    let resources = artifact.component().and_then(|component| component.resources_required());
    resources.is_some_and(|resources| resources.num_memories > 1)
}
