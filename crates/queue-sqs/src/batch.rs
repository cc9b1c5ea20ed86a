//! Groups messages into batches, one batch per call. No I/O.

/// Maximum number of entries in one batch call (AWS limit: 10).
pub(super) const MAX_ENTRIES: usize = 10;

/// Splits items into batches without changing their order. A batch has at most [`MAX_ENTRIES`] items and at most
/// `max_bytes` bytes. An item of more than `max_bytes` bytes gets its own batch.
pub(super) fn batches<T>(items: Vec<T>, max_bytes: usize, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut batches: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for item in items {
        let own = size(&item);
        match batches.last_mut().filter(|batch| batch.len() < MAX_ENTRIES && bytes + own <= max_bytes) {
            Some(batch) => {
                batch.push(item);
                bytes += own;
            }
            None => {
                batches.push(vec![item]);
                bytes = own;
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_to_a_batch_and_no_more_bytes_than_fit() {
        let sizes =
            |items: Vec<usize>, max| -> Vec<usize> { batches(items, max, |size| *size).iter().map(Vec::len).collect() };
        assert_eq!(sizes(vec![1; 25], 100), [10, 10, 5]);
        assert_eq!(sizes(vec![40, 40, 40, 200, 1], 100), [2, 1, 1, 1]);
        assert_eq!(sizes(vec![60, 40], 100), [2]);
        assert!(sizes(Vec::new(), 100).is_empty());
    }
}
