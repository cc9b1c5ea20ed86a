//! Looks into the database beside the service: sizes of tables, and a transaction that pins what vacuum may remove.

use tokio::runtime::{Builder, Runtime};
use tokio_postgres::NoTls;

use crate::failure::Failure;
use crate::figures::ratio;

/// Sizes of the tables with the part of each that is an index. Partitions are day tables that only grow until they are dropped whole.
const SIZES: &str = "SELECT c.relispartition, coalesce(sum(pg_table_size(c.oid)), 0)::bigint, \
    coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint \
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'hostler_jobs' AND c.relkind = 'r' \
    GROUP BY c.relispartition";

/// The largest of the tables that are not partitions.
const LARGEST: &str = "SELECT c.relname::text, pg_total_relation_size(c.oid) FROM pg_class c \
    JOIN pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = 'hostler_jobs' AND c.relkind = 'r' AND NOT c.relispartition ORDER BY 2 DESC LIMIT 3";

/// A connection to the database.
pub struct Database {
    runtime: Runtime,
    client: tokio_postgres::Client,
}

/// Sizes in bytes.
#[derive(Clone, Default)]
pub struct Sizes {
    /// Tables whose rows come and go.
    pub tables: u64,
    /// Indexes of these tables.
    pub indexes: u64,
    /// Partitions of items, results and failures, with their indexes.
    pub partitions: u64,
    /// The largest tables, with their indexes.
    pub largest: Vec<(String, u64)>,
}

impl Sizes {
    /// Returns the size of the tables whose rows come and go, with their indexes.
    pub fn working(&self) -> u64 {
        self.tables + self.indexes
    }
}

impl Database {
    /// Connects.
    ///
    /// # Errors
    /// [`Failure::Database`].
    pub fn open(url: &str) -> Result<Self, Failure> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (client, connection) = runtime.block_on(tokio_postgres::connect(url, NoTls))?;
        runtime.spawn(connection);
        Ok(Self { runtime, client })
    }

    /// Begins a transaction whose snapshot pins all rows that are deleted from now on, until this value is dropped.
    ///
    /// # Errors
    /// [`Failure::Database`].
    pub fn pin(&self) -> Result<(), Failure> {
        let begin =
            "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM hostler_jobs.job; SELECT pg_current_xact_id()";
        Ok(self.runtime.block_on(self.client.batch_execute(begin))?)
    }

    /// Reads the sizes.
    ///
    /// # Errors
    /// [`Failure::Database`].
    pub fn sizes(&self) -> Result<Sizes, Failure> {
        let mut sizes = Sizes::default();
        for row in self.runtime.block_on(self.client.query(SIZES, &[]))? {
            let (tables, indexes) = (bytes(row.get(1)), bytes(row.get(2)));
            if row.get(0) {
                sizes.partitions = tables + indexes;
            } else {
                (sizes.tables, sizes.indexes) = (tables, indexes);
            }
        }
        let largest = self.runtime.block_on(self.client.query(LARGEST, &[]))?;
        sizes.largest = largest.iter().map(|row| (row.get(0), bytes(row.get(1)))).collect();
        Ok(sizes)
    }
}

/// Returns a size in MiB.
pub fn mebibytes(size: u64) -> f64 {
    ratio(size, 1 << 20)
}

fn bytes(size: i64) -> u64 {
    u64::try_from(size).unwrap_or_default()
}
