//! The commonest mistakes, and the text that each prints.
//!
//! `tests/fixtures/mistakes/` shows them all, a page per area: the command, its exit code, and its standard error. With
//! `UPDATE_GOLDEN=1` the pages are rewritten: read the difference as a new user would.

mod commands;
mod config;
mod handlers;
mod hosts;
mod queues;
#[cfg(feature = "sqs")]
mod sqs;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use regex_lite::Regex;

use crate::support::hostler::{Said, World};

/// The least number of mistakes on all pages together.
const LEAST: usize = 60;

/// The beginning of the line that shows a command.
const PROMPT: &str = "$ hostler ";

/// A page of mistakes.
struct Page {
    file: PathBuf,
    text: String,
    /// A text that differs from run to run, and its placeholder.
    volatile: Vec<(Regex, &'static str)>,
}

impl Page {
    fn new(name: &str, title: &str) -> Self {
        let volatile = [
            (r"\b\d{4}-\d\d-\d\dT[0-9:.]+Z", "TIME"),
            (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
            (r"\bpid \d+", "pid PID"),
        ];
        Self {
            file: pages().join(name),
            text: format!("# {title}\n"),
            volatile: volatile.map(|(pattern, word)| (Regex::new(pattern).unwrap(), word)).into(),
        }
    }

    /// Replaces what fits this pattern.
    fn hiding(mut self, pattern: &str, word: &'static str) -> Self {
        self.volatile.push((Regex::new(pattern).unwrap(), word));
        self
    }

    /// Adds what a command printed. Text on standard output is shown only if there is nothing else.
    fn add(&mut self, mistake: &str, world: &World, args: &[&str], said: &Said) {
        self.with_input(mistake, None, world, args, said);
    }

    /// Runs a command, and adds what it printed.
    fn run(&mut self, mistake: &str, world: &World, args: &[&str]) {
        self.add(mistake, world, args, &world.output(args));
    }

    /// Checks this config, and adds what that printed.
    fn config(&mut self, mistake: &str, config: &str) {
        let config = outdented(config);
        let world = World::new(&config);
        self.with_input(mistake, Some(&config), &world, &["check"], &world.output(&["check"]));
    }

    fn with_input(&mut self, mistake: &str, config: Option<&str>, world: &World, args: &[&str], said: &Said) {
        let folder = world.path("").display().to_string();
        let steady = |text: &str| {
            let text = text.trim_end().replace(&folder, "/work/").replace(folder.trim_end_matches('/'), "/work");
            self.volatile.iter().fold(text, |text, (pattern, word)| pattern.replace_all(&text, *word).into_owned())
        };
        let quoted = |arg: &&str| match arg.is_empty() || arg.contains([' ', '"', '{', '>', '*']) {
            true => format!("'{arg}'"),
            false => (*arg).to_owned(),
        };
        let command = args.iter().map(quoted).collect::<Vec<_>>().join(" ");
        let printed = if said.stderr.is_empty() { &said.stdout } else { &said.stderr };
        let text = &mut self.text;
        write!(text, "\n## {mistake}\n\n").unwrap();
        if let Some(config) = config {
            write!(text, "```toml\n{}\n```\n\n", config.trim_end()).unwrap();
        }
        write!(text, "```text\n{PROMPT}{}\n{}\n```\n\nExit code {}.\n", steady(&command), steady(printed), said.code)
            .unwrap();
    }

    /// Compares the page with the stored one, or stores it.
    fn compare(self) {
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(pages()).unwrap();
            std::fs::write(&self.file, &self.text).unwrap();
        }
        let stored = std::fs::read_to_string(&self.file).unwrap_or_default();
        let sections = |text: &str| text.split("\n## ").map(str::to_owned).collect::<Vec<_>>();
        let stored_sections = sections(&stored);
        let new: Vec<_> =
            sections(&self.text).into_iter().filter(|section| !stored_sections.contains(section)).collect();
        let file = self.file.display();
        assert!(new.is_empty(), "UPDATE_GOLDEN=1 rewrites {file}, which lacks:\n## {}", new.join("\n## "));
        assert_eq!(self.text, stored, "UPDATE_GOLDEN=1 rewrites {file}");
    }
}

fn pages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mistakes")
}

/// Removes the indentation of the first line from all lines.
fn outdented(text: &str) -> String {
    let text = text.trim_start_matches('\n').trim_end();
    let indent = text.len() - text.trim_start().len();
    let lines = text.lines().map(|line| line.get(indent..).unwrap_or(line.trim_start()));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn there_are_sixty_mistakes_and_each_says_what_to_do() {
    let (mut count, mut titles) = (0, std::collections::BTreeSet::new());
    for entry in std::fs::read_dir(pages()).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for section in text.split("\n## ").skip(1) {
            let title = section.lines().next().unwrap();
            assert!(titles.insert(title.to_owned()), "`{title}` is there twice");
            let (_, printed) = section.split_once(PROMPT).unwrap();
            let printed: Vec<_> = printed.lines().skip(1).take_while(|line| *line != "```").collect();
            assert!(printed.iter().any(|line| line.len() > 20), "`{title}` prints nothing to go by: {printed:?}");
            count += 1;
        }
    }
    assert!(count >= LEAST, "only {count} mistakes");
}
