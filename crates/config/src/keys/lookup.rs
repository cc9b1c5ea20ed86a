//! Finds keys and tables by their names.

use super::{Key, keys};

/// Kind of a name in a table.
pub(crate) enum Node {
    Key(&'static Key),
    /// A table. The field is its pattern, for example `consumers.*.retry`.
    Table(String),
    Unknown,
}

/// Looks up a name in a table. `table`: pattern of the table; empty for the root.
pub(crate) fn child(table: &str, name: &str) -> Node {
    let literal = Some(name).filter(|name| !name.contains('.'));
    for last in literal.into_iter().chain(["*"]) {
        let pattern = joined(table, last);
        if let Some(key) = keys().find(|key| key.path == pattern) {
            return Node::Key(key);
        }
        if keys().any(|key| below(key.path, &pattern).is_some()) {
            return Node::Table(pattern);
        }
    }
    Node::Unknown
}

/// Returns the distinct names in a table. Contains `*` if the user chooses names in this table.
pub(crate) fn names(table: &str) -> Vec<&'static str> {
    let mut names: Vec<_> = keys().filter_map(|key| below(key.path, table)?.split('.').next()).collect();
    names.dedup();
    names
}

/// Returns the part of `path` below `table`. For example, `b.c` if the path is `a.b.c` and the table is `a`. `None`:
/// the path is not below the table.
pub(crate) fn below<'a>(path: &'a str, table: &str) -> Option<&'a str> {
    if table.is_empty() { Some(path) } else { path.strip_prefix(table)?.strip_prefix('.') }
}

/// Appends a name to the pattern of a table.
pub(crate) fn joined(table: &str, name: &str) -> String {
    if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_knows_its_names() {
        assert_eq!(
            names(""),
            ["host", "queue", "payload", "consumers", "schedules", "retry", "jobs", "alarms", "telemetry", "dev"]
        );
        assert_eq!(names("consumers"), ["*"]);
        assert_eq!(names("queue")[..3], ["driver", "embedded", "sqs"], "each table once");
    }

    #[test]
    fn a_dot_in_a_name_does_not_reach_below() {
        assert!(matches!(child("queue", "sqs.region"), Node::Unknown));
        assert!(matches!(child("queue.sqs", "region"), Node::Key(_)));
        assert!(matches!(child("", "consumers"), Node::Table(table) if table == "consumers"));
        assert!(matches!(child("consumers", "a.b"), Node::Table(table) if table == "consumers.*"));
    }
}
