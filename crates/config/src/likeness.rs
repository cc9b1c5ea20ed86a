//! Finds the name that a misspelt one probably means.

/// Minimum similarity of two names for one of them to count as a misspelling of the other. Determined with actual
/// misspellings.
const ALIKE: f64 = 0.85;

/// Returns a name in the form in which names of variables are compared: in lower case, and with `_` in place of `-`.
pub(super) fn folded(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

/// Returns the name in `known` of which `name` is a misspelling.
pub fn alike<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = folded(name);
    let likeness = |known: &str| strsim::jaro_winkler(&folded(known), &name);
    let rated = known.into_iter().map(|known| (known, likeness(known))).filter(|(_, likeness)| *likeness >= ALIKE);
    rated.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(known, _)| known)
}
