//! Fresh memory: data that a guest leaves is gone before the next guest runs, even if the kernel has moved or swapped it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::guests::command;
use crate::support::hostler::{PATIENCE, World, announce, until};
use crate::support::servers::installed;

/// Has the kernel swap out what a process may write to, but for the great reserves of addresses, in which nothing is.
const PAGE_OUT: &str = "
import ctypes, os, sys
MADV_PAGEOUT, PROCESS_MADVISE, MOST = 21, 440, 64 << 20
class Range(ctypes.Structure):
    _fields_ = [('start', ctypes.c_void_p), ('length', ctypes.c_size_t)]
call = ctypes.CDLL(None, use_errno=True).syscall
process = os.pidfd_open(int(sys.argv[1]))
for line in open(f'/proc/{sys.argv[1]}/maps'):
    addresses, rights = line.split()[:2]
    start, end = (int(address, 16) for address in addresses.split('-'))
    if rights == 'rw-p' and end - start <= MOST:
        call(PROCESS_MADVISE, process, ctypes.byref(Range(start, end - start)), 1, MADV_PAGEOUT, 0)
";

/// Swap in a file, until it is dropped.
struct Swap(PathBuf);

impl Swap {
    /// None, and a loud word, where that is not permitted.
    fn on(file: &Path) -> Option<Self> {
        // It must have no holes.
        fs::write(file, vec![0; 32 << 20]).unwrap();
        let done = |program: &str| Command::new(program).arg(file).output().is_ok_and(|output| output.status.success());
        if done("/sbin/mkswap") && done("/sbin/swapon") {
            return Some(Self(file.to_owned()));
        }
        announce("NOT RUN, memory that is swapped out: nothing can be swapped here");
        None
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        assert!(Command::new("/sbin/swapoff").arg(&self.0).status().unwrap().success());
    }
}

#[test]
fn memory_that_was_swapped_out_is_not_left_to_the_next_guest() {
    let world = World::new(&format!(
        "[consumers.work]\nchannel = 'work'\nhandler = '{}'\nconcurrency = 1\nretry = {{ requeues = 0, delays = 0 }}",
        command("main-leaves").display()
    ));
    let Some(_swap) = Swap::on(&world.path("swap")) else { return };
    world.send("work", ["first", "second"]);
    let host = world.started();
    // What a guest says is known once it is over, so nothing tells when it has written: again and again, until it is over.
    until("the first to be settled", PATIENCE, || {
        page_out(host.pid);
        host.lines().iter().any(|line| line["message"] == "settled").then_some(())
    });
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid)).unwrap();
    let swapped = status.lines().find(|line| line.starts_with("VmSwap:")).unwrap();
    assert!(!swapped.ends_with(" 0 kB"), "{swapped}");
    for settled in host.settled(2) {
        assert_eq!(settled["outcome"], "ack", "{settled}");
    }
}

fn page_out(process: u32) {
    let mut python = Command::new(installed("collector").join("bin/python"));
    let output = python.args(["-c", PAGE_OUT, &process.to_string()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
