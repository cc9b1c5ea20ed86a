//! Compares the channels in the file with their wanted state, and applies the differences.

use std::fmt;

use rusqlite::Connection;

use super::topology::{establish, find, subscription};
use hostler_queue::{Action, Change, ChannelSpec, Finding};
use hostler_types::channel::Filter;

/// A setting of a queue or of a subscription.
#[derive(Debug, PartialEq, Eq)]
enum Setting {
    Ordered(bool),
    Filter(Filter),
}

/// A difference between a resource in the file and its wanted state.
#[derive(Debug)]
struct Difference {
    /// Name of the resource, such as `queue orders`.
    resource: String,
    /// Current setting. `None`: the resource is missing.
    seen: Option<Setting>,
    wanted: Setting,
}

/// Returns the changes that would bring the channels to their wanted state.
pub(super) fn plan(db: &Connection, wanted: &[ChannelSpec]) -> rusqlite::Result<Vec<Change>> {
    let mut changes = Vec::new();
    for spec in wanted {
        for change in differences(db, spec)?.into_iter().map(Difference::change) {
            // A dead-letter queue that has its own consumer occurs in the changes of two channels.
            if !changes.contains(&change) {
                changes.push(change);
            }
        }
    }
    Ok(changes)
}

/// Brings the channels to their wanted state. Returns the changes.
pub(super) fn apply(db: &Connection, wanted: &[ChannelSpec]) -> rusqlite::Result<Vec<Change>> {
    let mut changes = Vec::new();
    for spec in wanted {
        changes.extend(differences(db, spec)?.into_iter().map(Difference::change));
        establish(db, spec)?;
    }
    Ok(changes)
}

/// Returns a finding for each existing resource that differs from its wanted state. A missing resource is not a fault,
/// because `run` creates missing resources.
pub(super) fn inspect(db: &Connection, spec: &ChannelSpec) -> rusqlite::Result<Vec<Finding>> {
    Ok(differences(db, spec)?.into_iter().filter_map(Difference::finding).collect())
}

/// Returns the differences between the resources of a channel and their wanted state, in the same order as the SQS
/// driver.
fn differences(db: &Connection, spec: &ChannelSpec) -> rusqlite::Result<Vec<Difference>> {
    let queue = |name: &str| -> rusqlite::Result<Difference> {
        let seen = find(db, name)?.map(|target| Setting::Ordered(target.ordered));
        Ok(Difference { resource: format!("queue {name}"), seen, wanted: Setting::Ordered(spec.ordered) })
    };
    let mut all = Vec::new();
    if spec.max_receives.is_some() {
        all.push(queue(&spec.channel.dead_letter_queue())?);
    }
    all.push(queue(spec.channel.queue())?);
    if let Some(exchange) = spec.channel.exchange() {
        let seen = subscription(db, exchange, spec.channel.queue())?.map(Setting::Filter);
        let resource = format!("subscription of {} to {exchange}", spec.channel.queue());
        all.push(Difference { resource, seen, wanted: Setting::Filter(spec.filter.clone()) });
    }
    all.retain(|one| one.seen.as_ref() != Some(&one.wanted));
    Ok(all)
}

impl Difference {
    fn change(self) -> Change {
        let Self { resource, seen, wanted } = self;
        match seen {
            Some(seen) => Change::update(resource, format!("{}: {seen} → {wanted}", wanted.label())),
            None if wanted.goes_without_saying() => Change::create(resource),
            None => Change { action: Action::Create, resource, detail: format!("{} {wanted}", wanted.label()) },
        }
    }

    fn finding(self) -> Option<Finding> {
        let Self { resource, seen, wanted } = self;
        let seen = seen?;
        let consequence = match wanted {
            Setting::Ordered(true) => "messages of a group may overtake each other",
            Setting::Ordered(false) => "messages of a group wait for each other",
            Setting::Filter(_) => "the queue receives other messages than the config says",
        };
        let fault = format!("{resource}: {} is {seen}, not {wanted} ({consequence})", wanted.label());
        Some(Finding { fault, cure: "`hostler run` or `hostler provision` sets it".into(), fatal: false })
    }
}

impl Setting {
    fn label(&self) -> &'static str {
        match self {
            Self::Ordered(_) => "ordered",
            Self::Filter(_) => "filter",
        }
    }

    /// Returns `true` if a new resource has this setting by default.
    fn goes_without_saying(&self) -> bool {
        matches!(self, Self::Ordered(false) | Self::Filter(Filter::All))
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, values) = match self {
            Self::Ordered(ordered) => return write!(f, "{ordered}"),
            Self::Filter(Filter::All) => return f.write_str("none"),
            Self::Filter(Filter::Exact(values)) => ("exact", values),
            Self::Filter(Filter::Prefix(values)) => ("prefix", values),
            Self::Filter(Filter::Exclude(values)) => ("exclude", values),
        };
        write!(f, "{kind} [{}]", values.join(", "))
    }
}
