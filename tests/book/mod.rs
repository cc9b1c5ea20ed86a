//! The README and the book: their commands run, their links lead somewhere, their reference is that of the code.

mod commands;
mod links;
mod reference;

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Pages of the book, by their paths from the root of the repository.
fn pages() -> Vec<String> {
    let mut pages = Vec::new();
    let mut folders = vec![PathBuf::from("book/src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(Path::new(ROOT).join(&folder)).unwrap().map(|entry| entry.unwrap()) {
            let path = folder.join(entry.file_name());
            match path.extension() {
                Some(extension) if extension == "md" => pages.push(path.to_str().unwrap().to_owned()),
                None if entry.file_type().unwrap().is_dir() => folders.push(path),
                _ => {}
            }
        }
    }
    pages.sort();
    pages
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A fenced block of a page.
#[derive(Debug)]
struct Block {
    kind: String,
    text: String,
    exempt: bool,
}

fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut exempt) = (Vec::new(), false);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        exempt |= line.starts_with("<!-- not run") || line == "<!-- measured -->";
        if let Some(kind) = line.strip_prefix("```") {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(Block { kind: kind.to_owned(), text: text.join("\n"), exempt });
            exempt = false;
        }
    }
    blocks
}
