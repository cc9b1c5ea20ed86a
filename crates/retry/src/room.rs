//! Decides if the store has room for further messages. A full disk would stop removals too, and so the deliveries that make
//! room again: messages are refused before.

use std::io;
use std::path::Path;

/// Free space on the disk below which no further messages are stored. Removals, and the store's write-ahead log, need space
/// too.
const RESERVE: u64 = 128 << 20;

/// Share of a small disk that takes the place of [`RESERVE`].
const SHARE: u64 = 10;

/// The space of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Size of the disk in bytes.
    pub total: u64,
    /// Free bytes on the disk.
    pub free: u64,
    /// Bytes of the store that messages use.
    pub used: u64,
}

impl Space {
    /// Measures the disk of a folder. `used`: bytes of the store that messages use. May block for long on a network file
    /// system.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn measure(folder: &Path, used: u64) -> io::Result<Self> {
        Ok(Self { total: fs2::total_space(folder)?, free: fs2::available_space(folder)?, used })
    }

    /// Returns why no further messages may be stored. `max`: maximum number of bytes for messages. `None`: there is room.
    pub fn shortage(&self, max: Option<u64>) -> Option<String> {
        let reserve = RESERVE.min(self.total / SHARE);
        if self.free < reserve {
            let (free, reserve) = (self.free >> 20, reserve >> 20);
            return Some(format!("the disk of the store has {free} MiB left, and {reserve} MiB are kept free"));
        }
        let max = max.filter(|max| self.used >= *max)?;
        Some(format!("the store has {} MiB of messages, and `retry.max_store` allows {}", self.used >> 20, max >> 20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_reserve_of_the_disk_is_kept() {
        let space = |total, free| Space { total, free, used: 0 }.shortage(None);
        assert_eq!([space(100 * GIB, RESERVE), space(GIB / 16, GIB / 160)], [None, None]);
        assert!(space(100 * GIB, RESERVE - 1).is_some_and(|text| text.contains("127 MiB left")));
        assert!(space(GIB / 16, GIB / 160 - 1).is_some_and(|text| text.contains("6 MiB are kept free")));
    }

    #[test]
    fn the_store_may_have_a_limit() {
        let space = |used, max| Space { total: GIB, free: GIB, used }.shortage(max);
        assert_eq!([space(GIB, None), space(GIB - 1, Some(GIB))], [None, None]);
        assert!(space(GIB, Some(GIB)).is_some_and(|text| text.contains("`retry.max_store` allows 1024")));
    }

    #[test]
    fn a_disk_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let space = Space::measure(folder.path(), 7).unwrap();
        assert!(space.total >= space.free && space.total > 0 && space.used == 7, "{space:?}");
    }
}
