//! The server's answers to a batch of published messages, and what they say about each message. No I/O.
//!
//! RabbitMQ returns a message that no queue is bound for, and then confirms it like any other. The client library hands the
//! returned message out with whichever confirm it handles next, which can be the confirm of another message. So a confirm alone
//! does not tell where its message is. A batch has its channel to itself, and the returned messages are told by their addresses.

use hostler_queue::QueueError;
use lapin::Confirmation;
use lapin::message::{BasicReturnMessage, Delivery};

use super::envelope::Parcel;
use super::fault::queue_error;

/// Place of a published message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Routed {
    /// At least one queue has stored the message.
    Stored,
    /// No queue is bound for the message, so it is nowhere.
    Nowhere,
}

/// Exchange, routing key and id of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Address {
    exchange: String,
    key: String,
    id: Option<String>,
}

impl Address {
    pub(super) fn of(parcel: &Parcel) -> Self {
        let id = parcel.properties.message_id().as_ref().map(|id| id.as_str().to_owned());
        Self { exchange: parcel.exchange.clone(), key: parcel.key.clone(), id }
    }

    fn of_returned(message: &Delivery) -> Self {
        let id = message.properties.message_id().as_ref().map(|id| id.as_str().to_owned());
        Self { exchange: message.exchange.as_str().to_owned(), key: message.routing_key.as_str().to_owned(), id }
    }
}

/// The server's answer to one message.
#[derive(Debug)]
pub(super) enum Answer {
    /// The server has taken the message. Also contains a message of the same batch that the server has returned.
    Taken(Option<Address>),
    /// The server could not store the message. Contains a returned message as [`Self::Taken`] does.
    NotStored(Option<Address>),
    /// There is no confirm.
    Failed(QueueError),
}

impl Answer {
    pub(super) fn of(confirmed: lapin::Result<Confirmation>) -> Self {
        let address = |returned: Option<BasicReturnMessage>| returned.map(|it| Address::of_returned(&it.delivery));
        match confirmed {
            Ok(Confirmation::Ack(returned)) => Self::Taken(address(returned)),
            Ok(Confirmation::Nack(returned)) => Self::NotStored(address(returned)),
            Ok(Confirmation::NotRequested) => {
                Self::Failed(QueueError::Unavailable("RabbitMQ did not confirm the message".to_owned()))
            }
            Err(error) => Self::Failed(queue_error("cannot publish", &error)),
        }
    }

    /// Returns the message of the batch that came back with this answer.
    fn returned(&self) -> Option<&Address> {
        match self {
            Self::Taken(returned) | Self::NotStored(returned) => returned.as_ref(),
            Self::Failed(_) => None,
        }
    }
}

/// Returns the result of each message of a batch. `answers`: the answers to all messages, in the order of `batch`.
pub(super) fn results(batch: &[Address], answers: Vec<Answer>) -> Vec<Result<Routed, QueueError>> {
    let returned: Vec<_> = answers.iter().filter_map(Answer::returned).collect();
    let is_strange = returned.iter().any(|returned| !batch.contains(returned));
    let is_returned: Vec<_> = batch.iter().map(|address| returned.contains(&address)).collect();
    let result = |(answer, is_returned)| match answer {
        Answer::Taken(_) if is_returned => Ok(Routed::Nowhere),
        // One of the batch is nowhere, and it is not known which.
        Answer::Taken(_) if is_strange => Err(QueueError::Unavailable(
            "RabbitMQ returned a message that was not published; where the others are is not known".to_owned(),
        )),
        Answer::Taken(_) => Ok(Routed::Stored),
        Answer::NotStored(_) => Err(QueueError::Unavailable(
            "RabbitMQ did not store the message: a queue is full or has no leader".to_owned(),
        )),
        Answer::Failed(error) => Err(error),
    };
    answers.into_iter().zip(is_returned).map(result).collect()
}

/// Returns the positions of the messages that are to be published once more, each by itself. A message that the server refuses
/// ends the channel, and with it the confirms of all others, which may be without fault.
pub(super) fn to_repeat(results: &[Result<Routed, QueueError>]) -> Vec<usize> {
    let is_refused = results.iter().any(|result| matches!(result, Err(QueueError::Refused(_))));
    let failed = results.iter().enumerate().filter(|(_, result)| result.is_err()).map(|(n, _)| n);
    if is_refused && results.len() > 1 { failed.collect() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(key: &str, id: &str) -> Address {
        Address { exchange: String::new(), key: key.to_owned(), id: Some(id.to_owned()) }
    }

    #[test]
    fn a_returned_message_is_told_by_its_address_and_not_by_the_confirm_it_came_with() {
        let batch = [address("there", "1"), address("gone", "2"), address("there", "3")];
        for confirm in 0..3 {
            let answers = (0..3).map(|n| Answer::Taken((n == confirm).then(|| address("gone", "2"))));
            let results = results(&batch, answers.collect());
            assert_eq!(results, [Ok(Routed::Stored), Ok(Routed::Nowhere), Ok(Routed::Stored)], "{confirm}");
        }
    }

    #[test]
    fn a_returned_message_is_found_beside_one_that_was_not_stored() {
        let batch = [address("full", "1"), address("gone", "2")];
        let answers = vec![Answer::NotStored(Some(address("gone", "2"))), Answer::Taken(None)];
        let results = results(&batch, answers);
        assert!(matches!(&results[..], [Err(QueueError::Unavailable(_)), Ok(Routed::Nowhere)]), "{results:?}");
    }

    #[test]
    fn equal_messages_are_nowhere_if_one_of_them_is() {
        let batch = [address("gone", "1"), address("gone", "1")];
        let answers = vec![Answer::Taken(Some(address("gone", "1"))), Answer::Taken(None)];
        assert_eq!(results(&batch, answers), [Ok(Routed::Nowhere), Ok(Routed::Nowhere)]);
    }

    #[test]
    fn a_strange_return_leaves_no_message_as_stored() {
        let batch = [address("there", "1"), address("there", "2")];
        let answers = vec![Answer::Taken(Some(address("other", "7"))), Answer::Taken(None)];
        assert!(results(&batch, answers).iter().all(|result| matches!(result, Err(QueueError::Unavailable(_)))));
    }

    #[test]
    fn after_a_refusal_the_others_are_published_by_themselves() {
        let refused = || Err(QueueError::Refused("no exchange".to_owned()));
        let closed = || Err(QueueError::Unavailable("the channel is closed".to_owned()));
        assert_eq!(to_repeat(&[Ok(Routed::Stored), refused(), refused(), closed()]), [1, 2, 3]);
        assert!(to_repeat(&[refused()]).is_empty(), "it was by itself");
        assert!(to_repeat(&[Ok(Routed::Stored), closed()]).is_empty(), "the connection is lost");
    }
}
