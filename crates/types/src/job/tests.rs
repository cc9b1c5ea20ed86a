//! Tests of the buffer.

use super::*;

fn job() -> Arc<BufferedJob> {
    BufferedJob::new(JobInfo {
        job_id: "j".into(),
        root_id: "r".into(),
        job_type: "resize".into(),
        item_id: "i".into(),
        attempt: 1,
    })
}

fn item(payload: impl Into<Bytes>) -> NewJobItem {
    NewJobItem { payload: payload.into(), ..NewJobItem::default() }
}

fn items(count: usize) -> Vec<NewJobItem> {
    vec![item("1"); count]
}

#[test]
fn requests_keep_the_order_of_the_calls_and_are_taken_once() {
    let job = job();
    assert_eq!(job.take(), Buffered::default());

    let job = self::job();
    job.add_items("a", vec![item("1")]).unwrap();
    job.add_items("a", vec![item("2")]).unwrap();
    job.add_items("b", vec![]).unwrap();
    job.add_items("b", vec![item("3")]).unwrap();
    job.add_items("a", vec![item("4")]).unwrap();
    job.seal("b").unwrap();
    job.seal("b").unwrap();
    let taken = job.take();
    assert_eq!(
        taken.items,
        [("a".into(), vec![item("1"), item("2")]), ("b".into(), vec![item("3")]), ("a".into(), vec![item("4")])]
    );
    assert_eq!(taken.seals, ["b".to_owned()].into());
    assert!(!taken.is_empty());
    assert!(job.take().is_empty());
}

#[test]
fn a_taken_buffer_accepts_nothing_and_can_be_put_back() {
    let job = job();
    job.add_items("a", items(2)).unwrap();
    let taken = job.take();
    assert_eq!(job.add_items("a", items(1)), Err(JobError::Settled));
    assert_eq!(job.seal("a"), Err(JobError::Settled));
    job.put_back(taken.clone());
    assert_eq!(job.seal("a"), Err(JobError::Settled));
    assert_eq!(job.take(), taken);
}

#[test]
fn the_number_of_items_is_limited_and_a_call_is_kept_whole_or_not_at_all() {
    let job = job();
    job.add_items("a", items(MAX_ITEMS - 1)).unwrap();
    let refused = job.add_items("a", items(2)).unwrap_err();
    assert_eq!(refused, JobError::Full("one attempt adds at most 10000 items, and these would make it 10001".into()));
    job.add_items("a", items(1)).unwrap();
    assert!(matches!(job.add_items("a", items(1)), Err(JobError::Full(_))));
    assert!(matches!(self::job().add_items("a", items(MAX_ITEMS + 1)), Err(JobError::Full(_))));
    assert_eq!(job.take().items[0].1.len(), MAX_ITEMS);
}

#[test]
fn the_size_of_all_items_is_limited() {
    let job = job();
    let large = item(format!("\"{}\"", "x".repeat(MAX_PAYLOAD - 2)));
    // The target counts too, so the last of sixteen does not fit.
    job.add_items("a", vec![large.clone(); 15]).unwrap();
    assert_eq!(job.add_items("a", vec![large]), Err(JobError::Full("one attempt adds at most 16 MiB of items".into())));
    job.add_items("a", vec![item("1")]).unwrap();
}

#[test]
fn the_number_of_seals_is_limited() {
    let job = job();
    for number in 0..MAX_SEALS {
        job.seal(&number.to_string()).unwrap();
    }
    job.seal("0").unwrap();
    assert_eq!(job.seal("one more"), Err(JobError::Full("one attempt seals at most 1000 jobs".into())));
}

#[test]
fn a_faulty_item_is_named_and_none_of_its_call_is_kept() {
    let (job, long) = (job(), Some("x".repeat(MAX_TEXT + 1)));
    for (target, faulty, fault) in [
        ("", item("1"), "the target is empty"),
        ("a\0", item("1"), "the target contains a NUL character, which the job service cannot store"),
        ("a", item("{"), "the payload of item 2 is not valid JSON: EOF while parsing an object at line 1 column 1"),
        (
            "a",
            NewJobItem { dedupe_key: long.clone(), ..item("1") },
            "the dedupe key of item 2 has 201 bytes, of which 200 are the most",
        ),
        ("a", NewJobItem { serialize_key: Some(String::new()), ..item("1") }, "the serialize key of item 2 is empty"),
    ] {
        assert_eq!(job.add_items(target, vec![item("1"), faulty]), Err(JobError::Invalid(fault.into())));
    }
    assert!(matches!(job.seal(""), Err(JobError::Invalid(_))));
    assert!(job.take().is_empty());
}

#[test]
fn the_latest_progress_wins_and_outlives_the_taking() {
    let job = job();
    assert_eq!(job.latest_progress(), None);
    job.progress(0.0, "").unwrap();
    job.progress(0.5, "half").unwrap();
    for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert!(matches!(job.progress(bad, ""), Err(JobError::Invalid(_))), "{bad}");
    }
    assert!(matches!(job.progress(1.0, &"x".repeat(MAX_TEXT + 1)), Err(JobError::Invalid(_))));
    job.take();
    assert_eq!(job.latest_progress(), Some(Progress { fraction: 0.5, text: "half".into() }));
}
