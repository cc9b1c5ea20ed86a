//! `hostler jobs serve` and `hostler jobs migrate`, which work on the database itself.

use super::{ConfigArg, block_on, print};
use crate::exit::{Exit, Result};
use crate::host;

const SERVE_HELP: &str = "\
Examples:
  hostler jobs serve
  hostler jobs serve --config jobs.toml

Answers at jobs.listen; GET /openapi.json describes all calls. Creates or updates the schema first. Any number of \
    instances may share a database. Without jobs.tokens, only a loopback address is allowed. The first signal drains, a \
    second one ends the process at once.";

/// Serve the jobs of a PostgreSQL database over HTTP
#[derive(Debug, clap::Args)]
#[command(after_help = SERVE_HELP)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArg,
}

const MIGRATE_HELP: &str = "\
Examples:
  hostler jobs migrate
  HOSTLER_JOBS__DATABASE=postgres://owner@localhost/jobs hostler jobs migrate

`serve` does the same when it starts. This command is for a database whose service may not create tables. Exits with \
    64 if a newer hostler has updated the schema.";

/// Create or update the tables of the job service
#[derive(Debug, clap::Args)]
#[command(after_help = MIGRATE_HELP)]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    config: ConfigArg,
}

pub(super) fn serve(args: &ServeArgs) -> Result {
    host::serve_jobs(args.config.config.as_deref())
}

pub(super) fn migrate(args: &MigrateArgs) -> Result {
    let config = args.config.load()?.config;
    let databases = host::open_jobs(&config)?;
    block_on(host::migrate_jobs(&databases))?;
    print("the tables of the job service are up to date");
    Ok(Exit::Ok)
}
