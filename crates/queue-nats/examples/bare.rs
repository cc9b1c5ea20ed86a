//! The bare loop of `benches/side-by-side/run.sh --nats`: consumes a JetStream queue by async-nats alone. It is here because this crate
//! has async-nats, whose JetStream client hostler leaves out. So the loop pulls and acks by the subjects of the server's API.
//!
//! Arguments: the server's URL, the stream, its durable consumer, the number of messages to have in hand, and `ack` or `confirmed`.

use std::env;
use std::error::Error;

use async_nats::{Client, Message, Subject};
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;

#[allow(dead_code, reason = "the loop does the work of the comparison, and needs nothing else of it")]
#[path = "../../../benches/side-by-side/work/src/lib.rs"]
mod work;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Content of an ack.
const ACK: &str = "+ACK";

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [url, stream, consumer, batch, acks] = arguments.as_slice() else {
        return Err("bare URL STREAM CONSUMER BATCH ack|confirmed".into());
    };
    let client = async_nats::connect(url).await?;
    let pulls = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
    consume(&client, pulls, batch.parse()?, acks == "confirmed").await
}

/// Consumes until the server is gone. `confirmed`: waits until the server has confirmed the acks, which are sent in one go.
async fn consume(client: &Client, pulls: String, batch: usize, confirmed: bool) -> Result<()> {
    let inbox = client.new_inbox();
    let mut batches = client.subscribe(inbox.clone()).await?.ready_chunks(batch);
    let mut asked = 0;
    loop {
        // The next pull is under way before the last one is used up.
        if asked <= batch / 2 {
            let pull = format!(r#"{{"batch":{}}}"#, batch - asked);
            client.publish_with_reply(pulls.clone(), inbox.clone(), pull.into()).await?;
            asked = batch;
        }
        let arrived = batches.next().await.ok_or("the server sends no more messages")?;
        asked = asked.saturating_sub(arrived.len());
        let mut replies = Vec::with_capacity(arrived.len());
        for message in arrived {
            replies.push(handle(message)?);
        }
        if confirmed {
            try_join_all(replies.into_iter().map(|reply| client.request(reply, ACK.into()))).await?;
        } else {
            for reply in replies {
                client.publish(reply, ACK.into()).await?;
            }
        }
    }
}

/// Does the work on a message. Returns the subject of its ack.
fn handle(message: Message) -> Result<Subject> {
    if let Some(status) = message.status {
        return Err(format!("the server refuses a pull: {status}").into());
    }
    if !work::holds(&message.payload) {
        return Err("a body is not what it says".into());
    }
    Ok(message.reply.ok_or("a message has no subject for its ack")?)
}
