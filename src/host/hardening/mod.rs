//! The second layer of defence: a guest that breaks out of its sandbox is in a process with few rights.
//!
//! | file | job | I/O |
//! |---|---|---|
//! | `files` | decides which files the process and its guests' threads may access | none |
//! | `aws` | reads which programs and files a profile of the AWS SDK names | none |
//! | `calls` | the refused system calls | none |
//! | `enforce` | Landlock and seccomp | the kernel |
//!
//! Landlock and seccomp can only take rights away, and new threads inherit what is left. So the whole process is restricted
//! before it starts its runtimes, to what loading and running need. Once everything is loaded, the threads of guests are
//! restricted further, to their consumers' grants.

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

/// Advice for a kernel or a container engine that cannot harden the process.
const KERNEL_CURE: &str = "run on Linux 6.2 or newer with Landlock, and let the container's seccomp profile allow landlock_* \
                           and seccomp";

/// Looks up a variable of the environment that names a file.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<PathBuf>;

/// The restrictions in force, and those for the threads of guests once everything is loaded.
#[derive(Debug, Clone)]
pub struct Hardening {
    mode: HardeningMode,
    /// For each consumer, the files that its guests may access.
    guests: Vec<Vec<Rule>>,
    /// Filters for guests, which always refuse programs; `None` on an architecture without filters.
    filters: Option<Filters>,
    /// The restriction of files, as the log and `check` show it.
    pub files: String,
    /// The restriction of system calls, as they show it.
    pub calls: String,
    faults: Vec<String>,
    /// Set if guests with different folders share threads.
    shortage: Option<TooFewProcesses>,
}

impl Hardening {
    /// Determines the restrictions possible here without enforcing them.
    ///
    /// # Errors
    /// As [`Hardening::enforce`].
    pub fn examine(config: &Config, machine: &Machine) -> Result<Option<Self>> {
        let Some((mut hardening, decision)) = Self::plan(config, machine) else { return Ok(None) };
        hardening.describe(&decision, enforce::landlock_here().is_some(), enforce::seccomp_here());
        hardening.checked().map(Some)
    }

    /// Restricts the process as `host.hardening` says. Existing threads get the limits on system calls, and those on files if the
    /// kernel supports it; later threads get both. `None` if hardening is off.
    ///
    /// # Errors
    /// With 70 if `host.hardening = "require"` and this kernel cannot enforce it, or too few processes are allowed.
    pub fn enforce(config: &Config, machine: &Machine) -> Result<Option<Self>> {
        let Some((mut hardening, decision)) = Self::plan(config, machine) else { return Ok(None) };
        for (folder, mode) in &decision.folders {
            // The later user of the folder reports an error.
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

    /// Records an error.
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

    /// Fails if less than the required hardening is in force.
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
                "host.hardening = \"require\" cannot be kept: {missing}\n  cure: {cures}, or set host.hardening = \"auto\""
            ),
        ))
    }

    /// Lists the missing restrictions; empty if there are none.
    fn missing(&self) -> String {
        let shortage = self.shortage.as_ref().map(ToString::to_string);
        self.faults.iter().cloned().chain(shortage).collect::<Vec<_>>().join("; ")
    }

    /// Restricts the calling thread, and those that it starts, to the grants of these consumers, given by index.
    ///
    /// # Errors
    /// The kernel refuses, as the text says.
    fn restrict_guest_thread(&self, consumers: &[usize]) -> std::result::Result<(), String> {
        let rules: Vec<_> = consumers.iter().filter_map(|place| self.guests.get(*place)).flatten().cloned().collect();
        enforce::restrict_files(&rules, Threads::This).map_err(|error| format!("Landlock: {error}"))?;
        let Some(filters) = &self.filters else { return Ok(()) };
        enforce::restrict_calls(filters, Threads::This).map_err(|error| format!("seccomp: {error}"))
    }

    /// Restricts every worker of these runtimes to the grants of its own consumers, and logs the restrictions in force.
    ///
    /// # Errors
    /// As [`Hardening::enforce`].
    pub async fn restrict_guests(mut self, sets: &[Shared]) -> Result<()> {
        let hardening = Arc::new(self.clone());
        let all = sets.iter().flat_map(|set| set.runtimes.iter().map(|runtime| (&*set.consumers, runtime)));
        for (consumers, runtime) in all {
            let consumers: Arc<[usize]> = consumers.into();
            let workers = runtime.metrics().num_workers();
            // No task ends before all have begun, so each runs on a worker of its own.
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
        match missing.is_empty() {
            true => tracing::info!(files, calls, "hardening"),
            false => tracing::info!(files, calls, missing, "hardening"),
        }
        Ok(())
    }
}

/// Returns the profile that the SDK uses; an empty one if variables hold the credentials.
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
