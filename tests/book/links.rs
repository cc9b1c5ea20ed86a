//! Links between pages: each leads to a file that exists, and to a heading that the file has.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::{ROOT, pages, read};

/// Pages outside of the book, which GitHub shows.
const OTHERS: [&str; 6] =
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "healthcheck/README.md"];

/// Lines of a page that are not in a fenced block.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    page.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// A line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The targets of a page's links and images.
fn targets(page: &str) -> Vec<String> {
    let text: Vec<String> = prose(page).map(without_code).collect();
    let text = text.join(" ");
    text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

/// The ids of a page's headings, as GitHub and mdBook make them.
fn ids(page: &str) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for heading in prose(page).filter_map(|line| line.strip_prefix('#')) {
        let text = heading.trim_start_matches('#').trim();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let id = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let repeated = (1..).map(|count| format!("{id}-{count}"));
        let free = std::iter::once(id.clone()).chain(repeated).find(|id| !ids.contains(id)).unwrap();
        ids.insert(free);
    }
    ids
}

/// The path of a link's target from the root of the repository.
fn resolved(page: &str, target: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in Path::new(page).parent().unwrap().join(target).components() {
        match part {
            Component::ParentDir => assert!(path.pop(), "{page}: {target} leads out of the repository"),
            part => path.push(part),
        }
    }
    path
}

/// The fault of a link, if it has one.
fn fault(page: &str, text: &str, target: &str) -> Option<String> {
    if target.contains("://") {
        return None;
    }
    let (file, id) = target.split_once('#').map_or((target, None), |(file, id)| (file, Some(id)));
    let path = if file.is_empty() { PathBuf::from(page) } else { resolved(page, file) };
    if !Path::new(ROOT).join(&path).exists() {
        return Some(format!("{page}: {target}: no such file"));
    }
    if page.starts_with("book/src") && !path.starts_with("book/src") {
        return Some(format!("{page}: {target}: outside of the book, so its site does not have it"));
    }
    let id = id?;
    let known = if file.is_empty() { ids(text) } else { ids(&read(path.to_str().unwrap())) };
    (!known.contains(id)).then(|| format!("{page}: {target}: no such heading"))
}

#[test]
fn links_lead_somewhere() {
    let pages = pages();
    let faults: Vec<String> = pages
        .iter()
        .map(String::as_str)
        .chain(OTHERS)
        .flat_map(|page| {
            let text = read(page);
            targets(&text).into_iter().filter_map(|target| fault(page, &text, &target)).collect::<Vec<_>>()
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_summary_has_every_page() {
    let summary = "book/src/SUMMARY.md";
    let listed: BTreeSet<String> =
        targets(&read(summary)).iter().map(|target| resolved(summary, target).to_str().unwrap().to_owned()).collect();
    let pages: BTreeSet<String> = pages().into_iter().filter(|page| page != summary).collect();
    assert_eq!(listed, pages);
}

#[test]
fn broken_links_are_found() {
    let page = "book/src/sqs.md";
    let text =
        "# On *SQS*\n## What `check` finds\n[a](#what-check-finds) [b](#on-sqs) `[c](no.md)`\n```\n[d](no.md)\n```\n";
    assert_eq!(targets(text), ["#what-check-finds", "#on-sqs"]);
    assert!(targets(text).iter().all(|target| fault(page, text, target).is_none()));
    for broken in ["#nothing", "no.md", "../../README.md", "ecs.md#nothing"] {
        assert!(fault(page, text, broken).is_some(), "{broken}");
    }
    assert_eq!(fault(page, text, "ecs.md#scaling"), None);
}
