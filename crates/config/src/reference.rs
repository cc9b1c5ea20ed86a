//! The table of keys as Markdown, for the README.

use super::keys::{KEYS, Preset};

/// Returns a Markdown table of all keys: key, default, accepted values, meaning. `NAME` stands for a name that the user gives.
pub fn reference() -> String {
    let mut table = "| key | default | accepts | meaning |\n|---|---|---|---|\n".to_owned();
    for key in KEYS {
        let default = match key.preset {
            Preset::Value("") => "empty".to_owned(),
            Preset::Value(text) => format!("`{text}`"),
            Preset::Derived(text) => text.to_owned(),
            Preset::Unset => "unset".to_owned(),
            Preset::Required => "**required**".to_owned(),
        };
        let cells =
            [format!("`{}`", key.path.replace('*', "NAME")), default, key.kind.accepts(), key.meaning.to_owned()];
        table += &format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    table
}
