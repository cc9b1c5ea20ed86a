//! Formats the table of keys as Markdown, for the book.

use super::keys::{DefaultValue, keys};

/// Returns a Markdown table of all keys, with their defaults, accepted values and meanings. In the keys, `NAME` means a
/// name that the user chooses.
pub fn reference() -> String {
    let mut table = "| key | default | accepts | meaning |\n|---|---|---|---|\n".to_owned();
    for key in keys() {
        let default = match key.preset {
            DefaultValue::Value("") => "empty".to_owned(),
            DefaultValue::Value(text) => format!("`{text}`"),
            DefaultValue::Derived(text) => text.to_owned(),
            DefaultValue::Unset => "unset".to_owned(),
            DefaultValue::Required => "**required**".to_owned(),
            DefaultValue::RequiredUnless(others) => {
                let others: Vec<_> = others.iter().map(|other| format!("`{other}`")).collect();
                format!("**required**, unless {} is set", others.join(" or "))
            }
        };
        let cells =
            [format!("`{}`", key.path.replace('*', "NAME")), default, key.kind.accepts(), key.meaning.to_owned()];
        table += &format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    table
}
