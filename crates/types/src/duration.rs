//! Durations in human-readable form: `90s`, `1h 30m`.

use std::time::Duration;

use humantime::DurationError;

/// Parses a duration. Checks the sum of the terms before calling humantime, because humantime 2.4.0 panics if the sum
/// is slightly above the maximum.
///
/// # Errors
/// The text is not a duration, or the duration is longer than [`Duration::MAX`].
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let (mut rest, mut sum) = (text, Some(Duration::ZERO));
    while let Some((term, after)) = first_term(rest)
        && let Ok(term) = humantime::parse_duration(term)
    {
        sum = sum.and_then(|sum| sum.checked_add(term));
        rest = after;
    }
    match sum {
        Some(_) => humantime::parse_duration(text),
        None => Err(DurationError::NumberOverflow),
    }
}

/// Splits the first number with its unit from the rest of the text.
fn first_term(text: &str) -> Option<(&str, &str)> {
    let unit = text.find(char::is_alphabetic)?;
    let end = text.get(unit..)?.find(|char: char| !char.is_alphabetic()).map_or(text.len(), |length| unit + length);
    text.split_at_checked(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_humantime_reads() {
        for text in ["90s", "1h 30m", "1h30m", " 1.5 m ", "0.25s 250ms", "3days 2 hours", "18446744073709551615s"] {
            assert_eq!(parse(text), humantime::parse_duration(text), "{text}");
            assert!(parse(text).is_ok(), "{text}");
        }
        for text in
            ["", "90", "s", "1x", "-1s", "1s 2", "5s.5m", "1m ü", "18446744073709551616s", "9y 18446744073709551615s"]
        {
            assert_eq!(parse(text), humantime::parse_duration(text), "{text}");
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn one_second_too_many_is_an_error() {
        for text in ["18446744073709551615s 1000ms", "18446744073709551615s0.5s0.5s", "18446744073709551615s1000ms 1x"]
        {
            assert_eq!(parse(text), Err(DurationError::NumberOverflow), "{text}");
        }
    }
}
