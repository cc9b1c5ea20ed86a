//! Proof that the server answers.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use hostler_types::error_chain::with_causes;
use tokio::time::{Instant, timeout_at};

use super::{Line, Unanswered};

/// Returns `true` for the server's refusal of a proof, which is as good as an answer.
pub(super) fn is_refused(error: &str) -> bool {
    error.contains(".proof\"")
}

impl Line {
    /// Makes sure that the server answers: it says at once that nobody listens on a new subject, or refuses the subject, or the one
    /// for the answer. So the user needs no permission. All that it sent before has come when this returns.
    pub(crate) async fn prove(&self, patience: Duration) -> Result<(), Unanswered> {
        let mut watch = self.watch();
        if let Some(why) = self.is_down() {
            return Err(Unanswered::Unsent(why));
        }
        let (client, deadline) = (&self.client, Instant::now() + patience);
        let [subject, inbox] = [0, 0].map(|_| format!("{}.proof", client.new_inbox()));
        let mut answers =
            client.subscribe(inbox.clone()).await.map_err(|error| Unanswered::Failed(with_causes(&error)))?;
        let asked = client.publish_with_reply(subject.clone(), inbox.clone(), Bytes::new()).await;
        asked.map_err(|error| Unanswered::Failed(with_causes(&error)))?;
        let needs = [&*subject, &*inbox];
        let fault = tokio::select! {
            biased;
            answer = timeout_at(deadline, answers.next()) => match answer {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => Unanswered::Failed(self.events.reason()),
                Err(_) => {
                    let why = self.is_down();
                    Unanswered::Failed(why.unwrap_or_else(|| format!("NATS gave no answer within {patience:?}")))
                }
            },
            fault = watch.fault(&needs) => fault,
        };
        if matches!(fault, Unanswered::Denied(_)) { Ok(()) } else { Err(fault) }
    }
}
