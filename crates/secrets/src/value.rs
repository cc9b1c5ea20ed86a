//! Converts the text of a secret to its value: the whole text, or the value at a key of its JSON object.

use serde_json::Value;

use super::error::LookupError;
use hostler_types::secret::SecretValue;

const TEXT_CURE: &str = "store it as text";

/// Returns the value of a text, which the environment of a guest can hold.
pub(super) fn whole(text: &str) -> Result<SecretValue, LookupError> {
    if text.contains('\0') {
        return Err(LookupError::lasting("it contains a NUL character, which no variable can", TEXT_CURE));
    }
    Ok(SecretValue::from(text))
}

/// Returns the value at a key of a secret. `None`: the whole secret.
pub(super) fn part(secret: SecretValue, json_key: Option<&str>) -> Result<SecretValue, LookupError> {
    let Some(key) = json_key else { return Ok(secret) };
    let text = secret.expose();
    // The error of the parser is left out, because it could quote the secret.
    let Ok(Value::Object(object)) = serde_json::from_str::<Value>(text) else {
        return Err(LookupError::lasting("it is not a JSON object, so it has no keys", "name no key, or store JSON"));
    };
    match object.get(key) {
        Some(Value::String(text)) => whole(text),
        Some(Value::Bool(flag)) => Ok(SecretValue::from(flag.to_string().as_str())),
        Some(Value::Number(number)) => exact(&number.to_string(), text),
        Some(_) => {
            Err(LookupError::lasting("the value at its key is not text, a number or a boolean", "name another key"))
        }
        None => Err(LookupError::lasting("its JSON object has no such key", "name a key that the secret has")),
    }
}

/// Returns the text of a number. Refuses a number that was rounded or written in another way, because its text in the secret is not
/// known.
fn exact(number: &str, secret: &str) -> Result<SecretValue, LookupError> {
    let of_number = |char: char| char.is_ascii_digit() || ".eE+-".contains(char);
    let is_whole =
        |at: usize| !secret[..at].ends_with(of_number) && !secret[at + number.len()..].starts_with(of_number);
    if secret.match_indices(number).any(|(at, _)| is_whole(at)) {
        return Ok(SecretValue::from(number));
    }
    Err(LookupError::lasting("the number at its key cannot be given as it is written", "write it in quotes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_text_of_its_value() {
        let json = r#"{"user":"me","port":5432,"rate":0.5,"tls":true,"none":null,"list":[1],"pin":1.10,"big":123456789012345678901234567890,"nul":"a\u0000b"}"#;
        let at = |key| part(SecretValue::from(json), key).map(|value| value.expose().to_owned());
        for (key, expected) in [("user", "me"), ("port", "5432"), ("rate", "0.5"), ("tls", "true")] {
            assert_eq!(at(Some(key)).as_deref(), Ok(expected), "{key}");
        }
        assert_eq!(at(None).as_deref(), Ok(json));
        for key in ["none", "list", "pin", "big", "nul", "other"] {
            let error = at(Some(key)).expect_err(key);
            assert!(!error.is_passing() && !error.to_string().contains("123"), "{error}");
        }
    }

    #[test]
    fn a_secret_that_is_not_an_object_has_no_keys_and_is_not_shown() {
        for text in ["hunter2", "\"hunter2\"", "[\"hunter2\"]", "{\"hunter2\""] {
            let error = part(SecretValue::from(text), Some("a")).expect_err(text);
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
