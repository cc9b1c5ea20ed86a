//! Suggests keys for names that do not exist.

use super::keys::{self, Node, keys, names};
use super::likeness::{alike, folded};

/// Returns the name of the variable that sets a key.
pub(super) fn variable(path: &[String]) -> String {
    let grant = path.iter().rposition(|name| name == "env").filter(|at| at + 2 == path.len());
    let spelt = path.iter().enumerate().map(|(at, name)| {
        if grant.is_some_and(|grant| at > grant) { name.clone() } else { folded(name).to_uppercase() }
    });
    format!("HOSTLER_{}", spelt.collect::<Vec<_>>().join("__"))
}

/// Returns the key that was probably meant by an unknown name: a key with a similar name in the table, otherwise a key
/// with the same name in another table. `path`: path of the table. `table`: pattern of the table.
pub(super) fn meant(path: &[String], table: &str, name: &str) -> Option<Vec<String>> {
    if let Some(here) = alike(name, names(table)) {
        return Some(path.iter().cloned().chain([here.to_owned()]).collect());
    }
    let elsewhere = keys().find(|key| key.path.rsplit('.').next() == Some(&folded(name)))?;
    let consumer = path.get(1).filter(|_| path.first().is_some_and(|first| first == "consumers"));
    Some(named(elsewhere.path, consumer.map_or("NAME", String::as_str)))
}

/// Returns the key that was probably meant by a variable with too few underscores, for example `queue_driver`.
pub(super) fn flattened(words: &str) -> Option<Vec<String>> {
    let words = folded(words).replace("__", "_");
    let matching = |path: &'static str| {
        let Some((before, after)) = path.split_once(".*.") else {
            return (path.replace('.', "_") == words).then(|| named(path, ""));
        };
        let (before, after) = (before.replace('.', "_"), after.replace('.', "_"));
        let name = words.strip_prefix(&before)?.strip_prefix('_')?.strip_suffix(&after)?.strip_suffix('_')?;
        (!name.is_empty()).then(|| named(path, name))
    };
    // The longest key gives the shortest consumer name: `a_retry_delay` is `retry.delay` of consumer `a`.
    keys().filter_map(|key| matching(key.path)).max_by_key(Vec::len)
}

fn named(path: &str, name: &str) -> Vec<String> {
    path.split('.').map(|part| if part == "*" { name } else { part }.to_owned()).collect()
}

/// Lists the keys of a table, for the fix of a fault.
pub(super) fn known(table: &str) -> String {
    match names(table).as_slice() {
        ["*"] if matches!(keys::child(table, "*"), Node::Key(_)) => {
            "it holds names of your choice, each with a text".to_owned()
        }
        ["*"] => "it holds one table for each name of your choice".to_owned(),
        names => format!("keys here: {}", names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")),
    }
}

/// Formats a path in TOML syntax. Quotes names that are not bare keys.
pub(super) fn dotted(path: &[String]) -> String {
    path.iter().fold(String::new(), |path, name| {
        let bare = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        keys::joined(&path, &if bare { name.clone() } else { format!("{name:?}") })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(dotted: &str) -> Vec<String> {
        dotted.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn slips_are_understood() {
        for (table, name, wanted) in [
            ("", "consumer", "consumers"),
            ("", "telemtry", "telemetry"),
            ("consumers.a", "concurency", "consumers.a.concurrency"),
            ("consumers.a", "Processing-Timeout", "consumers.a.processing_timeout"),
            ("consumers.a", "retries", "consumers.a.retry"),
            ("consumers.a", "memory", "consumers.a.limits.memory"),
            ("queue", "region", "queue.sqs.region"),
            ("host", "lease", "consumers.NAME.lease"),
        ] {
            let pattern = table.replace(".a", ".*");
            assert_eq!(meant(&path(table), &pattern, name), Some(path(wanted)), "{table} {name}");
        }
        for (table, name) in [("", "x"), ("consumers.*", "visibility"), ("telemetry", "metrics")] {
            assert_eq!(meant(&path(table), table, name), None, "{table} {name}");
        }
    }

    #[test]
    fn missing_underscores_are_understood() {
        assert_eq!(flattened("QUEUE_DRIVER"), Some(path("queue.driver")));
        assert_eq!(flattened("CONSUMERS_A_B_RETRY_DELAY"), Some(path("consumers.a_b.retry.delay")));
        assert_eq!(flattened("CONSUMERS__A_LEASE"), Some(path("consumers.a.lease")));
        assert_eq!(flattened("PORT_80_TCP"), None);
    }

    #[test]
    fn paths_print_as_toml_and_as_variables() {
        assert_eq!(dotted(&["consumers".into(), "a.b".into(), "lease".into()]), "consumers.\"a.b\".lease");
        assert_eq!(variable(&path("consumers.order-mails.lease")), "HOSTLER_CONSUMERS__ORDER_MAILS__LEASE");
        assert_eq!(variable(&path("consumers.a.allow.env.Path")), "HOSTLER_CONSUMERS__A__ALLOW__ENV__Path");
    }
}
