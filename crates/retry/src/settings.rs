//! The settings of a message: the headers with which a producer sends it, over the defaults of the service.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use hostler_types::Backoff;
use hostler_types::message::MAX_DELAY;

/// Beginning of the names of all headers that hostler reads or writes.
pub const PREFIX: &str = "Hostler-";

/// Shortest wait between two deliveries. A shorter one would only make a target busy that has just failed.
pub const SHORTEST_WAIT: Duration = Duration::from_millis(10);

/// Longest wait before a delivery: as long as any queue of hostler can delay a message.
pub const LONGEST_WAIT: Duration = MAX_DELAY;

/// Longest time to live: ten years.
pub const LONGEST_TTL: Duration = Duration::from_secs(3650 * 86_400);

/// Maximum number of retries.
pub const MAX_RETRIES: u32 = 1_000_000;

/// Growth of the waits between deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Growth {
    /// Every wait is the base.
    Fixed,
    /// The waits double, with jitter, up to the maximum.
    Exponential,
}

/// The settings of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Number of deliveries after the first one that was not acknowledged.
    pub retries: u32,
    /// Time after which the message expires, counted from its acceptance. `None`: never.
    pub ttl: Option<Duration>,
    /// Wait before the first delivery.
    pub delay: Duration,
    /// Growth of the waits between deliveries.
    pub backoff: Growth,
    /// Wait after the first delivery.
    pub base: Duration,
    /// Longest wait with exponential growth.
    pub max: Duration,
    /// Index of the priority in [`Defaults::priorities`].
    pub priority: usize,
}

/// A priority. Messages of a priority get a share of the deliveries, by its weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Priority {
    /// Name of the priority.
    pub name: String,
    /// Share of the deliveries while other priorities have due messages too: at least 1.
    pub weight: u32,
}

/// The settings of messages that set none themselves, and the priorities that they can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// The settings.
    pub settings: Settings,
    /// The priorities: at least one.
    pub priorities: Vec<Priority>,
}

/// A header with a value that is not valid. The text names the header and the value, and the values that are valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the header {header} is {value:?}: {cure}")]
pub struct BadHeader {
    header: &'static str,
    value: String,
    cure: String,
}

/// Longest part of a value that an error shows, in bytes.
const SHOWN: usize = 80;

impl BadHeader {
    fn new(header: &'static str, value: &str, cure: impl Into<String>) -> Self {
        let value = value[..value.floor_char_boundary(SHOWN)].to_owned();
        Self { header, value, cure: cure.into() }
    }
}

impl Defaults {
    /// Returns the settings of a message with these headers. Header names are matched without regard to case.
    ///
    /// # Errors
    /// The first header that is not valid.
    pub fn with<'a>(&self, headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Settings, BadHeader> {
        let mut settings = self.settings;
        let (mut seen, mut base, mut max) = ([false; NAMES.len()], None, None);
        for (name, value) in headers {
            let Some(place) = NAMES.iter().position(|known| known.eq_ignore_ascii_case(name)) else { continue };
            let (header, value) = (NAMES[place], value.trim());
            if std::mem::replace(&mut seen[place], true) {
                return Err(BadHeader::new(header, value, "the header occurs more than once; send it once"));
            }
            match header {
                RETRIES => settings.retries = retries(value)?,
                TTL => {
                    settings.ttl =
                        Some(duration(header, value, Duration::ZERO, LONGEST_TTL)?).filter(|ttl| !ttl.is_zero())
                }
                DELAY => settings.delay = duration(header, value, Duration::ZERO, LONGEST_WAIT)?,
                BACKOFF => settings.backoff = growth(value)?,
                BASE => base = Some(duration(header, value, SHORTEST_WAIT, LONGEST_WAIT)?),
                MAX => max = Some(duration(header, value, SHORTEST_WAIT, LONGEST_WAIT)?),
                _ => settings.priority = self.priority(value)?,
            }
        }
        settings.base = base.unwrap_or(settings.base);
        settings.max = max.unwrap_or(settings.max);
        settings.check_waits(base.is_some(), max.is_some())
    }

    fn priority(&self, value: &str) -> Result<usize, BadHeader> {
        let known = || self.priorities.iter().map(|priority| format!("`{}`", priority.name)).collect::<Vec<_>>();
        self.priorities
            .iter()
            .position(|priority| priority.name.eq_ignore_ascii_case(value))
            .ok_or_else(|| BadHeader::new(PRIORITY, value, format!("use one of {}", known().join(", "))))
    }
}

const RETRIES: &str = "Hostler-Retries";
const TTL: &str = "Hostler-TTL";
const DELAY: &str = "Hostler-Delay";
const BACKOFF: &str = "Hostler-Backoff";
const BASE: &str = "Hostler-Base";
const MAX: &str = "Hostler-Max";
const PRIORITY: &str = "Hostler-Priority";
const NAMES: [&str; 7] = [RETRIES, TTL, DELAY, BACKOFF, BASE, MAX, PRIORITY];

fn retries(value: &str) -> Result<u32, BadHeader> {
    let number = Some(value).filter(|value| value.bytes().all(|byte| byte.is_ascii_digit()));
    number
        .and_then(|value| value.parse().ok())
        .filter(|retries| *retries <= MAX_RETRIES)
        .ok_or_else(|| BadHeader::new(RETRIES, value, format!("use a whole number from 0 to {MAX_RETRIES}")))
}

fn growth(value: &str) -> Result<Growth, BadHeader> {
    match value {
        _ if value.eq_ignore_ascii_case("fixed") => Ok(Growth::Fixed),
        _ if value.eq_ignore_ascii_case("exponential") => Ok(Growth::Exponential),
        _ => Err(BadHeader::new(BACKOFF, value, "use `fixed` or `exponential`")),
    }
}

/// Reads a duration as in the config. Zero needs no unit.
fn duration(header: &'static str, value: &str, min: Duration, max: Duration) -> Result<Duration, BadHeader> {
    let read = if value == "0" { Ok(Duration::ZERO) } else { hostler_config::parse_duration(value) };
    match read {
        Ok(read) if (min..=max).contains(&read) => Ok(read),
        _ => {
            let (min, max) = (hostler_config::duration_text(min), hostler_config::duration_text(max));
            let cure = format!("use a duration from {min} to {max}, such as `90s` or `1h 30m`");
            Err(BadHeader::new(header, value, cure))
        }
    }
}

impl Settings {
    /// Refuses a base that is longer than the maximum. If only one of the two was sent, the other one follows it, because
    /// a producer need not know the defaults.
    fn check_waits(mut self, base_is_sent: bool, max_is_sent: bool) -> Result<Self, BadHeader> {
        if self.base > self.max {
            match (base_is_sent, max_is_sent) {
                (true, true) => {
                    let max = hostler_config::duration_text(self.max);
                    let cure = format!("use at most {max}, the value of {MAX}");
                    return Err(BadHeader::new(BASE, &hostler_config::duration_text(self.base), cure));
                }
                (false, true) => self.base = self.max,
                _ => self.max = self.base,
            }
        }
        Ok(self)
    }

    /// Returns the wait after a delivery that was not acknowledged. `attempts`: number of deliveries so far, at least 1.
    /// `random`: a number from 0 to 1, for the jitter of exponential growth.
    pub fn wait_after(&self, attempts: u32, random: f64) -> Duration {
        match self.backoff {
            Growth::Fixed => self.base,
            Growth::Exponential => Backoff::new(self.base, self.max).rest(attempts.saturating_sub(1), random),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn defaults() -> Defaults {
        let priority = |name: &str, weight| Priority { name: name.to_owned(), weight };
        let settings = Settings {
            retries: 20,
            ttl: Some(SECOND * 3600),
            delay: Duration::ZERO,
            backoff: Growth::Exponential,
            base: SECOND,
            max: SECOND * 60,
            priority: 1,
        };
        Defaults { settings, priorities: vec![priority("high", 4), priority("normal", 2), priority("low", 1)] }
    }

    fn read(headers: &[(&str, &str)]) -> Result<Settings, String> {
        defaults().with(headers.iter().copied()).map_err(|error| error.to_string())
    }

    #[test]
    fn headers_override_the_defaults() {
        assert_eq!(read(&[("X-Other", "1"), ("Hostler-Attempt", "x")]), Ok(defaults().settings));
        let all = [
            ("Hostler-Retries", "3"),
            ("Hostler-TTL", "5m"),
            ("hostler-delay", "1m 30s"),
            ("Hostler-Backoff", "Fixed"),
            ("Hostler-Base", "250ms"),
            ("Hostler-Max", " 2h "),
            ("HOSTLER-PRIORITY", "high"),
        ];
        let expected = Settings {
            retries: 3,
            ttl: Some(SECOND * 300),
            delay: SECOND * 90,
            backoff: Growth::Fixed,
            base: Duration::from_millis(250),
            max: SECOND * 7200,
            priority: 0,
        };
        assert_eq!(read(&all), Ok(expected));
    }

    #[test]
    fn a_ttl_of_zero_means_none() {
        for zero in ["0", "0s", "0ms"] {
            assert_eq!(read(&[("Hostler-TTL", zero)]).map(|settings| settings.ttl), Ok(None), "{zero}");
        }
    }

    #[test]
    fn a_bad_value_is_named_with_its_header_and_the_cure() {
        for (header, value, cure) in [
            ("Hostler-Retries", "-1", "a whole number from 0 to 1000000"),
            ("Hostler-Retries", "+1", "a whole number"),
            ("Hostler-Retries", "many", "a whole number"),
            ("Hostler-Retries", "99999999999", "a whole number"),
            ("Hostler-Retries", "", "a whole number"),
            ("Hostler-TTL", "5", "a duration from 0s to 3650d"),
            ("Hostler-TTL", "-5s", "a duration"),
            ("Hostler-TTL", "1M", "a duration"),
            ("Hostler-TTL", "4000d", "a duration"),
            ("Hostler-Delay", "14d", "a duration from 0s to 13d"),
            ("Hostler-Delay", "soon", "a duration"),
            ("Hostler-Base", "0", "a duration from 10ms to 13d"),
            ("Hostler-Base", "9ms", "a duration"),
            ("Hostler-Max", "", "a duration"),
            ("Hostler-Backoff", "linear", "`fixed` or `exponential`"),
            ("Hostler-Priority", "urgent", "one of `high`, `normal`, `low`"),
        ] {
            let error = read(&[(header, value)]).unwrap_err();
            assert!(error.starts_with(&format!("the header {header} is {value:?}: use ")), "{error}");
            assert!(error.contains(cure), "{error}");
        }
        let twice = read(&[("Hostler-TTL", "1s"), ("hostler-ttl", "2s")]).unwrap_err();
        assert!(twice.contains("Hostler-TTL") && twice.contains("more than once"), "{twice}");
        let long = read(&[("Hostler-Delay", &"ä".repeat(999))]).unwrap_err();
        assert!(long.len() < 300, "{long}");
    }

    #[test]
    fn base_and_max_agree() {
        let waits = |headers: &[_]| read(headers).map(|settings| (settings.base.as_secs(), settings.max.as_secs()));
        assert_eq!(waits(&[("Hostler-Base", "5m")]), Ok((300, 300)), "the default maximum gives way");
        assert_eq!(waits(&[("Hostler-Max", "500ms")]), Ok((0, 0)));
        let error = waits(&[("Hostler-Max", "1s"), ("Hostler-Base", "2s")]).unwrap_err();
        assert!(error.contains("Hostler-Base is \"2s\"") && error.contains("at most 1s"), "{error}");
    }

    #[test]
    fn backoff_is_no_todo_but_grows_with_jitter_to_its_maximum() {
        let settings = defaults().settings;
        let seconds = |random| [1, 2, 3, 7, 8, 99].map(|attempts| settings.wait_after(attempts, random).as_secs_f64());
        assert_eq!(seconds(1.0), [1.0, 2.0, 4.0, 60.0, 60.0, 60.0]);
        assert_eq!(seconds(0.0), [0.5, 1.0, 2.0, 30.0, 30.0, 30.0]);
        let fixed = Settings { backoff: Growth::Fixed, ..settings };
        assert_eq!([1, 9].map(|attempts| fixed.wait_after(attempts, 0.3)), [SECOND; 2]);
    }
}
