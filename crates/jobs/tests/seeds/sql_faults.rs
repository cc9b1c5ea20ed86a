//! Faults planted in the functions of the schema: the definition of a function is read from the database, changed and replaced.

mod list;

use hostler_postgres::Database;

pub use list::ALL;

/// A change of the schema.
pub struct SqlFault {
    pub name: &'static str,
    /// The function that is changed. `None`: each change is a statement, whose first half is empty.
    pub function: Option<&'static str>,
    /// Texts of its definition, and those that replace them.
    pub changes: &'static [(&'static str, &'static str)],
}

impl SqlFault {
    /// Plants the fault in a database.
    pub async fn plant(&self, db: &Database) {
        let client = db.client().await.unwrap();
        let Some(function) = self.function else {
            for (_, statement) in self.changes {
                client.batch(statement).await.unwrap();
            }
            return;
        };
        let sql = format!("SELECT pg_get_functiondef('hostler_jobs.{function}'::regproc)");
        let rows = client.query(&sql, &[]).await.unwrap();
        let mut definition: String = rows[0].get(0);
        for (from, to) in self.changes {
            assert!(
                definition.contains(from),
                "{}: {function} has changed, {from:?} is not in\n{definition}",
                self.name
            );
            definition = definition.replace(from, to);
        }
        client.batch(&definition).await.unwrap();
    }
}
