//! Detects handlers that are composed of several components. The engine copies a value from one component to another in
//! a single operation. During the copy, the engine does not check whether the guest must stop. Therefore, a guest that
//! copies large values may be stopped late.

use std::fmt;

use bytesize::ByteSize;

use super::artifact::Artifact;
use super::source::Source;

/// Maximum linear memory of a sandbox, in bytes, for which every copy between components takes less than 50 ms. hostler
/// allows a guest to run for 50 ms after its processing timeout. In a sandbox with more memory, a single copy may take
/// longer. See book/src/reliability.md for the measurements.
const PROMPT: u64 = 16 << 20;

/// A handler or a hooks component whose guest may outlive its processing timeout because of a long copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongCopies {
    file: String,
    memory: u64,
}

impl LongCopies {
    /// Checks a file whose sandboxes may have up to `memory` bytes of linear memory. Returns `None` if no copy between
    /// components takes longer than 50 ms.
    pub(super) fn of(source: &Source, artifact: &Artifact, memory: u64) -> Option<Self> {
        let can = memory > PROMPT && is_composed(artifact);
        can.then(|| Self { file: source.to_string(), memory })
    }

    /// Returns a suggested fix.
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

/// Returns `true` if an instance of the component has several memories. Several memories indicate several inner
/// components, because components do not share a memory. The modules of a single component share the memory of their
/// language's runtime.
fn is_composed(artifact: &Artifact) -> bool {
    let resources = artifact.component().and_then(|component| component.resources_required());
    resources.is_some_and(|resources| resources.num_memories > 1)
}
