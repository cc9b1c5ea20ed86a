//! Syntax of a variable of the guest's environment: its text, or a table with a reference to a secret.

use figment::value::{Dict, Value};

use super::read::{Read, quoted, shown};
use hostler_types::secret::SecretRef;

/// Value of a variable in `allow.env`, as written.
pub(super) enum GuestVariable {
    /// The value itself.
    Text(String),
    /// The place where the value is kept.
    Secret(SecretRef),
}

impl Read for GuestVariable {
    /// Reads a variable. A fault never shows a text that may be a secret.
    fn read(value: &Value) -> Result<Self, String> {
        let table = match value {
            Value::String(_, text) => return Ok(Self::Text(text.clone())),
            Value::Dict(_, table) => table,
            _ => return Err("the value is neither text nor a table (it is not shown: it may be secret)".to_owned()),
        };
        if let Some(unknown) = table.keys().find(|key| *key != "secret") {
            return Err(format!("unknown key {} in the table", quoted(unknown)));
        }
        match table.get("secret") {
            Some(Value::String(_, text)) => reference(text).map(Self::Secret),
            Some(other @ (Value::Dict(..) | Value::Array(..))) => {
                Err(format!("`secret`: {} is not text", shown(other)))
            }
            Some(_) => Err("`secret` is not text (it is not shown: it may be secret)".to_owned()),
            None => Err("the table has no key `secret`".to_owned()),
        }
    }
}

fn reference(text: &str) -> Result<SecretRef, String> {
    text.parse::<SecretRef>().map_err(|error| match error.cure() {
        _ if error.may_be_a_secret() => {
            format!("the reference under `secret` {error} (it is not shown: it may be the secret itself)")
        }
        Some(cure) => format!("`secret`: {} {error}: {cure}", quoted(text)),
        None => format!("`secret`: {} {error}", quoted(text)),
    })
}

/// Converts the text of an environment variable. A text that begins as the table `{ secret = …` is a table; any other is the
/// value itself. The reference may stand without quotes.
pub(super) fn of_variable(raw: &str) -> Value {
    let begins = raw.trim_start().strip_prefix('{').and_then(|rest| rest.trim_start().strip_prefix("secret"));
    if !begins.is_some_and(|rest| rest.trim_start().starts_with('=')) {
        return Value::from(raw);
    }
    let in_toml = raw.trim().parse::<toml_edit::Value>().ok();
    let text = in_toml.as_ref().and_then(|value| value.as_inline_table()?.get("secret")?.as_str());
    let keys = in_toml.as_ref().and_then(|value| Some(value.as_inline_table()?.len()));
    match (text, keys) {
        (Some(text), Some(1)) => Dict::from([("secret".to_owned(), Value::from(text))]).into(),
        _ => bare(raw),
    }
}

/// Converts a table whose reference has no quotes. A text that only begins as a table is an empty one, which is refused.
fn bare(raw: &str) -> Value {
    let parsed: Value = raw.trim().parse().unwrap_or_else(|never: std::convert::Infallible| match never {});
    if parsed.as_dict().is_some() { parsed } else { Dict::new().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &Value) -> Result<String, String> {
        GuestVariable::read(value).map(|variable| match variable {
            GuestVariable::Text(text) => format!("text {text}"),
            GuestVariable::Secret(reference) => format!("secret {reference}"),
        })
    }

    #[test]
    fn a_variable_of_the_environment_is_a_table_only_if_it_begins_as_one() {
        let arn = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbC123:password::";
        for (raw, expected) in [
            ("hunter2", "text hunter2"),
            ("{\"secret\":\"hunter2\"}", "text {\"secret\":\"hunter2\"}"),
            ("{ a = 1 }", "text { a = 1 }"),
            ("{ secrets = 1 }", "text { secrets = 1 }"),
            ("{ secret = file:/run/x }", "secret file:/run/x"),
            (" {secret=\"file:/run/x, y\"}", "secret file:/run/x, y"),
            ("{ secret = 'file:/run/x' }", "secret file:/run/x"),
            (&format!("{{ secret = {arn} }}"), &format!("secret {arn}")),
            (&format!("{{ secret = \"{arn}\" }}"), &format!("secret {arn}")),
        ] {
            assert_eq!(of(&of_variable(raw)).as_deref(), Ok(expected), "{raw}");
        }
        for wrong in
            ["{ secret = file:/run/x", "{ secret = }", "{ secret = hunter2 }", "{ secret = file:/x, as = hunter2 }"]
        {
            assert!(!of(&of_variable(wrong)).expect_err(wrong).contains("hunter2"), "{wrong}");
        }
    }

    #[test]
    fn a_table_has_its_own_faults() {
        for (text, expected) in [
            ("{value=\"hunter2\"}", "unknown key \"value\" in the table"),
            ("{}", "the table has no key `secret`"),
            ("{secret={a=1}}", "`secret`: a table is not text"),
            ("{secret=4711}", "`secret` is not text (it is not shown: it may be secret)"),
            ("{secret=\"file:x\"}", "`secret`: \"file:x\" has a path that does not begin with `/`"),
        ] {
            assert_eq!(of(&text.parse().unwrap()).unwrap_err(), expected, "{text}");
        }
    }
}
