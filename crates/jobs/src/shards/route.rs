//! Routing: the database of an id, a key or a new tree. Decided without I/O, and never to be changed: data lies by it.

use aws_lc_rs::digest::{SHA256, digest};
use uuid::Uuid;

use crate::ids::{AssignmentRef, ItemRef};
use crate::types::{NewItem, NewJob};

/// The most databases.
pub const MAX_SHARDS: usize = 64;

/// The database of a text among `count`: the first 32 bits of its SHA-256, modulo the count. `hostler_shards.home_of` is the same.
pub fn home(text: &str, count: usize) -> usize {
    let bytes = digest(&SHA256, text.as_bytes());
    let first = bytes.as_ref().iter().take(4).fold(0_usize, |sum, byte| (sum << 8) | usize::from(*byte));
    first.checked_rem(count).unwrap_or_default()
}

/// The database of an item, by its number. It may be one that does not exist.
pub fn of_item(item: ItemRef) -> usize {
    item.shard()
}

/// The database of an assignment, by its id; the first for a text that is no such id.
pub fn of_assignment(id: &str) -> usize {
    AssignmentRef::parse(id).map_or(0, |assignment| of_item(assignment.item))
}

/// The text whose home is the place of a tree whose root has a dedupe key and no id of its own. No id has it: it has a NUL.
fn dedupe_text(kind: &str, key: &str) -> String {
    format!("{kind}\0{key}")
}

/// The database of a new tree: that of the root's own id, or of its type and dedupe key, or of the request's idempotency key. So a
/// repeated request meets the first one. `None`: any.
pub fn of_tree(root: &NewJob, idempotency: Option<&str>, count: usize) -> Option<usize> {
    if let Some(id) = &root.id {
        return Some(home(id, count));
    }
    if let Some(key) = &root.dedupe_key {
        return Some(home(&dedupe_text(&root.kind, key), count));
    }
    idempotency.map(|key| home(key, count))
}

/// Draws an id that routes to a database.
pub fn new_id(shard: usize, count: usize) -> String {
    loop {
        let id = Uuid::now_v7().to_string();
        if home(&id, count) == shard {
            return id;
        }
    }
}

/// Gives ids to all jobs of a tree that have none.
pub fn fill_ids(job: &mut NewJob, shard: usize, count: usize) {
    if job.id.is_none() {
        job.id = Some(new_id(shard, count));
    }
    for child in &mut job.children {
        fill_ids(child, shard, count);
    }
}

/// The field of the first dedupe key whose uniqueness no database alone can see to: any but that of a root without an id of its own.
pub fn lost_dedupe_key(root: &NewJob) -> Option<String> {
    if root.id.is_some() && root.dedupe_key.is_some() {
        return Some("dedupe_key".to_owned());
    }
    root.children
        .iter()
        .enumerate()
        .find_map(|(number, child)| child_dedupe_key(child, &format!("children[{number}].")))
}

fn child_dedupe_key(job: &NewJob, at: &str) -> Option<String> {
    if job.dedupe_key.is_some() {
        return Some(format!("{at}dedupe_key"));
    }
    let mut children = job.children.iter().enumerate();
    children.find_map(|(number, child)| child_dedupe_key(child, &format!("{at}children[{number}].")))
}

/// Set if one of the items has a serialize key.
pub fn has_keys(items: &[NewItem]) -> bool {
    items.iter().any(|item| item.serialize_key.is_some())
}

/// Set if an item of the tree has a serialize key.
pub fn tree_has_keys(job: &NewJob) -> bool {
    has_keys(&job.items) || job.children.iter().any(tree_has_keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tree(value: &serde_json::Value) -> NewJob {
        serde_json::from_str(&value.to_string()).unwrap()
    }

    #[test]
    fn homes_never_change() {
        // As computed by sha256sum: data lies by these numbers.
        assert_eq!(home("", 1 << 32), 0xe3b0_c442);
        assert_eq!(home("abc", 1 << 32), 0xba78_16bf);
        assert_eq!((home("abc", 4), home("abc", 1), home("abc", 64)), (3, 0, 63));
    }

    #[test]
    fn homes_are_spread_evenly() {
        let mut met = [0_u32; 4];
        for n in 0..4_000 {
            met[home(&format!("key {n}"), 4)] += 1;
        }
        assert!(met.iter().all(|count| (900..1_100).contains(count)), "{met:?}");
    }

    #[test]
    fn generated_ids_route_by_themselves() {
        let mut root = tree(&json!({"type": "a", "children": [{"type": "b", "id": "mine"}, {"type": "c"}]}));
        fill_ids(&mut root, 63, 64);
        assert_eq!(home(root.id.as_deref().unwrap(), 64), 63);
        assert_eq!(root.children[0].id.as_deref(), Some("mine"));
        assert_eq!(home(root.children[1].id.as_deref().unwrap(), 64), 63);
    }

    #[test]
    fn a_repeated_request_goes_to_the_same_database() {
        let any = tree(&json!({"type": "a"}));
        assert_eq!(of_tree(&any, None, 4), None);
        assert_eq!(of_tree(&any, Some("abc"), 4), Some(3));
        let deduped = tree(&json!({"type": "a", "dedupe_key": "k"}));
        assert_eq!(of_tree(&deduped, Some("abc"), 64), of_tree(&deduped, None, 64));
        let named = tree(&json!({"type": "a", "dedupe_key": "k", "id": "abc"}));
        assert_eq!(of_tree(&named, None, 64), Some(63));
    }

    #[test]
    fn only_roots_without_an_id_have_dedupe_keys() {
        let fault = |value| lost_dedupe_key(&tree(&value));
        assert_eq!(fault(json!({"type": "a", "dedupe_key": "k", "children": [{"type": "b"}]})), None);
        assert_eq!(fault(json!({"type": "a", "dedupe_key": "k", "id": "i"})).as_deref(), Some("dedupe_key"));
        let deep = json!({"type": "a", "children": [{"type": "b"}, {"type": "b", "children": [{"type": "c", "dedupe_key": "k"}]}]});
        assert_eq!(fault(deep).as_deref(), Some("children[1].children[0].dedupe_key"));
    }

    #[test]
    fn items_route_by_their_numbers() {
        let item = ItemRef { day: 20_000, seq: (3 << 48) + 7 };
        let assignment = AssignmentRef { item, token: -1 };
        assert_eq!((of_item(item), of_assignment(&assignment.to_string())), (3, 3));
        assert_eq!(of_assignment("nothing"), 0);
    }
}
