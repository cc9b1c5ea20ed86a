//! Compares the channels in the database with their wanted state.

use std::collections::BTreeMap;
use std::fmt;

use hostler_postgres::{Client, DatabaseError, Type};
use hostler_queue::{Action, Change, Finding};
use hostler_types::channel::Filter;

use super::admin::read_tags;
use super::rows::read_filter;
use super::topology::Wanted;

/// A setting of a queue or of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Setting {
    Ordered(bool),
    Filter(Filter),
    /// Tags that the queue should have.
    Tags(BTreeMap<String, String>),
}

/// A difference between a resource in the database and its wanted state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Difference {
    /// Name of the resource, such as `queue orders`.
    resource: String,
    /// Current setting. `None`: the resource is missing.
    seen: Option<Setting>,
    wanted: Setting,
}

/// A queue as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    ordered: bool,
    tags: BTreeMap<String, String>,
}

/// Returns the differences between the resources of a channel and their wanted state.
pub(super) async fn differences(client: &Client, wanted: &Wanted) -> Result<Vec<Difference>, DatabaseError> {
    let mut all = Vec::new();
    for name in wanted.queues() {
        let sql = "SELECT ordered, tags::text FROM hostler_queue.queue WHERE name = $1";
        let rows = client.query(sql, &[(&name, Type::TEXT)]).await?;
        let seen = rows.first().map(|row| Seen { ordered: row.get(0), tags: read_tags(row.get(1)) });
        all.extend(of_queue(name, seen, wanted));
    }
    if let Some((exchange, filter)) = &wanted.exchange {
        let sql = "SELECT s.filter::text FROM hostler_queue.subscription s JOIN hostler_queue.queue q ON q.id = s.queue
                   WHERE s.exchange = $1 AND q.name = $2";
        let rows = client.query(sql, &[(exchange, Type::TEXT), (&wanted.queue, Type::TEXT)]).await?;
        let seen = rows.first().map(|row| Setting::Filter(read_filter(row.get(0))));
        let resource = format!("subscription of {} to {exchange}", wanted.queue);
        all.push(Difference { resource, seen, wanted: Setting::Filter(filter.clone()) });
    }
    all.retain(|one| one.seen.as_ref() != Some(&one.wanted));
    Ok(all)
}

/// A subscription of a channel's queue that the config does not name: an exchange that the channel had before. It stays, as hosts
/// with the earlier config may still run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leftover {
    queue: String,
    exchange: String,
}

/// Returns the subscriptions of a channel's queue to other exchanges with the prefix. A channel without an exchange has none: it
/// names only the queue.
pub(super) async fn leftovers(client: &Client, prefix: &str, wanted: &Wanted) -> Result<Vec<Leftover>, DatabaseError> {
    let Some((exchange, _)) = &wanted.exchange else { return Ok(Vec::new()) };
    let sql = "SELECT s.exchange FROM hostler_queue.subscription s JOIN hostler_queue.queue q ON q.id = s.queue
               WHERE q.name = $1 AND s.exchange <> $2 AND starts_with(s.exchange, $3) ORDER BY 1";
    let params = [(&wanted.queue as _, Type::TEXT), (exchange as _, Type::TEXT), (&prefix as _, Type::TEXT)];
    let rows = client.query(sql, &params).await?;
    Ok(rows.iter().map(|row| Leftover { queue: wanted.queue.clone(), exchange: row.get(0) }).collect())
}

impl Leftover {
    /// Returns the line of a plan.
    pub(super) fn change(&self) -> Change {
        let Self { queue, exchange } = self;
        Change::leave(format!("subscription of {queue} to {exchange}"), self.finding().to_string())
    }

    /// Returns the finding. The consumer works, and gets more messages than it should.
    pub(super) fn finding(&self) -> Finding {
        let (queue, exchange) = (self.queue.replace('\'', "''"), self.exchange.replace('\'', "''"));
        Finding {
            fault: format!(
                "the queue `{}` is subscribed to the exchange `{}` as well, which the config does not name for it",
                self.queue, self.exchange
            ),
            cure: format!(
                "after the last host with the earlier config has stopped, remove the subscription: DELETE FROM \
                 hostler_queue.subscription WHERE exchange = '{exchange}' AND queue = (SELECT id FROM hostler_queue.queue \
                 WHERE name = '{queue}')"
            ),
            fatal: false,
        }
    }
}

/// Returns all differences of a channel whose schema does not exist: everything is missing.
pub(super) fn all_missing(wanted: &Wanted) -> Vec<Difference> {
    let queues = wanted.queues().flat_map(|name| of_queue(name, None, wanted));
    let subscription = wanted.exchange.as_ref().map(|(exchange, filter)| Difference {
        resource: format!("subscription of {} to {exchange}", wanted.queue),
        seen: None,
        wanted: Setting::Filter(filter.clone()),
    });
    queues.chain(subscription).collect()
}

fn of_queue(name: &str, seen: Option<Seen>, wanted: &Wanted) -> Vec<Difference> {
    let resource = || format!("queue {name}");
    let is_missing = seen.is_none();
    let (ordered, tags) = match seen {
        Some(seen) => (Some(Setting::Ordered(seen.ordered)), seen.tags),
        None => (None, BTreeMap::new()),
    };
    let mut all = vec![Difference { resource: resource(), seen: ordered, wanted: Setting::Ordered(wanted.ordered) }];
    let seen: BTreeMap<_, _> = tags.into_iter().filter(|(name, _)| wanted.tags.contains_key(name)).collect();
    if !is_missing && seen != wanted.tags {
        let (seen, wanted) = (Some(Setting::Tags(seen)), Setting::Tags(wanted.tags.clone()));
        all.push(Difference { resource: resource(), seen, wanted });
    }
    all
}

impl Difference {
    pub(super) fn change(self) -> Change {
        let Self { resource, seen, wanted } = self;
        match seen {
            Some(seen) => Change::update(resource, format!("{}: {seen} → {wanted}", wanted.label())),
            None if wanted.goes_without_saying() => Change::create(resource),
            None => Change { action: Action::Create, resource, detail: format!("{} {wanted}", wanted.label()) },
        }
    }

    /// Returns the finding. `creates`: the start of a consumer creates what is missing and sets what differs. Otherwise, a consumer
    /// cannot work without its queues, and not with queues of another order.
    pub(super) fn finding(self, creates: bool) -> Option<Finding> {
        let Self { resource, seen, wanted } = self;
        let Some(seen) = seen else {
            let cure = "`hostler provision` creates it, and so does provision = \"auto\"".to_owned();
            return (!creates).then(|| Finding { fault: format!("there is no {resource}"), cure, fatal: true });
        };
        let consequence = match wanted {
            Setting::Ordered(true) => "messages of a group may overtake each other",
            Setting::Ordered(false) => "messages of a group wait for each other",
            Setting::Filter(_) => "the queue receives other messages than the config says",
            Setting::Tags(_) => "alarms use other settings than the config says",
        };
        let fault = format!("{resource}: {} is {seen}, not {wanted} ({consequence})", wanted.label());
        let cure = if creates { "`hostler run` or `hostler provision` sets it" } else { "`hostler provision` sets it" };
        let fatal = !creates && matches!(wanted, Setting::Ordered(_));
        Some(Finding { fault, cure: cure.to_owned(), fatal })
    }
}

impl Setting {
    fn label(&self) -> &'static str {
        match self {
            Self::Ordered(_) => "ordered",
            Self::Filter(_) => "filter",
            Self::Tags(_) => "tags",
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
            Self::Tags(tags) => {
                let tags: Vec<_> = tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
                return write!(f, "[{}]", tags.join(", "));
            }
            Self::Filter(Filter::All) => return f.write_str("none"),
            Self::Filter(Filter::Exact(values)) => ("exact", values),
            Self::Filter(Filter::Prefix(values)) => ("prefix", values),
            Self::Filter(Filter::Exclude(values)) => ("exclude", values),
        };
        write!(f, "{kind} [{}]", values.join(", "))
    }
}
