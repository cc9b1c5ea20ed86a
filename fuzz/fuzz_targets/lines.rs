//! `send --lines`: every line that is not blank is sent once, in order, under its number, in batches that are bounded.

#![no_main]

use hostler::cli::lines::{BATCH, BATCH_BYTES, Lines};
use hostler_fuzz::take;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut text = input;
    // How much is read ahead, and how often the text is repeated: to reach the bounds of a batch.
    let buffer = usize::from(take(&mut text)).max(1);
    let text = text.repeat(usize::from(take(&mut text)) + 1);
    let (mut read, mut sent) = (0, Vec::new());
    for batch in Lines::ahead(buffer, &*text) {
        let batch = batch.expect("memory can be read");
        assert_eq!(batch.bodies.len(), batch.numbers.len());
        assert!(batch.bodies.len() <= BATCH && batch.read > 0);
        let but_last = batch.bodies.split_last().map_or(0, |(_, before)| before.iter().map(Vec::len).sum::<usize>());
        assert!(but_last < BATCH_BYTES);
        read += batch.read;
        sent.extend(batch.numbers.into_iter().zip(batch.bodies));
    }
    assert_eq!(read, text.len() as u64);

    let without_end = text.strip_suffix(b"\n").unwrap_or(&text);
    let lines = without_end.split(|byte| *byte == b'\n').enumerate();
    let last = text.iter().filter(|byte| **byte == b'\n').count();
    let wanted = lines.map(|(index, line)| match index < last {
        true => (index as u64 + 1, line.strip_suffix(b"\r").unwrap_or(line)),
        false => (index as u64 + 1, line),
    });
    let wanted: Vec<_> = wanted.filter(|(_, line)| !line.iter().all(u8::is_ascii_whitespace)).collect();
    assert_eq!(sent.iter().map(|(number, line)| (*number, &**line)).collect::<Vec<_>>(), wanted);
});
