//! Second layer of defence. If a guest escapes from its sandbox, the process around it has few rights.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `files` | decides which files the process and the threads of guests may access | none |
//! | `aws` | reads which programs and files a profile of the AWS SDK names | none |
//! | `calls` | lists the refused system calls and builds their filters | none |
//! | `enforce` | applies Landlock and seccomp | kernel |
//!
//! Landlock and seccomp can only remove rights. New threads inherit the restrictions of the thread that starts them. Therefore,
//! hostler restricts the process in two steps. Before any runtime starts, the whole process keeps only the access that loading
//! and running need. After all handlers are loaded, the threads of guests keep only the access that their consumers grant.

mod aws;
mod calls;
mod enforce;
mod files;

pub use aws::Profile;
pub(super) use files::uses_aws;
pub use files::{Decision, Real, Rule, decide};

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};

use super::guests::{Shared, too_few_processes};
use super::resources::{Machine, TooFewProcesses};
use super::trail::Trail;
use crate::exit::{Exit, Failure, Result};
use calls::Filters;
use enforce::Threads;
use hostler_config::{Config, HardeningMode};

/// Advice for users whose kernel or container engine cannot harden the process.
const KERNEL_CURE: &str = "run on Linux 6.2 or newer with Landlock, and let the container's seccomp profile allow landlock_* \
                           and seccomp";

/// A function that returns the file that an environment variable names.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<PathBuf>;

/// The restrictions in force, and further restrictions for the threads of guests.
#[derive(Debug, Clone)]
pub struct Hardening {
    mode: HardeningMode,
    /// For each consumer, the files that its guests may access.
    guests: Vec<Vec<Rule>>,
    /// System call filters for guests. They always refuse to run programs. `None`: no filters exist for this architecture.
    filters: Option<Filters>,
    /// Description of the file restrictions, for the log and for `hostler check`.
    pub files: String,
    /// Description of the system call restrictions, for the log and for `hostler check`.
    pub calls: String,
    faults: Vec<String>,
    /// Set if consumers with different folders share threads because the process limit is too low.
    shortage: Option<TooFewProcesses>,
}

impl Hardening {
    /// Determines which restrictions this machine supports. Enforces none of them. `None`: hardening is off.
    ///
    /// # Errors
    /// Same as for [`Hardening::enforce`].
    pub fn examine(config: &Config, machine: &Machine) -> Result<Option<Self>> {
        let Some((mut hardening, decision)) = Self::plan(config, machine) else { return Ok(None) };
        hardening.describe(&decision, enforce::landlock_here().is_some(), enforce::seccomp_here());
        hardening.checked().map(Some)
    }

    /// Restricts the process as `host.hardening` requires. The restrictions on system calls apply to existing threads. The
    /// restrictions on files apply to existing threads only if the kernel supports that. New threads inherit both. `None`:
    /// hardening is off.
    ///
    /// # Errors
    /// Exit code 70 if `host.hardening = "require"` and a restriction is missing. A restriction is missing if the kernel cannot
    /// enforce it, or if the process limit is too low.
    pub fn enforce(config: &Config, machine: &Machine) -> Result<Option<Self>> {
        let Some((mut hardening, decision)) = Self::plan(config, machine) else { return Ok(None) };
        for (folder, mode) in &decision.folders {
            // If the folder cannot be created, the code that uses the folder later reports the error.
            let _ = DirBuilder::new().recursive(true).mode(*mode).create(folder);
        }
        let files = match &decision.process {
            Some(rules) => hardening.heeding("Landlock", enforce::restrict_files(rules, Threads::All)),
            None => enforce::landlock_here().map(|_| true),
        };
        let filters = calls::filters(decision.process.is_none());
        let calls = hardening
            .heeding("seccomp", filters)
            .and_then(|filters| hardening.heeding("seccomp", enforce::restrict_calls(&filters, Threads::All)));
        hardening.describe(&decision, files.unwrap_or_default(), calls.is_some());
        hardening.checked().map(Some)
    }

    fn plan(config: &Config, machine: &Machine) -> Option<(Self, Decision)> {
        let mode = config.host.hardening;
        if mode == HardeningMode::Off {
            return None;
        }
        let environment = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let decision = decide(config, &environment, &profile(config, &environment), &|path| Trail::of(path).end);
        let (guests, filters) = (decision.guests.clone(), calls::filters(false).ok());
        let (files, calls, faults) = (String::new(), String::new(), Vec::new());
        let shortage = too_few_processes(config, machine);
        let hardening = Self { mode, guests, filters, files, calls, faults, shortage };
        Some((hardening, decision))
    }

    /// Returns the value of a result. If the result is an error, returns `None`, and records the error as a reason why
    /// the hardening is incomplete. `what` names the kernel feature, for the error message.
    fn heeding<T>(&mut self, what: &str, result: std::result::Result<T, impl std::fmt::Display>) -> Option<T> {
        result.map_err(|error| self.faults.push(format!("{what}: {error}"))).ok()
    }

    fn describe(&mut self, decision: &Decision, files: bool, calls: bool) {
        let landlock = enforce::landlock_here();
        if landlock.is_none_or(|here| here < enforce::LEAST) {
            let here = if landlock.is_some() { "Landlock before ABI 3 (Linux 6.2)" } else { "no Landlock" };
            self.faults.push(format!("this kernel has {here}, or the container's engine refuses it"));
        }
        if !calls {
            self.faults.push("this kernel has no seccomp filters, or the container's engine refuses them".to_owned());
        }
        let process = match (files, &decision.process) {
            (false, _) => "not limited (no Landlock)",
            (true, Some(_)) => "limited to the config's (Landlock)",
            (true, None) => "limited for guests only (Landlock), as a credential_process may need any",
        };
        let programs = match (calls, &decision.process) {
            (false, _) => "not limited (no seccomp)",
            (true, Some(_)) => "no programs, processes, mounts, namespaces or tracing (seccomp)",
            (true, None) => {
                "no mounts, namespaces or tracing; programs for credential_process, but not for guests (seccomp)"
            }
        };
        (self.files, self.calls) = (process.to_owned(), programs.to_owned());
    }

    /// Returns an error if `host.hardening = "require"` and any restriction is missing.
    fn checked(self) -> Result<Self> {
        let missing = self.missing();
        if self.mode != HardeningMode::Require || missing.is_empty() {
            return Ok(self);
        }
        let kernel = (!self.faults.is_empty()).then(|| KERNEL_CURE.to_owned());
        let cures: Vec<_> = kernel.into_iter().chain(self.shortage.as_ref().map(TooFewProcesses::cure)).collect();
        let cures = cures.join(", and ");
        Err(Failure::new(
            Exit::Internal,
            format!(
                "host.hardening = \"require\" cannot be satisfied: {missing}\n  cure: {cures}, or set host.hardening = \"auto\""
            ),
        ))
    }

    /// Lists the missing restrictions. Empty if none is missing.
    fn missing(&self) -> String {
        let shortage = self.shortage.as_ref().map(ToString::to_string);
        self.faults.iter().cloned().chain(shortage).collect::<Vec<_>>().join("; ")
    }

    /// Restricts the calling thread, and all threads that it starts later, to what these consumers grant to their guests.
    /// `consumers` contains the indexes of the consumers in the config.
    ///
    /// # Errors
    /// The kernel refuses a restriction. The error message names the restriction.
    fn restrict_guest_thread(&self, consumers: &[usize]) -> std::result::Result<(), String> {
        let rules: Vec<_> = consumers.iter().filter_map(|place| self.guests.get(*place)).flatten().cloned().collect();
        enforce::restrict_files(&rules, Threads::This).map_err(|error| format!("Landlock: {error}"))?;
        let Some(filters) = &self.filters else { return Ok(()) };
        enforce::restrict_calls(filters, Threads::This).map_err(|error| format!("seccomp: {error}"))
    }

    /// Restricts each worker thread of these runtimes to what its consumers grant to their guests. Logs the resulting
    /// restrictions.
    ///
    /// # Errors
    /// Same as for [`Hardening::enforce`].
    pub async fn restrict_guests(mut self, sets: &[Shared]) -> Result<()> {
        let hardening = Arc::new(self.clone());
        let all = sets.iter().flat_map(|set| set.runtimes.iter().map(|runtime| (&*set.consumers, runtime)));
        for (consumers, runtime) in all {
            let consumers: Arc<[usize]> = consumers.into();
            let workers = runtime.metrics().num_workers();
            // Each task blocks its worker thread until all tasks have started. Therefore, each task runs on a different worker
            // thread.
            let all = Arc::new(Barrier::new(workers));
            let tasks: Vec<_> = (0..workers)
                .map(|_| {
                    let (hardening, all) = (Arc::clone(&hardening), Arc::clone(&all));
                    let consumers = Arc::clone(&consumers);
                    runtime.spawn(async move {
                        let restricted = hardening.restrict_guest_thread(&consumers);
                        all.wait();
                        restricted
                    })
                })
                .collect();
            for task in tasks {
                let restricted = task.await.unwrap_or_else(|error| Err(error.to_string()));
                if let Err(fault) = restricted {
                    self.faults.push(fault);
                }
            }
        }
        let hardening = self.checked()?;
        let missing = hardening.missing();
        let (files, calls) = (hardening.files, hardening.calls);
        if missing.is_empty() {
            tracing::info!(files, calls, "hardening")
        } else {
            tracing::info!(files, calls, missing, "hardening")
        }
        Ok(())
    }
}

/// Reads the AWS profile in use. Returns an empty profile if the config does not use AWS, or if environment variables contain the
/// credentials.
fn profile(config: &Config, environment: Environment<'_>) -> Profile {
    let has_key = environment("AWS_ACCESS_KEY_ID").is_some() && environment("AWS_SECRET_ACCESS_KEY").is_some();
    if !files::uses_aws(config) || has_key {
        return Profile::default();
    }
    let text = |name: &str, of_home: &str| {
        let path = environment(name).or_else(|| Some(environment("HOME")?.join(".aws").join(of_home)));
        path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
    };
    let name = environment("AWS_PROFILE").map_or_else(|| "default".into(), |name| name.display().to_string());
    Profile::of(&name, &text("AWS_CONFIG_FILE", "config"), &text("AWS_SHARED_CREDENTIALS_FILE", "credentials"))
}
