//! Telemetry: logs, metrics, traces, and the resource attributes of this process. Logs are written to standard error,
//! in JSON or text, at the level of `RUST_LOG`.

mod collector;
mod json;
#[cfg(test)]
mod lines;
pub mod metrics;
mod progress;
mod resource;
mod text;
pub mod traces;

pub use progress::Progress;
pub use resource::{Attribute, Resource, describe, resource};

mod backlog;
mod panics;
mod variables;
mod verbosity;

pub use backlog::LAST_LINES;
pub use verbosity::Verbosity;

use std::fmt;
use std::io;

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, reload};

use backlog::Backlog;

/// `tracing` target of the lines that guests write.
pub const GUEST: &str = "hostler::guest";

/// `tracing` target of hostler's own lines that guests can cause in unlimited number. These lines never displace other
/// lines.
pub const BY_GUEST: &str = "hostler::by_guest";

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One JSON object per line.
    Json,
    /// Human-readable text.
    Text,
}

/// The running log. When dropped, writes the buffered lines.
#[must_use = "logs are lost if this is dropped early"]
pub struct Logs {
    verbosity: Option<Verbosity>,
    backlog: Backlog,
}

impl Drop for Logs {
    /// Reports the number of dropped lines, then waits up to a second until the buffered lines are written.
    fn drop(&mut self) {
        self.backlog.tell(backlog::warn);
        self.backlog.end();
    }
}

impl Logs {
    /// Returns the handle for changing the level. `None`: the handle was already returned.
    pub fn verbosity(&mut self) -> Option<Verbosity> {
        self.verbosity.take()
    }
}

/// Starts the log in the given format. The log includes panics. The level comes from `RUST_LOG`. If `RUST_LOG` is
/// unset, the level is `info`. If `RUST_LOG` is invalid, logs the fault and uses the level `info`.
pub fn start(form: Form) -> Logs {
    let wanted = std::env::var("RUST_LOG").unwrap_or_default();
    let wanted = if wanted.is_empty() { "info".to_owned() } else { wanted };
    let (filter, wanted, fault) = match verbosity::filter(&wanted, None) {
        Ok(filter) => (filter, wanted, None),
        Err(error) => {
            let info = verbosity::filter("info", None).unwrap_or_else(|_| EnvFilter::new("info"));
            (info, "info".to_owned(), Some(error))
        }
    };
    let (filter, handle) = reload::Layer::new(filter);
    let backlog = Backlog::default();
    backlog.start(io::stderr(), backlog::warn);
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().fmt_fields(text::Text).with_writer(backlog.clone());
    let started = match form {
        Form::Json => registry.with(layer.event_format(json::Json)).try_init(),
        // The library panics if colours are enabled without the feature `ansi`.
        Form::Text => registry.with(layer.with_ansi(false)).try_init(),
    };
    if started.is_ok() {
        panics::log();
        if let Some(fault) = fault {
            tracing::warn!(%fault, "RUST_LOG is not valid; logging at level info");
        }
    }
    Logs { verbosity: Some(Verbosity::new(handle, wanted)), backlog }
}

/// `tracing` target of events that explain a long wait. Commands display these events in the same way as warnings.
pub const PROGRESS: &str = "hostler::progress";

/// Displays hostler's own warnings and progress on standard error. Used by commands that have no log.
pub fn show_warnings() {
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false).event_format(Warning);
    let layer = layer.fmt_fields(text::Text);
    // Further calls change nothing.
    if tracing_subscriber::registry()
        .with(EnvFilter::new(format!("hostler=warn,{PROGRESS}=info")))
        .with(layer)
        .try_init()
        .is_ok()
    {
        panics::hush();
    }
}

/// Prevents a panic from hanging the process when memory has run out. The panic hooks that this crate installs later
/// provide the same protection.
pub fn bound_panics() {
    panics::bound();
}

/// Runs `work` without logging its panics, because the caller catches and reports them.
pub fn expecting_panics<T>(work: impl FnOnce() -> T) -> T {
    panics::expecting(work)
}

/// Formats warnings and progress like the output of commands.
struct Warning;

impl<S, N> FormatEvent<S, N> for Warning
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let is_progress = event.metadata().target() == PROGRESS;
        write!(writer, "hostler: {}", if is_progress { "" } else { "warning: " })?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
