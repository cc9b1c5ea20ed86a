//! Progress bars on standard error.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressStyle};

/// Creates a progress bar. If standard error is not a terminal, the bar is hidden. `size` is the value at which the bar
/// is full. `None`: this value is not known.
pub(super) fn progress(size: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = size.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let template = match size {
        Some(_) => "{bar:40} {percent:>3} %  {msg}  {elapsed}, {eta} left",
        None => "{spinner} {msg}  {elapsed}",
    };
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}
