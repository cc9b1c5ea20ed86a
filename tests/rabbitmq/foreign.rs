//! Messages of producers that do not keep to what hostler sends.

use super::{PATIENCE, WORK, world};
use crate::support::hostler::until;
use crate::support::rabbitmq::RabbitMq;
use crate::support::servers::unique;

/// Publishes a message with these properties, which are Erlang terms.
fn publish(server: &RabbitMq, queue: &str, properties: &str, body: &str) {
    let exchange = "rabbit_misc:r(<<\"/\">>, exchange, <<>>)";
    server.eval(&format!("rabbit_basic:publish({exchange}, <<\"{queue}\">>, [{properties}], <<\"{body}\">>)."));
}

/// The client library ends its connection over a short string that is not UTF-8, and its thread over headers in many levels.
#[test]
fn messages_that_the_client_library_cannot_read_hinder_nobody() {
    let server = RabbitMq::shared();
    let mut world = world(server, WORK);
    let prefix = format!("{}-", unique("foreign"));
    world.set("HOSTLER_QUEUE__RABBITMQ__PREFIX", prefix.clone());
    let mut host = world.started();
    let queue = format!("{prefix}work");
    let deep = "lists:foldl(fun (_, A) -> [{array, A}] end, [], lists:seq(1, 20000))";
    let deep = format!("{{headers, [{{<<\"h\">>, array, {deep}}}]}}");
    publish(server, &queue, "{app_id, <<\"caf\", 16#e9>>}", "x1");
    publish(server, &queue, "{message_id, <<255>>}, {headers, [{<<255>>, longstr, <<255>>}]}", "ack");
    publish(server, &queue, &deep, "x1");
    world.send("work", ["ack"]);
    let lines = host.settled(8);
    let acked: Vec<_> = lines.iter().filter(|line| line["outcome"] == "ack").collect();
    assert!(acked.len() == 2 && acked.iter().all(|line| line["attempt"] == 1), "{lines:?}");
    assert!(acked.iter().any(|line| line["message_id"] == "?"), "{lines:?}");
    assert!(lines.iter().all(|line| line["outcome"] != "lease-lost"), "{lines:?}");
    let told = |line: &serde_json::Value| line["message"].as_str().is_some_and(|text| text.contains("not UTF-8"));
    assert!(host.lines().iter().any(told), "{:?}", host.lines());
    until("they are dead letters", PATIENCE, || (world.depth("work").dead_lettered == 2).then_some(()));
    let peeked = world.output(&["peek", "work-dlq", "--json"]);
    assert!(peeked.code == 0 && peeked.stdout.contains("caf?"), "{peeked:?}");
    assert_eq!(host.stop(), 0);
}
