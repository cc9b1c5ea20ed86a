//! The granted folder: a ledger and a totals file for each carrier, shared by all instances without a lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::totals::{Entry, Totals};

/// Number of bytes to read at once: some lines of a ledger, or a whole totals file.
const CHUNK: usize = 4096;

/// Counts `entry` for `carrier`, unless `redelivered` and in the ledger already, and brings the totals up to date.
///
/// After an error it may be in the ledger or not: call it again as redelivered.
pub fn count(folder: &Path, carrier: &str, entry: &Entry<'_>, redelivered: bool) -> io::Result<()> {
    let ledger = folder.join(format!("{carrier}.ledger"));
    let mut end = OpenOptions::new().append(true).create(true).open(&ledger)?;
    if !(redelivered && entry.is_in(&fs::read(&ledger)?)?) {
        // One write of a few bytes in append mode: whole, and never in the middle of another one's.
        end.write_all(&entry.line()?)?;
    }
    let totals = folder.join(format!("{carrier}.json"));
    let totals = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(totals)?;
    sum_up(carrier, File::open(&ledger)?, totals)
}

/// Overwrites the totals until they hold all of the ledger.
///
/// Others do the same meanwhile, and older totals may overwrite newer ones. Whoever did that finds the ledger ahead when
/// it looks again, and writes once more. So the last one to write leaves the totals complete.
///
/// They are overwritten in place because a rename over a file makes ext4 flush: a millisecond for each flight.
fn sum_up(carrier: &str, mut ledger: File, mut file: File) -> io::Result<()> {
    let mut totals = Totals::decode(carrier, &read_at(&mut file, 0)?);
    if ledger.metadata()?.len() < totals.ledger_bytes {
        // Somebody removed the ledger.
        totals = Totals::empty(carrier);
    }
    while totals.add(&read_at(&mut ledger, totals.ledger_bytes)?)? {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&totals.encode()?)?;
    }
    Ok(())
}

/// At most a chunk; nothing at the end of the file.
fn read_at(file: &mut File, start: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; CHUNK];
    file.seek(SeekFrom::Start(start))?;
    let length = file.read(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    /// A fresh folder, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            static NUMBER: AtomicU64 = AtomicU64::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("flights-{}-{number}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn count(&self, id: &str, delay: i64, redelivered: bool) -> io::Result<()> {
            count(&self.0, "AA", &Entry(id, delay, None), redelivered)
        }

        /// Flights and the sum of their departure delays.
        fn totals(&self) -> (u64, i64) {
            let totals = Totals::decode("AA", &fs::read(self.0.join("AA.json")).unwrap());
            (totals.flights, totals.dep_delay)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_redelivered_flight_counts_once() {
        let folder = Folder::new();
        folder.count("a", 5, false).unwrap();
        folder.count("b", 7, true).unwrap();
        folder.count("a", 5, true).unwrap();
        assert_eq!(folder.totals(), (2, 12));
    }

    #[test]
    fn an_instance_killed_before_the_totals_is_made_up_for_by_the_next() {
        for next in ["b", "c"] {
            let folder = Folder::new();
            folder.count("a", 5, false).unwrap();
            let mut ledger = OpenOptions::new().append(true).open(folder.0.join("AA.ledger")).unwrap();
            ledger.write_all(&Entry("b", 7, None).line().unwrap()).unwrap();
            folder.count(next, 7, true).unwrap();
            assert_eq!(folder.totals(), if next == "b" { (2, 12) } else { (3, 19) });
        }
    }

    #[test]
    fn older_totals_are_brought_up_to_date() {
        let folder = Folder::new();
        folder.count("a", 5, false).unwrap();
        let older = fs::read(folder.0.join("AA.json")).unwrap();
        folder.count("b", 7, false).unwrap();
        fs::write(folder.0.join("AA.json"), older).unwrap();
        folder.count("c", 1, false).unwrap();
        assert_eq!(folder.totals(), (3, 13));
    }

    #[test]
    fn half_written_totals_are_summed_up_anew() {
        let folder = Folder::new();
        let flights = CHUNK as u64 / 10;
        for flight in 0..flights {
            folder.count(&format!("flight-{flight}"), 5, false).unwrap();
        }
        for damage in [&b""[..], b"{\"carrier\"", b"{}"] {
            fs::write(folder.0.join("AA.json"), damage).unwrap();
            folder.count("flight-0", 5, true).unwrap();
            assert_eq!(folder.totals(), (flights, flights as i64 * 5), "of a ledger of several chunks");
        }
    }

    #[test]
    fn many_instances_at_once_lose_nothing() {
        const THREADS: i64 = 8;
        const EACH: i64 = 200;
        let folder = Folder::new();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let folder = &folder;
                scope.spawn(move || {
                    for number in 0..EACH {
                        folder.count(&format!("{thread}-{number}"), number, false).unwrap();
                    }
                });
            }
        });
        let sum = THREADS * EACH * (EACH - 1) / 2;
        assert_eq!(folder.totals(), ((THREADS * EACH) as u64, sum));
    }

    #[test]
    fn totals_of_more_than_the_ledger_begin_anew() {
        let folder = Folder::new();
        folder.count("a", 5, false).unwrap();
        folder.count("b", 7, false).unwrap();
        fs::remove_file(folder.0.join("AA.ledger")).unwrap();
        folder.count("c", 1, false).unwrap();
        assert_eq!(folder.totals(), (1, 1));
    }

    #[test]
    fn a_torn_ledger_is_an_error() {
        let folder = Folder::new();
        folder.count("a", 5, false).unwrap();
        OpenOptions::new().append(true).open(folder.0.join("AA.ledger")).unwrap().write_all(b"[\"b\",").unwrap();
        assert!(folder.count("c", 1, false).is_err());
        assert_eq!(folder.totals(), (1, 5));
    }
}
