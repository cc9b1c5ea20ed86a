//! Feeds by applets: their items, their failures, stale and repeated results, and instances that lack an applet.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::BoxFuture;
use hostler_jobs::applets::{AppletError, Applets, Bytes};
use hostler_jobs::store::{Settlement, Store, StoreError, StoreSettings};
use hostler_jobs::types::{Assigned, Failure, ItemState, SettledStatus, Success};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::extras::adding;
use crate::rules::{store_count, store_sql};
use crate::{accepted, claim, items_of, payloads, raw, result_of, store, tree, with};

/// Longest wait of a test for an event.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs of the fake applet at a time, unless a test says otherwise.
const SLOTS: usize = 3;

type Script = dyn Fn(Value) -> BoxFuture<'static, Result<Vec<u8>, AppletError>> + Send + Sync;

/// An applet of the name `split`. Keeps its inputs.
struct Fake {
    script: Box<Script>,
    slots: usize,
    inputs: Mutex<Vec<Value>>,
}

#[async_trait::async_trait]
impl Applets for Fake {
    fn knows(&self, name: &str) -> bool {
        name == "split"
    }

    fn slots(&self, _: &str) -> usize {
        self.slots
    }

    async fn run(&self, _: &str, input: Bytes) -> Result<Vec<u8>, AppletError> {
        let input: Value = serde_json::from_slice(&input).unwrap();
        self.inputs.lock().unwrap().push(input.clone());
        (self.script)(input).await
    }
}

impl Fake {
    fn of(
        script: impl Fn(Value) -> BoxFuture<'static, Result<Vec<u8>, AppletError>> + Send + Sync + 'static,
    ) -> Arc<Fake> {
        Fake::with_slots(SLOTS, script)
    }

    fn with_slots(
        slots: usize,
        script: impl Fn(Value) -> BoxFuture<'static, Result<Vec<u8>, AppletError>> + Send + Sync + 'static,
    ) -> Arc<Fake> {
        Arc::new(Fake { script: Box::new(script), slots, inputs: Mutex::default() })
    }

    /// Makes an applet that answers at once.
    fn answers(script: impl Fn(Value) -> Result<Value, AppletError> + Send + Sync + 'static) -> Arc<Fake> {
        Fake::of(move |input| {
            let answer = script(input).map(|reply| reply.to_string().into_bytes());
            Box::pin(std::future::ready(answer))
        })
    }

    /// Makes an applet that replies with an item for each entry of the result.
    fn splits() -> Arc<Fake> {
        Fake::answers(|input| {
            let entries = input["result"].as_array().unwrap().iter();
            Ok(entries.map(|entry| json!({ "payload": entry })).collect())
        })
    }

    /// Makes an applet whose runs tell that they began, and reply once they are let go.
    fn gated(reply: &'static [u8]) -> (Arc<Fake>, Arc<Notify>, Arc<Notify>) {
        let (entered, left) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let gates = (Arc::clone(&entered), Arc::clone(&left));
        let fake = Fake::of(move |_| {
            let (entered, left) = gates.clone();
            Box::pin(async move {
                entered.notify_one();
                left.notified().await;
                Ok(reply.to_vec())
            })
        });
        (fake, entered, left)
    }

    fn runs(&self) -> usize {
        self.inputs.lock().unwrap().len()
    }
}

/// A store that knows the applet.
async fn knowing(fake: &Arc<Fake>) -> Store {
    store().await.with_applets(Arc::clone(fake) as Arc<dyn Applets>)
}

/// Creates a sealed job of type `a` with items and a child of type `b`, which the applet feeds. Returns the assignments.
async fn family(store: &Store, items: usize, max_failures: u16) -> Vec<Assigned> {
    let items: Vec<_> = (0..items).map(|n| json!({ "payload": { "n": n } })).collect();
    let root = json!({ "type": "a", "id": "r", "sealed": true, "max_failures_per_item": max_failures, "items": items,
        "children": [{ "type": "b", "id": "c", "feed": { "applet": "split" } }] });
    store.create(tree(&root), None).await.unwrap();
    claim(store, "a", 1000).await
}

fn in_batch(given: &[Assigned], result: &Value) -> Vec<Success> {
    given.iter().map(|one| result_of(one, result)).collect()
}

/// Reports a result of an assignment, in a task of its own.
fn succeeding(store: &Store, given: &Assigned) -> JoinHandle<Result<Settlement, StoreError>> {
    let (store, id) = (store.clone(), given.assignment_id.clone());
    tokio::spawn(async move { store.succeed(&id, raw(&json!(1))).await })
}

#[tokio::test]
async fn the_items_of_an_applet_come_with_the_result_and_once() {
    let fake = Fake::answers(|_| {
        Ok(json!([
            { "payload": 1, "priority": 5, "metadata": { "of": "one" } },
            { "payload": 2, "dedupe_key": "d" },
            { "payload": 3, "dedupe_key": "d" },
            { "payload": 4, "serialize_key": "k" },
            { "payload": 5, "serialize_key": "k" },
        ]))
    });
    let store = knowing(&fake).await;
    let given = family(&store, 1, 0).await.remove(0);
    for _ in 0..2 {
        accepted(store.succeed(&given.assignment_id, raw(&json!({ "x": 1.50 }))).await.unwrap());
        let settled = store.settle(in_batch(std::slice::from_ref(&given), &json!(9)), Vec::new()).await.unwrap();
        assert_eq!(settled[0].status, SettledStatus::Ok);
    }
    let expected = json!({ "result": { "x": 1.5 }, "payload": { "n": 0 }, "job": { "id": "r", "type": "a" },
        "child": { "id": "c", "type": "b" } });
    assert_eq!(*fake.inputs.lock().unwrap(), [expected], "a repeated result runs nothing");
    let items = items_of(&store, "c").await.items;
    assert_eq!(items.len(), 4);
    assert_eq!((items[0].priority, items[0].metadata.text()), (5, r#"{"of":"one"}"#));
    let first = claim(&store, "b", 9).await;
    assert_eq!(payloads(&first), [json!(2), json!(4), json!(1)]);
    crate::succeed_all(&store, &first).await;
    crate::succeed_all(&store, &claim(&store, "b", 9).await).await;
    assert!(store.status("r").await.unwrap().tree_complete);
}

#[tokio::test]
async fn an_applet_may_make_no_items() {
    let store = knowing(&Fake::splits()).await;
    let given = family(&store, 1, 0).await.remove(0);
    accepted(store.succeed(&given.assignment_id, raw(&json!([]))).await.unwrap());
    let status = store.status("r").await.unwrap();
    assert_eq!((status.succeeded, status.children[0].added, status.tree_complete), (1, 0, true));
}

#[tokio::test]
async fn stale_results_run_no_applet() {
    let fake = Fake::splits();
    let store = knowing(&fake).await;
    let given = family(&store, 2, 0).await;
    let ids: Vec<_> = given.iter().map(|one| one.assignment_id.clone()).collect();
    store.release(&ids).await.unwrap();
    assert_eq!(store.succeed(&ids[0], raw(&json!([1]))).await.unwrap(), Settlement::Stale);
    let settled = store.settle(in_batch(&given, &json!([1])), Vec::new()).await.unwrap();
    assert!(settled.iter().all(|one| one.status == SettledStatus::Stale));
    assert_eq!((fake.runs(), items_of(&store, "c").await.items.len()), (0, 0));
}

#[tokio::test]
async fn a_result_that_becomes_stale_during_the_run_adds_nothing() {
    let (fake, entered, left) = Fake::gated(br#"[{"payload":1,"serialize_key":"k"}]"#);
    let store = knowing(&fake).await;
    let given = family(&store, 1, 0).await.remove(0);
    let settling = succeeding(&store, &given);
    timeout(DEADLINE, entered.notified()).await.unwrap();
    store.release(&[given.assignment_id]).await.unwrap();
    left.notify_one();
    assert_eq!(timeout(DEADLINE, settling).await.unwrap().unwrap().unwrap(), Settlement::Stale);
    assert_eq!(items_of(&store, "c").await.items.len(), 0);
    assert_eq!(claim(&store, "a", 1).await[0].item.failures, []);
}

#[tokio::test]
async fn the_first_of_two_ends_counts_with_an_applet_as_without() {
    let fake = Fake::splits();
    let store = knowing(&fake).await;
    let mut given = family(&store, 2, 9).await;
    store.create(tree(&json!({ "type": "a", "id": "plain", "items": [{ "payload": 1 }] })), None).await.unwrap();
    given.extend(claim(&store, "a", 9).await);
    let failures = given.iter().map(|one| Failure {
        assignment_id: one.assignment_id.clone(),
        error: raw(&json!("no")),
        retry_in_seconds: None,
        is_final: false,
    });
    let results = [in_batch(&given, &json!([1])), in_batch(&given[..1], &json!([2]))].concat();
    let settled = store.settle(results, failures.collect()).await.unwrap();
    let statuses: Vec<_> = settled.iter().map(|one| one.status == SettledStatus::Ok).collect();
    assert_eq!(statuses, [true, true, true, true, false, false, false]);
    let status = store.status("r").await.unwrap();
    assert_eq!((status.succeeded, status.children[0].added, fake.runs()), (2, 2, 2));
    assert_eq!(items_of(&store, "plain").await.items[0].state, ItemState::Succeeded);
}

#[tokio::test]
async fn a_failing_applet_is_a_failure_of_the_item() {
    let fake = Fake::answers(|input| match &input["result"] {
        Value::String(text) if text == "trap" => Err(AppletError::Failed("trapped: out\0 of bounds".to_owned())),
        other => Ok(other.clone()),
    });
    let store = knowing(&fake).await;
    let mut given = family(&store, 1, 9).await.remove(0);
    let faults = [
        (json!("trap"), r#"the applet "split", which feeds the child "b", made no items: trapped: out"#),
        (json!({ "payload": 1 }), "its reply is not a JSON array of items"),
        (json!([{ "payload": 1 }, { "priority": 1 }]), "item 1 of its reply, counted from 0: missing field `payload`"),
    ];
    for (number, (result, expected)) in faults.into_iter().enumerate() {
        for _ in 0..2 {
            accepted(store.succeed(&given.assignment_id, raw(&result)).await.unwrap());
        }
        assert_eq!(fake.runs(), number + 1, "a repeated result runs nothing");
        given = claim(&store, "a", 1).await.remove(0);
        let error = given.item.failures[number].error.text().replace('\\', "");
        assert!(error.contains(expected), "{error}");
    }
    accepted(store.succeed(&given.assignment_id, raw(&json!([{ "payload": 7 }]))).await.unwrap());
    let items = items_of(&store, "r").await.items;
    assert_eq!((items[0].state, items[0].failures.len()), (ItemState::Succeeded, 3));
    assert_eq!(payloads(&claim(&store, "b", 9).await), [json!(7)]);
}

#[tokio::test]
async fn an_unknown_applet_is_a_fault_of_the_tree() {
    let root = json!({ "type": "a", "children": [{ "type": "b" }, { "type": "c", "feed": { "applet": "splot" } }] });
    for store in [store().await, knowing(&Fake::splits()).await] {
        let refused = store.create(tree(&root), None).await;
        assert!(
            matches!(&refused, Err(StoreError::Invalid { field, .. }) if field == "children[1].feed.applet"),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn an_instance_that_lacks_the_applet_leaves_its_results_and_settles_the_others() {
    let fake = Fake::splits();
    let old = store().await;
    let new = old.clone().with_applets(Arc::clone(&fake) as Arc<dyn Applets>);
    let given = family(&new, 1, 0).await;
    let other = json!({ "type": "a", "id": "o", "items": [{ "payload": 1 }], "children": [
        { "type": "e", "id": "t", "feed": { "payload": "$" } }] });
    new.create(tree(&other), None).await.unwrap();
    let plain = claim(&new, "a", 9).await;
    let all = || in_batch(&[given.clone(), plain.clone()].concat(), &json!([1]));
    let refused = old.settle(all(), Vec::new()).await;
    assert!(
        matches!(&refused, Err(error @ StoreError::Applet { name, .. }) if name == "split" && error.is_retryable()),
        "{refused:?}"
    );
    assert_eq!(items_of(&old, "o").await.items[0].state, ItemState::Succeeded);
    assert_eq!(items_of(&old, "r").await.items[0].state, ItemState::Assigned);
    let settled = new.settle(all(), Vec::new()).await.unwrap();
    assert!(settled.iter().all(|one| one.status == SettledStatus::Ok));
    assert_eq!((items_of(&new, "c").await.items.len(), items_of(&new, "t").await.items.len()), (1, 1));
}

#[tokio::test]
async fn an_applet_acts_beside_templates_and_what_the_worker_asks_for() {
    let store = knowing(&Fake::splits()).await;
    let feeds = |kind: &str, feed: Value| json!({ "type": kind, "id": format!("id-{kind}"), "feed": feed });
    let root = json!({ "type": "a", "id": "r", "items": [{ "payload": 1 }, { "payload": 2 }], "children": [
        feeds("b", json!({ "applet": "split" })), feeds("t", json!({ "payload": { "all": "$" } })),
        feeds("b2", json!({ "applet": "split" })), { "type": "plain" }] });
    store.create(tree(&root), None).await.unwrap();
    let given = claim(&store, "a", 2).await;
    let added = json!([{ "target": "plain", "items": [{ "payload": 3, "metadata": { "m": 1 } }] }, { "target": "b", "items": [] }]);
    let more = Success { result: raw(&json!([4, 5])), ..adding(&given[0], &added, &["plain"]) };
    accepted(store.end_by_result(more).await.unwrap());
    accepted(store.succeed(&given[1].assignment_id, raw(&json!([6]))).await.unwrap());
    assert_eq!(payloads(&claim(&store, "b", 9).await), [4, 5, 6].map(Value::from));
    assert_eq!(payloads(&claim(&store, "b2", 9).await), [4, 5, 6].map(Value::from));
    assert_eq!(payloads(&claim(&store, "t", 9).await), [json!({ "all": [4, 5] }), json!({ "all": [6] })]);
    let plain = claim(&store, "plain", 9).await;
    assert_eq!(plain[0].item.metadata.text(), r#"{"m":1}"#);
    assert!(!store.status("id-b").await.unwrap().sealed);
}

#[tokio::test]
async fn a_child_that_is_deleted_during_the_run_gets_nothing() {
    let slot: Arc<Mutex<Option<Store>>> = Arc::default();
    let of_fake = Arc::clone(&slot);
    let fake = Fake::of(move |_| {
        let store = of_fake.lock().unwrap().clone().unwrap();
        Box::pin(async move {
            store.delete("c").await.unwrap();
            Ok(br#"[{"payload":1}]"#.to_vec())
        })
    });
    let store = knowing(&fake).await;
    *slot.lock().unwrap() = Some(store.clone());
    let given = family(&store, 1, 0).await.remove(0);
    accepted(store.succeed(&given.assignment_id, raw(&json!(1))).await.unwrap());
    let status = store.status("r").await.unwrap();
    assert_eq!((status.succeeded, status.failed, status.tree_complete), (1, 0, true));
    assert_eq!(store_count(&store, "SELECT count(*) FROM hostler_jobs.ready").await, 0);
}

#[tokio::test]
async fn a_batch_runs_many_applets_and_each_once() {
    let fake = Fake::splits();
    let store = knowing(&fake).await;
    let given = family(&store, 100, 0).await;
    let results: Vec<_> = given.iter().rev().enumerate().map(|(n, one)| result_of(one, &json!([n, n]))).collect();
    let settled = store.settle(results.clone(), Vec::new()).await.unwrap();
    let ids = |given: &mut dyn Iterator<Item = &String>| given.cloned().collect::<Vec<_>>();
    assert_eq!(
        ids(&mut settled.iter().map(|one| &one.assignment_id)),
        ids(&mut results.iter().map(|one| &one.assignment_id))
    );
    assert!(settled.iter().all(|one| one.status == SettledStatus::Ok));
    let status = store.status("r").await.unwrap();
    assert_eq!((fake.runs(), status.succeeded, status.children[0].added), (100, 100, 200));
}

#[tokio::test]
async fn a_batch_runs_as_many_at_a_time_as_the_applet_has_slots() {
    let begun = Arc::new(Mutex::new(0));
    let (counted, (entered, left)) = (Arc::clone(&begun), (Arc::new(Notify::new()), Arc::new(Semaphore::new(0))));
    let gates = (Arc::clone(&entered), Arc::clone(&left));
    let fake = Fake::of(move |_| {
        let (counted, (entered, left)) = (Arc::clone(&counted), gates.clone());
        Box::pin(async move {
            let all = {
                let mut count = counted.lock().unwrap();
                *count += 1;
                *count
            };
            if all >= SLOTS {
                entered.notify_one();
            }
            left.acquire().await.unwrap().forget();
            Ok(b"[]".to_vec())
        })
    });
    let store = knowing(&fake).await;
    let given = family(&store, 10, 0).await;
    let results = in_batch(&given, &json!(1));
    let settling = tokio::spawn({
        let store = store.clone();
        async move { store.settle(results, Vec::new()).await }
    });
    timeout(DEADLINE, entered.notified()).await.expect("fewer run at a time than the applet has slots");
    // All that may begin have begun: the runs are polled before this task goes on.
    tokio::task::yield_now().await;
    assert_eq!(*begun.lock().unwrap(), SLOTS, "more run at a time than the applet has slots");
    left.add_permits(given.len());
    let settled = timeout(DEADLINE, settling).await.unwrap().unwrap().unwrap();
    let expected: Vec<_> = given.iter().map(|one| (one.assignment_id.as_str(), SettledStatus::Ok)).collect();
    let found: Vec<_> = settled.iter().map(|one| (one.assignment_id.as_str(), one.status)).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_slow_run_of_a_batch_holds_no_other_up() {
    const ITEMS: usize = 40;
    let left = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&left);
    let fake = Fake::of(move |input| {
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            if input["payload"]["n"] == 0 {
                gate.acquire().await.unwrap().forget();
            }
            Ok(br#"[{"payload":1}]"#.to_vec())
        })
    });
    let store = knowing(&fake).await;
    let given = family(&store, ITEMS, 0).await;
    let results = in_batch(&given, &json!(1));
    let settling = tokio::spawn({
        let store = store.clone();
        async move { store.settle(results, Vec::new()).await }
    });
    let others = async {
        while store_count(&store, "SELECT count(*) FROM hostler_jobs.assignment").await > 1 {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, others).await.expect("the others wait for the slowest");
    assert_eq!(fake.runs(), ITEMS);
    left.add_permits(1);
    let settled = timeout(DEADLINE, settling).await.unwrap().unwrap().unwrap();
    assert!(settled.iter().all(|one| one.status == SettledStatus::Ok), "{settled:?}");
    assert_eq!(items_of(&store, "c").await.items.len(), ITEMS);
}

#[tokio::test]
async fn a_batch_runs_few_applets_at_a_time_however_many_slots_there_are() {
    const MOST: usize = 16;
    let counts = Arc::new(Mutex::new((0_usize, 0_usize)));
    let counted = Arc::clone(&counts);
    let fake = Fake::with_slots(100, move |_| {
        let counted = Arc::clone(&counted);
        Box::pin(async move {
            {
                let mut counts = counted.lock().unwrap();
                counts.0 += 1;
                counts.1 = counts.1.max(counts.0);
            }
            tokio::task::yield_now().await;
            counted.lock().unwrap().0 -= 1;
            Ok(b"[]".to_vec())
        })
    });
    let store = knowing(&fake).await;
    let given = family(&store, 100, 0).await;
    let settled = store.settle(in_batch(&given, &json!(1)), Vec::new()).await.unwrap();
    assert!(settled.iter().all(|one| one.status == SettledStatus::Ok));
    assert_eq!((fake.runs(), *counts.lock().unwrap()), (100, (0, MOST)));
}

#[tokio::test]
async fn a_run_stops_when_its_assignment_has_ended() {
    let (fake, entered, _left) = Fake::gated(b"[]");
    let settings = StoreSettings { heartbeat: Duration::from_secs(1), ..StoreSettings::default() };
    let store = with(settings).await.with_applets(Arc::clone(&fake) as Arc<dyn Applets>);
    let given = family(&store, 1, 0).await.remove(0);
    let settling = succeeding(&store, &given);
    timeout(DEADLINE, entered.notified()).await.unwrap();
    store.release(&[given.assignment_id]).await.unwrap();
    // Nobody lets the run go on.
    let ended = timeout(Duration::from_secs(20), settling).await.expect("the run goes on");
    assert_eq!(ended.unwrap().unwrap(), Settlement::Stale);
    assert_eq!(claim(&store, "a", 1).await.len(), 1);
}

#[tokio::test]
async fn assignments_outlast_a_long_run() {
    let (fake, entered, left) = Fake::gated(b"[]");
    let settings = StoreSettings { heartbeat: Duration::from_secs(1), ..StoreSettings::default() };
    let store = with(settings).await.with_applets(fake);
    let given = family(&store, 1, 0).await.remove(0);
    let settling = succeeding(&store, &given);
    timeout(DEADLINE, entered.notified()).await.unwrap();
    store_sql(&store, "UPDATE hostler_jobs.assignment SET beat_at = beat_at - interval '1 hour'").await;
    let fresh = "SELECT count(*) FROM hostler_jobs.assignment WHERE beat_at > clock_timestamp() - interval '1 minute'";
    let extended = async {
        while store_count(&store, fresh).await == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, extended).await.expect("no heartbeat in time");
    left.notify_one();
    accepted(timeout(DEADLINE, settling).await.unwrap().unwrap().unwrap());
}
