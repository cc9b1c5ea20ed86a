//! Responses of a registry: manifests, and challenges to log in. A manifest leads to one of the parts that it names, or to an
//! error with the reason.

#![no_main]

use hostler_wasm::fetch::manifest::{self, Leads};
use hostler_wasm::fetch::{Challenge, Fault, MAX_HANDLER};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|answer: &[u8]| {
    if let Ok(text) = str::from_utf8(answer) {
        match Challenge::read(text) {
            Some(Challenge::Bearer { realm, service }) => {
                assert!(text.len() >= realm.len() + service.map_or(0, |service| service.len()));
                let said = format!("bearer realm=\"{realm}\"");
                assert_eq!(Challenge::read(&said), Some(Challenge::Bearer { realm, service: None }));
            }
            Some(Challenge::Basic) => assert!(text.trim().to_ascii_lowercase().starts_with("basic")),
            None => {}
        }
    }
    match manifest::read(answer) {
        Ok(Leads::ToLayer(part) | Leads::ToManifest(part)) => {
            assert!(part.size <= MAX_HANDLER);
            let digits: String = part.digest.iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(String::from_utf8_lossy(answer).to_lowercase().contains(&digits) || escaped(answer));
        }
        Err(Fault::Lasting(what, cure)) => assert!(!what.is_empty() && !cure.is_empty()),
        Err(Fault::Passing(what)) => panic!("a manifest does not pass by itself: {what}"),
    }
});

/// Returns true if the JSON escapes characters by number. A digest then need not occur verbatim.
fn escaped(answer: &[u8]) -> bool {
    answer.windows(2).any(|pair| pair == b"\\u")
}
