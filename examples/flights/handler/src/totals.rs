//! The totals of a carrier, and the lines of its ledger that they are the sum of.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// The totals of a carrier. Delays are sums of minutes.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    pub carrier: String,
    pub flights: u64,
    pub dep_delay: i64,
    pub arr_delay: i64,
    /// Flights without an arrival delay.
    pub arr_delay_missing: u64,
    /// Number of bytes of the ledger that the sums include.
    pub ledger_bytes: u64,
    /// Of the numbers above, for a reader that comes in the middle of a write.
    check: u32,
}

/// The size of a totals file in bytes, more than its JSON can need. It never changes, so one write replaces all of it.
const FILE_SIZE: usize = 256;

/// A line of the ledger: the id of a message and the delays of its flight, in minutes.
#[derive(Serialize)]
pub struct Entry<'a>(pub &'a str, pub i64, pub Option<i64>);

/// A line of the ledger as it is summed up.
#[derive(Deserialize)]
struct Delays(IgnoredAny, i64, Option<i64>);

impl Totals {
    /// The totals of an empty ledger.
    pub fn empty(carrier: &str) -> Self {
        let carrier = carrier.to_owned();
        Self { carrier, flights: 0, dep_delay: 0, arr_delay: 0, arr_delay_missing: 0, ledger_bytes: 0, check: 0 }
    }

    /// The totals in a totals file; those of an empty ledger when it is empty or half-written.
    pub fn decode(carrier: &str, file: &[u8]) -> Self {
        match serde_json::from_slice::<Self>(file) {
            Ok(totals) if totals.check == totals.digest() => totals,
            _ => Self::empty(carrier),
        }
    }

    /// Content of the totals file: the JSON and spaces.
    pub fn encode(&mut self) -> Result<Vec<u8>, serde_json::Error> {
        self.check = self.digest();
        let mut file = serde_json::to_vec(self)?;
        file.resize(FILE_SIZE - 1, b' ');
        file.push(b'\n');
        Ok(file)
    }

    fn digest(&self) -> u32 {
        let mut hasher = DefaultHasher::new();
        (self.flights, self.dep_delay, self.arr_delay, self.arr_delay_missing, self.ledger_bytes).hash(&mut hasher);
        hasher.finish() as u32
    }

    /// Adds the whole lines of `tail`, which is the ledger from `ledger_bytes` on; answers whether there were any.
    ///
    /// An error is a line that is no entry: somebody else wrote to the ledger, or the disk was full in the middle of one.
    pub fn add(&mut self, tail: &[u8]) -> Result<bool, serde_json::Error> {
        let mut added = false;
        for line in tail.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            let Delays(_, dep_delay, arr_delay) = serde_json::from_slice(line)?;
            self.flights += 1;
            self.dep_delay += dep_delay;
            self.arr_delay += arr_delay.unwrap_or(0);
            self.arr_delay_missing += u64::from(arr_delay.is_none());
            self.ledger_bytes += line.len() as u64;
            added = true;
        }
        Ok(added)
    }
}

impl Entry<'_> {
    /// The line, with its end.
    pub fn line(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }

    /// Returns true if `ledger` has a line with this id.
    pub fn is_in(&self, ledger: &[u8]) -> Result<bool, serde_json::Error> {
        let start = [b"[", serde_json::to_vec(self.0)?.as_slice(), b","].concat();
        Ok(ledger.split(|byte| *byte == b'\n').any(|line| line.starts_with(&start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEDGER: &[u8] = b"[\"a\",5,-3]\n[\"b\",-2,null]\n";

    fn totals_of(ledger: &[u8]) -> Totals {
        let mut totals = Totals::empty("AA");
        totals.add(ledger).unwrap();
        totals
    }

    #[test]
    fn lines_are_summed_up() {
        let totals = totals_of(LEDGER);
        let sums = (totals.flights, totals.dep_delay, totals.arr_delay, totals.arr_delay_missing);
        assert_eq!(sums, (2, 3, -3, 1));
        assert_eq!(totals.ledger_bytes, LEDGER.len() as u64);
        let written = [Entry("a", 5, Some(-3)).line().unwrap(), Entry("b", -2, None).line().unwrap()].concat();
        assert_eq!(written, LEDGER);
    }

    #[test]
    fn a_file_holds_the_largest_totals_and_always_has_one_size() {
        let mut totals = Totals {
            carrier: "AA".into(),
            flights: u64::MAX,
            dep_delay: i64::MIN,
            arr_delay: i64::MIN,
            arr_delay_missing: u64::MAX,
            ledger_bytes: u64::MAX,
            check: u32::MAX,
        };
        assert!(serde_json::to_vec(&totals).unwrap().len() < FILE_SIZE);
        let file = totals.encode().unwrap();
        assert_eq!(file.len(), FILE_SIZE);
        assert_eq!(Totals::decode("AA", &file), totals);
        assert_eq!(totals_of(b"").encode().unwrap().len(), FILE_SIZE);
    }

    #[test]
    fn a_mixture_of_two_writes_is_not_taken_for_totals() {
        let older = totals_of(b"[\"a\",50,-30]\n").encode().unwrap();
        let newer = totals_of(b"[\"b\",61,-41]\n").encode().unwrap();
        for cut in 0..FILE_SIZE {
            let mixture = [&newer[..cut], &older[cut..]].concat();
            let totals = Totals::decode("AA", &mixture);
            assert!(mixture == older || mixture == newer || totals == Totals::empty("AA"), "{cut}");
        }
    }

    #[test]
    fn a_line_that_is_being_written_is_left_for_later() {
        for cut in 0..=LEDGER.len() {
            let (before, _) = LEDGER.split_at(cut);
            let mut totals = totals_of(before);
            let seen = usize::try_from(totals.ledger_bytes).unwrap();
            assert_eq!(totals.add(&LEDGER[seen..]).unwrap(), seen < LEDGER.len());
            assert_eq!(totals, totals_of(LEDGER));
        }
    }

    #[test]
    fn a_torn_line_is_an_error_and_not_a_smaller_sum() {
        assert!(totals_of(b"").add(b"[\"a\",5[\"b\",-2,null]\n").is_err());
        assert!(totals_of(b"").add(b"\n").is_err());
    }

    #[test]
    fn an_id_is_found_only_as_a_whole() {
        assert!(Entry("b", 0, None).is_in(LEDGER).unwrap());
        for other in ["", "c", "a\",5", "5"] {
            assert!(!Entry(other, 0, None).is_in(LEDGER).unwrap(), "{other}");
        }
        let quoted = Entry("say \"b\"\n", 1, None);
        assert!(quoted.is_in(&quoted.line().unwrap()).unwrap());
    }
}
