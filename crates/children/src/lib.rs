//! Child processes: those that this process itself waits for and, as PID 1, the orphans of its container.
//!
//! An exit status can be read only once. The AWS SDK runs a profile's `credential_process` and waits for it by its id. Reaping
//! any child at that moment would take the status away, and the SDK would report a failure. The kernel does not tell orphans from
//! other children, so no orphan is reaped while anyone waits for a child of their own.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{WaitOptions, wait};

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { own: 0, orphans: false });

struct Waiting {
    /// The number of [`OwnChildren`] that exist.
    own: usize,
    /// Set if reaping was postponed.
    orphans: bool,
}

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the exit status of every dead child, so that none stays a zombie. Postponed while [`OwnChildren`] exist.
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

/// Prevents the reaping of any child while it exists.
#[must_use = "children are reaped again once this is dropped"]
#[derive(Debug)]
pub struct OwnChildren(());

impl OwnChildren {
    /// Announces that the caller is about to start children and wait for them.
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

    /// Returns the same configuration. Its credentials may come from a program that the SDK runs.
    pub fn with_own_children(config: SdkConfig) -> SdkConfig {
        let Some(provider) = config.credentials_provider() else { return config };
        config.to_builder().credentials_provider(SharedCredentialsProvider::new(Waited(provider))).build()
    }

    /// A credentials provider that keeps orphan reaping from interfering with the programs that it runs.
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

    /// Waits until the child is dead, and leaves its status unread.
    fn dies(child: &Child) {
        let id = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    }

    /// The other tests of this binary start no children.
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
