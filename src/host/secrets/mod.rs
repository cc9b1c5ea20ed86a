//! Secrets of consumers: looked up at the start, and again while the host runs.
//!
//! `known` decides what a look-up changes, without I/O.

mod known;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::handlers::all;
use crate::exit::{Exit, Failure, Result};
use hostler_config::Consumer;
use hostler_secrets::{Found, Lookup};
use hostler_types::secret::SecretRef;
use hostler_wasm::{SecretValues, SecretVariables};
use known::{Change, Known};

/// Time between two look-ups, before jitter.
const EVERY: Duration = Duration::from_secs(300);

/// Share of [`EVERY`] by which a look-up is earlier or later, so that many hosts do not ask at once.
const JITTER: f64 = 0.1;

/// Variables of one consumer whose values are secrets.
struct Variables {
    consumer: String,
    /// Names of the variables, each with its reference.
    references: Vec<(String, SecretRef)>,
    values: SecretVariables,
}

/// The secrets of all consumers.
pub struct Secrets {
    /// Notified to look them up once more.
    again: Arc<Notify>,
    lookup: Lookup,
    wanted: BTreeSet<SecretRef>,
    known: Known,
    /// Consumers with secrets.
    consumers: Vec<Variables>,
}

impl Secrets {
    /// Looks up the secrets of these consumers. `None`: they have none, and `again` is not called. It returns what is notified to look
    /// them up once more: from before the first look-up on, so that no notice during the start is lost.
    ///
    /// # Errors
    /// A secret cannot be had. Exit code 64 if somebody has to change something, 69 if the cause may pass.
    pub async fn of(consumers: &[Consumer], again: impl FnOnce() -> Arc<Notify>) -> Result<Option<Self>> {
        let wanted: BTreeSet<_> =
            consumers.iter().flat_map(|consumer| consumer.allow.secrets.values().cloned()).collect();
        if wanted.is_empty() {
            return Ok(None);
        }
        let (again, lookup) = (again(), Lookup::default());
        let found = lookup.find(&wanted).await;
        all(consumers.iter().flat_map(|consumer| faults(consumer, &found)).map(Err::<(), _>).collect())?;
        let mut known = Known::default();
        known.update(found);
        let with_secrets = consumers.iter().filter(|consumer| !consumer.allow.secrets.is_empty());
        let variables = |consumer: &Consumer| {
            let references: Vec<_> = consumer.allow.secrets.clone().into_iter().collect();
            let values = SecretVariables::new(values(&references, &known));
            Variables { consumer: consumer.name.clone(), references, values }
        };
        let consumers = with_secrets.map(variables).collect();
        Ok(Some(Self { again, lookup, wanted, known, consumers }))
    }

    /// Returns the variables of a consumer. `None`: it has no secrets.
    pub fn variables(&self, consumer: &str) -> Option<SecretVariables> {
        self.consumers.iter().find(|variables| variables.consumer == consumer).map(|variables| variables.values.clone())
    }

    /// Looks the secrets up again every 5 minutes, and each time that it is notified to. Ends when the result is dropped.
    pub(super) fn keep_current(mut self) -> JoinSet<()> {
        let mut keeping = JoinSet::new();
        keeping.spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(EVERY.mul_f64(1.0 - JITTER + 2.0 * JITTER * fastrand::f64())) => {}
                    () = self.again.notified() => {}
                }
                self.refresh().await;
            }
        });
        keeping
    }

    /// Looks the secrets up once more, and gives new values to new sandboxes.
    async fn refresh(&mut self) {
        let changes = self.known.update(self.lookup.find(&self.wanted).await);
        for Variables { consumer, references, values: variables } in &self.consumers {
            let own = changes.iter().flat_map(|(reference, change)| {
                let of = references.iter().filter(move |(_, other)| other == reference);
                of.map(move |(name, _)| (name, reference, change))
            });
            let mut is_renewed = false;
            for (variable, secret, change) in own {
                is_renewed |= *change == Change::Renewed;
                log(consumer, variable, secret, change);
            }
            if is_renewed {
                variables.set(values(references, &self.known));
            }
        }
    }
}

fn log(consumer: &str, variable: &str, secret: &SecretRef, change: &Change) {
    match change {
        Change::Renewed => {
            tracing::info!(consumer, variable, %secret, "secret changed; new sandboxes get the new value");
        }
        Change::Failing(error) => {
            let cure = error.cure();
            tracing::warn!(consumer, variable, %secret, %error, cure, "secret cannot be looked up; its last value stays");
        }
        Change::Recovered => tracing::info!(consumer, variable, %secret, "secret can be looked up again"),
    }
}

fn values(references: &[(String, SecretRef)], known: &Known) -> SecretValues {
    let value = |(name, reference): &(String, SecretRef)| Some((name.clone(), known.value(reference)?.clone()));
    references.iter().filter_map(value).collect()
}

/// Returns a failure for each variable of a consumer whose secret was not found.
fn faults(consumer: &Consumer, found: &Found) -> Vec<Failure> {
    let fault = |(name, reference): (&String, &SecretRef)| {
        let error = found.get(reference)?.as_ref().err()?;
        let exit = if error.is_passing() { Exit::QueueUnreachable } else { Exit::BadConfig };
        let key = format!("consumers.{}.allow.env.{name}", consumer.name);
        Some(Failure::new(
            exit,
            format!("{key}: cannot look up the secret {reference}: {error}\n  cure: {}", error.cure()),
        ))
    };
    consumer.allow.secrets.iter().filter_map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostler_secrets::LookupError;

    #[test]
    fn a_failure_names_variable_reference_cause_and_cure() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "[consumers.one]\nchannel = 'one'\nhandler = 'one.wasm'\n\
                    allow.env = { A = { secret = 'file:/a' }, B = { secret = 'file:/b' }, C = 'hunter2' }";
        std::fs::write(file.path(), text).unwrap();
        let config = hostler_config::load(Some(file.path()), std::iter::empty::<(String, String)>()).unwrap().config;
        let error = |passing| {
            let (fault, cure) = ("gone".to_owned(), "mount it");
            if passing { LookupError::Passing { fault, cure } } else { LookupError::Lasting { fault, cure } }
        };
        let found = [("file:/a", Err(error(true))), ("file:/b", Err(error(false)))];
        let found: Found = found.into_iter().map(|(text, found)| (text.parse().unwrap(), found)).collect();
        let failures = faults(&config.consumers[0], &found);
        assert_eq!(
            failures.iter().map(|failure| failure.exit).collect::<Vec<_>>(),
            [Exit::QueueUnreachable, Exit::BadConfig]
        );
        assert_eq!(
            failures[0].message,
            "consumers.one.allow.env.A: cannot look up the secret file:/a: gone\n  cure: mount it"
        );
    }
}
