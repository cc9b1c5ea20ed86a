//! Results of publishing a batch, for each of its messages.

use std::sync::Arc;
use std::time::Duration;

use hostler_queue::{
    Admin, Broker, ChannelSpec, Delivery, LeaseError, Link, Queue, QueueError, REASON_ATTRIBUTE, SendError, Settlement,
};
use hostler_queue_rabbitmq::{Options, RabbitBroker};
use hostler_types::message::{AttributeValue, Outgoing};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::driver::{Network, PATIENCE, ack, connect, jobs, next, options, receive, send, spec};
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::unique;

/// Receives this many messages.
async fn taken(queue: &Arc<dyn Queue>, count: usize) -> Vec<Delivery> {
    let (mut taken, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while taken.len() < count {
        assert!(Instant::now() < deadline, "{} of {count}", taken.len());
        taken.extend(receive(queue, count - taken.len(), Duration::from_secs(1)).await.unwrap());
    }
    taken
}

fn dead_letter(delivery: Delivery) -> Settlement {
    Settlement::DeadLetter { receipt: delivery.receipt, message: delivery.message, reason: "why".to_owned() }
}

/// The server confirms messages that it has returned like others, and several at once.
#[tokio::test]
async fn a_copy_that_reached_no_queue_is_told_from_those_that_did() {
    const BATCHES: usize = 8;
    const SIZE: usize = 64;
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("returned"));
    let broker = connect(server.url(), &prefix).await;
    let wide = ChannelSpec { window: BATCHES * SIZE, ..spec(false) };
    let queue = broker.open(&wide).await.unwrap();
    send(&broker, BATCHES * SIZE, None).await;
    let dlq = format!("{prefix}jobs-dlq");
    tokio::task::spawn_blocking(move || server.ctl(&["delete_queue", &dlq])).await.unwrap();
    let mut settling = JoinSet::new();
    for _ in 0..BATCHES {
        let batch = taken(&queue, SIZE).await.into_iter().enumerate().map(|(n, delivery)| match n % 2 {
            0 => Settlement::Release(delivery.receipt, Duration::from_secs(1)),
            _ => dead_letter(delivery),
        });
        let (queue, batch) = (Arc::clone(&queue), batch.collect());
        settling.spawn(async move { queue.settle(batch).await });
    }
    let mut wrong = Vec::new();
    for settled in settling.join_all().await {
        for (n, settled) in settled.into_iter().enumerate() {
            let is_right = match settled.as_ref().map_err(|unsettled| &unsettled.error) {
                Ok(()) => n % 2 == 0,
                Err(error) => n % 2 == 1 && matches!(error, LeaseError::Refused(_)),
            };
            wrong.extend((!is_right).then(|| format!("{n}: {:?}", settled.err().map(|unsettled| unsettled.error))));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// A message that the server refuses ends the channel, and with it the confirms of others.
#[tokio::test]
async fn a_refused_copy_does_not_fail_the_others() {
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("refused"));
    let own_ladder = Options { ladder_prefix: None, ..options(server.url(), &prefix) };
    let broker = RabbitBroker::connect(own_ladder).await.unwrap();
    let queue = broker.open(&spec(false)).await.unwrap();
    send(&broker, 20, None).await;
    let level = format!("rabbit_misc:r(<<\"/\">>, exchange, <<\"{prefix}hostler.delay.05\">>)");
    let deletion = format!("rabbit_exchange:delete({level}, false, <<\"a test\">>).");
    tokio::task::spawn_blocking(move || server.ctl(&["eval", &deletion])).await.unwrap();
    let batch = taken(&queue, 20).await.into_iter().enumerate().map(|(n, delivery)| match n {
        10 => Settlement::Release(delivery.receipt, Duration::from_secs(32)),
        _ => dead_letter(delivery),
    });
    let settled = queue.settle(batch.collect()).await;
    let failed: Vec<_> = settled.iter().enumerate().filter(|(_, settled)| settled.is_err()).map(|(n, _)| n).collect();
    assert_eq!(failed, [10], "{settled:?}");
    assert!(broker.depths(&[jobs()]).await.unwrap()[0].dead_lettered >= 19);
}

/// By these headers, the server would route a message to further queues.
#[tokio::test]
async fn a_message_goes_to_its_channel_alone() {
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("cc"));
    let broker = connect(server.url(), &prefix).await;
    let queue = broker.open(&spec(false)).await.unwrap();
    let attributes = [("CC".to_owned(), AttributeValue::Text(format!("{prefix}jobs-dlq")))].into();
    let sent = broker.send(&jobs(), vec![Outgoing { attributes, ..Outgoing::default() }]).await;
    sent.into_iter().for_each(|sent| drop(sent.unwrap()));
    ack(&queue, next(&queue).await).await;
    assert_eq!(broker.depths(&[jobs()]).await.unwrap()[0].dead_lettered, 0);
}

/// A silent network, which the heartbeats would notice only after minutes.
#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up_in_time() {
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let network = Network::before(server).await;
    let prefix = format!("{}-", unique("mute"));
    let url = format!("amqp://guest:guest@127.0.0.1:{}", network.port);
    let slow = Options { heartbeat: Duration::from_secs(120), ..options(url, &prefix) };
    let broker = RabbitBroker::connect(slow).await.unwrap();
    broker.open(&spec(false)).await.unwrap();
    network.silent.send_replace(true);
    let (channels, channel) = ([jobs()], jobs());
    let asked = async { tokio::join!(broker.depths(&channels), broker.send(&channel, vec![Outgoing::default()])) };
    let (depths, mut sent) = timeout(2 * PATIENCE, asked).await.unwrap();
    assert!(matches!(depths, Err(QueueError::Unavailable(_))), "{depths:?}");
    assert!(sent.remove(0).is_err());
}

/// Evaluates an expression in the server, in which `Q` is the queue of this name.
async fn evaluated(server: &'static RabbitMq, queue: &str, expression: &str) -> String {
    let lookup = format!("{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), ");
    let expression = format!("{lookup}{expression}.");
    tokio::task::spawn_blocking(move || server.ctl(&["eval", &expression])).await.unwrap()
}

/// Stops a queue, which confirms nothing until it is resumed, as if it had no leader.
async fn suspend(server: &'static RabbitMq, queue: &str) {
    evaluated(server, queue, "sys:suspend(element(1, amqqueue:get_pid(Q)))").await;
}

async fn resume(server: &'static RabbitMq, queue: &str) {
    evaluated(server, queue, "sys:resume(element(1, amqqueue:get_pid(Q)))").await;
}

/// Publishes a message with a header of this size to a queue, as another producer would.
async fn publish_large(server: &'static RabbitMq, queue: &str, size: usize) {
    let header = format!("{{<<\"big\">>, longstr, binary:copy(<<\"x\">>, {size})}}");
    let (queue, properties) = (queue.to_owned(), format!("[{{headers, [{header}]}}, {{delivery_mode, 2}}]"));
    tokio::task::spawn_blocking(move || server.publish(&queue, &properties, "<<\"body\">>", 1)).await.unwrap();
}

/// The server closes the connection of a client that sends a frame which is too large.
#[tokio::test]
async fn headers_that_do_not_fit_end_no_connection() {
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("large"));
    let broker = connect(server.url(), &prefix).await;
    let queue = broker.open(&spec(false)).await.unwrap();
    let attributes = |size: usize| [("big".to_owned(), AttributeValue::Text("x".repeat(size)))].into();
    let large = Outgoing { attributes: attributes(200_000), ..Outgoing::default() };
    let sent = broker.send(&jobs(), vec![Outgoing::default(), large, Outgoing::default()]).await;
    assert!(matches!(&sent[..], [Ok(_), Err(SendError::Invalid(_)), Ok(_)]), "{sent:?}");
    for delivery in taken(&queue, 2).await {
        ack(&queue, delivery).await;
    }

    let name = format!("{prefix}jobs");
    publish_large(server, &name, 115_000).await;
    let Delivery { receipt, message, .. } = next(&queue).await;
    let letter = Settlement::DeadLetter { receipt, message, reason: "y".repeat(17 * 1024) };
    queue.settle(vec![letter]).await.remove(0).unwrap();
    let dead = next(&broker.open_stored(&"jobs-dlq".parse().unwrap()).await.unwrap()).await;
    let reason = dead.message.attributes[REASON_ATTRIBUTE].len();
    assert!(reason < 17 * 1024 && reason > 10_000, "as much as there is room for: {reason}");

    publish_large(server, &name, 128_000).await;
    let released = Settlement::Release(next(&queue).await.receipt, Duration::from_secs(3600));
    queue.settle(vec![released]).await.remove(0).unwrap();
    let again = next(&queue).await;
    assert_eq!((again.attempt, again.message.attributes["big"].len()), (2, 128_000), "it has no room to wait");
    ack(&queue, again).await;
    assert_eq!(*broker.link().borrow(), Link::Up);
}

/// A copy may take as long as its patience lasts, and leases end meanwhile.
#[tokio::test]
async fn an_ack_does_not_wait_for_the_copies_of_others() {
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    // The server's tool may take as long as the driver waits for the copy, so one look may come too late.
    for _ in 0..5 {
        if is_acked_beside_a_copy(server).await {
            return;
        }
    }
    panic!("the ack waits for the copy");
}

/// Settles two messages, of which one needs a copy that the server does not confirm. Returns `true` if the other was seen to be
/// acked meanwhile.
async fn is_acked_beside_a_copy(server: &'static RabbitMq) -> bool {
    let prefix = format!("{}-", unique("beside"));
    let broker = connect(server.url(), &prefix).await;
    let queue = broker.open(&spec(false)).await.unwrap();
    send(&broker, 2, None).await;
    let mut in_hand = taken(&queue, 2).await;
    let (name, dlq) = (format!("{prefix}jobs"), format!("{prefix}jobs-dlq"));
    suspend(server, &dlq).await;
    let batch = vec![dead_letter(in_hand.remove(0)), Settlement::Ack(in_hand.remove(0).receipt)];
    let settling = tokio::spawn(async move { queue.settle(batch).await });
    // RabbitMQ 4 takes the name of a function.
    let total = "P = amqqueue:get_pid(Q), try ra:leader_query(P, fun rabbit_fifo:query_messages_total/1) \
                 catch error:function_clause -> ra:leader_query(P, {rabbit_fifo, query_messages_total, []}) end";
    let mut is_acked = false;
    while !is_acked && !settling.is_finished() {
        is_acked = evaluated(server, &name, total).await.contains(",1},") && !settling.is_finished();
    }
    resume(server, &dlq).await;
    let settled = settling.await.unwrap();
    assert!(!is_acked || settled.iter().all(Result::is_ok), "{settled:?}");
    is_acked
}

/// Each try to publish would otherwise have a channel for as long as the queue has no leader.
#[tokio::test]
async fn messages_without_a_confirm_leave_no_channels_behind() {
    const SENDERS: usize = 300;
    const MOST: usize = 256;
    let server = tokio::task::spawn_blocking(RabbitMq::shared).await.unwrap();
    let prefix = format!("{}-", unique("leak"));
    let user = prefix.clone();
    let ctl = |args: Vec<String>| {
        tokio::task::spawn_blocking(move || server.ctl(&args.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    ctl(words(&["add_user", &user, "secret"])).await.unwrap();
    ctl(words(&["set_permissions", &user, ".*", ".*", ".*"])).await.unwrap();
    let channels = async || {
        let listed = ctl(words(&["list_connections", "user", "channels", "--silent"])).await.unwrap();
        let counts = listed.lines().filter_map(|line| line.strip_prefix(&user)?.trim().parse::<usize>().ok());
        counts.sum::<usize>()
    };
    let broker = Arc::new(connect(server.url().replace("guest:guest", &format!("{user}:secret")), &prefix).await);
    broker.open(&spec(false)).await.unwrap();
    send(&broker, 1, None).await;
    let name = format!("{prefix}jobs");
    suspend(server, &name).await;
    let mut sending = JoinSet::new();
    for _ in 0..SENDERS {
        let broker = Arc::clone(&broker);
        sending.spawn(async move { broker.send(&jobs(), vec![Outgoing::default()]).await.remove(0) });
    }
    let mut most = 0;
    while most < MOST {
        most = most.max(channels().await);
        assert!(sending.try_join_next().is_none(), "{most} channels when the first was given up");
    }
    assert_eq!(most, MOST);
    for sent in sending.join_all().await {
        assert!(matches!(sent, Err(SendError::Queue(QueueError::Unavailable(_)))), "{sent:?}");
    }
    // The server closes a channel only once the queue has answered.
    resume(server, &name).await;
    let deadline = Instant::now() + PATIENCE;
    while channels().await > 0 {
        if Instant::now() >= deadline {
            let columns = ["list_channels", "user", "number", "confirm", "messages_unconfirmed", "state", "--silent"];
            panic!("channels are left: {}", ctl(words(&columns)).await.unwrap());
        }
    }
    send(&broker, 1, None).await;
}
