//! Level of the log, which can be changed while the process runs.

use std::sync::{Mutex, PoisonError};

use tracing_subscriber::filter::{LevelFilter, ParseError};
use tracing_subscriber::{EnvFilter, Registry, reload};

/// `tracing` targets whose `debug` and `trace` levels log whole requests, including message bodies and signatures. They
/// are limited to `info`, whatever the level of the log is. The limit does not apply to a target or module that
/// `RUST_LOG` names.
const TALKATIVE: [&str; 10] =
    ["amq_protocol", "aws", "h2", "hyper", "lapin", "reqwest", "rustls", "tonic", "tower", "wasmtime_wasi_http"];

/// Directives that suppress warnings and errors of `tracing` targets, each with the targets that ask for them: if `RUST_LOG`
/// names one of these, nothing is suppressed.
/// - `opentelemetry` logs each failed attempt, but hostler logs one line per failed export.
/// - `lapin::returned_messages` logs each message that no queue is bound for, with its whole body. The sender learns of
///   it from the result.
/// - `lapin::channel` and `lapin::channels` log an error whenever a channel or a connection ends, also where hostler has asked
///   whether a queue exists. hostler logs each end that it did not expect, with the reason.
/// - `async_nats` logs each connection and each loss. hostler logs the losses, and the connections after them.
const RETOLD: [(&[&str], &str); 4] = [
    (&["opentelemetry"], "opentelemetry=error"),
    (&["lapin::returned_messages"], "lapin::returned_messages=error"),
    (&["lapin", "lapin::channel"], "lapin::channel=off"),
    (&["async_nats"], "async_nats=error"),
];

/// The level of the log: that of `RUST_LOG`, or a raised level.
#[derive(Debug)]
pub struct Verbosity {
    handle: reload::Handle<EnvFilter, Registry>,
    /// Filter from `RUST_LOG`, or `info`.
    wanted: String,
    /// Raised level. `None`: the level is that of `RUST_LOG`.
    raised: Mutex<Option<LevelFilter>>,
}

impl Verbosity {
    pub(super) fn new(handle: reload::Handle<EnvFilter, Registry>, wanted: String) -> Self {
        Self { handle, wanted, raised: Mutex::default() }
    }

    /// Raises the level by one step, up to `trace`, and logs the new level. Targets that would log bodies or signatures
    /// keep their level.
    pub fn raise(&self) {
        let level = {
            let mut raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
            let now = raised.unwrap_or_else(|| level_of(&self.wanted));
            *raised.insert(more(now))
        };
        self.set(Some(level));
        tracing::info!(verbosity = %level, "log level raised by SIGUSR1; SIGUSR2 restores it");
    }

    /// Restores the level of `RUST_LOG`, and logs the restored level.
    pub fn reset(&self) {
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = None;
        tracing::info!(verbosity = %level_of(&self.wanted), "log level restored by SIGUSR2");
        self.set(None);
    }

    fn set(&self, raised: Option<LevelFilter>) {
        if let Ok(filter) = filter(&self.wanted, raised)
            && let Err(error) = self.handle.reload(filter)
        {
            tracing::warn!(%error, "cannot change the log level");
        }
    }
}

/// Returns the filter for the value `wanted` of `RUST_LOG`. `raised`: level for hostler's own targets, and for targets
/// that `RUST_LOG` does not name. The limit for [`TALKATIVE`] targets still applies.
pub(super) fn filter(wanted: &str, raised: Option<LevelFilter>) -> Result<EnvFilter, ParseError> {
    let mut filter = EnvFilter::builder().parse(wanted)?;
    if let Some(level) = raised {
        // Without this directive, a level for hostler itself in `RUST_LOG` would override the general level.
        let own = format!("hostler={level}").parse()?;
        filter = filter.add_directive(level.into()).add_directive(own);
    }
    let filter = if filter.max_level_hint() > Some(LevelFilter::INFO) { quieted(filter, wanted) } else { filter };
    let unnamed = RETOLD.iter().filter(|(targets, _)| !targets.iter().any(|target| names(wanted, target)));
    unnamed
        .map(|(_, directive)| directive.parse())
        .try_fold(filter, |filter, directive| Ok(filter.add_directive(directive?)))
}

fn level_of(wanted: &str) -> LevelFilter {
    filter(wanted, None).ok().and_then(|filter| filter.max_level_hint()).unwrap_or(LevelFilter::INFO)
}

fn more(level: LevelFilter) -> LevelFilter {
    match level {
        LevelFilter::OFF => LevelFilter::ERROR,
        LevelFilter::ERROR => LevelFilter::WARN,
        LevelFilter::WARN => LevelFilter::INFO,
        LevelFilter::INFO => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// Limits the targets that log bodies and signatures to `info`. Skips targets that `RUST_LOG` names, because the new
/// directive would replace theirs.
fn quieted(filter: EnvFilter, wanted: &str) -> EnvFilter {
    let unnamed = TALKATIVE.iter().filter(|target| !names(wanted, target));
    unnamed.filter_map(|target| format!("{target}=info").parse().ok()).fold(filter, EnvFilter::add_directive)
}

/// Returns `true` if `RUST_LOG` has a directive for exactly this target.
fn names(wanted: &str, target: &str) -> bool {
    wanted.split(',').any(|directive| directive.split('=').next() == Some(target))
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn each_step_is_one_level_and_the_last_stays() {
        let steps = [LevelFilter::OFF, LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE];
        let [off, warn, info, debug, trace] = steps.map(more);
        assert_eq!(
            [off, warn, info, debug, trace],
            [LevelFilter::ERROR, LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE, LevelFilter::TRACE]
        );
        assert_eq!((level_of("info"), level_of("warn,hostler=debug")), (LevelFilter::INFO, LevelFilter::DEBUG));
    }

    #[test]
    fn what_would_show_bodies_stays_quiet_and_hostler_itself_does_not() {
        for wanted in ["info", "warn,hostler=info", "error"] {
            let text = filter(wanted, Some(LevelFilter::TRACE)).unwrap().to_string();
            let has = |directive: &str| text.split(',').any(|one| one == directive);
            assert!(has("trace") && has("hostler=trace"), "{text}");
            assert!(TALKATIVE.iter().all(|target| has(&format!("{target}=info"))), "{text}");
        }
        let text = filter("info", None).unwrap().to_string();
        let mut directives: Vec<_> = text.split(',').collect();
        directives.sort_unstable();
        let expected =
            ["async_nats=error", "info", "lapin::channel=off", "lapin::returned_messages=error", "opentelemetry=error"];
        assert_eq!(directives, expected);
        for (targets, directive) in RETOLD {
            for target in targets {
                let named = filter(&format!("info,{target}=debug"), None).unwrap().to_string();
                assert!(!named.contains(directive), "{named}");
            }
        }
    }

    /// RabbitMQ returns messages that no queue is bound for, and its client logs them with their bodies. The client also logs an
    /// error for each channel that ends.
    #[test]
    fn a_returned_message_and_the_end_of_a_channel_are_not_logged() {
        let is_logged = |wanted: &str, raised: Option<LevelFilter>| {
            let subscriber = tracing_subscriber::registry().with(filter(wanted, raised).unwrap());
            tracing::subscriber::with_default(subscriber, || {
                let warned = tracing::enabled!(target: "lapin::returned_messages", tracing::Level::WARN);
                let traced = tracing::enabled!(target: "lapin::io_loop", tracing::Level::TRACE);
                assert!(tracing::enabled!(target: "lapin::io_loop", tracing::Level::ERROR), "{wanted}");
                let is_named = names(wanted, "lapin");
                assert_eq!(tracing::enabled!(target: "lapin::channel", tracing::Level::ERROR), is_named, "{wanted}");
                assert_eq!(tracing::enabled!(target: "lapin::channels", tracing::Level::ERROR), is_named, "{wanted}");
                warned || traced
            })
        };
        for wanted in ["info", "debug", "trace", "warn,hostler=debug"] {
            assert!(!is_logged(wanted, None) && !is_logged(wanted, Some(LevelFilter::TRACE)), "{wanted}");
        }
        assert!(!is_logged("info,lapin=info", None), "a level for the whole client does not ask for bodies");
        assert!(is_logged("info,lapin::returned_messages=warn", None));
    }

    #[test]
    fn what_rust_log_names_has_its_level_before_and_after_a_step() {
        let levels = |wanted: &str, raised: Option<LevelFilter>, target: &str| {
            let text = filter(wanted, raised).unwrap().to_string();
            let levels = text.split(',').filter_map(|one| one.strip_prefix(target)?.strip_prefix('='));
            levels.map(str::to_owned).collect::<Vec<_>>()
        };
        for raised in [None, Some(LevelFilter::DEBUG), Some(LevelFilter::TRACE)] {
            assert_eq!(levels("info,hyper=debug", raised, "hyper"), ["debug"]);
            assert_eq!(levels("debug,tonic=warn,h2", raised, "tonic"), ["warn"]);
            assert_eq!(levels("debug,tonic=warn,h2", raised, "h2"), ["trace"], "as EnvFilter has it");
            // A target that `RUST_LOG` does not name stays at `info`, even if its name is a prefix of a named target.
            assert_eq!(levels("info,hyper=debug", raised, "aws"), ["info"]);
            assert_eq!(levels("info,hyper_util=debug", raised, "hyper"), ["info"]);
            assert_eq!(levels("debug,hyper::client=trace", raised, "hyper"), ["info"]);
        }
    }
}
