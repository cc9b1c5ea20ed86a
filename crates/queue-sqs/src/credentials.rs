//! Credentials that are fetched once for all clients, and renewed before they expire.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{self, ProvideCredentials, SharedCredentialsProvider, future};
use aws_smithy_runtime_api::client::identity::Identity;
use tokio::time::timeout;

use hostler_types::error_chain::with_causes;

/// Time between the start of a renewal and the expiry of the old credentials. A renewal finds new credentials, because
/// EC2 and ECS offer them more than five minutes before the old ones expire.
const AHEAD: Duration = Duration::from_secs(5 * 60);
/// Interval between renewals of credentials without an expiry time. Must be shorter than 15 minutes, because the SDK
/// caches such credentials for that long.
const KEPT: Duration = Duration::from_secs(10 * 60);
/// Minimum interval between the starts of two renewals, and the timeout of a renewal.
const BETWEEN: Duration = Duration::from_secs(30);
/// Maximum time for which an SDK call waits for a renewal while the old credentials are valid. Must be shorter than the
/// timeout of one attempt of the call (5 s).
const PATIENCE: Duration = Duration::from_secs(3);

/// A provider that caches credentials from another provider. Clones share the cache.
#[derive(Debug, Clone)]
pub(super) struct KeptCredentials(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    provider: SharedCredentialsProvider,
    held: Mutex<Option<Arc<Held>>>,
    /// Locked while credentials are being fetched. The value is the earliest time at which the next renewal may begin.
    fetching: Arc<tokio::sync::Mutex<SystemTime>>,
}

/// Cached credentials.
#[derive(Debug)]
pub(super) struct Held {
    credentials: Credentials,
    identity: Identity,
    renew_at: SystemTime,
}

impl Held {
    fn new(credentials: Credentials, now: SystemTime) -> Self {
        let renew_at = credentials.expiry().map_or(now + KEPT, |until| until.checked_sub(AHEAD).unwrap_or(now));
        Self { identity: credentials.clone().into(), credentials, renew_at }
    }

    fn holds(&self, now: SystemTime) -> bool {
        self.credentials.expiry().is_none_or(|until| now < until)
    }

    /// Returns the identity with which calls are signed.
    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }
}

impl KeptCredentials {
    pub(super) fn new(provider: SharedCredentialsProvider) -> Self {
        let fetching = Arc::new(tokio::sync::Mutex::new(SystemTime::UNIX_EPOCH));
        Self(Arc::new(Kept { provider, held: Mutex::default(), fetching }))
    }

    /// Returns the cached credentials if they are valid at `now`. If they are due for renewal, starts to renew them.
    /// `None`: [`ProvideCredentials`] must fetch credentials.
    pub(super) fn current(&self, now: SystemTime) -> Option<Arc<Held>> {
        let held = self.held().filter(|held| held.holds(now))?;
        if held.renew_at <= now {
            self.renew(now);
        }
        Some(held)
    }

    fn held(&self) -> Option<Arc<Held>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fetches credentials in the background. Does nothing if a fetch is running, or if the last renewal began less
    /// than [`BETWEEN`] ago.
    fn renew(&self, now: SystemTime) {
        let Ok(mut turn) = Arc::clone(&self.0.fetching).try_lock_owned() else { return };
        if now < *turn {
            return;
        }
        *turn = now + BETWEEN;
        let kept = self.clone();
        tokio::spawn(async move {
            let error = match timeout(BETWEEN, kept.fetch(now)).await {
                Ok(Ok(_)) => return,
                Ok(Err(error)) => with_causes(&error),
                Err(late) => late.to_string(),
            };
            tracing::warn!(%error, "cannot renew AWS credentials; the current ones are used until they expire");
            drop(turn);
        });
    }

    async fn fetch(&self, now: SystemTime) -> Result<Arc<Held>, CredentialsError> {
        let held = Arc::new(Held::new(self.0.provider.provide_credentials().await?, now));
        *self.0.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&held));
        Ok(held)
    }

    /// Returns credentials that are not due for renewal. Fetches new ones if necessary. Only one caller at a time
    /// fetches credentials, while other callers wait.
    ///
    /// If the fetch fails or takes longer than [`PATIENCE`], returns the old credentials as long as they are valid.
    async fn provide(&self, now: SystemTime) -> provider::Result {
        let fresh = || self.held().filter(|held| now < held.renew_at);
        let fetched = async {
            let _turn = self.0.fetching.lock().await;
            match fresh() {
                Some(held) => Ok(held),
                None => self.fetch(now).await,
            }
        };
        let held = match (fresh(), self.held().filter(|held| held.holds(now))) {
            (Some(fresh), _) => fresh,
            (None, Some(held)) => match timeout(PATIENCE, fetched).await {
                Ok(Ok(fetched)) => fetched,
                Ok(Err(_)) | Err(_) => held,
            },
            (None, None) => fetched.await?,
        };
        Ok(held.credentials.clone())
    }
}

impl ProvideCredentials for KeptCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.provide(SystemTime::now()))
    }

    fn fallback_on_interrupt(&self) -> Option<Credentials> {
        self.0.provider.fallback_on_interrupt()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(60 * 60);

    /// A provider of credentials that are valid for an hour. It counts its fetches, and can be set to fail or to hang.
    #[derive(Debug, Default)]
    struct Source {
        fetches: AtomicUsize,
        broken: Mutex<bool>,
        begun: Notify,
        gate: Option<Notify>,
    }

    impl ProvideCredentials for &'static Source {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            future::ProvideCredentials::new(async {
                let count = self.fetches.fetch_add(1, Ordering::Relaxed) + 1;
                self.begun.notify_one();
                if let Some(gate) = &self.gate {
                    gate.notified().await;
                }
                if *self.broken.lock().unwrap() {
                    return Err(CredentialsError::provider_error("the endpoint is down"));
                }
                let until = SystemTime::now() + HOUR;
                Ok(Credentials::new(format!("KEY{count}"), "secret", None, Some(until), "test"))
            })
        }
    }

    fn kept(source: Source) -> (&'static Source, KeptCredentials) {
        let source: &'static Source = Box::leak(Box::new(source));
        (source, KeptCredentials::new(SharedCredentialsProvider::new(source)))
    }

    fn key(held: Option<Arc<Held>>) -> Option<String> {
        held.map(|held| held.credentials.access_key_id().to_owned())
    }

    #[tokio::test]
    async fn credentials_are_fetched_once_and_hold_until_they_expire() {
        let (source, kept) = kept(Source::default());
        let now = SystemTime::now();
        assert_eq!(key(kept.current(now)), None, "nothing was fetched yet");
        let all = [kept.provide(now), kept.provide(now), kept.provide(now)];
        let [one, two, three] = all;
        let (one, two, three) = tokio::join!(one, two, three);
        for provided in [one, two, three] {
            assert_eq!(provided.unwrap().access_key_id(), "KEY1");
        }
        assert_eq!(key(kept.current(now + HOUR - AHEAD - SECOND)).as_deref(), Some("KEY1"));
        assert_eq!(key(kept.current(now + HOUR + SECOND)), None);
        assert_eq!(source.fetches.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn renewal_happens_once_and_nobody_waits_for_it() {
        let (source, kept) = kept(Source { gate: Some(Notify::new()), ..Source::default() });
        let gate = source.gate.as_ref().unwrap();
        gate.notify_one();
        kept.provide(SystemTime::now()).await.unwrap();
        source.begun.notified().await;
        let later = SystemTime::now() + HOUR - 60 * SECOND;
        for _ in 0..3 {
            assert_eq!(key(kept.current(later)).as_deref(), Some("KEY1"));
        }
        source.begun.notified().await;
        assert_eq!(key(kept.current(later + 2 * BETWEEN - SECOND)).as_deref(), Some("KEY1"), "one is under way");
        gate.notify_one();
        while key(kept.current(SystemTime::now())).as_deref() != Some("KEY2") {
            tokio::task::yield_now().await;
        }
        assert_eq!(source.fetches.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_renewal_that_fails_leaves_the_old_credentials_in_use() {
        let (source, kept) = kept(Source::default());
        kept.provide(SystemTime::now()).await.unwrap();
        source.begun.notified().await;
        *source.broken.lock().unwrap() = true;
        let later = SystemTime::now() + HOUR - 60 * SECOND;
        for (after, fetches) in [(Duration::ZERO, 2), (BETWEEN - SECOND, 2), (BETWEEN, 3)] {
            assert_eq!(key(kept.current(later + after)).as_deref(), Some("KEY1"));
            if source.fetches.load(Ordering::Relaxed) < fetches {
                source.begun.notified().await;
            }
            drop(kept.0.fetching.lock().await);
            assert_eq!(source.fetches.load(Ordering::Relaxed), fetches, "{after:?}");
        }
        let provided = async |at| kept.provide(at).await.map(|credentials| credentials.access_key_id().to_owned());
        assert_eq!(provided(later).await.unwrap(), "KEY1", "they still hold");
        assert!(provided(later + HOUR).await.is_err());
        *source.broken.lock().unwrap() = false;
        assert_eq!(provided(later).await.unwrap(), "KEY6", "who may wait gets new ones");
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_hangs_is_not_waited_for_while_the_old_credentials_hold() {
        let (source, kept) = kept(Source { gate: Some(Notify::new()), ..Source::default() });
        source.gate.as_ref().unwrap().notify_one();
        let now = SystemTime::now();
        kept.provide(now).await.unwrap();
        assert!(kept.current(now + HOUR - 60 * SECOND).is_some(), "and begins a renewal, which hangs");
        let begun = tokio::time::Instant::now();
        let provided = kept.provide(now + HOUR - 60 * SECOND).await.unwrap();
        assert_eq!((provided.access_key_id(), begun.elapsed()), ("KEY1", PATIENCE));
    }

    #[test]
    fn credentials_without_an_end_are_asked_for_again_after_a_while() {
        let now = SystemTime::now();
        let held = Held::new(Credentials::new("KEY", "secret", None, None, "test"), now);
        assert_eq!(held.renew_at, now + KEPT);
        assert!(held.holds(now + 24 * HOUR));
        assert!(!format!("{held:?}").contains("secret\""), "{held:?}");
    }
}
