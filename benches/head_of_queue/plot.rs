//! Plot of the good messages that each consumer has done over time. Output is an SVG for light and dark pages.

use std::fmt::{Display, Write as _};

use crate::{GOOD, LENGTH, Measured, Result};

/// Sizes in pixels: the edges of the plot, and of the page.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 976.0;
const TOP: f64 = 88.0;
const BOTTOM: f64 = 340.0;
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 384.0;

/// Plain CSS rules, because not every viewer supports CSS variables.
const STYLE: &str = "
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .soft { fill: #6a737d; font-size: 11px; }
  .page { fill: #ffffff; } .rule { stroke: #e1e4e8; }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
  .s0 { stroke: #1f6feb; } .f0 { fill: #1f6feb; } .s1 { stroke: #bc4c00; } .f1 { fill: #bc4c00; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .soft { fill: #8b949e; }
    .page { fill: #0d1117; } .rule { stroke: #2b3138; }
    .s0 { stroke: #58a6ff; } .f0 { fill: #58a6ff; } .s1 { stroke: #f0883e; } .f1 { fill: #f0883e; }
  }
";

fn x(seconds: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * (seconds / LENGTH.as_secs_f64()).clamp(0.0, 1.0)
}

fn y(done: usize) -> f64 {
    BOTTOM - (BOTTOM - TOP) * done as f64 / GOOD as f64
}

/// Plots the measurements.
pub fn plot(measured: &[Measured]) -> Result<String> {
    let title = "Good messages done over time, with as many unprocessable ones in front of them";
    let mut text = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">
<style>{STYLE}</style>
<rect width="{WIDTH}" height="{HEIGHT}" class="page"/>
"#
    );
    for (at, Measured { name, .. }) in measured.iter().enumerate() {
        let top = 20 + at * 18;
        writeln!(text, r#"<rect class="f{at}" x="{LEFT}" y="{}" width="18" height="4" rx="2"/>"#, top - 7)?;
        writeln!(text, r#"<text x="{}" y="{top}">{name}</text>"#, LEFT + 26.0)?;
    }
    for done in (0..=GOOD).step_by(GOOD / 5) {
        writeln!(text, r#"<path class="rule" d="M{LEFT} {:.1}H{RIGHT}"/>"#, y(done))?;
        label(&mut text, LEFT - 8.0, y(done) + 4.0, "end", done)?;
    }
    for second in (0..=LENGTH.as_secs()).step_by(2) {
        label(&mut text, x(second as f64), BOTTOM + 18.0, "middle", second)?;
    }
    label(&mut text, RIGHT, BOTTOM + 36.0, "end", "seconds")?;
    for (at, Measured { acked, .. }) in measured.iter().enumerate() {
        let mut line = format!("M{LEFT} {BOTTOM}");
        for (done, seconds) in acked.iter().enumerate() {
            write!(line, "L{:.1} {:.1}", x(*seconds), y(done + 1))?;
        }
        writeln!(text, "<path class=\"line s{at}\" d=\"{line}H{RIGHT}\"/>")?;
    }
    text.push_str("</svg>\n");
    Ok(text)
}

/// Writes a label. `anchor` is the end of the label at `x`.
fn label(text: &mut String, x: f64, y: f64, anchor: &str, word: impl Display) -> Result<()> {
    writeln!(text, r#"<text class="soft" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{word}</text>"#)?;
    Ok(())
}
