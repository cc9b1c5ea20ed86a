//! Compares the rights of the user with those that consumers, schedules and idempotency records need.

use hostler_postgres::{Client, DatabaseError, Type};
use hostler_queue::Finding;

use super::faults::ADDED;
use super::schema::{PERMISSIONS, SCHEMA};

/// Rights that `provision = "auto"` needs besides those of [`PERMISSIONS`].
const CREATING: &str = "\
GRANT INSERT ON hostler_queue.queue TO USER;
GRANT INSERT, UPDATE ON hostler_queue.subscription TO USER;
";

/// Returns the finding if the user lacks rights that a consumer needs. `creates`: the start of a consumer creates what is missing.
pub(super) async fn inspect(client: &Client, creates: bool) -> Result<Option<Finding>, DatabaseError> {
    let needed = of_consumers().chain(granted(if creates { CREATING } else { "" }));
    let lacking = lacking(client, needed).await?;
    let lacking = lacking.iter().map(|(right, object)| format!("{right} on {object}"));
    Ok(finding(&lacking.collect::<Vec<_>>(), creates))
}

/// Returns the statement that grants the rights on a table that the user lacks. `None`: the user has them.
pub(super) async fn missing_on(client: &Client, table: &str) -> Result<Option<String>, DatabaseError> {
    let lacking = lacking(client, granted(PERMISSIONS).filter(|(_, object)| *object == table)).await?;
    if lacking.is_empty() {
        return Ok(None);
    }
    let rows = client.query("SELECT quote_ident(current_user)", &[]).await?;
    let user: String = rows.first().map(|row| row.get(0)).unwrap_or_default();
    let rights: Vec<_> = lacking.into_iter().map(|(right, _)| right).collect();
    Ok(Some(format!("GRANT {} ON {table} TO {user}", rights.join(", "))))
}

/// Returns the rights that each consumer needs, each with its object. An installation without schedules or without idempotency
/// records need not grant theirs.
fn of_consumers() -> impl Iterator<Item = (&'static str, &'static str)> {
    granted(PERMISSIONS).filter(|(_, object)| !ADDED.contains(object))
}

/// Returns the rights that the user lacks, each with its object.
async fn lacking(
    client: &Client,
    needed: impl Iterator<Item = (&'static str, &'static str)>,
) -> Result<Vec<(String, String)>, DatabaseError> {
    let (rights, objects): (Vec<&str>, Vec<&str>) = needed.unzip();
    // UPDATE of a sequence includes its USAGE. Objects that are missing are not a matter of rights.
    let sql = "SELECT n.privilege, n.object FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS n (privilege, object, place)
               WHERE NOT CASE WHEN n.object = $3 THEN has_schema_privilege(n.object, n.privilege) ELSE coalesce((
                   SELECT CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, n.privilege || ', UPDATE')
                                         ELSE has_table_privilege(c.oid, n.privilege) END
                   FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
                   WHERE s.nspname || '.' || c.relname = n.object), true) END
               ORDER BY n.place";
    let rows =
        client.query(sql, &[(&rights, Type::TEXT_ARRAY), (&objects, Type::TEXT_ARRAY), (&SCHEMA, Type::TEXT)]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

fn finding(lacking: &[String], creates: bool) -> Option<Finding> {
    if lacking.is_empty() {
        return None;
    }
    let fault = format!("the user of the database lacks rights: {}", lacking.join(", "));
    let cure = "let the owner of the schema run the statements that `hostler provision --permissions` prints";
    let also = if creates { ", and set provision = \"check\", or connect as that owner" } else { "" };
    Some(Finding { fault, cure: format!("{cure}{also}"), fatal: true })
}

/// Returns the rights that statements grant, each with its object.
fn granted(statements: &str) -> impl Iterator<Item = (&str, &str)> {
    statements.lines().filter_map(parts).flat_map(|(rights, objects)| {
        rights.split(", ").flat_map(move |right| objects.split(", ").map(move |object| (right, object)))
    })
}

/// Splits `GRANT rights ON objects TO USER;` into rights and objects.
fn parts(statement: &str) -> Option<(&str, &str)> {
    let (rights, objects) = statement.strip_prefix("GRANT ")?.strip_suffix(" TO USER;")?.split_once(" ON ")?;
    let names = objects.strip_prefix("SCHEMA ").or_else(|| objects.strip_prefix("SEQUENCE "));
    Some((rights, names.unwrap_or(objects)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{RECORDS, SCHEDULES};

    #[test]
    fn every_statement_of_the_permissions_is_read() {
        for statement in PERMISSIONS.lines().chain(CREATING.lines()) {
            assert!(parts(statement).is_some(), "{statement}");
        }
        let all: Vec<_> = granted(PERMISSIONS).collect();
        assert_eq!(all[0], ("USAGE", SCHEMA));
        for one in
            [("DELETE", "hostler_queue.dedupe"), ("USAGE", "hostler_queue.seq"), ("UPDATE", "hostler_queue.queue")]
        {
            assert!(all.contains(&one), "{one:?}");
        }
        assert_eq!(all.len(), 1 + 3 + 2 + 12 + 1 + 3 + 4);
    }

    #[test]
    fn consumers_need_no_rights_on_schedules_and_records() {
        let all: Vec<_> = granted(PERMISSIONS).filter(|(_, object)| ADDED.contains(object)).collect();
        let schedules = ["SELECT", "INSERT", "UPDATE"].map(|right| (right, SCHEDULES));
        let records = ["SELECT", "INSERT", "UPDATE", "DELETE"].map(|right| (right, RECORDS));
        assert_eq!(all, [&schedules[..], &records].concat());
        assert_eq!(of_consumers().count(), granted(PERMISSIONS).count() - all.len());
    }

    #[test]
    fn all_lacking_rights_are_one_fatal_finding() {
        assert_eq!(finding(&[], true), None);
        let found = finding(&["INSERT on a".to_owned(), "DELETE on b".to_owned()], false).unwrap();
        assert!(found.fatal && found.fault.ends_with("INSERT on a, DELETE on b"), "{found}");
        assert!(found.cure.contains("`hostler provision --permissions`"), "{found}");
    }
}
