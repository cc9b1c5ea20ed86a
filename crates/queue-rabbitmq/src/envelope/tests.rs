use hostler_types::message::Attributes;

use super::*;

const AMPLE: usize = 100_000;

fn at(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

fn delivered(exchange: &str, key: &str, properties: BasicProperties, body: &[u8]) -> Mail {
    let mut delivery = Delivery::mock(1, exchange.into(), key.into(), false, body.to_vec());
    delivery.properties = properties;
    Mail::read(delivery, |exchange| exchange.starts_with("ladder"), false, at(9))
}

fn redelivered(parcel: Parcel) -> Mail {
    delivered(&parcel.exchange, &parcel.key, parcel.properties, &parcel.body)
}

fn sent() -> Outgoing {
    Outgoing {
        body: b"body".to_vec(),
        attributes: [
            ("content-type".to_owned(), AttributeValue::Text("text/plain".into())),
            ("bytes".to_owned(), AttributeValue::Binary(vec![0, 255])),
        ]
        .into(),
        routing_key: Some("EU.order".into()),
        group: Some("g".into()),
        ..Outgoing::default()
    }
}

#[test]
fn a_message_arrives_as_it_was_sent_however_it_came() {
    let message = sent();
    let direct = outgoing(&message, "id", Some("EU.order"), None, at(1234));
    let fanned = outgoing(&message, "id", None, Some(at(5000)), at(1234));
    for (mail, exchange, not_before) in [
        (delivered("", "jobs", direct.clone(), b"body"), "", None),
        (delivered("ladder.due", "0.1.jobs", direct, b"body"), "", None),
        (delivered("shop", "EU.order", fanned, b"body"), "shop", Some(at(5000))),
    ] {
        let Message { id, body, attributes, enqueued_at, group, routing_key, .. } = &*mail.message;
        assert_eq!((&**id, &**body, *enqueued_at), ("id", &b"body"[..], at(1234)));
        assert_eq!((attributes, group.as_deref(), routing_key), (&message.attributes, Some("g"), &message.routing_key));
        assert_eq!((&*mail.exchange, mail.not_before, mail.carried, mail.deliveries), (exchange, not_before, 0, 0));
    }
}

#[test]
fn a_copy_carries_the_attempts_and_the_message_as_it_was() {
    let mail = delivered("shop", "EU.order", outgoing(&sent(), "id", None, Some(at(5000)), at(1234)), b"body");
    let again = redelivered(mail.again("ladder.03".into(), "1.jobs".into(), 4));
    assert_eq!((&again.message, again.carried, again.not_before), (&mail.message, 4, None));
    assert!(again.is_copy && !mail.is_copy);
    let third = redelivered(again.again(String::new(), "jobs".into(), 5));
    assert_eq!((&third.message, third.carried), (&mail.message, 5));
    let hashes = RandomState::new();
    assert!([&again, &third].iter().all(|copy| copy.content_hash(&hashes) == mail.content_hash(&hashes)));
}

#[test]
fn the_content_of_a_message_is_more_than_its_id_and_body() {
    let hashes = RandomState::new();
    let hash = |message: Outgoing, sent_at| {
        delivered("", "jobs", outgoing(&message, "id", None, None, at(sent_at)), b"body").content_hash(&hashes)
    };
    let other = [
        hash(Outgoing { attributes: Attributes::new(), ..sent() }, 1000),
        hash(Outgoing { group: None, ..sent() }, 1000),
        hash(sent(), 5000),
    ];
    assert!(!other.contains(&hash(sent(), 1000)) && hash(sent(), 1000) == hash(sent(), 1000));
}

/// On servers from 4.3 on, `x-delivery-count` counts no return.
#[test]
fn a_message_that_was_only_returned_is_known_to_come_again() {
    let came_before = |count| {
        let mut headers = FieldTable::default();
        headers.insert("x-acquired-count".into(), AMQPValue::LongLongInt(count));
        delivered("", "jobs", BasicProperties::default().with_headers(headers), b"body").came_before()
    };
    assert!(came_before(1) && !came_before(0));
}

/// A producer may copy the headers of a message that it received.
#[test]
fn headers_of_a_producer_neither_count_as_deliveries_nor_hold_a_message_for_long() {
    let read = |redelivered, not_before: SystemTime| {
        let mut headers = FieldTable::default();
        headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(900));
        headers.insert("hostler-not-before".into(), millis(not_before));
        let mut delivery = Delivery::mock(1, "".into(), "jobs".into(), redelivered, b"body".to_vec());
        delivery.properties = BasicProperties::default().with_headers(headers);
        let mail = Mail::read(delivery, |_| false, true, at(9));
        (mail.deliveries, mail.not_before)
    };
    let (longest, far) = (at(9) + hostler_types::message::MAX_DELAY, at(9) + 2 * ladder::MAX_DELAY);
    assert_eq!((read(false, longest), read(true, longest)), ((0, Some(longest)), (900, Some(longest))));
    assert_eq!(read(false, far), (0, None));
}

#[test]
fn a_dead_letter_has_its_story_and_is_counted_anew() {
    let mail = delivered("", "jobs", outgoing(&sent(), "id", Some("EU.order"), None, at(1234)), b"body");
    let again = redelivered(mail.again(String::new(), "jobs".into(), 4));
    let parcel = again.dead_letter_within(AMPLE, "jobs-dlq", "why", "jobs", 5);
    assert_eq!((&*parcel.exchange, &*parcel.key), ("", "jobs-dlq"));
    let dead = redelivered(parcel);
    let told = |name: &str| dead.message.attributes.get(name).and_then(AttributeValue::as_text);
    assert_eq!(
        [told(REASON_ATTRIBUTE), told(SOURCE_ATTRIBUTE), told(ATTEMPTS_ATTRIBUTE)],
        [Some("why"), Some("jobs"), Some("5")]
    );
    assert_eq!(
        (dead.carried, &dead.message.routing_key, dead.message.enqueued_at),
        (0, &mail.message.routing_key, at(1234))
    );
    let twice = redelivered(dead.dead_letter_within(AMPLE, "q", "again", "jobs-dlq", 1));
    assert_eq!(twice.message.attributes[REASON_ATTRIBUTE].as_text(), Some("again"));
    assert_eq!(twice.message.attributes.len(), dead.message.attributes.len());
}

/// A header frame that is too large ends the connection.
#[test]
fn a_dead_letter_has_as_much_of_its_story_as_there_is_room_for() {
    let mut headers = FieldTable::default();
    headers.insert("big".into(), text(&"x".repeat(5000)));
    headers.insert(CARRIED.into(), AMQPValue::LongLongInt(3));
    let properties = BasicProperties::default().with_message_id("id".into()).with_delivery_mode(PERSISTENT);
    let mail = delivered("shop", "EU.order", properties.with_headers(headers), b"x");
    let told = |most| {
        let parcel = mail.dead_letter_within(most, "jobs-dlq", &"é".repeat(50), "jobs", 3);
        let size = frame::size(&parcel.properties);
        assert!(size <= most, "{size} of {most}");
        let names = parcel.properties.headers().as_ref().unwrap();
        let names: Vec<_> = names.inner().keys().map(|name| name.as_str()).filter(|name| *name != "big").collect();
        let has_all = [REASON_ATTRIBUTE, SOURCE_ATTRIBUTE, ATTEMPTS_ATTRIBUTE, KEY].iter().all(|it| names.contains(it));
        let count = names.len();
        assert!(!names.contains(&CARRIED));
        let reason = redelivered(parcel).message.attributes.get(REASON_ATTRIBUTE).cloned();
        (size, has_all, reason.map(|reason| reason.len()), count)
    };
    let (full, ..) = told(AMPLE);
    assert_eq!(told(full), (full, true, Some(100), 5));
    assert_eq!(told(full - 1), (full - 2, true, Some(98), 5));
    assert_eq!(told(full - 100), (full - 100, true, Some(0), 5));
    let (untold, has_all, reason, headers) = told(full - 101);
    assert_eq!((has_all, reason, headers), (false, None, 2), "with its routing key and its time");
    let (bare, _, _, headers) = told(untold - 1);
    assert_eq!(headers, 0);
    assert!(bare < frame::size(&mail.properties), "it came in a frame");
}

/// Its frame may be as large as the server takes.
#[test]
fn a_dead_letter_without_room_is_no_larger_than_the_original() {
    let mut headers = FieldTable::default();
    headers.insert("big".into(), text(&"x".repeat(5000)));
    let without_mode = BasicProperties::default().with_headers(headers);
    for properties in [without_mode.clone(), without_mode.with_delivery_mode(PERSISTENT)] {
        let most = frame::size(&properties);
        let mail = delivered("shop", "EU.order", properties.clone(), b"x");
        let parcel = mail.dead_letter_within(most, "jobs-dlq", "why", "jobs", 3);
        assert_eq!((frame::size(&parcel.properties), &*parcel.key), (most, "jobs-dlq"));
        assert_eq!(parcel.properties.delivery_mode(), properties.delivery_mode());
        assert_eq!(redelivered(parcel).message.id, mail.message.id);
    }
}

#[test]
fn the_server_acts_on_nothing_in_a_copy() {
    let mut headers = FieldTable::default();
    for name in ["x-death", "x-first-death-queue", "x-last-death-reason", "x-delivery-count", "kept"] {
        headers.insert(name.into(), AMQPValue::LongLongInt(3));
    }
    let foreign = BasicProperties::default()
        .with_headers(headers)
        .with_expiration("1000".into())
        .with_user_id("guest".into())
        .with_reply_to("answers".into())
        .with_priority(7);
    let mail = delivered("", "jobs", foreign, b"x");
    assert_eq!(
        (mail.deliveries, mail.message.attributes.keys().map(String::as_str).collect::<Vec<_>>()),
        (0, vec!["kept", "reply-to"])
    );
    let copy = mail.again(String::new(), "jobs".into(), 1).properties;
    assert_eq!((copy.expiration(), copy.user_id(), *copy.priority()), (&None, &None, Some(7)));
    assert_eq!(copy.reply_to().as_ref().map(|name| name.as_str()), Some("answers"));
    let kept: Vec<_> = copy.headers().as_ref().unwrap().inner().keys().map(|name| name.as_str().to_owned()).collect();
    assert_eq!(kept, ["hostler-carried-attempts", "hostler-sent-at", "kept"]);
}

#[test]
fn a_message_of_others_has_an_id_that_stays() {
    let id = |body: &[u8]| delivered("", "jobs", BasicProperties::default(), body).message.id.clone();
    assert_eq!((id(b"a"), id(b"a") == id(b"b")), ("amqp-e604613a248ff1ac".to_owned(), false));
    let unnamed = delivered("", "jobs", BasicProperties::default().with_message_id("".into()), b"a");
    assert_eq!(unnamed.message.id, id(b"a"));
    let stamped = delivered("", "jobs", BasicProperties::default().with_timestamp(1_700_000_000), b"");
    assert_eq!((stamped.message.enqueued_at, stamped.is_dated), (at(1_700_000_000_000), true));
    let undated = delivered("", "jobs", BasicProperties::default(), b"");
    assert_eq!((undated.message.enqueued_at, undated.is_dated), (at(9), false));
}

/// The client encodes any number of seconds, and some write milliseconds, or seconds since they started.
#[test]
fn a_stamp_that_is_no_time_is_left_out() {
    for seconds in [0, 123, u64::MAX, 1 << 63, i64::MAX as u64, 1_700_000_000_000] {
        let mail = delivered("", "jobs", BasicProperties::default().with_timestamp(seconds), b"");
        assert_eq!((mail.message.enqueued_at, mail.is_dated), (at(9), false), "{seconds}");
        let copy = mail.again(String::new(), "jobs".into(), 1).properties;
        assert_eq!(*copy.timestamp(), Some(seconds), "a copy is as the message was");
    }
    let mut headers = FieldTable::default();
    headers.insert(SENT_AT.into(), AMQPValue::LongLongInt(i64::MAX));
    headers.insert(NOT_BEFORE.into(), AMQPValue::LongLongInt(i64::MAX));
    let mail = delivered("", "jobs", BasicProperties::default().with_headers(headers), b"");
    assert_eq!(mail.message.enqueued_at, at(9));
}

#[test]
fn many_attributes_of_others_leave_room_for_the_story() {
    let mut headers = FieldTable::default();
    for n in 0..15 {
        headers.insert(format!("h{n}").as_str().into(), text("x"));
    }
    let mail = delivered("", "jobs", BasicProperties::default().with_headers(headers), b"");
    let dead = redelivered(mail.dead_letter_within(AMPLE, "q", "why", "jobs", 1));
    assert_eq!(dead.message.attributes.len(), 18);
    let full: Attributes = (0..10).map(|n| (format!("a{n}"), AttributeValue::Text(String::new()))).collect();
    let own = Outgoing { attributes: full, ..Outgoing::default() };
    let mail = delivered("", "jobs", outgoing(&own, "id", None, None, at(1)), b"");
    assert_eq!(redelivered(mail.dead_letter_within(AMPLE, "q", "why", "jobs", 1)).message.attributes.len(), 10);
}
