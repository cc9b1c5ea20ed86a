//! Parses and formats durations, sizes and rates.

use std::time::Duration;

use bytesize::ByteSize;
use hostler_types::Rate;

use hostler_types::duration;

/// Units of a duration. Excludes some units of humantime, for example `M` for a month, because no setting needs them.
pub(super) const DURATION_UNITS: [&str; 6] = ["ms", "s", "m", "min", "h", "d"];

/// Units of a size: decimal, for example `kB`, and binary, for example `KiB`.
pub(super) const SIZE_UNITS: [&str; 8] = ["B", "kB", "KB", "MB", "GB", "KiB", "MiB", "GiB"];

/// Maximum number of messages per period in a rate.
pub(super) const MAX_PERMITS: u32 = 1_000_000;

/// Parses a duration, for example `90s` or `1h 30m`.
///
/// # Errors
/// The fault of the text, without a cure.
pub fn duration(text: &str) -> Result<Duration, String> {
    let mut units = text.split(|char: char| !char.is_alphabetic()).filter(|unit| !unit.is_empty()).peekable();
    if units.peek().is_none() {
        return Err(format!("{text:?} has no unit ({})", DURATION_UNITS.join(" ")));
    }
    if let Some(unit) = units.find(|unit| !DURATION_UNITS.contains(unit)) {
        return Err(format!(
            "{text:?} is not a duration: `{unit}` is not one of the units {}",
            DURATION_UNITS.join(" ")
        ));
    }
    duration::parse(text).map_err(|_| format!("{text:?} is not a duration"))
}

/// Formats a duration in the largest unit that leaves no remainder.
pub fn duration_text(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    match units.into_iter().find(|(_, unit)| millis.is_multiple_of(*unit) && (millis > 0 || *unit == 1_000)) {
        Some((name, unit)) => format!("{}{name}", millis / unit),
        None => format!("{millis}ms"),
    }
}

/// Parses a size, for example `128MiB`, and returns the number of bytes.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let unit = text.trim_start_matches(|char: char| char.is_ascii_digit() || char == '.').trim();
    if unit.is_empty() {
        return Err(format!("{text:?} has no unit ({})", SIZE_UNITS.join(" ")));
    }
    if !SIZE_UNITS.contains(&unit) {
        return Err(format!("{text:?} is not a size: `{unit}` is not one of the units {}", SIZE_UNITS.join(" ")));
    }
    text.parse::<ByteSize>().map(|size| size.as_u64()).map_err(|_| format!("{text:?} is not a size"))
}

/// Formats a number of bytes in the largest binary unit that leaves no remainder.
pub(super) fn size_text(bytes: u64) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

/// A share of a whole: from 0 to less than 1, with a precision of one millionth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    const ONE: u32 = 1_000_000;

    /// Converts a number to a share. `None`: the number is out of range.
    pub fn new(number: f64) -> Option<Self> {
        let millionths = |number: f64| (number * f64::from(Self::ONE)).round() as u32;
        (0.0..1.0).contains(&number).then(|| Self(millionths(number)))
    }

    /// Returns `true` if `part` of `total` is more than this share.
    pub fn is_exceeded(self, part: u64, total: u64) -> bool {
        u128::from(part) * u128::from(Self::ONE) > u128::from(total) * u128::from(self.0)
    }
}

/// Parses a rate, for example `100/s`.
pub(super) fn rate(text: &str) -> Result<Rate, String> {
    let (count, unit) = text.split_once('/').ok_or_else(|| format!("{text:?} names no period"))?;
    let seconds = match unit.trim() {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        other => return Err(format!("{text:?}: `{other}` is not a period")),
    };
    match count.trim().parse() {
        Ok(0) => Err(format!("{text:?} would let nothing through")),
        Ok(permits) if permits <= MAX_PERMITS => Ok(Rate { permits, per: Duration::from_secs(seconds) }),
        _ => Err(format!("{text:?}: `{}` is not a whole number up to {MAX_PERMITS}", count.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_exceeded_by_more_and_is_less_than_all() {
        let half = Share::new(0.5).unwrap();
        assert_eq!([(1, 2), (2, 3), (0, 0)].map(|(part, total)| half.is_exceeded(part, total)), [false, true, false]);
        assert!(Share::new(0.0).unwrap().is_exceeded(1, u64::MAX) && !Share::new(0.07).unwrap().is_exceeded(7, 100));
        for bad in [1.0, -0.1, 50.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Share::new(bad), None, "{bad}");
        }
    }

    #[test]
    fn durations_need_a_known_unit() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in
            ["", "90", "15M", "1y", "s", "-1s", "1s2", "1,5s", "99999999999999999999s", "18446744073709551615s1000ms"]
        {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_print_as_they_read() {
        for text in ["0s", "1ms", "1500ms", "30s", "90s", "12h", "14d"] {
            assert_eq!(duration_text(duration(text).unwrap()), text);
        }
    }

    #[test]
    fn sizes_need_a_known_unit() {
        assert_eq!(size("128MiB"), Ok(128 << 20));
        assert_eq!(size("64 KiB"), Ok(64 << 10));
        assert_eq!(size("1MB"), Ok(1_000_000));
        assert_eq!(size("1.5KiB"), Ok(1536));
        for bad in ["", "128", "128 mib", "MiB", "-1B", "1.2.3B"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        for text in ["128MiB", "4GiB", "1000B", "0B"] {
            assert_eq!(size_text(size(text).unwrap()), text);
        }
    }

    #[test]
    fn rates_are_positive_and_name_their_period() {
        let parsed = rate("100/s").unwrap();
        assert_eq!(parsed, Rate { permits: 100, per: Duration::from_secs(1) });
        for text in ["100/s", "1/m", "1000000/h"] {
            assert_eq!(rate(text).unwrap().to_string(), text);
        }
        for bad in ["", "100", "0/s", "-1/s", "1/d", "1.5/s", "1000001/s", "/s", "1/"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
