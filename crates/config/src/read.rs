//! Converts a value as written to its type, or returns its fault.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use figment::value::Value;

use super::units::{self, Share};
use hostler_types::Rate;
use hostler_types::channel::Channel;

/// Maximum number of characters of a quoted value in the description of a fault.
const SHOWN: usize = 80;

/// A type to which a configured value can be converted.
pub(super) trait Read: Sized {
    /// Returns the typed value, or a fault, for example `"abc" is not a duration`.
    fn read(value: &Value) -> Result<Self, String>;
}

/// Formats a value for the description of a fault. The result is short and on one line. It omits the user name and the
/// password of a URL.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(_, text) => quoted(text),
        Value::Bool(_, flag) => flag.to_string(),
        Value::Num(_, number) => match (number.to_i128(), number.to_u128(), number.to_f64()) {
            (Some(number), ..) => number.to_string(),
            (_, Some(number), _) => number.to_string(),
            (.., Some(number)) => number.to_string(),
            _ => "a number".to_owned(),
        },
        Value::Array(..) => "a list".to_owned(),
        Value::Dict(..) => "a table".to_owned(),
        Value::Char(_, char) => quoted(&char.to_string()),
        Value::Empty(..) => "nothing".to_owned(),
    }
}

/// Quotes `text` for the description of a fault. Shortens it, and omits the user name and the password of a URL.
pub(super) fn quoted(text: &str) -> String {
    let text = match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            format!("{}://…{}", text.get(..scheme).unwrap_or_default(), text.get(at..).unwrap_or_default())
        }
        _ => text.to_owned(),
    };
    let start: String = text.chars().take(SHOWN).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{:?}", start + more)
}

/// Returns the text of a value, or a fault if it is not text.
pub(super) fn text(value: &Value) -> Result<&str, String> {
    match value {
        Value::String(_, text) => Ok(text),
        Value::Num(..) | Value::Bool(..) => Err(format!("{} is not text: quotes are missing", shown(value))),
        _ => Err(format!("{} stands where text belongs", shown(value))),
    }
}

/// Returns the fault of a value of the wrong kind. `wanted`: description of the correct kind, which is written without
/// quotes, for example a number.
fn not(value: &Value, wanted: &str) -> String {
    let text = if value.as_str().is_some() { "text, " } else { "" };
    format!("{} is {text}not {wanted}", shown(value))
}

impl Read for String {
    fn read(value: &Value) -> Result<Self, String> {
        text(value).map(str::to_owned)
    }
}

impl Read for bool {
    fn read(value: &Value) -> Result<Self, String> {
        value.to_bool().ok_or_else(|| not(value, "`true` or `false`"))
    }
}

impl Read for u64 {
    fn read(value: &Value) -> Result<Self, String> {
        let number = value.to_num().and_then(|number| number.to_u128_lossy()?.try_into().ok());
        number.ok_or_else(|| not(value, "a whole number from 0 up"))
    }
}

impl Read for u32 {
    fn read(value: &Value) -> Result<Self, String> {
        u64::read(value)?.try_into().map_err(|_| format!("{} is too large", shown(value)))
    }
}

impl Read for usize {
    fn read(value: &Value) -> Result<Self, String> {
        u64::read(value)?.try_into().map_err(|_| format!("{} is too large", shown(value)))
    }
}

/// Returns the text of a value that must have a unit. Returns a fault if the value is a number without a unit. `units`:
/// the valid units, for the description of the fault.
fn unit_text<'a>(value: &'a Value, units: &[&str]) -> Result<&'a str, String> {
    match value {
        Value::Num(..) => Err(format!("{} has no unit ({}) and no quotes", shown(value), units.join(" "))),
        _ => text(value),
    }
}

impl Read for Duration {
    fn read(value: &Value) -> Result<Self, String> {
        units::duration(unit_text(value, &units::DURATION_UNITS)?)
    }
}

impl Read for Rate {
    fn read(value: &Value) -> Result<Self, String> {
        units::rate(text(value)?)
    }
}

impl Read for Share {
    fn read(value: &Value) -> Result<Self, String> {
        let number = value.to_num().and_then(|number| number.to_f64().or(number.to_u128_lossy().map(|n| n as f64)));
        let number = number.ok_or_else(|| not(value, "a number"))?;
        Self::new(number).ok_or_else(|| format!("{} is not between 0 and 1", shown(value)))
    }
}

/// A number of bytes.
pub(super) struct Bytes(pub u64);

impl Read for Bytes {
    fn read(value: &Value) -> Result<Self, String> {
        units::size(unit_text(value, &units::SIZE_UNITS)?).map(Self)
    }
}

impl Read for PathBuf {
    fn read(value: &Value) -> Result<Self, String> {
        match text(value)? {
            "" => Err("\"\" is not a path".to_owned()),
            path if path.contains('\0') => Err("the path contains a NUL character".to_owned()),
            path => Ok(path.into()),
        }
    }
}

impl Read for SocketAddr {
    fn read(value: &Value) -> Result<Self, String> {
        text(value)?.parse().map_err(|_| format!("{} is not an IP address and port", shown(value)))
    }
}

impl Read for [u8; 32] {
    fn read(value: &Value) -> Result<Self, String> {
        let text = text(value)?;
        let mut digest = [0; 32];
        if text.len() != 64 {
            return Err(format!("{} has {} characters, not 64", shown(value), text.chars().count()));
        }
        for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits =
                str::from_utf8(pair).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
            *byte = digits
                .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                .ok_or_else(|| format!("{} has characters other than hexadecimal digits", shown(value)))?;
        }
        Ok(digest)
    }
}

impl Read for Channel {
    fn read(value: &Value) -> Result<Self, String> {
        text(value)?.parse().map_err(|_| format!("{} is not a channel", shown(value)))
    }
}

impl<T: Read> Read for Vec<T> {
    fn read(value: &Value) -> Result<Self, String> {
        let Value::Array(_, items) = value else {
            return Err(format!("{} is not a list", shown(value)));
        };
        let item = |(index, item)| T::read(item).map_err(|fault| format!("item {}: {fault}", index + 1));
        items.iter().enumerate().map(item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hide_user_information_and_stay_short() {
        assert_eq!(quoted("https://me:secret@host/x"), "\"https://…@host/x\"");
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
        assert_eq!(quoted(&"ä".repeat(100)).chars().count(), SHOWN + 3);
    }

    #[test]
    fn reads_a_digest() {
        let hex = format!("{}Ff", "00".repeat(31));
        let digest = <[u8; 32]>::read(&Value::from(hex)).unwrap();
        assert_eq!((digest[0], digest[31]), (0, 255));
        for bad in ["+f".repeat(32), "ä".repeat(32), "0".repeat(63), "g".repeat(64)] {
            assert!(<[u8; 32]>::read(&Value::from(bad)).is_err());
        }
    }

    #[test]
    fn whole_numbers_are_neither_negative_nor_fractions() {
        assert_eq!(u64::read(&Value::from(7_i64)), Ok(7));
        for bad in [Value::from(-1), Value::from(1.5), Value::from("1"), Value::from(true)] {
            assert!(u64::read(&bad).is_err());
        }
    }

    #[test]
    fn a_list_names_its_faulty_item() {
        let fault = Vec::<Channel>::read(&Value::from(vec!["orders", "a b"])).unwrap_err();
        assert_eq!(fault, "item 2: \"a b\" is not a channel");
    }
}
