//! Checks at startup that the limits of the process itself (`ulimit`) are high enough. Under lower limits, the kernel would
//! later refuse a runtime, a thread or an allocation. The resulting panic or signal would end the process.

use std::fmt::{self, Write as _};
use std::fs;
use std::io::{self, Write as _};

use rustix::process::{Resource, getrlimit};

use super::descriptors::raise_descriptors;
use crate::exit::{Exit, Failure, Result};
use hostler_wasm::SANDBOX_ADDRESSES;

const MIB: u64 = 1 << 20;

/// Number of descriptors that must still be unused at startup: for a runtime, and for the files or connections of the
/// queue.
const FILES: u64 = 32;

/// Minimum limit on the stack of the main thread (`ulimit -s`) in bytes.
const STACK: u64 = MIB / 2;

/// Minimum address space limit (`ulimit -v`) in bytes. Covers the program, its heap, and the stacks of its threads.
const ADDRESSES: u64 = 256 * MIB;

/// Minimum address space limit (`ulimit -v`) in bytes for a command that loads handlers. If possible, the allocator
/// reserves another GiB in addition to the addresses of a sandbox.
const ADDRESSES_FOR_HANDLERS: u64 = SANDBOX_ADDRESSES + 1536 * MIB;

/// Minimum data segment limit (`ulimit -d`) in bytes.
const DATA: u64 = 32 * MIB;

/// Minimum address space limit (`ulimit -v`) in bytes to parse the arguments. The program itself uses most of this
/// space.
const BARE_ADDRESSES: u64 = 96 * MIB;
/// Minimum data segment limit (`ulimit -d`) in bytes to parse the arguments.
const BARE_DATA: u64 = 4 * MIB;

/// Minimum data segment limit (`ulimit -d`) in bytes for a command that loads handlers. Covers the 128 MiB that the
/// allocator reserves, and memory for compiling, stacks and sandboxes.
const DATA_FOR_HANDLERS: u64 = 256 * MIB;

/// Purpose of a command. Determines the limits that the command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Sends messages, or manages queues and files.
    Plain,
    /// Loads and runs handlers.
    Handlers,
}

impl Purpose {
    /// Raises the limit on open files as far as possible. Then checks all limits of this process.
    ///
    /// # Errors
    /// Exit code 70 if a limit is too low. The error message names each limit that is too low, and the fix.
    pub fn check_limits(self) -> Result<()> {
        raise_descriptors();
        let shortages: Vec<String> = Own::measure().shortages(self).map(|shortage| shortage.to_string()).collect();
        if shortages.is_empty() { Ok(()) } else { Err(Failure::new(Exit::Internal, shortages.join("\nhostler: "))) }
    }
}

/// Checks that the process may use enough memory to parse the arguments and to run [`Purpose::check_limits`]. Allocates
/// no memory itself. Otherwise, the kernel could refuse the allocation, which would end the process before the check.
///
/// # Errors
/// Exit code 70 if a limit is too low. Writes the limit that hostler needs, and the fix, to standard error.
pub fn check_bare_memory() -> std::result::Result<(), Exit> {
    let own = Own::measure_memory();
    if own.addresses.is_none_or(|limit| limit >= BARE_ADDRESSES) && own.data.is_none_or(|limit| limit >= BARE_DATA) {
        return Ok(());
    }
    for shortage in own.shortages(Purpose::Plain) {
        let mut line = Line::default();
        // A line that exceeds the buffer is truncated.
        let _ = writeln!(line, "hostler: {shortage}");
        let _ = io::stderr().write_all(&line.bytes[..line.length]);
    }
    Err(Exit::Internal)
}

/// Buffer for a line of text. Lives on the stack and needs no allocation.
struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; 512], length: 0 }
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let (text, free) = (text.as_bytes(), &mut self.bytes[self.length..]);
        let taken = text.len().min(free.len());
        free[..taken].copy_from_slice(&text[..taken]);
        self.length += taken;
        if taken == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// Returns a warning if the process itself has a memory limit.
///
/// With a limit on the process itself (`ulimit`), the kernel refuses allocations, and a refused allocation ends the process. A
/// limit on the container needs no warning, because the kernel does not refuse allocations there.
pub fn own_memory_limit() -> Option<String> {
    let limits = [(Resource::As, 'v'), (Resource::Data, 'd')];
    let (kib, flag) = limits.into_iter().find_map(|(limit, flag)| Some((getrlimit(limit).current? >> 10, flag)))?;
    Some(format!(
        "this process has a memory limit of its own (`ulimit -{flag}`, {kib} KiB): where it is used up, hostler ends with exit code 70\n  \
         cure: lift it by `ulimit -{flag} unlimited`, and limit the memory of the container"
    ))
}

/// Limits of the process. `None`: no limit.
#[derive(Debug, Clone, Default)]
struct Own {
    files: Option<u64>,
    open: u64,
    addresses: Option<u64>,
    data: Option<u64>,
    stack: Option<u64>,
}

impl Own {
    fn measure() -> Self {
        Self {
            files: getrlimit(Resource::Nofile).current,
            // Leaves out the descriptor that reads the folder itself. If the folder cannot be read, counts only the three
            // standard streams.
            open: fs::read_dir("/proc/self/fd").map_or(3, |open| (open.count() as u64).saturating_sub(1)),
            ..Self::measure_memory()
        }
    }

    /// Measures only the memory limits. Allocates nothing.
    fn measure_memory() -> Self {
        let limit = |resource| getrlimit(resource).current;
        let (addresses, data, stack) = (limit(Resource::As), limit(Resource::Data), limit(Resource::Stack));
        Self { addresses, data, stack, ..Self::default() }
    }

    /// Returns the limits that are too low.
    fn shortages(&self, purpose: Purpose) -> impl Iterator<Item = Shortage> {
        let (addresses, data) = match purpose {
            Purpose::Plain => (ADDRESSES, DATA),
            Purpose::Handlers => (ADDRESSES_FOR_HANDLERS, DATA_FOR_HANDLERS),
        };
        let limits = [
            ("open files", 'n', self.files, self.open.saturating_add(FILES)),
            ("address space", 'v', self.addresses, addresses),
            ("data", 'd', self.data, data),
            ("the stack", 's', self.stack, STACK),
        ];
        limits.into_iter().filter_map(|(what, flag, limit, needed)| {
            let limit = limit.filter(|limit| *limit < needed)?;
            Some(Shortage { what, flag, limit, needed })
        })
    }
}

/// A limit that is too low. Formatted as a line with the limit, the required limit, and the fix.
struct Shortage {
    what: &'static str,
    /// Option of `ulimit` that sets the limit.
    flag: char,
    limit: u64,
    needed: u64,
}

impl fmt::Display for Shortage {
    /// Formats memory limits in KiB, the unit of `ulimit`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, flag, limit, needed } = *self;
        if flag == 'n' {
            return write!(
                f,
                "the limit of open files of this process is {limit}, and hostler needs {needed}\n  cure: raise it to {needed} or \
                 more (`ulimit -n`, or `ulimits` of the container)"
            );
        }
        let (kib, least) = (limit >> 10, needed >> 10);
        write!(
            f,
            "the limit of {what} of this process (`ulimit -{flag}`) is {kib} KiB, and hostler needs {least} KiB\n  cure: raise it, \
             or lift it by `ulimit -{flag} unlimited`; to bound the memory of hostler, limit that of its container"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(own: &Own, purpose: Purpose) -> Vec<String> {
        own.shortages(purpose).map(|shortage| shortage.to_string()).collect()
    }

    #[test]
    fn each_limit_that_is_too_low_is_named_with_its_cure() {
        let none = Own { open: 4, ..Own::default() };
        assert_eq!(told(&none, Purpose::Handlers), [""; 0]);
        let enough = Own { files: Some(36), data: Some(32 * MIB), stack: Some(8 * MIB), ..none.clone() };
        assert_eq!(told(&enough, Purpose::Plain), [""; 0]);
        let handlers = told(&enough, Purpose::Handlers);
        assert!(
            matches!(&*handlers, [data] if data.contains("(`ulimit -d`) is 32768 KiB, and hostler needs 262144 KiB"))
        );
        let low = Own { files: Some(35), addresses: Some(400_000 << 10), data: Some(1), stack: Some(1), ..none };
        let low = told(&low, Purpose::Handlers);
        assert_eq!(low.len(), 4, "{low:#?}");
        for (text, flag) in low.iter().zip(["ulimit -n", "ulimit -v", "ulimit -d", "ulimit -s"]) {
            assert!(text.contains(flag) && text.contains("\n  cure: raise it"), "{text}");
        }
        assert!(low[0].contains("is 35, and hostler needs 36"), "{}", low[0]);
    }

    #[test]
    fn a_line_on_the_stack_holds_each_refusal_and_cuts_what_is_longer() {
        let low = Own { addresses: Some(u64::MAX >> 40), data: Some(1), stack: Some(1), ..Own::default() };
        for shortage in low.shortages(Purpose::Handlers) {
            let mut line = Line::default();
            writeln!(line, "hostler: {shortage}").unwrap();
            assert_eq!(line.bytes[..line.length], *format!("hostler: {shortage}\n").as_bytes());
        }
        let mut line = Line::default();
        assert!(line.write_str(&"x".repeat(500)).is_ok() && line.write_str(&"y".repeat(20)).is_err());
        assert_eq!(line.bytes[498..], *b"xxyyyyyyyyyyyy");
    }

    #[test]
    fn what_is_open_already_is_not_free() {
        let before = Own::measure().open;
        let _files = [(); 20].map(|()| fs::File::open("/dev/null").unwrap());
        assert!(before >= 3 && Own::measure().open > 20);
    }
}
