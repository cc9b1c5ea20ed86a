//! The calls that every batch of messages needs: receive, delete and change visibility. The direct client makes each
//! call. If it cannot, the SDK's client makes the call.

use std::time::Duration;

use aws_sdk_sqs::error::{BoxError, SdkError};
use aws_sdk_sqs::operation::RequestId as _;
use aws_sdk_sqs::operation::receive_message::ReceiveMessageError;
use aws_sdk_sqs::operation::receive_message::builders::ReceiveMessageInputBuilder;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry,
};
use tokio::time::timeout;

use super::clients::{CALL, Clients};
use super::direct::{Answered, Failure};
use super::fault::{Fault, Request};
use super::json::{self, Entry};
use super::wire::{Incoming, incoming};
use hostler_queue::LeaseError;

/// Result of a batch call, entry by entry.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Ids of the entries that succeeded.
    pub(super) done: Vec<String>,
    /// Errors of the entries that failed.
    pub(super) failed: Vec<BatchResultErrorEntry>,
    /// AWS request id, for error messages.
    pub(super) request_id: Option<String>,
}

// The future of an SDK call takes about 10 KB. It is boxed, because otherwise every direct call would move these 10 KB
// too, although SDK calls are rare here.
impl Clients {
    /// Receives messages in a single attempt. There is no second attempt, because leases are counted from the start of
    /// this call: messages from a later attempt would already have lost part of their leases. `patience`: timeout of
    /// the call. `what`: description of the call for error messages.
    pub(super) async fn receive(
        &self,
        input: ReceiveMessageInputBuilder,
        patience: Duration,
        what: &str,
    ) -> Result<Vec<Incoming>, Fault> {
        let body = json::ask(&input);
        if let Some(answer) = self.directly("AmazonSQS.ReceiveMessage", body, patience, what, json::read_messages).await
        {
            return answer.map(|(messages, _)| messages);
        }
        let answer =
            timeout(patience, Box::pin(input.send_with(&self.polls))).await.map_err(|_| late(what, patience))?;
        match answer {
            Ok(answer) => Ok(answer.messages.into_iter().flatten().filter_map(incoming).collect()),
            // If the SDK cannot read one message, it rejects the whole answer. All messages in the answer are already
            // leased, so the readable ones are returned.
            Err(error) => messages_beside(&error).ok_or_else(|| Fault::of(what, &error)),
        }
    }

    /// Deletes messages in one batch call. `what`: description of the call for error messages.
    pub(super) async fn delete(&self, queue_url: &str, entries: &[Entry<'_>], what: &str) -> Result<Told, Fault> {
        let body = json::batch(queue_url, entries);
        if let Some(answer) = self.directly("AmazonSQS.DeleteMessageBatch", body, CALL, what, json::read_batch).await {
            return answer.map(told);
        }
        let sdks = |entry: &Entry<'_>| {
            let built = DeleteMessageBatchRequestEntry::builder().id(&entry.id).receipt_handle(entry.receipt_handle);
            built.build().ok()
        };
        let entries = entries.iter().filter_map(sdks).collect();
        let call = self.sqs.delete_message_batch().queue_url(queue_url).set_entries(Some(entries));
        let answer = Box::pin(call.send()).await.map_err(|error| Fault::of(what, &error))?;
        let request_id = answer.request_id().map(str::to_owned);
        let done = answer.successful.into_iter().map(|entry| entry.id).collect();
        Ok(Told { done, failed: answer.failed, request_id })
    }

    /// Changes the visibility timeouts of messages in one batch call. `what`: description of the call for error
    /// messages.
    pub(super) async fn change_visibility(
        &self,
        queue_url: &str,
        entries: &[Entry<'_>],
        what: &str,
    ) -> Result<Told, Fault> {
        let body = json::batch(queue_url, entries);
        if let Some(answer) =
            self.directly("AmazonSQS.ChangeMessageVisibilityBatch", body, CALL, what, json::read_batch).await
        {
            return answer.map(told);
        }
        let sdks = |entry: &Entry<'_>| {
            let built = ChangeMessageVisibilityBatchRequestEntry::builder().id(&entry.id);
            let built = built.receipt_handle(entry.receipt_handle).set_visibility_timeout(entry.visibility_timeout);
            built.build().ok()
        };
        let entries = entries.iter().filter_map(sdks).collect();
        let call = self.sqs.change_message_visibility_batch().queue_url(queue_url).set_entries(Some(entries));
        let answer = Box::pin(call.send()).await.map_err(|error| Fault::of(what, &error))?;
        let request_id = answer.request_id().map(str::to_owned);
        let done = answer.successful.into_iter().map(|entry| entry.id).collect();
        Ok(Told { done, failed: answer.failed, request_id })
    }

    /// Makes a call with the direct client, and parses the answer with `read`. Returns the parsed answer and the AWS
    /// request id. `None`: the direct client made no call, so the SDK's client must make it.
    async fn directly<T>(
        &self,
        target: &'static str,
        body: Result<Vec<u8>, serde_json::Error>,
        patience: Duration,
        what: &str,
        read: impl Fn(&[u8]) -> Result<T, BoxError>,
    ) -> Option<Result<(T, Option<String>), Fault>> {
        let lost = |why: &dyn std::fmt::Display| Fault::Unanswered(format!("{what}: {why}"));
        Some(match self.direct.as_ref()?.call(target, body.ok()?, patience).await {
            Ok(Answered { body, request_id }) => match read(&body) {
                Ok(answer) => Ok((answer, request_id)),
                Err(error) => Err(lost(&format_args!("{error}{}", Request(request_id.as_deref())))),
            },
            Err(Failure::NotMade) => return None,
            Err(Failure::Refused(refusal)) => Err(Fault::of_refusal(what, &refusal)),
            Err(Failure::Broken(error)) => Err(lost(&error)),
            Err(Failure::Late) => Err(late(what, patience)),
        })
    }
}

/// Answer to a batch call: one result for each entry, or one fault for the whole call.
pub(super) struct Answers {
    told: Told,
    otherwise: Option<Fault>,
}

impl Answers {
    pub(super) fn of_call(answered: Result<Told, Fault>) -> Self {
        match answered {
            Ok(told) => Self { told, otherwise: None },
            Err(fault) => Self { told: Told::default(), otherwise: Some(fault) },
        }
    }

    /// Returns the result of the n-th entry. An entry that the answer does not mention counts as failed. `what`:
    /// description of the call for error messages.
    pub(super) fn of(&self, what: &str, n: usize) -> Result<(), LeaseError> {
        let Told { done, failed, request_id } = &self.told;
        let id = n.to_string();
        // SQS usually answers in the order of the request, so the n-th id is compared first.
        if done.get(n) == Some(&id) || done.contains(&id) {
            return Ok(());
        }
        let failed = failed.iter().find(|entry| entry.id == id);
        let failed = failed.map(|entry| Fault::of_entry(what, entry, request_id.as_deref()));
        let fault = failed.or_else(|| self.otherwise.clone());
        Err(fault.unwrap_or_else(|| Fault::Later(format!("{what}: the answer does not mention the entry"))).into())
    }
}

/// Converts the parsed answer and the request id of a direct batch call to a [`Told`].
fn told(((done, failed), request_id): ((Vec<String>, Vec<BatchResultErrorEntry>), Option<String>)) -> Told {
    Told { done, failed, request_id }
}

/// Returns the messages that can be read from an answer that the SDK could not parse, for example because one of its
/// messages is malformed. `None`: the call failed, or the answer is not a list of messages.
fn messages_beside(error: &SdkError<ReceiveMessageError>) -> Option<Vec<Incoming>> {
    let answer = error.raw_response().filter(|answer| answer.status().is_success())?;
    json::read_messages(answer.body().bytes()?).ok()
}

fn late(what: &str, patience: Duration) -> Fault {
    Fault::Unanswered(format!("{what}: no answer within {} s", patience.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_of_an_answer_counts_for_itself() {
        let failed = |id: &str, code: &str| {
            BatchResultErrorEntry::builder().id(id).code(code).sender_fault(true).build().unwrap()
        };
        let failed = vec![failed("1", "ReceiptHandleIsInvalid"), failed("2", "RequestThrottled")];
        let answers = Answers::of_call(Ok(Told { done: vec!["0".into()], failed, request_id: None }));
        assert_eq!(answers.of("x", 0), Ok(()));
        assert!(matches!(answers.of("x", 1), Err(LeaseError::Lost(_))));
        assert!(matches!(answers.of("x", 2), Err(LeaseError::Retry(_))));
        assert!(matches!(answers.of("x", 3), Err(LeaseError::Retry(_))), "not mentioned");
    }
}
