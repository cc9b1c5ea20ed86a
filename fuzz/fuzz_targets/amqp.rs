//! Messages as RabbitMQ delivers them: the properties and headers of any producer, in the bytes of AMQP. A copy is the same message
//! with the attempts that it carries, a dead letter also says why, and a message that a command moves keeps its attributes.

#![no_main]

use std::time::SystemTime;

use hostler_queue::{ATTEMPTS_ATTRIBUTE, REASON_ATTRIBUTE, SOURCE_ATTRIBUTE};
use hostler_queue_rabbitmq::wire::{Delivered, Way};
use hostler_types::message::{Attributes, MAX_ATTRIBUTES, Message, TraceContext};
use libfuzzer_sys::fuzz_target;

/// Longest list of properties, in bytes. The client library's parser calls itself for each table within a table, and under the
/// sanitizer these calls need much of the stack.
const LONGEST: usize = 2048;

const BODY: &[u8] = b"a body";
const REASON: &str = "a reason";

/// Attributes that a dead letter gets.
const STORY: [&str; 3] = [REASON_ATTRIBUTE, SOURCE_ATTRIBUTE, ATTEMPTS_ATTRIBUTE];

fuzz_target!(|input: &[u8]| {
    let mut properties = input;
    let way = match hostler_fuzz::take(&mut properties) % 3 {
        0 => Way::Direct,
        1 => Way::Exchange,
        _ => Way::Ladder,
    };
    if properties.len() > LONGEST {
        return;
    }
    let Some(first) = Delivered::read(way, properties, BODY) else { return };
    let message = first.message();
    assert_eq!(message.body, BODY);
    assert!(message.id.len() <= 255 && message.attributes.keys().all(|name| name.len() <= 255));
    assert_eq!(message.trace.as_deref(), TraceContext::of(&message.attributes).as_ref());
    let _ = (message.content_type(), message.age(SystemTime::now()));
    let twice = Delivered::read(way, properties, BODY).expect("it was read before");
    assert_eq!(twice.message(), message, "the id is the same for all deliveries");
    let again = first.again(7);
    assert_eq!((again.message(), again.carried(), again.came_before()), (message, 7, true));
    assert_eq!(again.again(u32::MAX).carried(), u32::MAX);
    dead_lettered(message, &again.dead_letter(REASON));
    moved(message, &first.moved());
});

fn dead_lettered(message: &Message, dead: &Delivered) {
    assert_eq!(dead.carried(), 0, "attempts are counted anew");
    let Message { id, body, attributes, enqueued_at, group, routing_key, .. } = dead.message();
    assert_eq!((id, body, enqueued_at), (&message.id, &message.body, &message.enqueued_at));
    assert_eq!((group, routing_key), (&message.group, &message.routing_key));
    assert_eq!(others(attributes), others(&message.attributes));
    if message.attributes.len() + STORY.len() <= MAX_ATTRIBUTES || message.attributes.len() > MAX_ATTRIBUTES {
        assert_eq!(attributes.get(REASON_ATTRIBUTE).and_then(|value| value.as_text()), Some(REASON));
    }
}

fn moved(message: &Message, moved: &Delivered) {
    let Message { id, body, attributes, group, routing_key, .. } = moved.message();
    assert_eq!((id, body, group, routing_key), (&message.id, &message.body, &message.group, &message.routing_key));
    let plain = |attributes: &Attributes| {
        let plain = attributes.iter().map(|(name, value)| (name.clone(), format!("{:?}", value.plain())));
        plain.collect::<Vec<_>>()
    };
    assert_eq!(plain(attributes), plain(&message.attributes));
}

/// Returns the attributes that a dead letter does not get.
fn others(attributes: &Attributes) -> Attributes {
    let others = attributes.iter().filter(|(name, _)| !STORY.contains(&name.as_str()));
    others.map(|(name, value)| (name.clone(), value.clone())).collect()
}
