//! Command `hostler schema`.

use super::print;
use crate::exit::{Exit, Failure, Result};
use hostler_config as config;

const HELP: &str = "\
Examples:
  hostler schema > hostler.schema.json
  hostler schema --markdown";

/// Print the JSON Schema of the config
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Print a table of all keys in Markdown instead
    #[arg(long)]
    markdown: bool,
}

pub(super) fn run(args: &Args) -> Result {
    if args.markdown {
        print(config::reference().trim_end())
    } else {
        let schema = serde_json::to_string_pretty(&config::schema());
        print(schema.map_err(|error| Failure::new(Exit::Internal, error))?);
    }
    Ok(Exit::Ok)
}
