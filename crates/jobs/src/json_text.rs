//! JSON texts that PostgreSQL stores and readers of JSON understand, checked in one pass without I/O.

/// The most levels of arrays and objects of a value.
pub const MAX_LEVELS: usize = 128;

/// The most digits after the point of a number without an exponent: PostgreSQL's `numeric` has no more.
const MAX_SCALE: i64 = 16_383;

/// The most bytes of a number without an exponent that fits for certain.
const PLAIN_NUMBER: usize = 300;

/// Checks a text that is JSON.
///
/// # Errors
/// The reason against it: it is too deep, or contains NUL, half a surrogate pair, or a number that is too large or too fine.
pub fn storable(text: &str) -> Result<(), String> {
    let mut levels = 0_usize;
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'[' | b'{' => {
                levels += 1;
                if levels > MAX_LEVELS {
                    return Err(format!("has {MAX_LEVELS} levels of arrays and objects at most"));
                }
            }
            b']' | b'}' => levels = levels.saturating_sub(1),
            b'"' => rest = after_string(after)?,
            b'-' | b'0'..=b'9' => rest = after_number(byte, after)?,
            _ => {}
        }
    }
    Ok(())
}

/// Skips the rest of a number, whose first byte is given.
fn after_number(first: u8, rest: &[u8]) -> Result<&[u8], &'static str> {
    let of_number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
    let (number, after) = rest.split_at(rest.iter().take_while(of_number).count());
    let is_plain = number.len() < PLAIN_NUMBER && !number.iter().any(|byte| matches!(byte, b'e' | b'E'));
    if is_plain {
        return Ok(after);
    }
    let text = String::from_utf8_lossy(number);
    fits(&format!("{}{text}", char::from(first))).map(|()| after)
}

/// Checks a number against the range of double precision, which is that of most readers, and the scale of `numeric`.
fn fits(number: &str) -> Result<(), &'static str> {
    if !number.parse::<f64>().is_ok_and(f64::is_finite) {
        return Err("has a number that is too large; at most 1.7976931348623157e308 is allowed");
    }
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let digits = mantissa.split_once('.').map_or(0, |(_, digits)| digits.len());
    let digits = i64::try_from(digits).unwrap_or(i64::MAX);
    let scale = exponent.parse::<i64>().ok().map(|exponent| digits.saturating_sub(exponent));
    // Zero may have any exponent for readers; `numeric` bounds it.
    if scale.is_some_and(|scale| scale.unsigned_abs() <= MAX_SCALE.unsigned_abs()) {
        return Ok(());
    }
    Err("has a number whose exponent or number of digits after the point is beyond what PostgreSQL holds")
}

/// Skips the rest of a string.
fn after_string(mut rest: &[u8]) -> Result<&[u8], &'static str> {
    loop {
        match rest {
            [b'"', after @ ..] => return Ok(after),
            [b'\\', b'u', after @ ..] => {
                let (unit, after) = unit(after);
                rest = match unit {
                    0 => return Err("the NUL character is not allowed"),
                    0xd800..=0xdbff => match after {
                        [b'\\', b'u', low @ ..] if matches!(self::unit(low).0, 0xdc00..=0xdfff) => self::unit(low).1,
                        _ => return Err("half a surrogate pair is not allowed"),
                    },
                    0xdc00..=0xdfff => return Err("half a surrogate pair is not allowed"),
                    _ => after,
                };
            }
            [b'\\', _, after @ ..] | [_, after @ ..] => rest = after,
            [] => return Ok(rest),
        }
    }
}

/// Reads four hexadecimal digits.
fn unit(digits: &[u8]) -> (u32, &[u8]) {
    let (four, after) = digits.split_at(digits.len().min(4));
    let number = std::str::from_utf8(four).ok().and_then(|four| u32::from_str_radix(four, 16).ok());
    (number.unwrap_or(1), after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_holds_what_postgresql_stores() {
        for good in ["null", r#""\\u0000""#, r#""\ud83d\ude00""#, r#""a\"[{""#, r#"{"a":[1,{}]}"#, r#""\u0001""#] {
            assert_eq!(storable(good), Ok(()), "{good}");
        }
        for bad in [
            r#""\u0000""#,
            r#"{"a\u0000":1}"#,
            r#""\\\u0000""#,
            r#""\ud83d""#,
            r#""\ude00""#,
            r#""\ud83dx\ude00""#,
            r#""\ud83d\u0041""#,
        ] {
            assert!(storable(bad).is_err(), "{bad}");
        }
        assert!(storable(&format!("{}{}", "[".repeat(128), "]".repeat(128))).is_ok());
        assert!(storable(&format!("{}{}", "[".repeat(129), "]".repeat(129))).is_err());
    }

    #[test]
    fn numbers_fit_readers_and_postgresql() {
        let (long, fine) = (format!("1{}", "0".repeat(308)), format!("0.{}1", "0".repeat(16_382)));
        for good in [
            "1e308",
            "-1.5E+3",
            "[0,-0,1e0]",
            "12345678901234567890.123456789",
            "1.7976931348623157e308",
            "5e-324",
            "1e-16383",
            r#""1e999""#,
            &long,
            &fine,
        ] {
            assert_eq!(storable(good), Ok(()), "{good}");
        }
        let (long, fine) = (format!("1{}", "0".repeat(309)), format!("0.{}1", "0".repeat(16_383)));
        for bad in [
            "1e999",
            "-1e999",
            r#"{"a":[1,1E+309]}"#,
            "[2,1e309,3]",
            "1e-16384",
            "0e999999",
            "1e-99999999999999999999",
            "0e99999999999999999999",
            &long,
            &fine,
        ] {
            assert!(storable(bad).is_err(), "{bad}");
        }
    }
}
