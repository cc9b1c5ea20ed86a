//! Plot of each contender's cost as bars, at a concurrency close to common use. Output is an SVG for light and dark pages.

use std::fmt::{Display, Write as _};

use crate::Result;
use crate::cell::Measured;

/// Sizes in pixels: left and right end of the bars, and width of the page.
const LEFT: f64 = 200.0;
const RIGHT: f64 = 880.0;
const WIDTH: f64 = 1000.0;
/// Height of the page head, of a panel title, of a bar with the space below it, and of the bar alone.
const HEAD: f64 = 52.0;
const TITLE: f64 = 40.0;
const ROW: f64 = 22.0;
const BAR: f64 = 15.0;

/// Concurrency in the plot, if it was measured.
const CONCURRENCY: usize = 10;

/// Plain CSS rules, because not every viewer supports CSS variables.
const STYLE: &str = "
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .soft { fill: #6a737d; font-size: 11px; }
  .page { fill: #ffffff; } .rule { stroke: #e1e4e8; }
  .ours { fill: #1f6feb; } .limit { fill: #8c959f; } .theirs { fill: #bc4c00; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .soft { fill: #8b949e; }
    .page { fill: #0d1117; } .rule { stroke: #2b3138; }
    .ours { fill: #58a6ff; } .limit { fill: #6e7681; } .theirs { fill: #f0883e; }
  }
";

/// A panel: its title, its value, and the number of decimals.
struct Panel(&'static str, fn(&Measured) -> f64, usize);

const PANELS: [Panel; 3] = [
    Panel("CPU time per message, µs", |cell| cell.cpu_us, 0),
    Panel("Messages per second", |cell| cell.rate, 0),
    Panel("Peak memory, MiB", |cell| cell.peak_bytes as f64 / (1024.0 * 1024.0), 0),
];

/// Plots the measurements with the lowest latency.
pub fn plot(measured: &[Measured]) -> Result<String> {
    let latency = measured.iter().map(|cell| cell.setting.latency_ms).min().unwrap_or_default();
    let of = |concurrency| {
        let is = |cell: &&Measured| (cell.setting.latency_ms, cell.setting.load.slots) == (latency, concurrency);
        measured.iter().filter(is).collect::<Vec<_>>()
    };
    let all = || measured.iter().map(|cell| cell.setting.load.slots).max().unwrap_or_default();
    let concurrency = if of(CONCURRENCY).is_empty() { all() } else { CONCURRENCY };
    let cells = of(concurrency);
    let panel = TITLE + ROW * cells.len() as f64;
    let height = HEAD + panel * PANELS.len() as f64 + 40.0;
    let title = format!("hostler and its peers, {concurrency} messages at a time, on a server that answers at once");
    let mut text = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">
<style>{STYLE}</style>
<rect width="{WIDTH}" height="{height}" class="page"/>
<text x="20" y="24">{title}</text>
"#
    );
    label(&mut text, 20.0, 42.0, "start", "Scales are logarithmic: each line is ten times the one before.")?;
    for (at, Panel(name, value, digits)) in PANELS.iter().enumerate() {
        let bars: Vec<_> = cells.iter().map(|cell| (*cell, value(cell))).collect();
        draw(&mut text, name, HEAD + panel * at as f64, &bars, *digits)?;
    }
    text.push_str("</svg>\n");
    Ok(text)
}

/// Writes a label. `anchor` is the end of the label at `x`.
fn label(text: &mut String, x: f64, y: f64, anchor: &str, word: impl Display) -> Result<()> {
    writeln!(text, r#"<text class="soft" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{word}</text>"#)?;
    Ok(())
}

fn draw(text: &mut String, name: &str, top: f64, bars: &[(&Measured, f64)], digits: usize) -> Result<()> {
    let values = || bars.iter().map(|(_, value)| value.max(f64::MIN_POSITIVE));
    let first = values().fold(f64::INFINITY, f64::min).log10().floor();
    let last = values().fold(1.0, f64::max).log10().ceil().max(first + 1.0);
    // A bar at the smallest power of ten would have no length.
    let (first, bottom) = (first - 0.5, top + TITLE + ROW * bars.len() as f64 - 4.0);
    let x = |value: f64| LEFT + (RIGHT - LEFT) * ((value.log10() - first) / (last - first)).clamp(0.0, 1.0);
    writeln!(text, "<text x=\"{LEFT}\" y=\"{:.1}\">{name}</text>", top + 20.0)?;
    for power in first.ceil() as i32..=last as i32 {
        let at = x(10_f64.powi(power));
        writeln!(text, r#"<path class="rule" d="M{at:.1} {:.1}V{bottom:.1}"/>"#, top + TITLE - 8.0)?;
    }
    for (at, (cell, value)) in bars.iter().enumerate() {
        let contender = cell.setting.contender;
        let class = match contender {
            _ if contender.is_hostler() => "ours",
            _ if contender.is_limit() => "limit",
            _ => "theirs",
        };
        let (y, end) = (top + TITLE + ROW * at as f64, x(*value));
        label(text, LEFT - 8.0, y + 8.0, "end", contender.title())?;
        let width = end - LEFT;
        let y_bar = y - 3.0;
        writeln!(
            text,
            r#"<rect class="{class}" x="{LEFT}" y="{y_bar:.1}" width="{width:.1}" height="{BAR}" rx="2"/>"#
        )?;
        writeln!(text, "<text x=\"{:.1}\" y=\"{:.1}\">{value:.digits$}</text>", end + 6.0, y + 9.0)?;
    }
    Ok(())
}
