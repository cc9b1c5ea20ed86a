//! The migrations of the job service's schema. A released file never changes: a change is a new file.

use hostler_postgres::Migration;

/// The schema's name.
pub const SCHEMA: &str = "hostler_jobs";

/// All migrations, the oldest first.
pub const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "tables", compatible_from: 1, sql: include_str!("schema/01_tables.sql") },
    Migration { version: 2, name: "create", compatible_from: 2, sql: include_str!("schema/02_create.sql") },
    Migration { version: 3, name: "claim", compatible_from: 3, sql: include_str!("schema/03_claim.sql") },
    Migration { version: 4, name: "settle", compatible_from: 4, sql: include_str!("schema/04_settle.sql") },
    Migration { version: 5, name: "fold", compatible_from: 5, sql: include_str!("schema/05_fold.sql") },
    Migration { version: 6, name: "reads", compatible_from: 6, sql: include_str!("schema/06_reads.sql") },
    Migration { version: 7, name: "fanout", compatible_from: 7, sql: include_str!("schema/07_fanout.sql") },
];

/// Latest version of the schema, which this program needs.
pub const LATEST: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;
