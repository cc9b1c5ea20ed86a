//! Handlers composed of several components: what one passes to another is copied in one go, so a guest that copies much is stopped late.
//!
//! The engine makes these copies by itself, and never looks meanwhile whether the guest is to stop.

use std::fmt;

use bytesize::ByteSize;

use super::artifact::Artifact;
use super::source::Source;

/// With more memory than this, in bytes, a copy may take longer than the 50 ms for which a guest may outlive its processing
/// timeout. docs/reliability.md has the measurements.
const PROMPT: u64 = 16 << 20;

/// A handler, or hooks apart from it, whose guest may outlive its processing timeout by the time that a copy takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongCopies {
    file: String,
    memory: u64,
}

impl LongCopies {
    /// Looks at a file whose sandboxes have so many bytes of memory.
    pub(super) fn of(source: &Source, artifact: &Artifact, memory: u64) -> Option<Self> {
        let can = memory > PROMPT && is_composed(artifact);
        can.then(|| Self { file: source.to_string(), memory })
    }

    /// The advice for the user.
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

/// Tells whether its instances have several memories. Components share nothing, so each with code of its own has one at least,
/// whereas all modules of one component share that of its language's runtime.
fn is_composed(artifact: &Artifact) -> bool {
    let resources = artifact.component().and_then(|component| component.resources_required());
    resources.is_some_and(|resources| resources.num_memories > 1)
}
