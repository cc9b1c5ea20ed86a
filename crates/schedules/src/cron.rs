//! Cron expressions in a time zone.

use std::fmt;
use std::str::FromStr as _;

use chrono::{DateTime, TimeZone as _};
use chrono_tz::{TZ_VARIANTS, Tz};
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};

use hostler_types::Timestamp;

/// Names of the fields of an expression with six fields. An expression with five fields has no seconds.
const FIELDS: [&str; 6] = ["second", "minute", "hour", "day of the month", "month", "day of the week"];

/// Number of days of each month in a leap year.
const LONGEST: [u16; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// A time after which each expression that is not refused is due: in 2026.
const SOME_TIME: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

/// A cron expression in a time zone.
///
/// Both nights of a daylight-saving change: an expression for one time of the day has one due time in each of them, at the first of
/// two equal times, or right after the gap if its time does not exist. All other expressions follow the clock on the wall: they are
/// due in both of two equal hours, and not in a gap.
#[derive(Clone)]
pub struct Cron {
    inner: croner::Cron,
    zone: Tz,
}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({:?}, {})", self.inner.pattern.as_str(), self.zone.name())
    }
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        self.inner.pattern.as_str() == other.inner.pattern.as_str() && self.zone == other.zone
    }
}

impl Eq for Cron {}

/// The reason why an expression or a time zone cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CronFault {
    /// The expression has the wrong number of fields.
    #[error(
        "has {0} fields; write five (minute, hour, day of the month, month, day of the week), or six with the second first"
    )]
    Fields(usize),
    /// A field has a value that it cannot have.
    #[error("the field for the {field} is `{text}`: {why}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// The field as written.
        text: String,
        /// The reason.
        why: String,
    },
    /// The expression is a name that starts with `@` and that cron does not have.
    #[error("`{0}` is not a name of an expression: write @yearly, @monthly, @weekly, @daily or @hourly")]
    Name(String),
    /// The expression names only days that no month has.
    #[error("is never due: no month that it names has the day that it names")]
    Never,
    /// The time zone is unknown.
    #[error("`{0}` is not a time zone of the IANA database, such as `Europe/Berlin` or `UTC`")]
    Zone(String),
}

/// Returns the names of all time zones.
pub fn zones() -> impl Iterator<Item = &'static str> {
    TZ_VARIANTS.iter().map(|zone| zone.name())
}

impl Cron {
    /// Reads an expression of five fields, or of six with the second first, and the name of a time zone of the IANA database. The names
    /// `@yearly`, `@annually`, `@monthly`, `@weekly`, `@daily`, `@midnight` and `@hourly` are expressions too.
    ///
    /// # Errors
    /// [`CronFault`].
    pub fn parse(expression: &str, zone: &str) -> Result<Self, CronFault> {
        let zone = Self::zone(zone)?;
        let text = expression.trim();
        if text.starts_with('@') {
            let known = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
            if !known.contains(&text) {
                return Err(CronFault::Name(text.to_owned()));
            }
            // The parser has no @midnight.
            let text = if text == "@midnight" { "@daily" } else { text };
            let inner = parse(text).map_err(|error| of_field(FIELDS[0], text, &error))?;
            return Ok(Self { inner, zone });
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        if !(5..=6).contains(&fields.len()) {
            return Err(CronFault::Fields(fields.len()));
        }
        check_fields(&fields)?;
        let inner = parse(text).map_err(|error| of_field("whole expression", text, &error))?;
        let cron = Self { inner, zone };
        if cron.after(SOME_TIME).is_none() { Err(CronFault::Never) } else { Ok(cron) }
    }

    /// Checks the name of a time zone.
    ///
    /// # Errors
    /// [`CronFault::Zone`].
    pub fn check_zone(zone: &str) -> Result<(), CronFault> {
        Self::zone(zone).map(drop)
    }

    fn zone(zone: &str) -> Result<Tz, CronFault> {
        Tz::from_str(zone).map_err(|_| CronFault::Zone(zone.to_owned()))
    }

    /// Returns the name of the time zone.
    pub fn zone_name(&self) -> &'static str {
        self.zone.name()
    }

    /// Returns the first due time after `time`. `None`: there is none that can be written as a [`Timestamp`].
    pub fn after(&self, time: Timestamp) -> Option<Timestamp> {
        let mut from = self.local(time)?;
        // The search gives up within a day that a time zone left out (Samoa, 2011-12-30). Such a day is skipped.
        for _ in 0..4 {
            match self.inner.find_next_occurrence(&from, false) {
                Ok(found) => return timestamp(&found).filter(|found| *found > time),
                Err(_) => from = from.checked_add_signed(chrono::TimeDelta::try_hours(13)?)?,
            }
        }
        None
    }

    /// Returns the last due time up to `time`, inclusive. `None`: there is none since 1970.
    pub fn up_to(&self, time: Timestamp) -> Option<Timestamp> {
        let found = self.inner.find_previous_occurrence(&self.local(time)?, true).ok()?;
        timestamp(&found).filter(|found| *found <= time)
    }

    /// Returns `time` in the schedule's time zone, as RFC 3339 with the offset of the zone.
    pub fn shown(&self, time: Timestamp) -> String {
        let shown = self.local(time).map(|local| local.format("%Y-%m-%dT%H:%M:%S%:z").to_string());
        shown.unwrap_or_else(|| time.to_string())
    }

    /// Returns a warning if the expression leaves out months, because they lack its day.
    pub fn warning(&self) -> Option<String> {
        let missing = self.missing_days();
        let (month, day) = missing.first()?;
        let example = if *day == 29 {
            "February has a day 29 only in leap years".to_owned()
        } else {
            format!("month {month} has no day {day}")
        };
        Some(format!("it is not due in each month that it names: {example}; `L` is the last day of each month"))
    }

    /// Returns the pairs of month and day that the expression names, and that some or all years lack. Empty if the day of the week
    /// decides as well.
    fn missing_days(&self) -> Vec<(u16, u16)> {
        let pattern = &self.inner.pattern;
        let is_by_weekday = !pattern.is_dow_wildcard() && !pattern.matches_dom_and_dow();
        if pattern.is_dom_wildcard() || is_by_weekday || pattern.days.has_modifiers() {
            return Vec::new();
        }
        self.named_days()
            .filter(|(month, day)| *day > LONGEST[usize::from(*month) - 1] || (*month, *day) == (2, 29))
            .collect()
    }

    fn named_days(&self) -> impl Iterator<Item = (u16, u16)> {
        let (months, days) = (self.inner.pattern.months.values(), self.inner.pattern.days.values());
        months.into_iter().flat_map(move |month| days.clone().into_iter().map(move |day| (month, day)))
    }

    fn local(&self, time: Timestamp) -> Option<DateTime<Tz>> {
        let seconds = i64::try_from(time.micros() / 1_000_000).ok()?;
        self.zone.timestamp_opt(seconds, 0).single()
    }
}

fn timestamp(time: &DateTime<Tz>) -> Option<Timestamp> {
    let seconds = u64::try_from(time.timestamp()).ok()?;
    Some(Timestamp::from_micros(seconds.checked_mul(1_000_000)?))
}

fn parse(text: &str) -> Result<croner::Cron, CronError> {
    CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build().parse(text)
}

/// Checks each field by itself, so that an error can name the field.
fn check_fields(fields: &[&str]) -> Result<(), CronFault> {
    let names = &FIELDS[FIELDS.len() - fields.len()..];
    for (place, (text, field)) in fields.iter().zip(names).enumerate() {
        let alone: Vec<&str> = (0..fields.len()).map(|other| if other == place { *text } else { "*" }).collect();
        parse(&alone.join(" ")).map_err(|error| of_field(field, text, &error))?;
        if text.split(',').any(str::is_empty) {
            let why = "an item of the list is empty".to_owned();
            return Err(CronFault::Field { field, text: (*text).to_owned(), why });
        }
        if let Some(step) =
            text.split(',').filter_map(|part| part.split_once('/')).find(|(_, step)| is_too_long(field, step))
        {
            let why = format!("the step {} is longer than the field's range", step.1);
            return Err(CronFault::Field { field, text: (*text).to_owned(), why });
        }
    }
    Ok(())
}

/// Returns `true` for a step after which the field has no other value.
fn is_too_long(field: &str, step: &str) -> bool {
    let values = match field {
        "second" | "minute" => 60,
        "hour" => 24,
        "day of the month" => 31,
        "month" => 12,
        _ => 7,
    };
    step.parse::<u32>().is_ok_and(|step| step > values)
}

fn of_field(field: &'static str, text: &str, error: &CronError) -> CronFault {
    let why = match error {
        CronError::ComponentError(why) | CronError::InvalidPattern(why) | CronError::IllegalCharacters(why) => {
            why.trim_end_matches('.').to_owned()
        }
        other => other.to_string().trim_end_matches('.').to_owned(),
    };
    CronFault::Field { field, text: text.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        DateTime::parse_from_rfc3339(text).map(|time| Timestamp::from_micros(time.timestamp_micros() as u64)).unwrap()
    }

    /// Returns the next `count` due times, in the time zone.
    fn next(expression: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
        let cron = Cron::parse(expression, zone).unwrap();
        let mut at = time(from);
        let step = |_| {
            at = cron.after(at).unwrap();
            cron.shown(at)
        };
        (0..count).map(step).collect()
    }

    #[test]
    fn weekdays_are_those_of_cron() {
        let saturday = next("0 9 * * 6", "UTC", "2026-11-23T00:00:00Z", 1);
        assert_eq!(saturday, ["2026-11-28T09:00:00+00:00"]);
        let sunday = "2026-11-29T09:00:00+00:00";
        for expression in ["0 9 * * 0", "0 9 * * 7", "0 9 * * SUN", "0 0 9 * * sun"] {
            assert_eq!(next(expression, "UTC", "2026-11-23T00:00:00Z", 1), [sunday], "{expression}");
        }
    }

    #[test]
    fn a_time_of_the_day_is_due_once_in_both_nights_of_a_change() {
        // 2026-10-25: 03:00 becomes 02:00. 2026-03-29: 02:00 becomes 03:00.
        let autumn = next("30 2 * * *", "Europe/Berlin", "2026-10-24T22:00:00Z", 2);
        assert_eq!(autumn, ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]);
        let spring = next("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 2);
        assert_eq!(spring, ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]);
    }

    #[test]
    fn an_interval_follows_the_clock_on_the_wall() {
        let autumn = next("*/30 2 * * *", "Europe/Berlin", "2026-10-24T22:00:00Z", 5);
        let both = [
            "2026-10-25T02:00:00+02:00",
            "2026-10-25T02:30:00+02:00",
            "2026-10-25T02:00:00+01:00",
            "2026-10-25T02:30:00+01:00",
        ];
        assert_eq!(autumn[..4], both);
        assert_eq!(autumn[4], "2026-10-26T02:00:00+01:00");
        let spring = next("*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", 1);
        assert_eq!(spring, ["2026-03-30T02:00:00+02:00"], "none of its times exists in that night");
    }

    #[test]
    fn the_last_due_time_is_the_one_before_the_next() {
        for (expression, from) in [
            ("30 2 * * *", "2026-10-24T20:00:00Z"),
            ("*/30 2 * * *", "2026-10-24T20:00:00Z"),
            ("30 2 * * *", "2026-03-28T20:00:00Z"),
        ] {
            let cron = Cron::parse(expression, "Europe/Berlin").unwrap();
            let mut due = time(from);
            for _ in 0..6 {
                due = cron.after(due).unwrap();
                assert_eq!(cron.up_to(due), Some(due), "{expression} {due}");
                assert_eq!(
                    cron.up_to(due.plus(std::time::Duration::from_millis(1_500))),
                    Some(due),
                    "{expression} {due}"
                );
            }
        }
    }

    #[test]
    fn a_day_that_a_zone_left_out_is_skipped() {
        let samoa = next("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00Z", 3);
        assert_eq!(samoa, ["2011-12-29T12:00:00-10:00", "2011-12-31T12:00:00+14:00", "2012-01-01T12:00:00+14:00"]);
        let nightly = next("30 0 30 * *", "Pacific/Apia", "2011-12-29T00:00:00Z", 1);
        assert_eq!(nightly, ["2012-01-30T00:30:00+14:00"]);
    }

    #[test]
    fn a_wrong_expression_names_its_field() {
        let fault = |text: &str| Cron::parse(text, "UTC").unwrap_err().to_string();
        assert!(fault("* * *").starts_with("has 3 fields; write five"), "{}", fault("* * *"));
        assert!(fault("0 0 1 1 * 2030 5").starts_with("has 7 fields"));
        for (text, field) in [
            ("61 * * * *", "minute"),
            ("0 24 * * *", "hour"),
            ("0 0 32 * *", "day of the month"),
            ("0 0 * 13 *", "month"),
            ("0 0 * * 8", "day of the week"),
            ("0 0 * * FOO", "day of the week"),
            ("60 0 0 * * *", "second"),
            ("*/61 * * * *", "minute"),
            ("5/5 * * * *", "minute"),
            ("*/0 * * * *", "minute"),
            ("0 0 5-1 * *", "day of the month"),
            ("1,,2 * * * *", "minute"),
        ] {
            assert!(fault(text).starts_with(&format!("the field for the {field} is `")), "{text}: {}", fault(text));
        }
        assert!(fault("@fortnightly").starts_with("`@fortnightly` is not a name"));
        assert_eq!(Cron::parse("* * * * *", "Berlin"), Err(CronFault::Zone("Berlin".to_owned())));
        for never in
            ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 31 11 +MON", "0 0 30 1 +MON#1", "0 0 1 * +FRI#L", "0 0 31W 2 *"]
        {
            assert_eq!(Cron::parse(never, "UTC"), Err(CronFault::Never), "{never}");
        }
        assert_eq!(next("@midnight", "UTC", "2026-11-23T01:00:00Z", 1), ["2026-11-24T00:00:00+00:00"]);
    }

    #[test]
    fn months_without_the_day_are_warned_of() {
        let warning = |text: &str| Cron::parse(text, "UTC").unwrap().warning();
        assert!(warning("0 0 31 * *").is_some_and(|text| text.contains("month 2 has no day 31")));
        assert!(warning("0 0 29 2 *").is_some_and(|text| text.contains("leap years")));
        for fine in ["0 0 L * *", "0 0 28 * *", "0 0 31 1,3 *", "* * * * *", "0 0 31 * MON", "0 0 15W * *"] {
            assert_eq!(warning(fine), None, "{fine}");
        }
    }
}
