//! The keys of `[alarms]`, `[telemetry]` and `[dev]`.

use super::{DefaultValue, Key, key};
use crate::choice::LogFormat;
use crate::kind::Kind;

/// The keys, in the order of the documentation.
pub(super) const KEYS: &[Key] = &[
    key(
        "alarms.threshold",
        Kind::Integer { min: 1, max: 1_000_000_000 },
        DefaultValue::Value("1000"),
        "Number of messages that raises an alarm on a queue whose tags set none.",
    ),
    key(
        "alarms.webhook",
        Kind::SecretUrl,
        DefaultValue::Unset,
        "Address to which `hostler alarms` and `hostler clean` send with `--webhook`. It is a secret and never shown; set it \
         by the variable `HOSTLER_ALARMS__WEBHOOK`.",
    ),
    key(
        "telemetry.log",
        Kind::Choice(LogFormat::WORDS),
        DefaultValue::Derived("`text` on a terminal, else `json`"),
        "Form of the log lines; their level is `RUST_LOG`'s.",
    ),
    key(
        "telemetry.otlp_endpoint",
        Kind::Url { example: "http://localhost:4318" },
        DefaultValue::Unset,
        "Endpoint for OTLP traces and metrics; the standard `OTEL_` variables apply.",
    ),
    key(
        "telemetry.emf",
        Kind::Bool,
        DefaultValue::Value("false"),
        "Metrics on stdout in CloudWatch's embedded metric format.",
    ),
    key("telemetry.prometheus", Kind::Address, DefaultValue::Unset, "Address at which Prometheus fetches metrics."),
    key(
        "dev.build",
        Kind::Command,
        DefaultValue::Unset,
        "Command that builds the handlers, run with `sh` in the current directory. Only `hostler dev` runs it. Unset: no build.",
    ),
    key(
        "dev.watch",
        Kind::Paths,
        DefaultValue::Value("[]"),
        "Files and folders that `hostler dev` watches for changes, relative to the current directory. In a folder, hidden \
         files, build folders, editors' temporary files, and `.md`, `.wasm`, `.db` and `.log` files do not count.",
    ),
];
