//! Files of `hostler compile`, damaged: parts cut out, bytes changed, headers written anew. Damage is refused, or what is
//! loaded is what was compiled; it is never run because it looks sound. The digests are not forged: who can do that is
//! the operator, whose word counts.

#![no_main]

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use hostler_fuzz::guest;
use hostler_wasm::{CpuBaseline, Fetched, Recipe, Source, Summary, compile};
use libfuzzer_sys::fuzz_target;

const GUEST: &[u8] = b"(module (memory (export \"memory\") 1) (func (export \"_start\")))";

/// The file as it was written, with its WASM and without; and what is in it.
static FILES: LazyLock<([Vec<u8>; 2], Summary)> = LazyLock::new(|| {
    let source = Source::Fetched(Fetched { reference: "guest".into(), bytes: GUEST.into(), pinned: true });
    let files = [true, false].map(|with_source| {
        compile(&source, Recipe { target: None, baseline: CpuBaseline::Native, with_source }).expect("compiled")
    });
    let summary = guest::load(&files[0], true).expect("sound").summary;
    (files, summary)
});

#[derive(Debug, Arbitrary)]
struct Damage {
    with_source: bool,
    pinned: bool,
    edits: Vec<Edit>,
}

#[derive(Debug, Arbitrary)]
enum Edit {
    /// Somewhere.
    Set(u32, u8),
    /// In the prefix or the header.
    SetEarly(u16, u8),
    Insert(u16, Vec<u8>),
    Remove(u16, u8),
    /// The file ends here.
    Cut(u32),
    Append(Vec<u8>),
    /// The whole header.
    Header(String),
    /// One text of the header for another.
    Replace(u8, u8),
}

/// Values that the target swaps in a header.
const WORDS: [&str; 12] = [
    "\"hostler\":\"0.1.0\"",
    "\"hostler\":\"0.0.9\"",
    "\"component\":false",
    "\"component\":true",
    "\"length\":",
    "\"length\":0,\"l\":",
    "\"length\":18446744073709551615,\"l\":",
    "\"source\":",
    "\"code\":",
    "\"sha256\":\"",
    "\"sha256\":\"00",
    "\"cpu_baseline\"",
];

fuzz_target!(|damage: Damage| {
    let (files, summary) = &*FILES;
    let whole = &files[usize::from(!damage.with_source)];
    let mut file = whole.clone();
    for edit in damage.edits.into_iter().take(8) {
        edit.apply(&mut file);
    }
    match guest::load(&file, damage.pinned) {
        Ok(loaded) => assert_eq!(loaded.summary, *summary),
        Err(error) => {
            assert!(error.to_string().contains("\n  cure: "), "{error}");
            assert!(file != *whole || !damage.pinned && !damage.with_source, "{error}");
        }
    }
});

impl Edit {
    fn apply(self, file: &mut Vec<u8>) {
        let within = |at: u32, file: &[u8]| usize::try_from(at).unwrap_or_default() % (file.len() + 1);
        match self {
            Self::Set(at, byte) => {
                let at = within(at, file);
                file.get_mut(at).into_iter().for_each(|old| *old = byte);
            }
            Self::SetEarly(at, byte) => {
                let at = usize::from(at) % 600;
                file.get_mut(at).into_iter().for_each(|old| *old = byte);
            }
            Self::Insert(at, bytes) => {
                let at = within(at.into(), file);
                file.splice(at..at, bytes);
            }
            Self::Remove(at, count) => {
                let at = within(at.into(), file);
                file.drain(at..(at + usize::from(count)).min(file.len()));
            }
            Self::Cut(at) => file.truncate(within(at, file)),
            Self::Append(bytes) => file.extend(bytes),
            Self::Header(text) => with_header(file, |_| text),
            Self::Replace(from, to) => {
                let word = |number: u8| WORDS[usize::from(number) % WORDS.len()];
                with_header(file, |header| header.replace(word(from), word(to)));
            }
        }
    }
}

/// Writes the header anew, and its length before it.
fn with_header(file: &mut Vec<u8>, change: impl FnOnce(String) -> String) {
    let Some(length) = file.get(8..12).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes) else { return };
    let Some(end) =
        usize::try_from(length).ok().and_then(|length| length.checked_add(12)).filter(|end| *end <= file.len())
    else {
        return;
    };
    let header = change(String::from_utf8_lossy(&file[12..end]).into_owned());
    let length = u32::try_from(header.len()).expect("a short text").to_le_bytes();
    file.splice(8..end, length.into_iter().chain(header.into_bytes()));
}
