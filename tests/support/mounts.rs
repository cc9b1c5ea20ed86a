//! A mount namespace for one test: small, full and read-only file systems, and replacements for files in `/etc`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::hostler::{World, announce};

/// Script that ends with its standard input, which this process holds open.
const KEEPER: &str = "echo here; read -r _";

/// A mount namespace. Programs that were started in the namespace may outlive it.
pub struct Mounts {
    keeper: Child,
}

impl Mounts {
    /// Creates a namespace and runs this shell script in it, in the world's folder. `None`: not permitted, which is announced on
    /// standard error.
    pub fn new(world: &World, script: &str) -> Option<Self> {
        // Runs as root of a user namespace, which an ordinary user may create.
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

    /// Creates a command for a program in the namespace.
    pub fn program(&self, world: &World, program: &str, args: &[&str]) -> Command {
        let target = self.keeper.id().to_string();
        let folder = world.path("");
        // Each program replaces its predecessor by exec, so that signals reach the last program. The folder must be entered
        // again, because the previous one belongs to another mount.
        let enter = ["-t", &target, "-U", "-m", "--preserve-credentials", "sh", "-c", r#"cd "$0" && exec "$@""#];
        world.program("nsenter", &[&enter[..], &[folder.to_str().unwrap(), program], args].concat())
    }

    /// Creates a hostler command in the namespace.
    pub fn hostler(&self, world: &World, args: &[&str]) -> Command {
        self.program(world, env!("CARGO_BIN_EXE_hostler"), args)
    }

    /// Runs a shell script in the namespace to its end.
    pub fn run(&self, world: &World, script: &str) {
        let output = self.program(world, "sh", &["-ec", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        // `wait` first closes the keeper's standard input, which ends the keeper.
        let _ = self.keeper.wait();
    }
}
