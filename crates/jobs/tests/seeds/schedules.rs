//! Scripted schedules: transactions of the store that meet in one order, each with the rule that has to hold afterwards.
//!
//! Runs by seed meet these orders seldom or never. No schedule waits for time to pass: a transaction is held open until another
//! has ended or waits for its locks.

use std::time::{Duration, Instant};

use hostler_jobs::json::RawJson;
use hostler_jobs::store::{Settlement, Store, StoreSettings};
use hostler_jobs::types::{Assigned, NewItem, NewJob, Status};
use hostler_postgres::{Client, Database};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::databases::fresh;
use crate::postgres::Postgres;
use crate::sql_faults::SqlFault;

/// Maximum time for a transaction to end or to wait for a lock.
const DEADLINE: Duration = Duration::from_secs(20);

/// A broken rule, or an error of the store.
type Broken = String;

/// A store without sweeps, and connections beside it.
struct World {
    store: Store,
    db: Database,
}

/// Plays all schedules over a new database, with a fault or without one. Returns those that break a rule.
pub async fn play(server: &Postgres, fault: Option<&SqlFault>) -> Vec<Broken> {
    let mut database = fresh(server, &StoreSettings::default(), 1).await;
    if let Some(fault) = fault {
        fault.plant(&database.db).await;
    }
    let world = World { store: database.stores.remove(0), db: database.db };
    let ends = [
        seal_meets_adder(&world).await,
        completion_of_the_parent_meets_adder(&world).await,
        fold_meets_additions(&world).await,
        end_of_a_key_meets_its_next_item(&world).await,
        claims_meet(&world).await,
        deletion_meets_workers(&world).await,
        expiry_meets_heartbeat(&world).await,
        stale_heartbeat_meets_expiry(&world).await,
        deletion_follows_completion(&world).await,
    ];
    ends.into_iter().filter_map(Result::err).collect()
}

/// A seal waits for those who add items: the job has to be open as long as their items are pending.
async fn seal_meets_adder(world: &World) -> Result<(), Broken> {
    world.create(&json!({ "type": "seal", "id": "seal" })).await?;
    let mut adder = world.client().await?;
    let adding = adder.transaction().await.map_err(text)?;
    adding.batch(&add("seal", "NULL")).await.map_err(text)?;
    let store = world.store.clone();
    let seal = tokio::spawn(async move { store.seal("seal").await.map_err(text) });
    world.until_blocked(&seal).await?;
    world.store.fold().await.map_err(text)?;
    adding.commit().await.map_err(text)?;
    seal.await.map_err(text)??;
    world.store.fold().await.map_err(text)?;
    let status = world.status("seal").await?;
    rule("a sealed job with a pending item is open", status.sealed && !status.complete && status.pending == 1, &status)
}

/// A child is sealed only when nobody is adding items to it, and completes nevertheless.
async fn completion_of_the_parent_meets_adder(world: &World) -> Result<(), Broken> {
    let child = json!({ "type": "child", "id": "child" });
    let tree =
        json!({ "type": "parent", "id": "parent", "sealed": true, "items": [{ "payload": 1 }], "children": [child] });
    world.create(&tree).await?;
    world.succeed("parent").await?;
    let mut adder = world.client().await?;
    let adding = adder.transaction().await.map_err(text)?;
    adding.batch(&add("child", "NULL")).await.map_err(text)?;
    world.store.fold().await.map_err(text)?;
    adding.commit().await.map_err(text)?;
    world.store.fold().await.map_err(text)?;
    let status = world.status("child").await?;
    rule("a child with a pending item is open", status.sealed && !status.complete && status.pending == 1, &status)?;
    world.succeed("child").await?;
    world.store.fold().await.map_err(text)?;
    let status = world.status("parent").await?;
    rule("a tree without pending items is complete", status.tree_complete, &status)
}

/// Items that are added after a fold has read the counters, and before it seals their job, keep the job open.
async fn fold_meets_additions(world: &World) -> Result<(), Broken> {
    world.create(&json!({ "type": "other", "id": "other" })).await?;
    let child = json!({ "type": "late-child", "id": "late-child", "items": [{ "payload": 1 }] });
    let tree =
        json!({ "type": "late", "id": "late", "sealed": true, "items": [{ "payload": 1 }], "children": [child] });
    world.create(&tree).await?;
    world.succeed("late-child").await?;
    world.store.fold().await.map_err(text)?;
    world.succeed("late").await?;
    world.add("other", None).await?;
    let mut holder = world.client().await?;
    let held = holder.transaction().await.map_err(text)?;
    let hold = "DO $$ BEGIN PERFORM FROM hostler_jobs.job WHERE id = 'other' FOR NO KEY UPDATE; END $$";
    held.batch(hold).await.map_err(text)?;
    let store = world.store.clone();
    let fold = tokio::spawn(async move { store.fold().await.map_err(text) });
    let is_blocked = world.until_blocked(&fold).await?;
    rule("the fold waits for the row", is_blocked, &is_blocked)?;
    world.add("late-child", None).await?;
    held.commit().await.map_err(text)?;
    fold.await.map_err(text)??;
    let status = world.status("late").await?;
    let child = &status.children[0];
    rule("a job with an item is open", child.sealed && !child.complete && child.pending == 1, &status)?;
    rule("a tree with an item is open", !status.tree_complete, &status)
}

/// An item that is added while the last of its key ends is the next of the key.
async fn end_of_a_key_meets_its_next_item(world: &World) -> Result<(), Broken> {
    world.create(&json!({ "type": "key", "id": "key", "items": [{ "payload": 1, "serialize_key": "k" }] })).await?;
    let given = world.claim("key").await?;
    rule("the first of a key is given", given.len() == 1, &given)?;
    let mut adder = world.client().await?;
    let adding = adder.transaction().await.map_err(text)?;
    adding.batch(&add("key", "'{k}'")).await.map_err(text)?;
    let (store, id) = (world.store.clone(), given[0].assignment_id.clone());
    let end = tokio::spawn(async move { store.succeed(&id, RawJson::null()).await.map_err(text) });
    world.until_blocked(&end).await?;
    adding.commit().await.map_err(text)?;
    let settled = end.await.map_err(text)??;
    rule("a result is accepted", settled != Settlement::Stale, &settled)?;
    let given = world.claim("key").await?;
    rule("the next of a key is given", given.len() == 1, &given)
}

/// A claim waits for no other, and gets other items.
async fn claims_meet(world: &World) -> Result<(), Broken> {
    world.create(&json!({ "type": "line", "id": "line", "items": [{ "payload": 1 }, { "payload": 2 }] })).await?;
    let mut claimer = world.client().await?;
    let claiming = claimer.transaction().await.map_err(text)?;
    let claim =
        "SELECT hostler_jobs.claim((SELECT t.id FROM hostler_jobs.job_type t WHERE t.name = 'line'), 'w', 1, 7)";
    claiming.batch(claim).await.map_err(text)?;
    let store = world.store.clone();
    let other = tokio::spawn(async move { store.claim(&["line".to_owned()], "w", 2).await.map_err(text) });
    let is_blocked = world.until_blocked(&other).await?;
    claiming.commit().await.map_err(text)?;
    let given = other.await.map_err(text)??;
    rule("a claim waits for no other", !is_blocked && given.len() == 1, &given)
}

/// A deletion ends assignments at once, before anything else is cleared.
async fn deletion_meets_workers(world: &World) -> Result<(), Broken> {
    world.create(&json!({ "type": "gone", "id": "gone", "items": [{ "payload": 1 }, { "payload": 2 }] })).await?;
    let ids: Vec<String> = world.claim("gone").await?.into_iter().map(|one| one.assignment_id).collect();
    rule("all items are given", ids.len() == 2, &ids)?;
    world.client().await?.batch("SELECT hostler_jobs.delete_job('gone')").await.map_err(text)?;
    let stale = world.store.heartbeat(&ids).await.map_err(text)?;
    rule("heartbeats of a deleted job are stale", stale.len() == 2, &stale)?;
    let settled = world.store.succeed(&ids[0], RawJson::null()).await.map_err(text)?;
    rule("results of a deleted job are stale", settled == Settlement::Stale, &settled)?;
    let settled = world.store.fail(&ids[0], RawJson::null(), None).await.map_err(text)?;
    rule("failures of a deleted job are stale", settled == Settlement::Stale, &settled)?;
    let stale = world.store.release(&ids).await.map_err(text)?;
    rule("releases of a deleted job are stale", stale.len() == 2, &stale)
}

/// A heartbeat that is under way when the sweep finds its assignment saves it.
async fn expiry_meets_heartbeat(world: &World) -> Result<(), Broken> {
    world.create(&json!({ "type": "beat", "id": "beat", "items": [{ "payload": 1 }] })).await?;
    let ids: Vec<String> = world.claim("beat").await?.into_iter().map(|one| one.assignment_id).collect();
    let mut beater = world.client().await?;
    beater.batch(&beat("beat", "interval '1 hour'")).await.map_err(text)?;
    let beating = beater.transaction().await.map_err(text)?;
    beating.batch(&beat("beat", "interval '0'")).await.map_err(text)?;
    let store = world.store.clone();
    let sweep = tokio::spawn(async move { store.expire().await.map_err(text) });
    let is_blocked = world.until_blocked(&sweep).await?;
    rule("the sweep waits for the heartbeat", is_blocked, &is_blocked)?;
    beating.commit().await.map_err(text)?;
    sweep.await.map_err(text)??;
    let stale = world.store.heartbeat(&ids).await.map_err(text)?;
    rule("a heartbeat saves its assignment", ids.len() == 1 && stale.is_empty(), &stale)
}

/// A heartbeat under an assignment that has ended does not extend the one that follows.
async fn stale_heartbeat_meets_expiry(world: &World) -> Result<(), Broken> {
    world.create(&json!({ "type": "after", "id": "after", "items": [{ "payload": 1 }] })).await?;
    let old: Vec<String> = world.claim("after").await?.into_iter().map(|one| one.assignment_id).collect();
    world.store.release(&old).await.map_err(text)?;
    let new: Vec<String> = world.claim("after").await?.into_iter().map(|one| one.assignment_id).collect();
    rule("a released item is given again", old.len() == 1 && new.len() == 1, &new)?;
    world.client().await?.batch(&beat("after", "interval '1 hour'")).await.map_err(text)?;
    let stale = world.store.heartbeat(&old).await.map_err(text)?;
    rule("a heartbeat after a release is stale", stale == old, &stale)?;
    world.store.expire().await.map_err(text)?;
    let stale = world.store.heartbeat(&new).await.map_err(text)?;
    rule("an assignment without heartbeats of its own ends", stale == new, &stale)
}

/// The deletion of a complete job leaves its tree as open as it was.
async fn deletion_follows_completion(world: &World) -> Result<(), Broken> {
    let child = json!({ "type": "done", "id": "done", "sealed": true });
    world.create(&json!({ "type": "open", "id": "open", "children": [child] })).await?;
    world.store.fold().await.map_err(text)?;
    let status = world.status("done").await?;
    rule("a sealed job without items is complete", status.complete && !status.tree_complete, &status)?;
    world.store.delete("done").await.map_err(text)?;
    let status = world.status("open").await?;
    rule("a tree with an open root is open", !status.tree_complete, &status)
}

impl World {
    async fn client(&self) -> Result<Client, Broken> {
        self.db.client().await.map_err(text)
    }

    async fn create(&self, tree: &Value) -> Result<(), Broken> {
        let tree: NewJob = serde_json::from_str(&tree.to_string()).map_err(text)?;
        self.store.create(tree, None).await.map(drop).map_err(text)
    }

    /// Adds one item to a job.
    async fn add(&self, job: &str, key: Option<&str>) -> Result<(), Broken> {
        let item = json!({ "payload": 1, "serialize_key": key });
        let item: NewItem = serde_json::from_str(&item.to_string()).map_err(text)?;
        self.store.add_items(job, vec![item], None).await.map(drop).map_err(text)
    }

    async fn claim(&self, kind: &str) -> Result<Vec<Assigned>, Broken> {
        self.store.claim(&[kind.to_owned()], "w", 10).await.map_err(text)
    }

    /// Ends the available items of a type by a result.
    async fn succeed(&self, kind: &str) -> Result<(), Broken> {
        for one in self.claim(kind).await? {
            self.store.succeed(&one.assignment_id, RawJson::null()).await.map_err(text)?;
        }
        Ok(())
    }

    async fn status(&self, job: &str) -> Result<Status, Broken> {
        self.store.status(job).await.map_err(text)
    }

    /// Waits until a task ends or a transaction of the database waits for a lock. Returns true if one waits.
    async fn until_blocked<T>(&self, task: &JoinHandle<T>) -> Result<bool, Broken> {
        let waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";
        let begun = Instant::now();
        let client = self.client().await?;
        while begun.elapsed() < DEADLINE {
            let rows = client.query(waiting, &[]).await.map_err(text)?;
            if rows[0].get(0) {
                return Ok(true);
            } else if task.is_finished() {
                return Ok(false);
            }
            tokio::task::yield_now().await;
        }
        Err("a transaction neither ended nor waits for a lock".to_owned())
    }
}

/// Adds one item to a job. `keys`: the SQL array of its serialize key.
fn add(job: &str, keys: &str) -> String {
    format!("SELECT hostler_jobs.add_items('{job}', '{{1}}', NULL, NULL, {keys}, '{{0}}', '{{\"{{}}\"}}')")
}

/// Dates the last heartbeats of a job's assignments back.
fn beat(job: &str, by: &str) -> String {
    format!(
        "UPDATE hostler_jobs.assignment SET beat_at = clock_timestamp() - {by} \
         WHERE job = (SELECT num FROM hostler_jobs.job WHERE id = '{job}')"
    )
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

fn rule(name: &str, holds: bool, found: &impl std::fmt::Debug) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(format!("{name}: {found:?}")) }
}
