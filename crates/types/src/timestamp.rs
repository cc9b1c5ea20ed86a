//! Wall-clock times in the format of the health file: RFC 3339, UTC, microseconds.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A time in microseconds since the Unix epoch. The year is 1970 to 9999, because RFC 3339 has no later years.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(u64);

/// The maximum: 9999-12-31T23:59:59.999999Z. RFC 3339 has four digits for the year.
const LAST: u64 = 253_402_300_799_999_999;

impl Timestamp {
    /// Returns the current time of the system clock.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Returns the time that is this number of microseconds after the Unix epoch, at most the end of the year 9999.
    pub const fn from_micros(micros: u64) -> Self {
        Self(if micros < LAST { micros } else { LAST })
    }

    /// Returns the number of microseconds since the Unix epoch.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`. Returns zero if `self` is not later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time `duration` after `self`, at most the end of the year 9999.
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)).min(LAST))
    }

    /// Returns the time `duration` before `self`, at least the start of 1970.
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Self(0).plus(time.duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_micros(UNIX_EPOCH + Duration::from_micros(self.0)).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_rfc3339(&text).map(Self::from).map_err(|error| {
            serde::de::Error::custom(format_args!(
                "`{text}` is not an RFC 3339 time in UTC such as {}: {error}",
                Self(0)
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_with_microseconds_and_read_back() -> Result<(), serde_json::Error> {
        let text = "\"2026-11-21T05:00:00.123456Z\"";
        let time: Timestamp = serde_json::from_str(text)?;
        assert_eq!(serde_json::to_string(&time)?, text);
        assert_eq!(
            serde_json::to_string(&time.minus(Duration::from_micros(123_456)))?,
            "\"2026-11-21T05:00:00.000000Z\""
        );
        for bad in ["\"2026-11-21T05:00:00+01:00\"", "\"yesterday\"", "\"\"", "7"] {
            assert!(serde_json::from_str::<Timestamp>(bad).is_err(), "{bad}");
        }
        Ok(())
    }

    #[test]
    fn a_number_of_microseconds_is_a_time_up_to_the_end_of_the_year_9999() {
        for micros in [0, 1, 1_795_237_200_123_456, LAST] {
            assert_eq!(Timestamp::from_micros(micros).micros(), micros);
        }
        assert_eq!(Timestamp::from_micros(1_123_456).to_string(), "1970-01-01T00:00:01.123456Z");
        assert_eq!(Timestamp::from_micros(LAST + 1), Timestamp(LAST));
        assert_eq!(Timestamp::from_micros(u64::MAX), Timestamp::now().plus(Duration::MAX));
    }

    #[test]
    fn no_clock_is_too_odd_to_be_written() {
        let before_1970 = Timestamp::from(UNIX_EPOCH - Duration::from_secs(1));
        assert_eq!(before_1970.to_string(), "1970-01-01T00:00:00.000000Z");
        let far = Timestamp::now().plus(Duration::MAX);
        assert_eq!(far.to_string(), "9999-12-31T23:59:59.999999Z");
        assert_eq!(far.minus(Duration::MAX), before_1970);
    }
}
