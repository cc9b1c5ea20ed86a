//! Acks that record a success and send messages in the transaction that removes their message.

use std::borrow::Cow;
use std::collections::HashMap;

use hostler_postgres::{Client, DatabaseError};
use hostler_queue::{Commit, Finish, LeaseError};
use hostler_types::channel::Channel;
use hostler_types::message::{Invalid, MAX_ATTRIBUTES, Outgoing};

use super::faults::{no_queue, to_lease_error, to_queue_error};
use super::records::{self, Session};
use super::send::{self, WriteError, Written, check};
use super::service::Service;
use super::settle;
use super::ticket::{Ticket, lost};

/// An ack that is still to be made. Its messages are valid.
struct Pending<'a> {
    /// Place in the batch.
    place: usize,
    ticket: Ticket,
    finish: Option<&'a Finish>,
    messages: Vec<(&'a Channel, Cow<'a, Outgoing>)>,
}

/// The end of a transaction that did not fail.
enum Attempt {
    /// It was committed. Contains the messages that it removed: the leases of the others are lost.
    Done(Vec<Ticket>),
    /// It was rolled back, because of acks whose runs do not hold their records. Contains these acks, by their places.
    Fenced(HashMap<usize, LeaseError>),
}

/// Makes acks, all in one transaction if that works. If it fails, each has a transaction of its own, so that an ack that can never be
/// made does not make others fail.
pub(super) async fn commit(service: &Service, batch: &[(Ticket, &Commit)]) -> Vec<Result<(), LeaseError>> {
    let mut results: Vec<Result<(), LeaseError>> = batch.iter().map(|_| Err(lost())).collect();
    let mut pending = Vec::new();
    for (place, (ticket, commit)) in batch.iter().enumerate() {
        match messages(commit) {
            Ok(messages) => {
                pending.push(Pending { place, ticket: *ticket, finish: commit.finish.as_ref(), messages });
            }
            Err(invalid) => results[place] = Err(LeaseError::Unfit(invalid.to_string())),
        }
    }
    if pending.is_empty() {
        return results;
    }
    match service.run(service.database.client()).await {
        Ok(mut client) => commit_all(service, &mut client, pending, &mut results).await,
        Err(error) => pending.iter().for_each(|one| results[one.place] = Err(to_lease_error(&error))),
    }
    results
}

/// Returns the messages of a commit as they are sent.
fn messages(commit: &Commit) -> Result<Vec<(&Channel, Cow<'_, Outgoing>)>, Invalid> {
    let mut all = Vec::new();
    for (channel, message) in &commit.messages {
        check(message)?;
        let mut message = Cow::Borrowed(message);
        if message.trace.is_some() {
            message.to_mut().carry_trace(MAX_ATTRIBUTES);
        }
        all.push((channel, message));
    }
    Ok(all)
}

/// Makes acks, and writes their results.
async fn commit_all(
    service: &Service,
    client: &mut Client,
    all: Vec<Pending<'_>>,
    results: &mut [Result<(), LeaseError>],
) {
    let mut left = vec![all];
    while let Some(mut group) = left.pop() {
        let attempt = attempt(service, client, &group).await;
        service.note(attempt.as_ref().err().and_then(WriteError::of_the_database));
        match attempt {
            Ok(Attempt::Done(removed)) => {
                for one in group {
                    results[one.place] = if removed.contains(&one.ticket) { Ok(()) } else { Err(lost()) };
                }
            }
            Ok(Attempt::Fenced(faults)) => {
                group.retain(|one| !faults.contains_key(&one.place));
                for (place, fault) in faults {
                    results[place] = Err(fault);
                }
                if !group.is_empty() {
                    left.push(group);
                }
            }
            Err(error) => {
                let fault = fault_of(&error);
                if is_lost(&error) {
                    // The connection cannot be used any more.
                    for one in left.drain(..).flatten().chain(group) {
                        results[one.place] = Err(fault.clone());
                    }
                } else if let [one] = &group[..] {
                    results[one.place] = Err(fault);
                } else {
                    left.extend(group.into_iter().rev().map(|one| vec![one]));
                }
            }
        }
    }
}

/// Makes acks in one transaction. All transactions lock messages and their groups, then records, then what is sent to.
async fn attempt(service: &Service, client: &mut Client, all: &[Pending<'_>]) -> Result<Attempt, WriteError> {
    let tx = client.transaction().await?;
    let tickets: Vec<Ticket> = all.iter().map(|one| one.ticket).collect();
    let removed = settle::remove(&tx, tickets).await?;
    let ours: Vec<&Pending<'_>> = all.iter().filter(|one| removed.contains(&one.ticket)).collect();
    let (places, finishes): (Vec<usize>, Vec<&Finish>) =
        ours.iter().filter_map(|one| Some((one.place, one.finish?))).unzip();
    if !finishes.is_empty() {
        let recorded = records::finish(service, Session::Transaction(&tx), &finishes).await?;
        let faults: HashMap<usize, LeaseError> =
            places.into_iter().zip(recorded).filter_map(|(place, result)| Some((place, result.err()?))).collect();
        if !faults.is_empty() {
            return Ok(Attempt::Fenced(faults));
        }
    }
    let messages: Vec<(&Channel, &Outgoing)> =
        ours.iter().flat_map(|one| one.messages.iter().map(|(channel, message)| (*channel, &**message))).collect();
    let written = if messages.is_empty() { None } else { Some(send::write(service, &tx, &messages).await?) };
    tx.commit().await?;
    written.map(|written: Written| written.committed(service));
    Ok(Attempt::Done(removed))
}

/// Returns `true` if the connection is lost, so that no other statement can be tried on it.
fn is_lost(error: &WriteError) -> bool {
    let fatal = |error: &DatabaseError| {
        matches!(error, DatabaseError::Unreachable { .. } | DatabaseError::Deadline | DatabaseError::UnknownFate)
    };
    error.of_the_database().is_some_and(fatal)
}

/// Returns the result of an ack whose own transaction has failed. Tables and rights that are missing may come.
fn fault_of(error: &WriteError) -> LeaseError {
    let error = match error {
        WriteError::NoQueue(name) => return LeaseError::Unfit(no_queue(name).to_string()),
        WriteError::Database(error) => error,
    };
    let told = to_queue_error(error);
    match error {
        // undefined_table, invalid_schema_name
        DatabaseError::Refused { code, .. } if code != "42P01" && code != "3F000" => {
            LeaseError::Unfit(told.to_string())
        }
        _ => to_lease_error(&told),
    }
}
