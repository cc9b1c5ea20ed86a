//! Texts of one line: channels, filters, references to handlers, conditions of `requeue`. Each text is parsed, or refused with
//! the text in the reason. A parsed value prints as it was written, and obeys the rules of its kind.

#![no_main]

use hostler_ops::requeue::Condition;
use hostler_types::channel::{Channel, Filter, MAX_NAME};
use hostler_wasm::fetch::Reference;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    channel(text);
    reference(text);
    if let Err(error) = text.parse::<Condition>() {
        assert!(error.to_string().contains(text));
    }
    let mut lines = text.lines();
    if let Some(key) = lines.next() {
        filter(key, &lines.map(str::to_owned).collect::<Vec<_>>());
    }
});

fn channel(text: &str) {
    let channel = match text.parse::<Channel>() {
        Ok(channel) => channel,
        Err(error) => return assert!(error.to_string().contains(text)),
    };
    assert_eq!(channel.to_string(), text);
    assert!([Some(channel.queue()), channel.exchange()].iter().flatten().all(|name| name.len() <= MAX_NAME + 4));
    assert_eq!((channel.alone().exchange(), channel.alone().queue()), (None, channel.queue()));
    assert!(channel.of_dead_letters().is_none_or(|of| of.dead_letter_queue() == channel.queue()));
    if channel.queue().len() <= MAX_NAME {
        let dead: Channel = channel.dead_letter_queue().parse().expect("its dead-letter queue is a channel too");
        assert_eq!(dead.of_dead_letters(), Some(channel.alone()));
    }
}

fn reference(text: &str) {
    let reference = match text.parse::<Reference>() {
        Ok(reference) => reference,
        Err(error) => return assert!(error.to_string().contains(text)),
    };
    assert!(Reference::is_meant_by(text));
    let printed = reference.to_string();
    // Hexadecimal digits may be written in capitals.
    assert_eq!(printed.to_lowercase(), text.to_lowercase());
    assert_eq!(printed.parse::<Reference>().as_ref(), Ok(&reference));
}

fn filter(key: &str, values: &[String]) {
    let [exact, prefix, exclude] = [Filter::Exact, Filter::Prefix, Filter::Exclude].map(|kind| kind(values.to_vec()));
    assert!(Filter::All.passes(None) && Filter::All.passes(Some(key)));
    assert!([&exact, &prefix, &exclude].iter().all(|filter| !filter.passes(None)));
    assert_ne!(exact.passes(Some(key)), exclude.passes(Some(key)));
    assert!(prefix.passes(Some(key)) || !exact.passes(Some(key)));
    assert!(values.iter().all(|value| exact.passes(Some(value)) && prefix.passes(Some(&format!("{value}{key}")))));
}
