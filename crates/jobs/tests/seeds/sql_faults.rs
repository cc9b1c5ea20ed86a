//! Faults planted in the functions of the schema: the definition of a function is read from the database, changed and replaced.

use hostler_postgres::Database;

/// A change of a function.
pub struct SqlFault {
    pub name: &'static str,
    pub function: &'static str,
    pub from: &'static str,
    pub to: &'static str,
}

/// All faults.
pub const ALL: &[SqlFault] = &[
    SqlFault {
        name: "a success does not pass its key on",
        function: "settle",
        from: "PERFORM pass_on(keys, key_seqs);",
        to: "NULL;",
    },
    SqlFault {
        name: "the newest item of a key is the next",
        function: "pass_on",
        from: "ORDER BY w.key, w.seq LIMIT 1",
        to: "ORDER BY w.key, w.seq DESC LIMIT 1",
    },
    SqlFault {
        name: "one attempt too many",
        function: "settle",
        from: "a.fails + 1 > j.max_failures",
        to: "a.fails > j.max_failures",
    },
    SqlFault {
        name: "any item of a key is ready",
        function: "add_rows",
        from: "WHERE NOT EXISTS (SELECT FROM waiting w WHERE w.key = h.key)",
        to: "WHERE true",
    },
    SqlFault { name: "a token is not compared", function: "settle", from: "AND a.token = g.token", to: "" },
    SqlFault {
        name: "children stay open",
        function: "fold",
        from: "UPDATE job SET sealed = true, sealed_by_fold = true WHERE num = ANY (seals);",
        to: "",
    },
    SqlFault {
        name: "a job completes while items are pending",
        function: "fold",
        from: "job.added = job.ok + job.failed",
        to: "job.added <= job.ok + job.failed + 1",
    },
    SqlFault {
        name: "items are promoted before their time",
        function: "promote",
        from: "due <= clock_timestamp()",
        to: "due <= clock_timestamp() + interval '40 s'",
    },
    SqlFault {
        name: "heartbeats are not recorded",
        function: "heartbeat",
        from: "beat_at = clock_timestamp()",
        to: "beat_at = beat_at",
    },
    SqlFault {
        name: "a release counts as a failure",
        function: "release",
        from: "b.job, b.fails, b.key",
        to: "b.job, b.fails + 1, b.key",
    },
    SqlFault {
        name: "a sealed job takes items",
        function: "add_items",
        from: "ELSIF j.sealed THEN",
        to: "ELSIF false THEN",
    },
    SqlFault {
        name: "a callback is due once the root is complete",
        function: "close_jobs",
        from: "WHERE c.open_jobs = 0 AND",
        to: "WHERE",
    },
];

impl SqlFault {
    /// Plants the fault in a database.
    pub async fn plant(&self, db: &Database) {
        let client = db.client().await.unwrap();
        let sql = format!("SELECT pg_get_functiondef('hostler_jobs.{}'::regproc)", self.function);
        let rows = client.query(&sql, &[]).await.unwrap();
        let definition: String = rows[0].get(0);
        assert!(definition.contains(self.from), "{}: {} has changed:\n{definition}", self.name, self.function);
        client.batch(&definition.replace(self.from, self.to)).await.unwrap();
    }
}
