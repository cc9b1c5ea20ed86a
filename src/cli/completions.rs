//! Command `hostler completions`.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, print};
use crate::exit::{Exit, Result};

const HELP: &str = "\
Examples:
  hostler completions bash > /etc/bash_completion.d/hostler";

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "hostler", &mut script);
    print(String::from_utf8_lossy(&script).trim_end());
    Ok(Exit::Ok)
}
