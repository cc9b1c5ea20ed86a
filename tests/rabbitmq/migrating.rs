//! `book/src/rabbitmq/migrating.md`: the code after each migration is what `tests/porting` holds, builds, and does on RabbitMQ, with
//! the page's config, what the page says. Of the code before, Python is checked; the tests install neither Ruby nor Java.

use std::fs;
use std::path::Path;

use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use serde_json::{Value, json};

use super::unique;
use crate::porting::{blocks, is_code};
use crate::support::hostler::World;
use crate::support::rabbitmq::RabbitMq;
use crate::support::toolchains::{built, here};

const PAGE: &str = "book/src/rabbitmq/migrating.md";

/// The world of a section, on the shared server, and the prefix of its queues. The section shows the code of this file after its
/// migration, and one config.
fn migrated(section: &str, kind: &str, code: &str, needs: &[&str], changes: &[[&str; 2]]) -> (World, String) {
    let path = Path::new("tests/porting").join(code);
    let after = blocks(PAGE, section, kind).pop().unwrap();
    assert_eq!(after, fs::read_to_string(here("").join(&path)).unwrap(), "{section} does not show {}", path.display());
    let folder = path.ancestors().find(|folder| here("").join(folder).join("build.sh").exists()).unwrap();
    let guest = built(folder.to_str().unwrap(), needs);
    let configs = blocks(PAGE, section, "toml");
    let [config] = &configs[..] else { panic!("{section} has not one config") };
    let handler = config.lines().find_map(|line| line.strip_prefix("handler = ")).unwrap();
    let mut config = config.replace(handler, &format!("'{}'", guest.wasm.display()));
    for [from, to] in changes {
        assert!(config.contains(from), "{from} is not in {config}");
        config = config.replace(from, to);
    }
    let prefix = format!("{}-", unique("m"));
    let env = vec![
        ("HOSTLER_HOST__CACHE_DIR", guest.cache.display().to_string()),
        ("HOSTLER_HOST__HEALTH_FILE", "health.json".to_owned()),
        ("HOSTLER_QUEUE__RABBITMQ__URL", RabbitMq::shared().url()),
        ("HOSTLER_QUEUE__RABBITMQ__PREFIX", prefix.clone()),
    ];
    (World::with("", env, &config), prefix)
}

/// Sends these bodies, and returns the outcome and the reason of each message, sorted.
fn handled(world: &World, channel: &str, bodies: &[&str]) -> Vec<[String; 2]> {
    world.provision();
    world.send(channel, bodies);
    ended(world, bodies.len())
}

/// Runs a host until it has settled this number of messages.
fn ended(world: &World, count: usize) -> Vec<[String; 2]> {
    let mut host = world.started();
    let lines = host.settled(count);
    assert_eq!(host.stop(), 0);
    let of = |line: &Value| ["outcome", "reason"].map(|name| line[name].as_str().unwrap_or_default().to_owned());
    let mut ended: Vec<_> = lines.iter().map(of).collect();
    ended.sort();
    ended
}

/// The only message of a queue, as `peek` shows it.
fn only(world: &World, channel: &str) -> Value {
    let said = world.output(&["peek", channel, "--json"]);
    assert_eq!(said.code, 0, "{said:?}");
    let shown: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(shown.as_array().map(Vec::len), Some(1), "{shown}");
    shown[0].clone()
}

/// Declares a classic queue as Celery does, and sends to it what Celery 5.7 sends for each `confirm.delay(order, email=email)`.
async fn call_celery(url: &str, queue: &str, calls: &[(u64, Option<&str>)]) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), durable, FieldTable::default()).await.unwrap();
    for (order, email) in calls {
        let id = format!("fde786f4-b921-42c1-93b4-4a7214e2{order:04}");
        let headers = json!({
            "lang": "py", "task": "shop.confirm", "id": id, "shadow": null, "eta": null, "expires": null,
            "group": null, "group_index": null, "retries": 0, "timelimit": [null, null], "root_id": id,
            "parent_id": null, "argsrepr": format!("({order},)"), "kwargsrepr": "{}", "origin": "gen8853@vm",
            "ignore_result": false, "replaced_task_nesting": 0, "stamped_headers": null, "stamps": {},
        });
        let AMQPValue::FieldTable(headers) = amqp(&headers) else { panic!("{headers}") };
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_content_encoding("utf-8".into())
            .with_correlation_id(id.as_str().into())
            .with_reply_to("28040511-48ef-35ad-98e9-f35f772e6aa1".into())
            .with_delivery_mode(2)
            .with_priority(0)
            .with_headers(headers);
        let arguments = email.map_or_else(|| json!({}), |email| json!({ "email": email }));
        let options = json!({ "callbacks": null, "errbacks": null, "chain": null, "chord": null });
        let body = json!([[order], arguments, options]).to_string();
        let sent =
            channel.basic_publish("".into(), queue.into(), BasicPublishOptions::default(), body.as_bytes(), properties);
        sent.await.unwrap().await.unwrap();
    }
    connection.close(200, "done".into()).await.unwrap();
}

/// A header with this value, in the types that Python's client uses.
fn amqp(value: &Value) -> AMQPValue {
    match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(value) => AMQPValue::Boolean(*value),
        Value::Number(number) => AMQPValue::LongInt(number.as_i64().unwrap().try_into().unwrap()),
        Value::String(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Array(values) => AMQPValue::FieldArray(FieldArray::from(values.iter().map(amqp).collect::<Vec<_>>())),
        Value::Object(fields) => {
            let mut table = FieldTable::default();
            for (name, value) in fields {
                table.insert(name.as_str().into(), amqp(value));
            }
            AMQPValue::FieldTable(table)
        }
    }
}

/// The messages are Celery's, in a classic queue that Celery has declared.
#[test]
fn celery_s_messages_are_consumed_as_they_are() {
    let invoices = tempfile::tempdir().unwrap();
    fs::write(invoices.path().join("17.txt"), "17 books").unwrap();
    let folder = format!("host = \"{}\"", invoices.path().display());
    let code = "celery-amqp/app.py";
    let (world, prefix) =
        migrated("Celery", "python", code, &["sdk/python", "wit"], &[["host = \"/invoices\"", &folder]]);
    is_code(&blocks(PAGE, "Celery", "python")[0], "python");
    let calls = [(17, Some("ada@example.com")), (18, Some("ada@example.com")), (19, None)];
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let queue = format!("{prefix}confirmations");
    runtime.block_on(call_celery(&RabbitMq::shared().url(), &queue, &calls));
    world.provision();
    let ended = ended(&world, 3);
    let outcomes: Vec<_> = ended.iter().map(|[outcome, reason]| [outcome.as_str(), reason]).collect();
    assert_eq!(outcomes, [["ack", ""], ["dead-letter", "order 19 has no e-mail address"], ["delay", ""]]);
    let mail = only(&world, "mails");
    assert_eq!((&mail["body"], &mail["attributes"]["to"]), (&json!("17 books"), &json!("ada@example.com")), "{mail}");
    let dead = only(&world, "confirmations-dlq");
    assert_eq!(
        (&dead["attributes"]["task"], &dead["attributes"]["retries"]),
        (&json!("shop.confirm"), &json!("0")),
        "{dead}"
    );
}

#[test]
fn a_sneakers_worker_in_go() {
    let needs = ["sdk/go", "templates/go"];
    let (world, _) = migrated("Sneakers", "go", "sneakers/main.go", &needs, &[]);
    let good = r#"{"account": "A-1", "lines": [{"cents": 250}, {"cents": -50}]}"#;
    let ended = handled(&world, "statements", &[good, r#"{"account": "A-2", "lines": []}"#]);
    let reason = "the statement has no account, or no lines";
    assert_eq!(ended, [["dead-letter", reason], ["reply", ""]]);
    let balance: Value = serde_json::from_str(only(&world, "balances")["body"].as_str().unwrap()).unwrap();
    assert_eq!(balance, json!({ "account": "A-1", "cents": 200 }));
}

#[test]
fn a_spring_listener_in_rust() {
    let (world, _) = migrated("Spring AMQP", "rust", "spring-amqp/src/lib.rs", &["sdk/rust", "wit"], &[]);
    let bodies = [r#"{"article": "pen", "quantity": 3}"#, r#"{"article": "ink", "quantity": 0}"#, "ink"];
    let ended = handled(&world, "reservations", &bodies);
    assert_eq!(ended[0], ["ack", ""]);
    assert_eq!(ended[1..].iter().filter(|[outcome, _]| outcome == "dead-letter").count(), 2, "{ended:?}");
    assert!(ended.iter().any(|[_, reason]| reason == "the quantity is not positive"), "{ended:?}");
    let pick = only(&world, "picking");
    assert_eq!(pick["body"], r#"{"article":"pen","quantity":3}"#);
    assert_eq!(pick["attributes"]["content-type"], "application/json", "{pick}");
}
