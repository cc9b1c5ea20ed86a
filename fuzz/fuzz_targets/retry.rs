//! The input of the retry service from NATS: headers of producers, a line each, and replies of receivers. A header is read, or
//! refused by its name. Settings stay within their limits, and come out of the store as they went in. Only an empty reply and
//! `+ACK` acknowledge a message.

#![no_main]

use std::time::Duration;

use hostler_retry::answer::{self, Reply};
use hostler_retry::envelope;
use hostler_retry::scheduler::Answer;
use hostler_retry::settings::{
    Defaults, Growth, LONGEST_TTL, LONGEST_WAIT, MAX_RETRIES, Priority, SHORTEST_WAIT, Settings,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    reply(text);
    headers(text);
});

fn reply(text: &str) {
    let read = answer::read(text.as_bytes(), None, |_| None);
    let is_ack = read == Reply::End(Answer::Ack);
    assert_eq!(is_ack, text.is_empty() || text.trim_end() == "+ACK");
    if let Reply::End(Answer::Nak(Some(delay))) = read {
        assert!(text.starts_with("-NAK") && delay <= LONGEST_WAIT);
    }
    let error = answer::read(text.as_bytes(), None, |name| (name == answer::ERROR).then_some("failed"));
    assert!(matches!(error, Reply::End(Answer::NoAck(_))), "a service error is no acknowledgement");
}

fn headers(text: &str) {
    let settings = Settings {
        retries: 20,
        ttl: None,
        delay: Duration::ZERO,
        backoff: Growth::Exponential,
        base: Duration::from_secs(1),
        max: Duration::from_secs(60),
        priority: 1,
    };
    let priorities = ["high", "normal"].map(|name| Priority { name: name.to_owned(), weight: 1 }).into();
    let defaults = Defaults { settings, priorities };
    let headers: envelope::Headers =
        text.lines().filter_map(|line| line.split_once(':')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    let read = defaults.with(headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let settings = match read {
        Ok(settings) => settings,
        Err(error) => return assert!(error.to_string().starts_with("the header Hostler-")),
    };
    assert!(settings.retries <= MAX_RETRIES && settings.priority < 2 && settings.delay <= LONGEST_WAIT);
    assert!(settings.ttl.is_none_or(|ttl| !ttl.is_zero() && ttl <= LONGEST_TTL));
    assert!(SHORTEST_WAIT <= settings.base && settings.base <= settings.max && settings.max <= LONGEST_WAIT);
    for attempts in [0, 1, 2, u32::MAX] {
        assert!(settings.wait_after(attempts, 1.0) <= settings.max);
    }
    let (kept, kept_headers) =
        envelope::open(&envelope::seal(&settings, headers.clone()), &defaults).expect("it was sealed");
    assert_eq!(kept_headers, headers);
    assert_eq!((kept.retries, kept.backoff), (settings.retries, settings.backoff));
    assert_eq!(kept.ttl.is_some(), settings.ttl.is_some());
    assert!(kept.base >= settings.base && kept.base - settings.base < Duration::from_millis(1), "rounded up");
}
