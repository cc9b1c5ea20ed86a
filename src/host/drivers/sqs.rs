//! Driver for SQS, which also uses SNS and S3.

use std::sync::Arc;

use async_trait::async_trait;

use super::QueueDriver;
use hostler_config::{Config, Provision};
use hostler_queue::{Disposal, Inventory, Provisioner, QueueError};
use hostler_queue_sqs::{Options, SqsBroker};

pub(super) struct Sqs;

#[async_trait]
impl QueueDriver for Sqs {
    async fn connect(&self, config: &Config) -> Result<Arc<dyn Provisioner>, QueueError> {
        Ok(Arc::new(SqsBroker::connect(options(config)).await?))
    }

    async fn inventory(&self, config: &Config) -> Result<Arc<dyn Inventory>, QueueError> {
        Ok(Arc::new(SqsBroker::connect(options(config)).await?))
    }

    async fn disposal(&self, config: &Config) -> Result<Arc<dyn Disposal>, QueueError> {
        Ok(Arc::new(SqsBroker::connect(options(config)).await?))
    }

    fn system(&self) -> &'static str {
        "aws_sqs"
    }

    fn title(&self) -> &'static str {
        "SQS"
    }

    fn makes_what_is_missing(&self, config: &Config) -> bool {
        config.queue.sqs.provision == Provision::Auto
    }

    fn uses_aws(&self) -> bool {
        true
    }

    fn cost_of_a_look(&self) -> Option<&'static str> {
        Some("SQS counts an attempt on each")
    }

    fn receives_to_wait(&self) -> bool {
        true
    }

    fn has_fair_queues(&self) -> bool {
        true
    }

    fn uses_payload(&self) -> bool {
        true
    }

    fn cure_of_a_denial(&self) -> &'static str {
        "`hostler iam` prints the policy that this config needs"
    }

    fn cure_of_a_refusal(&self) -> &'static str {
        "; `hostler check` says what is missing, and `hostler iam` prints the policy that this config needs"
    }
}

/// Returns the SQS options from the config.
pub fn options(config: &Config) -> Options {
    let (sqs, payload) = (&config.queue.sqs, &config.payload);
    Options {
        region: sqs.region.clone(),
        endpoint_url: sqs.endpoint_url.clone(),
        credentials: None,
        prefix: sqs.prefix.clone(),
        create_missing: sqs.provision == Provision::Auto,
        kms_key: sqs.kms_key.clone(),
        bucket: payload.bucket.clone(),
        threshold: usize::try_from(payload.threshold).unwrap_or(usize::MAX),
        generated_calls_only: !sqs.direct_calls,
        http: None,
    }
}
