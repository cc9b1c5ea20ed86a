//! Sends messages and copies of dead letters: prepares them and packs them into batches.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::Service;
use super::batch::batches;
use super::deliver::{Delivered, Job, deliver};
use super::fault::Fault;
use super::in_order::{Ended, deliver_in_order};
use super::not_before;
use super::place::{Place, Target};
use super::wire::{Entry, beside, size, trace_size};
use hostler_queue::parallel::{side_by_side, stopping};
use hostler_queue::{DEFAULT_GROUP, LeaseError, SendError, Sent};
use hostler_types::channel::Channel;
use hostler_types::message::{AttributeValue, Invalid, MAX_ATTRIBUTES, Outgoing};

/// Sends messages to a channel. Returns the results in the order of the messages.
pub(super) async fn send(
    service: &Arc<Service>,
    channel: &Channel,
    batch: Vec<Outgoing>,
) -> Vec<Result<Sent, SendError>> {
    let count = batch.len();
    let grouped = batch.iter().any(|message| message.group.is_some());
    let target = match service.target(channel, grouped).await {
        Ok(target) => target,
        Err(error) => return vec![Err(error.into()); count],
    };
    let target = up_to_date(service, channel, target, &batch).await;
    let prepared = side_by_side(batch.into_iter().map(|message| {
        let (service, target) = (Arc::clone(service), target.clone());
        async move {
            let counted = message.dedupe.is_none() && matches!(target, Target::Queue(_));
            let threshold = service.options.threshold;
            if let Some(claim) = &message.claim {
                service.renew(claim).await?;
            }
            prepare(&service, &target, message, threshold).await.map(|entry| (entry, counted))
        }
    }));
    let mut answers = Vec::with_capacity(count);
    let mut entries = Vec::new();
    for (index, prepared) in prepared.await.into_iter().enumerate() {
        match prepared.unwrap_or_else(|| Err(stopping().into())) {
            Ok((entry, counted)) => {
                entries.push(Job { index, counted, entry });
                answers.push(Err(stopping().into()));
            }
            Err(error) => answers.push(Err(error)),
        }
    }
    let jobs = batches(entries, target.place().max_message, |job| job.entry.size());
    for (index, answer) in deliver_all(service, channel, &target, jobs).await {
        if let Some(place) = answers.get_mut(index) {
            *place = answer;
        }
    }
    answers
}

/// Returns the target with settings that are recent enough to check the delays of `batch`. If the cached settings
/// refuse a delay, reads them again, because `provision` may have changed them. If that fails, the cached settings
/// apply.
async fn up_to_date(service: &Service, channel: &Channel, target: Target, batch: &[Outgoing]) -> Target {
    let Target::Queue(place) = &target else { return target };
    let is_refused = |message: &Outgoing| message.delay > not_before::KEPT && fits(place, message.delay).is_err();
    if place.ordered || !batch.iter().any(is_refused) {
        return target;
    }
    match service.reread_queue(place).await {
        Ok(Some(place)) => {
            let target = Target::Queue(place);
            service.resolver.remember_target(channel, &target);
            return target;
        }
        Ok(None) => {}
        Err(error) => tracing::debug!(queue = &*place.name, %error, "cannot read the settings of a queue again"),
    }
    target
}

/// Checks that a message can wait in a queue for `delay`.
fn fits(place: &Place, delay: Duration) -> Result<(), Invalid> {
    not_before::check(&place.name, delay, place.max_receives, place.keeps).map_err(Invalid::Unsupported)
}

/// Sends all batches: one after the other if the target is ordered, otherwise in parallel.
async fn deliver_all(service: &Arc<Service>, channel: &Channel, target: &Target, jobs: Vec<Vec<Job>>) -> Delivered {
    if target.place().ordered {
        let (mut delivered, mut target, mut ended) = (Vec::new(), target.clone(), Ended::new());
        for jobs in jobs {
            delivered.extend(deliver_in_order(service, channel, &mut target, jobs, &mut ended).await);
        }
        return delivered;
    }
    let deliver = |jobs| deliver(Arc::clone(service), channel.clone(), target.clone(), jobs);
    side_by_side(jobs.into_iter().map(deliver)).await.into_iter().flatten().flatten().collect()
}

/// Copies messages to a dead-letter queue in a single attempt. The caller retries while the lease lasts. Copies without
/// a confirmation by `until` count as failed.
///
/// If the dead-letter queue accepts the size of a copy, the copy is sent with its body, regardless of the threshold.
/// There are two reasons not to store the body in the bucket. First, the pointer to the body needs an attribute, and
/// the copy may already have the maximum number of attributes. Second, if the send call failed, the stored body would
/// remain in the bucket.
pub(super) async fn forward(
    service: &Arc<Service>,
    target: &Place,
    copies: Vec<Outgoing>,
    until: Instant,
) -> Vec<Result<(), LeaseError>> {
    let target = Target::Queue(target.clone());
    let prepared = side_by_side(copies.into_iter().map(|copy| {
        let (service, target) = (Arc::clone(service), target.clone());
        async move { timeout_at(until, prepare(&service, &target, copy, usize::MAX)).await }
    }));
    let over = || LeaseError::Retry(format!("{}: no copy before the lease's end", target.place().name));
    let mut results: Vec<Result<(), LeaseError>> = Vec::new();
    let mut entries = Vec::new();
    for (index, prepared) in prepared.await.into_iter().enumerate() {
        results.push(Err(match prepared {
            Some(Ok(Ok(entry))) => {
                entries.push((index, entry));
                over()
            }
            Some(Ok(Err(SendError::Invalid(error)))) => LeaseError::Unfit(error.to_string()),
            Some(Ok(Err(SendError::Queue(error)))) => LeaseError::Retry(error.to_string()),
            Some(Err(_)) => over(),
            None => LeaseError::Retry(stopping().to_string()),
        }));
    }
    let calls = batches(entries, target.place().max_message, |(_, entry)| entry.size()).into_iter().map(|batch| {
        let (service, target) = (Arc::clone(service), target.clone());
        async move {
            let answers = timeout_at(until, service.call(&target, batch.iter().map(|(_, entry)| entry))).await;
            batch.into_iter().map(|(index, _)| index).zip(answers.unwrap_or_default()).collect::<Vec<_>>()
        }
    });
    let answers: Vec<_> = if target.place().ordered {
        in_turn(calls).await
    } else {
        side_by_side(calls).await.into_iter().flatten().flatten().collect()
    };
    for (index, answer) in answers {
        let Some(result) = results.get_mut(index) else { continue };
        *result = match answer {
            Ok(_) => Ok(()),
            Err(Fault::Never(text)) => Err(LeaseError::Refused(text)),
            Err(Fault::Message(text)) => Err(LeaseError::Unfit(text)),
            Err(fault) => Err(LeaseError::Retry(fault.into_text())),
        };
    }
    results
}

/// Makes calls one after the other and returns all their answers.
async fn in_turn<T>(calls: impl Iterator<Item = impl Future<Output = Vec<T>>>) -> Vec<T> {
    let mut answers = Vec::new();
    for call in calls {
        answers.extend(call.await);
    }
    answers
}

/// Converts a message to the form in which it is sent to `target`. If the message is larger than `threshold`, or larger
/// than the target accepts, stores its body in the bucket and adds an attribute that points to it. If the message
/// already has the maximum number of attributes, it is sent with its body, provided that the target accepts its size.
async fn prepare(
    service: &Service,
    target: &Target,
    mut message: Outgoing,
    threshold: usize,
) -> Result<Entry, SendError> {
    let place = target.place();
    let is_topic = matches!(target, Target::Topic(_));
    message.validate(usize::MAX)?;
    if message.delay > Duration::ZERO {
        put_off(&mut message, target, service.clients.clock.show(SystemTime::now()))?;
        message.validate(usize::MAX)?;
    }
    if place.ordered {
        message.group.get_or_insert_with(|| DEFAULT_GROUP.to_owned());
        // A message without a dedupe key gets a unique key, which its retries share.
        message.dedupe.get_or_insert_with(|| Uuid::now_v7().to_string());
    } else if message.dedupe.is_some() {
        let text = "SQS drops duplicates in FIFO queues only: leave the dedupe key out, or make the channel ordered";
        return Err(Invalid::DedupeUnsupported(text).into());
    }
    let bytes = size(&message);
    match way(&message, bytes, place.max_message, service.options.bucket.as_ref().map(|_| threshold))? {
        Way::Whole => {}
        Way::ByBucket => message = service.check_in(message, is_topic).await?,
    }
    let xray = message.trace.as_ref().map(|trace| trace.xray());
    if size(&message) + trace_size(&message) > place.max_message {
        message.trace = None;
    }
    Ok(Entry { xray, ..Entry::new(message)? })
}

/// Reduces the delay of a message to the part that SQS or SNS handles itself. If the delay is longer, stores the
/// message's start time in an attribute, because the consumer must then wait for that time. `now`: time by the SQS
/// clock.
///
/// # Errors
/// The target cannot delay messages, or cannot delay them for this long.
fn put_off(message: &mut Outgoing, target: &Target, now: SystemTime) -> Result<(), Invalid> {
    let place = target.place();
    if place.ordered {
        let text = "a delayed message of a FIFO queue would hold up its group, and SQS cannot delay it: send it later";
        return Err(Invalid::DelayUnsupported(text));
    }
    let kept = match target {
        Target::Queue(_) => message.delay.min(not_before::KEPT),
        Target::Topic(_) => Duration::ZERO,
    };
    if message.delay > kept {
        fits(place, message.delay)?;
        let stamp = AttributeValue::Text(not_before::stamp(now, message.delay));
        message.attributes.insert(not_before::ATTRIBUTE.to_owned(), stamp);
    }
    message.delay = kept;
    Ok(())
}

/// Way in which the body of a message is sent.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    Whole,
    ByBucket,
}

/// Decides how the body of a message is sent. `bytes`: size of the message. `most`: maximum size that the target
/// accepts. `threshold`: maximum size of a message that is sent with its body. `None`: there is no bucket.
fn way(message: &Outgoing, bytes: usize, most: usize, threshold: Option<usize>) -> Result<Way, Invalid> {
    let Some(threshold) = threshold.filter(|_| message.claim.is_none()) else {
        return if bytes > most { Err(Invalid::TooLarge { size: bytes, max: most }) } else { Ok(Way::Whole) };
    };
    let count = message.attributes.len() + beside(&[], message.routing_key.is_some(), true);
    match count <= MAX_ATTRIBUTES {
        true if bytes > threshold.min(most) => Ok(Way::ByBucket),
        false if bytes > most => Err(Invalid::TooManyAttributes { count }),
        _ => Ok(Way::Whole),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::place::example;
    use super::super::scripted::Service as Scripted;
    use super::*;
    use hostler_types::message::Claim;

    const MOST: usize = 1000;

    fn message(attributes: usize, bytes: usize) -> Outgoing {
        let attributes = (0..attributes).map(|n| (format!("a{n}"), AttributeValue::Text("x".into()))).collect();
        Outgoing { body: vec![b'x'; bytes], attributes, ..Outgoing::default() }
    }

    fn by(message: &Outgoing, threshold: Option<usize>) -> Result<Way, Invalid> {
        way(message, message.body.len(), MOST, threshold)
    }

    #[test]
    fn a_body_goes_to_the_bucket_if_its_pointer_has_room() {
        for (bytes, way) in [(100, Way::Whole), (101, Way::ByBucket), (1001, Way::ByBucket)] {
            assert_eq!(by(&message(9, bytes), Some(100)), Ok(way), "{bytes}");
        }
        // No attribute is left for the pointer, so the message is sent whole if it fits.
        for bytes in [101, 1000] {
            assert_eq!(by(&message(10, bytes), Some(100)), Ok(Way::Whole), "{bytes}");
        }
        let too_many = Err(Invalid::TooManyAttributes { count: 11 });
        assert_eq!(by(&message(10, 1001), Some(100)), too_many);
        let keyed = Outgoing { routing_key: Some("key".into()), ..message(9, 1001) };
        assert_eq!(by(&keyed, Some(100)), too_many);
    }

    #[test]
    fn a_copy_that_fits_goes_as_it_is() {
        assert_eq!(by(&message(3, 1000), Some(usize::MAX)), Ok(Way::Whole));
        assert_eq!(by(&message(3, 1001), Some(usize::MAX)), Ok(Way::ByBucket));
    }

    fn place(name: &str, max_receives: Option<u32>) -> Place {
        Place { max_receives, keeps: Some(Duration::from_secs(4 * 86_400)), ..example(name) }
    }

    #[tokio::test]
    async fn before_a_delay_is_refused_the_queue_is_read_again() {
        let (scripted, channel) = (Scripted::answering(200), "jobs".parse().unwrap());
        let service = scripted.behind().await;
        let cached = Target::Queue(place("jobs", Some(5)));
        let of = async |seconds| {
            let batch = [Outgoing { delay: Duration::from_secs(seconds), ..message(0, 1) }];
            up_to_date(&service, &channel, cached.clone(), &batch).await
        };
        assert_eq!((of(3600).await, scripted.calls().len()), (cached.clone(), 0), "it fits");
        let read = of(3 * 86_400).await;
        assert_eq!((read.place().max_receives, read.place().keeps), (None, None), "as the service tells it now");
        assert_eq!((service.resolver.target(&channel), scripted.calls().len()), (Some(read), 1));
        scripted.answer(400);
        assert_eq!(of(3 * 86_400).await, cached);
    }

    #[test]
    fn a_delay_beyond_what_the_service_keeps_is_stamped() {
        let now = SystemTime::UNIX_EPOCH;
        let put_off = |target: Target, seconds: u64| {
            let mut message = Outgoing { delay: Duration::from_secs(seconds), ..message(0, 1) };
            put_off(&mut message, &target, now)?;
            let stamp = message.attributes.get("hostler-not-before").and_then(|value| value.as_text());
            Ok::<_, Invalid>((message.delay.as_secs(), stamp.map(str::to_owned)))
        };
        let queue = |receives| Target::Queue(place("jobs", receives));
        let topic = || Target::Topic(Place { keeps: None, ..place("news", None) });
        assert_eq!(put_off(queue(Some(5)), 900), Ok((900, None)));
        let hour = || Some("1970-01-01T01:00:01Z".to_owned());
        assert_eq!(put_off(queue(Some(5)), 3600), Ok((900, hour())));
        assert_eq!(put_off(topic(), 3600), Ok((0, hour())));
        assert_eq!(put_off(topic(), 1), Ok((0, Some("1970-01-01T00:00:02Z".to_owned()))), "SNS keeps nothing back");
        assert!(matches!(put_off(queue(Some(5)), 3 * 86_400), Err(Invalid::Unsupported(_))));
        assert!(put_off(queue(Some(10)), 3 * 86_400).is_ok());
        let ordered = [Target::Queue(place("jobs.fifo", None)), Target::Topic(place("news.fifo", None))];
        for target in ordered {
            assert!(matches!(put_off(target, 1), Err(Invalid::DelayUnsupported(_))));
        }
    }

    #[test]
    fn without_a_bucket_or_with_a_claim_it_has_to_fit() {
        let too_large = Err(Invalid::TooLarge { size: 1001, max: MOST });
        assert_eq!(by(&message(0, 1000), None), Ok(Way::Whole));
        assert_eq!(by(&message(0, 1001), None), too_large);
        let claim = Some(Arc::new(Claim { bucket: "b".into(), key: "k".into(), size: None }));
        let claimed = Outgoing { claim, ..message(9, 0) };
        assert_eq!(way(&claimed, 101, MOST, Some(100)), Ok(Way::Whole));
        assert_eq!(way(&claimed, 1001, MOST, Some(100)), too_large);
    }
}
