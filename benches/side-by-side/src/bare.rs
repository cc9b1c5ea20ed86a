//! Reference contender: only the AWS SDK, the work, and batches of ten.
//!
//! Each loop receives ten messages, does the work on them, and deletes them in one call while it receives the next ten. It
//! extends no leases, handles no failures, and runs trusted code.

use std::time::Duration;

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, Message};
use tokio::task::{JoinHandle, JoinSet};

use crate::Result;

/// Maximum number of messages per call (AWS limit).
const BATCH: usize = 10;

/// Consumes without end.
pub fn run(url: &str, endpoint: &str, concurrency: usize, threads: Option<usize>) -> Result<()> {
    let mut builder = match threads {
        Some(1) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.enable_all().build()?.block_on(async {
        let timeouts = TimeoutConfig::builder().connect_timeout(Duration::from_secs(3)).build();
        let config = aws_config::defaults(BehaviorVersion::latest()).region(Region::from_static("eu-west-1"));
        let client = Client::new(&config.endpoint_url(endpoint).timeout_config(timeouts).load().await);
        let mut loops = JoinSet::new();
        for _ in 0..concurrency.div_ceil(BATCH) {
            loops.spawn(consume(client.clone(), url.to_owned()));
        }
        while let Some(ended) = loops.join_next().await {
            ended??;
        }
        Ok(())
    })
}

async fn consume(client: Client, url: String) -> Result<()> {
    let mut deleting: Option<JoinHandle<Result<()>>> = None;
    loop {
        let call = client.receive_message().queue_url(&url).max_number_of_messages(BATCH as i32).wait_time_seconds(20);
        let messages = call.send().await?.messages.unwrap_or_default();
        if let Some(deleting) = deleting.take() {
            deleting.await??;
        }
        if messages.is_empty() {
            continue;
        }
        let done = messages.into_iter().filter(|message| work::holds(message.body().unwrap_or_default().as_bytes()));
        deleting = Some(tokio::spawn(delete(client.clone(), url.clone(), done.collect())));
    }
}

async fn delete(client: Client, url: String, done: Vec<Message>) -> Result<()> {
    let entries = done.into_iter().enumerate().map(|(at, message)| {
        let handle = message.receipt_handle.unwrap_or_default();
        DeleteMessageBatchRequestEntry::builder().id(at.to_string()).receipt_handle(handle).build()
    });
    let entries = entries.collect::<std::result::Result<Vec<_>, _>>()?;
    let answer = client.delete_message_batch().queue_url(url).set_entries(Some(entries)).send().await?;
    if answer.failed.is_empty() { Ok(()) } else { Err("a delete failed".into()) }
}
