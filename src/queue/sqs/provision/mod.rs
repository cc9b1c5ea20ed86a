//! What there should be on AWS for a channel, against what there is.

pub(super) mod policy;

/// The attribute that carries the routing key, which filter policies look at.
pub(super) const ROUTING_KEY_ATTRIBUTE: &str = "routing-key";

use super::Service;
use super::resolve::Place;
use crate::queue::{Change, ChannelSpec, Finding, QueueError};

pub(super) async fn plan(_service: &Service, _wanted: &[ChannelSpec]) -> Result<Vec<Change>, QueueError> {
    Ok(Vec::new())
}

pub(super) async fn apply(
    _service: &Service,
    _wanted: &[ChannelSpec],
    _done: &mut (dyn FnMut(&Change) + Send),
) -> Result<(), QueueError> {
    Ok(())
}

pub(super) async fn inspect(_service: &Service, _spec: &ChannelSpec) -> Result<Vec<Finding>, QueueError> {
    Ok(Vec::new())
}

/// Creates what a consumer of `spec` needs and what is not there; changes nothing that is.
pub(super) async fn create_missing(service: &Service, spec: &ChannelSpec) -> Result<(), QueueError> {
    if service.find_queue(spec.channel.queue(), spec.ordered).await?.is_some() {
        return Ok(());
    }
    use aws_sdk_sqs::types::QueueAttributeName as Q;
    let c = &service.clients.sqs;
    let mut redrive = None;
    let fifo = |b: aws_sdk_sqs::operation::create_queue::builders::CreateQueueFluentBuilder| {
        if spec.ordered {
            b.attributes(Q::FifoQueue, "true").attributes(Q::ContentBasedDeduplication, "true")
        } else {
            b
        }
    };
    let err = |e: String| QueueError::Refused(e);
    if let Some(n) = spec.max_receives {
        let name = service.names.on_aws(&spec.channel.dead_letter_queue(), spec.ordered);
        let u = fifo(c.create_queue().queue_name(name))
            .send()
            .await
            .map_err(|e| err(format!("{e:?}")))?
            .queue_url
            .unwrap_or_default();
        let a = c
            .get_queue_attributes()
            .queue_url(u)
            .attribute_names(Q::QueueArn)
            .send()
            .await
            .map_err(|e| err(format!("{e:?}")))?
            .attributes
            .unwrap_or_default();
        redrive = Some(serde_json::json!({"deadLetterTargetArn": a[&Q::QueueArn], "maxReceiveCount": n}).to_string());
    }
    let name = service.names.on_aws(spec.channel.queue(), spec.ordered);
    let mut b = fifo(c.create_queue().queue_name(name).attributes(Q::MaximumMessageSize, "1048576"));
    if let Some(r) = redrive {
        b = b.attributes(Q::RedrivePolicy, r);
    }
    let u = b.send().await.map_err(|e| err(format!("{e:?}")))?.queue_url.unwrap_or_default();
    if let Some(x) = spec.channel.exchange() {
        let a = c
            .get_queue_attributes()
            .queue_url(u)
            .attribute_names(Q::QueueArn)
            .send()
            .await
            .map_err(|e| err(format!("{e:?}")))?
            .attributes
            .unwrap_or_default();
        let t = create_topic(service, x, spec.ordered).await?;
        use crate::channel::Filter as F;
        let f = match &spec.filter {
            F::All => None,
            F::Exact(v) => Some(serde_json::json!({"routing-key": v})),
            F::Prefix(v) => Some(
                serde_json::json!({"routing-key": v.iter().map(|p| serde_json::json!({"prefix": p})).collect::<Vec<_>>()}),
            ),
            F::Exclude(v) => Some(serde_json::json!({"routing-key": [{"anything-but": v}]})),
        };
        let mut s = service
            .clients
            .sns
            .subscribe()
            .topic_arn(&*t.address)
            .protocol("sqs")
            .endpoint(&a[&Q::QueueArn])
            .attributes("RawMessageDelivery", "true");
        if let Some(f) = f {
            s = s.attributes("FilterPolicy", f.to_string());
        }
        s.send().await.map_err(|e| err(format!("{e:?}")))?;
    }
    Ok(())
}

/// Creates a queue for a producer, with nothing but its name; the one that is there already, if it is.
pub(super) async fn create_queue(service: &Service, name: &str, ordered: bool) -> Result<Place, QueueError> {
    use aws_sdk_sqs::types::QueueAttributeName as Q;
    let n = service.names.on_aws(name, ordered);
    let mut b = service.clients.sqs.create_queue().queue_name(n);
    if ordered {
        b = b.attributes(Q::FifoQueue, "true");
    }
    b.send().await.map_err(|e| QueueError::Refused(format!("{e:?}")))?;
    Ok(service.find_queue(name, ordered).await?.unwrap())
}

/// Creates a topic for a producer; the one that is there already, if it is.
pub(super) async fn create_topic(service: &Service, exchange: &str, ordered: bool) -> Result<Place, QueueError> {
    let n = service.names.on_aws(exchange, ordered);
    let mut b = service.clients.sns.create_topic().name(&n);
    if ordered {
        b = b.attributes("FifoTopic", "true").attributes("ContentBasedDeduplication", "true");
    }
    let arn = b.send().await.map_err(|e| QueueError::Refused(format!("{e:?}")))?.topic_arn.unwrap_or_default();
    Ok(service.remember_topic(&n, &arn))
}
