//! Deletes unused queues and bodies. Before a queue is deleted, all conditions for its deletion are checked again.

use std::collections::BTreeSet;
use std::time::SystemTime;

use aws_sdk_s3::types::{Delete, ObjectIdentifier};

use super::depth::name_of;
use super::fault::Fault;
use super::{Service, inventory, payload};
use hostler_queue::{Body, QueueError, Removal, StoredBodies, Unread, tag};

/// Maximum number of objects deleted per call (AWS limit of DeleteObjects: 1,000).
const PER_CALL: usize = 1000;

/// Deletes the queue with the AWS name `name`, if hostler owns the queue, the queue is empty, and every queue that uses
/// it as its dead-letter queue has already been deleted. Otherwise, returns the reason for keeping it. `gone`: AWS
/// names of the queues that have already been deleted.
pub(super) async fn remove_queue(
    service: &Service,
    name: &str,
    gone: &BTreeSet<String>,
) -> Result<Removal, QueueError> {
    let sqs = &service.clients.sqs;
    let asked = sqs.get_queue_url().queue_name(name).send().await;
    let url = match asked.map_err(|error| Fault::of(&format!("GetQueueUrl of {name}"), &error)) {
        Ok(answer) => answer.queue_url.unwrap_or_default(),
        Err(fault) if fault.is_missing() => return Ok(Removal::Kept("it is gone already".to_owned())),
        Err(fault) => return Err(fault.into()),
    };
    let mut sources = sqs.list_dead_letter_source_queues().queue_url(&url).into_paginator().items().send();
    while let Some(source) = sources.next().await {
        let source = source.map_err(|error| Fault::of(&format!("ListDeadLetterSourceQueues of {name}"), &error))?;
        if !gone.contains(name_of(&source)) {
            return Ok(Removal::Kept(format!("it takes the dead letters of {}", name_of(&source))));
        }
    }
    let unread = |unread: Unread| QueueError::Unavailable(format!("{name}: {}", unread.reason));
    let tags = inventory::tags(service, &url).await.map_err(unread)?;
    if !tags.is_some_and(|tags| tag::is_owned(&tags)) {
        return Ok(Removal::Kept("its tags no longer say that it is hostler's".to_owned()));
    }
    // Check one last time, because a deletion cannot be undone.
    match inventory::contents(service, &url).await.map_err(unread)?.map(|held| held.messages()) {
        Some(0) => {}
        Some(count) => return Ok(Removal::Kept(format!("{count} messages have come"))),
        None => return Ok(Removal::Kept("it is gone already".to_owned())),
    }
    let deleted = sqs.delete_queue().queue_url(&url).send().await;
    deleted.map_err(|error| Fault::of(&format!("DeleteQueue of {name}"), &error))?;
    Ok(Removal::Removed)
}

/// Lists at most `most` bodies that were stored before `time`. Excludes objects that other programs store under the
/// same prefix. `None`: no bucket is configured.
pub(super) async fn stored_before(
    service: &Service,
    time: SystemTime,
    most: usize,
) -> Result<Option<StoredBodies>, QueueError> {
    let Some(bucket) = &service.options.bucket else { return Ok(None) };
    let mut stored = StoredBodies { bucket: bucket.clone(), ..StoredBodies::default() };
    let listed = service.clients.s3.list_objects_v2().bucket(bucket).prefix(payload::OWN);
    let mut pages = listed.into_paginator().send();
    while let Some(page) = pages.next().await {
        let page = page.map_err(|error| Fault::of(&format!("ListObjectsV2 of {bucket}"), &error))?;
        for object in page.contents.unwrap_or_default() {
            let (Some(key), Some(at)) = (object.key.filter(|key| payload::is_body(key)), object.last_modified) else {
                continue;
            };
            let at = u64::try_from(at.secs()).unwrap_or(u64::MAX);
            if SystemTime::UNIX_EPOCH.checked_add(std::time::Duration::from_secs(at)).is_none_or(|at| at >= time) {
                continue;
            }
            if stored.bodies.len() == most {
                stored.more = true;
                return Ok(Some(stored));
            }
            let bytes = u64::try_from(object.size.unwrap_or(0)).unwrap_or(0);
            stored.bodies.push(Body { key, stored_at: at, bytes });
        }
    }
    Ok(Some(stored))
}

/// Deletes bodies and returns the number of deleted bodies.
pub(super) async fn remove_bodies(service: &Service, bodies: &[Body]) -> Result<usize, QueueError> {
    let Some(bucket) = &service.options.bucket else { return Ok(0) };
    let invalid = |error: &dyn std::fmt::Display| QueueError::Refused(format!("DeleteObjects of {bucket}: {error}"));
    let mut removed = 0;
    for batch in bodies.chunks(PER_CALL) {
        let objects = batch.iter().map(|body| ObjectIdentifier::builder().key(&body.key).build());
        let objects = objects.collect::<Result<Vec<_>, _>>().map_err(|error| invalid(&error))?;
        let delete = Delete::builder().set_objects(Some(objects)).quiet(true).build();
        let delete = delete.map_err(|error| invalid(&error))?;
        let answer = service.clients.s3.delete_objects().bucket(bucket).delete(delete).send().await;
        let answer = answer.map_err(|error| Fault::of(&format!("DeleteObjects of {bucket}"), &error))?;
        if let Some(first) = answer.errors().first() {
            let (key, code) = (first.key().unwrap_or_default(), first.code().unwrap_or("no error code"));
            let count = answer.errors().len();
            return Err(QueueError::Refused(format!(
                "DeleteObjects of {bucket}: {count} objects stay, s3://{bucket}/{key} and more: {code}"
            )));
        }
        removed += batch.len();
    }
    Ok(removed)
}
