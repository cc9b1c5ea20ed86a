//! Command `hostler new`. Creates a handler project that builds. `templates.rs` lists the files, and `project.rs` writes them.

mod project;
mod templates;

use std::path::Path;

use self::templates::Lang;
use super::print;
use crate::exit::{Exit, Failure, Result};

/// Maximum length of a project name. The name with the suffix `-replies` must fit into a channel name.
const LONGEST: usize = 63;

/// Names of packages that projects depend on. A project must not have one of these names.
const TAKEN: [&str; 3] = ["hostler", "hostler-guest", "hostler-guest-macros"];

const HELP: &str = "\
Examples:
  hostler new order-mails --lang rust

Creates the folder NAME here, with a config and a Dockerfile; an existing folder must be empty. If a file cannot be \
    written, all others are removed again.";

/// Create a handler project, with a test and a Dockerfile
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The name of the folder, the consumer and the queue
    #[arg(value_parser = name)]
    name: String,
    /// The language of the handler
    #[arg(long, value_enum)]
    lang: Lang,
}

pub(super) fn run(args: &Args) -> Result {
    let name = args.name.as_str();
    let template = args.lang.template();
    let files = template.files(name);
    project::create(Path::new(name), &files)
        .map_err(|error| Failure::new(Exit::Failed, format!("{error}\n  cure: {}", error.cure())))?;
    print(format!("{name}/: {} files. Next:\n\n  cd {name}", files.len()));
    for command in template.next {
        print(format!("  {}", templates::named(command, name)));
    }
    Ok(Exit::Ok)
}

/// Parses a project name. The name must be valid as the name of a consumer, a channel, an image, and a package in every language.
fn name(text: &str) -> std::result::Result<String, String> {
    let inner = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '-';
    let fits = text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.chars().all(inner)
        && !text.ends_with('-')
        && text.len() <= LONGEST
        && !TAKEN.contains(&text);
    if fits {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "write a letter of a-z, then letters, digits and dashes, {LONGEST} characters at most, no dash at the end, \
             and no name of hostler's own; such as order-mails"
        ))
    }
}
