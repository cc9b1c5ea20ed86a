//! The keys of `[host]`.

use std::time::Duration;

use super::{DefaultValue, HEALTH_FILE_DEFAULT, Key, SECOND, key, lasting};
use crate::choice::{HardeningMode, TaskProtection};
use crate::kind::Kind;

/// The keys, in the order of the documentation.
pub(super) const KEYS: &[Key] = &[
    key(
        "host.health_file",
        Kind::Path,
        DefaultValue::Value(HEALTH_FILE_DEFAULT),
        "File to which the host writes its health, for `hostler check-consumer-health`.",
    ),
    key(
        "host.shutdown_grace",
        lasting(SECOND, Duration::from_secs(115)),
        DefaultValue::Value("25s"),
        "Longest duration of a drain. Keep it below the container's stop timeout: on ECS `stopTimeout`, 30 s by \
         default and 120 s at most.",
    ),
    key(
        "host.task_protection",
        Kind::Choice(TaskProtection::WORDS),
        DefaultValue::Value("auto"),
        "ECS scale-in protection while messages are in flight.",
    ),
    key(
        "host.hardening",
        Kind::Choice(HardeningMode::WORDS),
        DefaultValue::Value("auto"),
        "Gives up rights that the process does not need, by Landlock and seccomp: files that the config does not name, \
         programs, mounts, tracing. `auto`: as far as the kernel supports it; `require`: completely, or exit code 70.",
    ),
    key(
        "host.cache_dir",
        Kind::Path,
        DefaultValue::Unset,
        "Folder that keeps fetched and compiled handlers for the next start, 1 GiB at most. Must be owned by the user that \
         runs hostler and writable by no one else.",
    ),
];
