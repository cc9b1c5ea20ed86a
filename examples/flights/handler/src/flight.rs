//! Reads and checks a row of the flights: what is counted, or why the row is not.

use std::fmt;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

/// The counted values of a flight that departed. Delays are in minutes, negative when early.
#[derive(Debug, PartialEq)]
pub struct Departed {
    /// Two capital letters or digits, so safe in a file name.
    pub carrier: String,
    pub dep_delay: i64,
    /// `None` when it was diverted or its arrival was not recorded.
    pub arr_delay: Option<i64>,
}

/// Reason why a row is not counted.
#[derive(Debug, PartialEq)]
pub enum Reject {
    /// The row breaks the format; the text names the field and never quotes the row, for reasons end up in logs.
    Malformed(String),
    /// The flight was cancelled.
    NotDeparted,
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(what) => write!(f, "malformed flight: {what}"),
            Self::NotDeparted => f.write_str("missing departure time"),
        }
    }
}

/// A time of day as HHMM; midnight is 2400 when it ends a day.
const HHMM: RangeInclusive<i64> = 0..=2400;
/// Minutes that a flight is early (at most half a day) or late (at most two days).
const DELAY: RangeInclusive<i64> = -720..=2880;

const INTEGERS: [(&str, RangeInclusive<i64>); 9] = [
    ("year", 1987..=2100),
    ("month", 1..=12),
    ("day", 1..=31),
    ("sched_dep_time", HHMM),
    ("sched_arr_time", HHMM),
    ("flight", 1..=9999),
    ("distance", 1..=20_000),
    ("hour", 0..=24),
    ("minute", 0..=59),
];

/// Checks every field of the row in `body`. A field that may be missing is null or absent.
pub fn parse(body: &[u8]) -> Result<Departed, Reject> {
    let row = serde_json::from_slice(body).map_err(|_| Reject::Malformed("not a JSON object".to_owned()))?;
    let row = Row(row);
    for (field, range) in INTEGERS {
        row.integer(field, range)?;
    }
    row.optional_integer("arr_time", HHMM)?;
    row.optional_integer("air_time", 1..=1440)?;
    row.code("origin", 3)?;
    row.code("dest", 3)?;
    row.text("time_hour")?;
    if row.given("tailnum").is_some() {
        row.text("tailnum")?;
    }
    let carrier = row.code("carrier", 2)?;
    let arr_delay = row.optional_integer("arr_delay", DELAY)?;
    match row.optional_integer("dep_time", HHMM)? {
        None => Err(Reject::NotDeparted),
        Some(_) => Ok(Departed { carrier: carrier.to_owned(), dep_delay: row.integer("dep_delay", DELAY)?, arr_delay }),
    }
}

/// A row whose fields are not yet checked.
struct Row(Map<String, Value>);

impl Row {
    fn given(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn required(&self, field: &str) -> Result<&Value, Reject> {
        self.given(field).ok_or_else(|| Reject::Malformed(format!("`{field}` is missing")))
    }

    fn integer(&self, field: &str, range: RangeInclusive<i64>) -> Result<i64, Reject> {
        let number = self.required(field)?.as_i64().filter(|number| range.contains(number));
        let (least, most) = range.into_inner();
        number.ok_or_else(|| Reject::Malformed(format!("`{field}` must be a whole number from {least} to {most}")))
    }

    fn optional_integer(&self, field: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, Reject> {
        self.given(field).map(|_| self.integer(field, range)).transpose()
    }

    fn text(&self, field: &str) -> Result<&str, Reject> {
        let text = self.required(field)?.as_str().filter(|text| !text.is_empty());
        text.ok_or_else(|| Reject::Malformed(format!("`{field}` must be text")))
    }

    /// A text of `length` capital letters and digits.
    fn code(&self, field: &str, length: usize) -> Result<&str, Reject> {
        let allowed = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
        match self.text(field)? {
            text if text.len() == length && text.bytes().all(allowed) => Ok(text),
            _ => Err(Reject::Malformed(format!("`{field}` must be {length} capital letters or digits"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"year":2013,"month":1,"day":1,"dep_time":517,"sched_dep_time":515,"dep_delay":2,"arr_time":830,"sched_arr_time":819,"arr_delay":11,"carrier":"UA","flight":1545,"tailnum":"N14228","origin":"EWR","dest":"IAH","air_time":227,"distance":1400,"hour":5,"minute":15,"time_hour":"2013-01-01T10:00:00Z"}"#;

    /// The row with `field` set to `value`, or without it.
    fn row_with(field: &str, value: Option<Value>) -> Vec<u8> {
        let mut row: Map<String, Value> = serde_json::from_str(ROW).unwrap();
        assert!(row.remove(field).is_some(), "{field} is no field of the row");
        row.extend(value.map(|value| (field.to_owned(), value)));
        serde_json::to_vec(&row).unwrap()
    }

    #[test]
    fn a_whole_row_is_counted() {
        let departed = Departed { carrier: "UA".into(), dep_delay: 2, arr_delay: Some(11) };
        assert_eq!(parse(ROW.as_bytes()), Ok(departed));
    }

    #[test]
    fn a_missing_departure_time_is_a_cancelled_flight() {
        for missing in [None, Some(Value::Null)] {
            let reject = parse(&row_with("dep_time", missing)).unwrap_err();
            assert_eq!(reject.to_string(), "missing departure time");
        }
    }

    #[test]
    fn a_flight_may_depart_and_not_arrive() {
        for field in ["arr_delay", "arr_time", "air_time", "tailnum"] {
            let departed = parse(&row_with(field, Some(Value::Null))).unwrap();
            assert_eq!(departed.arr_delay.is_none(), field == "arr_delay");
        }
    }

    #[test]
    fn the_reason_names_the_field() {
        let row: Map<String, Value> = serde_json::from_str(ROW).unwrap();
        for field in row.keys() {
            let reject = parse(&row_with(field, Some(Value::from(vec![1])))).unwrap_err();
            let reason = reject.to_string();
            assert!(reason.starts_with(&format!("malformed flight: `{field}` must be ")), "{field}: {reason}");
        }
        for field in ["carrier", "dep_delay", "year"] {
            let reject = parse(&row_with(field, None)).unwrap_err();
            assert_eq!(reject, Reject::Malformed(format!("`{field}` is missing")));
        }
    }

    #[test]
    fn what_is_out_of_range_is_malformed() {
        let faults = [
            ("carrier", Value::from("../x")),
            ("carrier", Value::from("u/")),
            ("carrier", Value::from("é")),
            ("month", Value::from(13)),
            ("dep_delay", Value::from(2.5)),
            ("dep_delay", Value::from("2")),
            ("dep_time", Value::from(2401)),
            ("arr_delay", Value::from(i64::MAX)),
            ("origin", Value::from("X".repeat(1000))),
        ];
        for (field, value) in faults {
            let reason = parse(&row_with(field, Some(value))).unwrap_err().to_string();
            assert!(reason.contains(&format!("`{field}` must be ")), "{reason}");
        }
    }

    #[test]
    fn what_is_no_json_object_is_malformed() {
        for body in [&b""[..], b"[]", b"{", b"null", b"\"text\"", b"\xef\xbb\xbf{}", b"{\"\xff\":1}"] {
            let reject = parse(body).unwrap_err();
            assert_eq!(reject.to_string(), "malformed flight: not a JSON object", "{body:?}");
        }
    }
}
