//! The same runs over real databases: the tables and functions of `src/shards/*.sql` in place of the model.

use std::collections::BTreeMap;
use std::time::Duration;

use hostler_jobs::ids::{AssignmentRef, ItemRef};
use hostler_jobs::shards::{Answer, Grant, Shards, Want};
use hostler_jobs::types::Failure;
use serde_json::json;

use crate::databases::{count, raw, shards, sql, tree};
use crate::port::{Db, Item, Port};
use crate::simulation::{Simulation, Size};

/// Real databases. Each item has a tree of its own, so that it can be deleted and retried alone.
struct Real {
    shards: Shards,
    jobs: BTreeMap<Item, String>,
    assignments: BTreeMap<Item, String>,
}

impl Port for Real {
    async fn create(&mut self, at: Db, key: &str, count: usize) -> Vec<i64> {
        let mut seqs = Vec::new();
        for _ in 0..count {
            let root =
                json!({"type": "t", "max_failures_per_item": 60_000, "items": [{"payload": 1, "serialize_key": key}]});
            let created = self.shards.stores()[at].create(tree(&root), None).await.unwrap();
            let seq = ItemRef::parse(&created.item_ids[0]).unwrap().seq;
            self.jobs.insert((at, seq), created.id);
            seqs.push(seq);
        }
        seqs
    }

    async fn claim(&mut self, at: Db, max: usize) -> Vec<(String, i64)> {
        let given = self.shards.stores()[at].claim(&["t".to_owned()], "w", max).await.unwrap();
        let given = given.into_iter().map(|one| {
            let seq = AssignmentRef::parse(&one.assignment_id).unwrap().item.seq;
            self.assignments.insert((at, seq), one.assignment_id);
            (one.item.serialize_key.unwrap(), seq)
        });
        given.collect()
    }

    async fn end(&mut self, at: Db, seq: i64, is_final: bool) {
        let Some(assignment_id) = self.assignments.remove(&(at, seq)) else { return };
        let failure = Failure { assignment_id, error: raw(&json!("no")), retry_in_seconds: None, is_final };
        self.shards.stores()[at].end_by_failure(failure).await.unwrap();
    }

    async fn delete(&mut self, at: Db, seq: i64) {
        self.assignments.remove(&(at, seq));
        self.shards.stores()[at].delete(&self.jobs[&(at, seq)]).await.unwrap();
    }

    async fn retry(&mut self, at: Db, seq: i64) {
        assert_eq!(self.shards.stores()[at].retry(&self.jobs[&(at, seq)]).await.unwrap(), 1);
    }

    async fn wants(&mut self, at: Db, home: Db) -> Vec<Want> {
        self.shards.wants(at, home).await.unwrap()
    }

    async fn register(&mut self, home: Db, from: Db, wants: &[Want]) {
        self.shards.register(home, from, wants).await.unwrap();
    }

    async fn drop_wants(&mut self, at: Db, wants: &[Want]) {
        self.shards.drop_wants(at, wants).await.unwrap();
    }

    async fn grant_keys(&mut self, home: Db) {
        self.shards.grant_keys(home).await.unwrap();
    }

    async fn due_grants(&mut self, home: Db, holder: Db) -> Vec<Grant> {
        self.shards.due_grants(home, holder).await.unwrap()
    }

    async fn open_keys(&mut self, at: Db, home: Db, grants: &[Grant]) -> Vec<Answer> {
        self.shards.open_keys(at, home, grants).await.unwrap()
    }

    async fn returned(&mut self, at: Db, home: Db) -> Vec<Answer> {
        self.shards.returned(at, home).await.unwrap()
    }

    async fn answer(&mut self, home: Db, from: Db, answers: &[Answer]) {
        self.shards.answer(home, from, answers).await.unwrap();
    }

    async fn note_told(&mut self, at: Db, answers: &[Answer]) {
        self.shards.note_told(at, answers).await.unwrap();
    }

    async fn forget(&mut self, at: Db) {
        self.shards.forget(at, Duration::ZERO).await.unwrap();
    }

    async fn end_leases(&mut self, home: Db) {
        let text = "UPDATE hostler_shards.line SET due = '-infinity' WHERE holder IS NOT NULL";
        sql(&self.shards.stores()[home], text).await;
    }

    async fn leftovers(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for (at, store) in self.shards.stores().iter().enumerate() {
            for rows in
                ["hostler_jobs.waiting", "hostler_shards.line", "hostler_shards.ticket", "hostler_shards.wanted"]
            {
                if count(store, &format!("SELECT count(*) FROM {rows}")).await > 0 {
                    left.push(format!("{at} has rows of {rows}"));
                }
            }
            if count(store, "SELECT count(*) FROM hostler_shards.held WHERE is_open OR NOT is_told").await > 0 {
                left.push(format!("{at} has not returned a key"));
            }
        }
        left
    }
}

/// Runs a seed over new databases. `planted`: SQL that all of them get before.
async fn run(seed: u64, planted: Option<&str>) -> Result<usize, String> {
    let size = Size { databases: 2, keys: 2, steps: 400 };
    let shards = shards(size.databases).await;
    if let Some(planted) = planted {
        for store in shards.stores() {
            sql(store, planted).await;
        }
    }
    let real = Real { shards, jobs: BTreeMap::new(), assignments: BTreeMap::new() };
    let mut simulation = Simulation::new(real, seed, size);
    simulation.run().await.map(|()| simulation.starts)
}

#[tokio::test]
async fn real_databases_keep_keys_exclusive_and_ordered() {
    let seeds = std::env::var("SHARD_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4).min(200);
    let mut starts = 0;
    for seed in 0..seeds {
        starts += run(seed, None).await.unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
    assert!(starts > 10 * usize::try_from(seeds).unwrap(), "{starts} starts test little");
}

#[tokio::test]
async fn faults_planted_into_the_sql_are_found() {
    let beyond = "CREATE FUNCTION hostler_shards.beyond() RETURNS trigger LANGUAGE plpgsql AS \
        'BEGIN NEW.upto := 9223372036854775807; RETURN NEW; END'; CREATE TRIGGER beyond BEFORE INSERT OR UPDATE \
        ON hostler_shards.held FOR EACH ROW EXECUTE FUNCTION hostler_shards.beyond()";
    let never = "DROP TRIGGER shards_ended ON hostler_jobs.waiting";
    for (planted, words) in [("DROP TRIGGER shards_gate ON hostler_jobs.ready", "run"), (beyond, "run"), (never, "")] {
        let mut found = None;
        // Without this trigger, the ends of leases return keys.
        for seed in 0..if words.is_empty() { 1 } else { 12 } {
            found = run(seed, Some(planted)).await.err();
            if found.is_some() {
                break;
            }
        }
        match found {
            Some(fault) => assert!(!words.is_empty() && fault.contains(words), "{planted}: {fault}"),
            None => assert!(words.is_empty(), "{planted} is not found"),
        }
    }
}
