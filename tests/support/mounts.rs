//! A mount namespace of a test's own: small, full and read-only file systems, and other files in the place of `/etc`'s.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::hostler::{World, announce};

/// Ends with its standard input, which this process holds.
const KEEPER: &str = "echo here; read -r _";

/// The namespace. Programs that were started in it may outlive it.
pub struct Mounts {
    keeper: Child,
}

impl Mounts {
    /// One in which this shell script was run, in the world's folder. None, and a loud word, where that is not permitted.
    pub fn new(world: &World, script: &str) -> Option<Self> {
        // As root of a user namespace, which an ordinary user may be as well.
        let args = ["-r", "-m", "sh", "-ec", &format!("{script}\n{KEEPER}")];
        let mut keeper = world.program("unshare", &args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mounts = Self { keeper };
        if line == "here\n" {
            return Some(mounts);
        }
        announce("NOT RUN, faults of file systems: a mount namespace cannot be made here");
        None
    }

    /// A program in it.
    pub fn program(&self, world: &World, program: &str, args: &[&str]) -> Command {
        let target = self.keeper.id().to_string();
        let folder = world.path("");
        // Each takes its predecessor's place, so that signals go to where they should. The folder of before is another
        // mount's.
        let enter = ["-t", &target, "-U", "-m", "--preserve-credentials", "sh", "-c", r#"cd "$0" && exec "$@""#];
        world.program("nsenter", &[&enter[..], &[folder.to_str().unwrap(), program], args].concat())
    }

    /// Hostler in it.
    pub fn hostler(&self, world: &World, args: &[&str]) -> Command {
        self.program(world, env!("CARGO_BIN_EXE_hostler"), args)
    }

    /// Runs a shell script in it, to its end.
    pub fn run(&self, world: &World, script: &str) {
        let output = self.program(world, "sh", &["-ec", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        // Waiting closes its standard input first.
        let _ = self.keeper.wait();
    }
}
