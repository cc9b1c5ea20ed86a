//! Reaping of child processes: reads the exit status of dead children, so that none remains a zombie. If this process
//! is PID 1, the orphaned processes of its container also become its children.
//!
//! An exit status can be read only once. For a profile with `credential_process`, the AWS SDK runs a program and waits
//! for it by its process id. If this crate reaped the program during that wait, the program's status would be lost, and
//! the SDK would report a failure. The kernel does not distinguish orphans from other children. Therefore, no orphan is
//! reaped while any code waits for a child.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{WaitOptions, wait};

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { own: 0, orphans: false });

struct Waiting {
    /// Number of [`OwnChildren`] values that exist.
    own: usize,
    /// Set if reaping was postponed.
    orphans: bool,
}

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the exit status of every dead child, so that no child remains a zombie. While any [`OwnChildren`] exist,
/// postpones the reaping until the last of them is dropped.
pub fn reap_orphans() {
    let mut waiting = waiting();
    waiting.orphans = waiting.own > 0;
    if waiting.own == 0 {
        reap();
    }
}

fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Prevents the reaping of children as long as this value exists.
#[must_use = "children are reaped again once this is dropped"]
#[derive(Debug)]
pub struct OwnChildren(());

impl OwnChildren {
    /// Prevents reaping as long as the returned value exists. Meanwhile, the caller can start children and wait for
    /// them.
    pub fn start() -> Self {
        waiting().own += 1;
        Self(())
    }
}

impl Drop for OwnChildren {
    fn drop(&mut self) {
        let mut waiting = waiting();
        waiting.own -= 1;
        if waiting.own == 0 && std::mem::take(&mut waiting.orphans) {
            reap();
        }
    }
}

#[cfg(feature = "sqs")]
pub use credentials::with_own_children;

#[cfg(feature = "sqs")]
mod credentials {
    use aws_config::SdkConfig;
    use aws_credential_types::Credentials;
    use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};

    use super::OwnChildren;

    /// Wraps the credentials provider in `config`, and returns the new configuration. While it fetches credentials, the
    /// wrapped provider prevents the reaping of children, because the SDK may run a program to get them.
    pub fn with_own_children(config: SdkConfig) -> SdkConfig {
        let Some(provider) = config.credentials_provider() else { return config };
        config.to_builder().credentials_provider(SharedCredentialsProvider::new(Waited(provider))).build()
    }

    /// A credentials provider that prevents the reaping of children during its calls.
    #[derive(Debug)]
    struct Waited(SharedCredentialsProvider);

    impl ProvideCredentials for Waited {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            future::ProvideCredentials::new(async {
                let _children = OwnChildren::start();
                self.0.provide_credentials().await
            })
        }

        fn fallback_on_interrupt(&self) -> Option<Credentials> {
            self.0.fallback_on_interrupt()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Child, Command};

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    /// Waits until the child has exited, and leaves its exit status unread.
    fn dies(child: &Child) {
        let id = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    }

    /// This test reaps all children of the process, so other tests in this binary must not start any.
    #[test]
    #[allow(clippy::zombie_processes, reason = "reaping is what is tested")]
    fn a_child_that_somebody_waits_for_keeps_its_status() {
        let children = OwnChildren::start();
        let mut own = Command::new("false").spawn().unwrap();
        dies(&own);
        reap_orphans();
        assert_eq!(own.wait().unwrap().code(), Some(1));

        let orphan = Command::new("true").spawn().unwrap();
        dies(&orphan);
        reap_orphans();
        let zombie = format!("/proc/{}", orphan.id());
        assert!(Path::new(&zombie).exists(), "reaped while somebody waits");
        drop(children);
        assert!(!Path::new(&zombie).exists(), "not reaped afterwards");
    }
}
