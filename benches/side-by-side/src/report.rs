//! Results as tables and as JSON.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::json;

use crate::Result;
use crate::cell::Measured;
use crate::machine::Machine;
use crate::targets::{self, Target};

/// Returns the heading for the common values of a table.
pub fn heading(latency_ms: u64, concurrency: u64) -> String {
    format!("Concurrency {concurrency}, calls that take {latency_ms} ms")
}

const COLUMNS: [&str; 8] =
    ["contender", "messages/s", "CPU µs/message", "calls/message", "p50 ms", "p99 ms", "peak RSS MiB", "start ms"];

/// Widths of the columns in characters.
const WIDTHS: [usize; 8] = [31, 11, 15, 14, 8, 8, 13, 9];

/// Formats a table row. The first column is left-aligned.
pub fn line(cells: &[String], widths: &[usize]) -> String {
    let mut text = String::from("|");
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let padding = " ".repeat(width.saturating_sub(cell.chars().count()));
        let cell = if at == 0 { format!("{cell}{padding}") } else { format!("{padding}{cell}") };
        text.push_str(&format!(" {cell} |"));
    }
    text
}

/// Formats the head of a table.
pub fn head(columns: &[&str], widths: &[usize]) -> String {
    let rule = |(at, width): (usize, &usize)| "-".repeat(width - 1) + if at == 0 { "-" } else { ":" };
    let rules: Vec<_> = widths.iter().enumerate().map(rule).collect();
    let columns: Vec<_> = columns.iter().map(|&column| column.to_owned()).collect();
    format!("{}\n{}", line(&columns, widths), line(&rules, widths))
}

/// Returns the head of a table of contenders.
pub fn columns() -> String {
    head(&COLUMNS, &WIDTHS)
}

/// Formats a row of a table of contenders.
pub fn row(cell: &Measured) -> String {
    let cells = [
        cell.setting.contender.title().to_owned(),
        format!("{:.0}", cell.rate),
        format!("{:.1}", cell.cpu_us),
        format!("{:.2}", cell.calls),
        format!("{:.1}", cell.p50_ms),
        format!("{:.1}", cell.p99_ms),
        format!("{:.0}", cell.peak_bytes as f64 / f64::from(1 << 20)),
        format!("{:.0}", cell.start_seconds * 1000.0),
    ];
    line(&cells, &WIDTHS)
}

/// Replaces a text in `performance-data.md`, between the marks with this name.
pub fn put(docs: &Path, name: &str, text: &str) -> Result<()> {
    let page = docs.join("performance-data.md");
    let replaced = replaced(&fs::read_to_string(&page)?, name, text);
    Ok(fs::write(&page, replaced.ok_or_else(|| format!("{} has no place for {name}", page.display()))?)?)
}

fn replaced(page: &str, name: &str, text: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->\n"));
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{text}{end}{after}"))
}

/// Formats all results as JSON.
pub fn json(measured: &[Measured], machine: &Machine, held: &[Target]) -> Result<String> {
    let cells: Vec<_> = measured.iter().map(Measured::json).collect();
    let all = json!({ "machine": machine.json(), "targets": targets::json(held), "measurements": cells });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// Formats one table for each latency and concurrency.
pub fn markdown(measured: &[Measured], machine: &Machine, held: &[Target]) -> String {
    let mut text = machine.text() + "\n";
    let mut last = None;
    for cell in measured {
        let group = (cell.setting.latency_ms, cell.setting.load.slots as u64);
        if last != Some(group) {
            let _ = write!(text, "\n{}:\n\n{}\n", heading(group.0, group.1), columns());
            last = Some(group);
        }
        text.push_str(&row(cell));
        text.push('\n');
    }
    if !held.is_empty() {
        let lines: Vec<_> = held.iter().map(ToString::to_string).collect();
        let _ = write!(text, "\n```text\n{}\n```\n", lines.join("\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let page = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n";
        assert_eq!(replaced(page, "x", "new\n").unwrap(), page.replace("old", "new"));
        assert_eq!(replaced(page, "y", "new\n"), None);
    }

    #[test]
    fn columns_of_figures_are_to_the_right() {
        assert_eq!(head(&["slots", "rate"], &[6, 5]), "| slots  |  rate |\n| ------ | ----: |");
    }
}
