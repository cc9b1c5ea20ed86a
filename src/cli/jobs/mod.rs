//! Command `hostler jobs`: the job service, and what operators ask of it.

mod client;
mod items;
mod serve;
mod shown;
mod tree;

use std::io::{self, IsTerminal as _};

use super::output::{confirm, counted, pretty_json};
use super::table::table;
use super::{ConfigArg, block_on, print, say};
use crate::exit::{Exit, Failure, Result};
use client::{Client, ServiceArg};
use hostler_jobs::types::{JobPage, JobRow};

const HELP: &str = "\
Examples:
  hostler jobs serve
  hostler jobs ls --open

`serve` and `migrate` work on the database of jobs.database. All others ask the service at jobs.url, with the token in \
    jobs.token.";

/// Serve and inspect trees of jobs on PostgreSQL
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    Migrate(serve::MigrateArgs),
    Ls(LsArgs),
    Show(tree::ShowArgs),
    Retry(RetryArgs),
    Cancel(CancelArgs),
}

const LS_HELP: &str = "\
Examples:
  hostler jobs ls --type thumbnail
  hostler jobs ls --open --max 20 --json

Lists roots and the jobs below them, in the order of their creation. Counts may be behind by a moment. `hostler jobs \
    show` shows a whole tree as it is.";

/// List jobs with their progress
#[derive(Debug, clap::Args)]
#[command(after_help = LS_HELP)]
struct LsArgs {
    /// Only jobs of this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only jobs that are not complete
    #[arg(long)]
    open: bool,
    /// List at most N jobs
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = super::source::count)]
    max: u64,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: ServiceArg,
}

const RETRY_HELP: &str = "\
Examples:
  hostler jobs retry 0197a4f2-9c1e-7b3d-8f65-2f1f6d3c0a11

The failures of the items stay on record, and each may fail as often as before. The job is open again until they \
    have ended, and so is its tree.";

/// Try the failed items of a job again
#[derive(Debug, clap::Args)]
#[command(after_help = RETRY_HELP)]
struct RetryArgs {
    /// The job's id
    job: String,
    #[command(flatten)]
    service: ServiceArg,
}

const CANCEL_HELP: &str = "\
Examples:
  hostler jobs cancel 0197a4f2-9c1e-7b3d-8f65-2f1f6d3c0a11
  hostler jobs cancel 0197a4f2-9c1e-7b3d-8f65-2f1f6d3c0a11 --yes

Removes the job and the tree below it, with all results. Workers learn of it at their next heartbeat, and stop. Asks \
    for confirmation on a terminal; elsewhere --yes is required.";

/// Remove a job and the tree below it for good
#[derive(Debug, clap::Args)]
#[command(after_help = CANCEL_HELP)]
struct CancelArgs {
    /// The job's id
    job: String,
    /// Skip the confirmation; results are removed as well
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    service: ServiceArg,
}

pub(super) fn run(args: &Args) -> Result {
    match &args.command {
        Command::Serve(args) => serve::serve(args),
        Command::Migrate(args) => serve::migrate(args),
        Command::Ls(args) => ls(args),
        Command::Show(args) => tree::show(args),
        Command::Retry(args) => retry(args),
        Command::Cancel(args) => cancel(args),
    }
}

fn ls(args: &LsArgs) -> Result {
    let client = args.service.client()?;
    let jobs = block_on(listed(&client, args))?;
    if args.json {
        print(pretty_json(&jobs)?);
    } else if jobs.is_empty() {
        say("there is no such job");
    } else {
        print(table(&shown::JOBS, &jobs.iter().map(shown::job).collect::<Vec<_>>()));
    }
    Ok(Exit::Ok)
}

/// Returns the jobs to list, up to the maximum.
async fn listed(client: &Client, args: &LsArgs) -> Result<Vec<JobRow>> {
    let complete = args.open.then(|| "false".to_owned());
    let (mut jobs, mut cursor) = (Vec::new(), None);
    loop {
        let left = args.max - jobs.len() as u64;
        let limit = client::page(left).to_string();
        let query = [
            ("type", args.kind.clone()),
            ("complete", complete.clone()),
            ("limit", Some(limit)),
            ("cursor", cursor.take()),
        ];
        let page: JobPage = client.get(&["job"], query).await?;
        jobs.extend(page.jobs);
        match page.next {
            Some(next) if (jobs.len() as u64) < args.max => cursor = Some(next),
            _ => return Ok(jobs),
        }
    }
}

fn retry(args: &RetryArgs) -> Result {
    let client = args.service.client()?;
    let retried = block_on(client.retry(&args.job))?;
    print(format_args!("{} of {} pending again", counted(retried, "item"), args.job));
    Ok(Exit::Ok)
}

fn cancel(args: &CancelArgs) -> Result {
    let job = &args.job;
    if !args.yes && !io::stdin().is_terminal() {
        let text = format!(
            "cancel removes jobs and their results for good, and standard input is not a terminal on which to confirm that\n  \
             cure: `hostler jobs show {job}` shows what is there; then add --yes"
        );
        return Err(Failure::new(Exit::Usage, text));
    }
    let client = args.service.client()?;
    let cancelled = block_on(async {
        if !args.yes && !confirmed(&client, job).await? {
            return Ok(false);
        }
        client.delete(job).await.map(|()| true)
    })?;
    if !cancelled {
        return Err(Failure::new(Exit::Failed, format!("nothing was removed of {job}")));
    }
    print(format_args!("{job} is removed, with the tree below it"));
    Ok(Exit::Ok)
}

/// Shows what the job has, and asks the user to confirm its removal.
async fn confirmed(client: &Client, job: &str) -> Result<bool> {
    let status = client.status(job).await?;
    let (jobs, sums) = tree::sums(&status);
    let question = format!(
        "{job} has {} with {} pending and {} succeeded. Remove all for good?",
        counted(jobs, "job"),
        counted(sums.pending, "item"),
        sums.succeeded
    );
    confirm(&question).map_err(|error| Failure::new(Exit::Internal, format!("cannot read the answer: {error}")))
}
