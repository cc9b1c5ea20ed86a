//! Checks values against each other: reports values that are valid alone but not together.

mod batches;
mod idempotency;
mod schedules;
mod sources;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::choice::{Driver, FilterType, OnProcessingTimeout};
use super::error::Problem;
use super::grants::NatsUrl;
use super::keys::MAX_IN_FLIGHT;
use super::paths::shared_file;
use super::retry::{is_pattern, is_subject, priorities};
use super::settings::{Section, Settings};
use super::source::Source;
use super::units::duration_text;
use hostler_types::channel::{Channel, MAX_NAME};

/// Maximum `longest_delay` of an ordered consumer on SQS. Equals the default of the key, so a consumer without
/// `longest_delay` passes the check.
const SHORT_DELAY: Duration = Duration::from_secs(15 * 60);

/// Adds the faults between keys of `settings` to `problems`. Skips values that are faulty by themselves.
pub(super) fn check(settings: &Settings, source: &Source, problems: &mut Vec<Problem>) {
    // The keys of those who use hostler without a consumer: its services, and commands on the job service.
    let of_services = ["retry.nats", "jobs.database", "jobs.database_file", "jobs.listen", "jobs.url", "jobs.token"];
    let is_of_a_service = of_services.iter().any(|key| settings.root().is_set(key));
    // A fault in `consumers` itself has already been reported.
    if settings.consumers.is_empty()
        && !is_of_a_service
        && !problems.iter().any(|problem| problem.key.starts_with("consumer"))
    {
        problems.push(if source.root().contains_key("retry") { retry_nats(source) } else { no_consumer(source) });
    }
    let on_nats = settings.root().get("queue.driver") == Some(Driver::Nats);
    let on_sqs = settings.root().get("queue.driver") == Some(Driver::Sqs);
    for name in settings.consumers.keys() {
        let at = settings.consumer(name);
        problems.extend(
            [health(&at), filter(&at), timeout(&at), delays(&at), reply(&at, settings), breaker(&at), throughput(&at)]
                .into_iter()
                .flatten(),
        );
        problems.extend(sources::subject(&at, on_nats));
        problems.extend(sources::subjects(&at, on_nats));
        problems.extend(sources::job(&at));
        problems.extend(batches::check(&at, on_sqs));
        problems.extend(idempotency::check(&at, &settings.root()));
        if on_sqs {
            problems.extend([in_flight(&at), queue_name(&at, &settings.root()), waits(&at)].into_iter().flatten());
        }
    }
    problems.extend(schedules::check(settings));
    problems.extend(health_file(&settings.root(), source));
    problems.extend(rabbitmq_url(&settings.root()));
    problems.extend(nats(&settings.root()));
    problems.extend(postgres_url(&settings.root()));
    problems.extend(retry_service(settings));
    problems.extend(sources::tokens(&settings.root()));
    problems.extend(sources::fanout(&settings.root()));
    shared_queues(settings, problems);
    dead_letter_queues(settings, problems);
    if on_sqs {
        mixed_exchanges(settings, problems);
    }
}

/// Returns the problem of a config for nothing.
fn no_consumer(source: &Source) -> Problem {
    Problem {
        key: "consumers".to_owned(),
        place: source.near("consumers"),
        fault: "there is no consumer".to_owned(),
        cure: "write a table `[consumers.NAME]` with `channel` and `handler`".to_owned(),
        about: None,
    }
}

/// Returns the problem of a config that only has settings for the retry service, without the address that starts it.
fn retry_nats(source: &Source) -> Problem {
    Problem {
        key: "retry.nats".to_owned(),
        place: source.near("retry.nats"),
        fault: "the retry service needs the address of the NATS server".to_owned(),
        cure: "set it, for example by HOSTLER_RETRY__NATS; a host without the service needs a table `[consumers.NAME]`"
            .to_owned(),
        about: None,
    }
}

/// Creates a problem for `key`. `fault`: description of the conflict with another key. `cure`: fix.
fn problem(at: &Section<'_>, key: &str, fault: String, cure: String) -> Problem {
    Problem { key: at.path(key), place: at.place(key), fault, cure, about: None }
}

/// Formats another key, with its value and its place, for the description of a fault.
fn beside(at: &Section<'_>, key: &str, value: &str) -> String {
    format!("{} = {value} ({})", at.path(key), at.place(key))
}

fn lasting(at: &Section<'_>, key: &str, value: Duration) -> String {
    beside(at, key, &duration_text(value))
}

fn health(at: &Section<'_>) -> Option<Problem> {
    let (health, processing): (Duration, Duration) = (at.get("healthcheck_timeout")?, at.get("processing_timeout")?);
    (health <= processing).then(|| {
        let other = lasting(at, "processing_timeout", processing);
        let fault =
            format!("{} is not longer than {other}: a busy consumer would count as unhealthy", duration_text(health));
        let cure = "raise `healthcheck_timeout` above `processing_timeout`; default: 30 s longer";
        problem(at, "healthcheck_timeout", fault, cure.to_owned())
    })
}

/// Checks that the address of RabbitMQ is given, if it is needed.
fn rabbitmq_url(root: &Section<'_>) -> Option<Problem> {
    let is_needed = root.get("queue.driver") == Some(Driver::RabbitMq);
    // A faulty one has been reported.
    let is_given = root.is_set("queue.rabbitmq.url") || root.is_set("queue.rabbitmq.url_file");
    (is_needed && !is_given).then(|| {
        let fault = "queue.driver = \"rabbitmq\" needs the address of the server".to_owned();
        let cure = "set it, for example by HOSTLER_QUEUE__RABBITMQ__URL, or set queue.rabbitmq.url_file".to_owned();
        problem(root, "queue.rabbitmq.url", fault, cure)
    })
}

/// Checks that the address of PostgreSQL is given, if it is needed.
fn postgres_url(root: &Section<'_>) -> Option<Problem> {
    let is_needed = root.get("queue.driver") == Some(Driver::Postgres);
    // A faulty one has been reported.
    let is_given = root.is_set("queue.postgres.url") || root.is_set("queue.postgres.url_file");
    (is_needed && !is_given).then(|| {
        let fault = "queue.driver = \"postgres\" needs the address of the database".to_owned();
        let cure = "set it, for example by HOSTLER_QUEUE__POSTGRES__URL, or set queue.postgres.url_file".to_owned();
        problem(root, "queue.postgres.url", fault, cure)
    })
}

/// Checks that the address of NATS is given, if it is needed, and that the user proves itself in one way.
fn nats(root: &Section<'_>) -> Option<Problem> {
    if root.get("queue.driver") != Some(Driver::Nats) {
        return None;
    }
    let is_given = |key: &str| root.get::<PathBuf>(key).is_some();
    if root.get::<NatsUrl>("queue.nats.url").is_none() && !is_given("queue.nats.url_file") {
        let fault = "queue.driver = \"nats\" needs the address of the server".to_owned();
        let cure = "set it, for example by HOSTLER_QUEUE__NATS__URL, or set queue.nats.url_file".to_owned();
        return Some(problem(root, "queue.nats.url", fault, cure));
    }
    (is_given("queue.nats.nkey") && is_given("queue.nats.credentials")).then(|| {
        let fault = format!("the user has another proof already: {}", root.path("queue.nats.credentials"));
        problem(root, "queue.nats.nkey", fault, "remove one of them".to_owned())
    })
}

/// Checks the settings of the retry service against each other.
fn retry_service(settings: &Settings) -> Vec<Problem> {
    let at = settings.root();
    let mut problems = Vec::new();
    if let (Some(base), Some(max)) = (at.get::<Duration>("retry.base"), at.get::<Duration>("retry.max"))
        && base > max
    {
        let fault = format!("{} is longer than {}", duration_text(base), lasting(&at, "retry.max", max));
        problems.push(problem(&at, "retry.base", fault, "lower `retry.base` or raise `retry.max`".to_owned()));
    }
    if let Some(subject) = at.get::<String>("retry.subject").filter(|subject| !is_subject(subject)) {
        let fault = format!("{subject:?} is not a subject: it has an empty part");
        problems.push(problem(
            &at,
            "retry.subject",
            fault,
            "write a subject such as `retry` or `jobs.retry`".to_owned(),
        ));
    }
    let targets = at.get::<Vec<String>>("retry.targets").unwrap_or_default();
    if let Some(target) = targets.iter().find(|target| !is_pattern(target)) {
        let fault = format!("{target:?} is not a subject");
        problems.push(problem(
            &at,
            "retry.targets",
            fault,
            "write subjects such as `webhooks.>` or `orders.*.paid`".to_owned(),
        ));
    }
    problems.extend(retry_priorities(&at, &priorities(settings)));
    problems
}

/// Checks the names of the priorities of the retry service.
fn retry_priorities(at: &Section<'_>, known: &[(String, u32)]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, (name, _)) in known.iter().enumerate() {
        if !matches!(name.len(), 1..=40)
            || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        {
            let fault = format!("{name:?} is not a name for a priority");
            let cure = "name it with 1 to 40 of `A-Z a-z 0-9 _ -`".to_owned();
            problems.push(problem(at, "retry.priorities", fault, cure));
        }
        if name == "dlq" || name.ends_with("-dlq") {
            let fault = format!("{name:?} would be the priority of a dead-letter queue");
            problems.push(problem(at, "retry.priorities", fault, "use a name that does not end in `dlq`".to_owned()));
        }
        if let Some((other, _)) = known[..index].iter().find(|(other, _)| other.eq_ignore_ascii_case(name)) {
            let fault =
                format!("{other:?} and {name:?} differ only in case, which the header `Hostler-Priority` ignores");
            problems.push(problem(at, "retry.priorities", fault, "rename one of them".to_owned()));
        }
    }
    if let Some(priority) = at.get::<String>("retry.priority")
        && !known.iter().any(|(name, _)| *name == priority)
    {
        let names: Vec<_> = known.iter().map(|(name, _)| format!("`{name}`")).collect();
        let fault = format!("{priority:?} is not one of the priorities");
        problems.push(problem(at, "retry.priority", fault, format!("write one of {}", names.join(", "))));
    }
    problems
}

/// Checks that the health file is not a file of the embedded queue. Otherwise, writing the health file would overwrite
/// the queue.
fn health_file(root: &Section<'_>, source: &Source) -> Option<Problem> {
    let (health, queue): (PathBuf, PathBuf) = (root.get("host.health_file")?, root.get("queue.embedded.path")?);
    if root.get("queue.driver") != Some(Driver::Embedded) {
        return None;
    }
    let shared = shared_file(&health, &source.beside(&root.place("queue.embedded.path"), &queue))?;
    let other = beside(root, "queue.embedded.path", &format!("{:?}", queue.display().to_string()));
    let fault = format!("the health file would overwrite the queue in {}: {other}", shared.display());
    let cure =
        "name a path of its own: `.lock` and `.tmp` behind it, and `-wal` and `-shm` behind the queue's, are taken";
    Some(problem(root, "host.health_file", fault, cure.to_owned()))
}

fn filter(at: &Section<'_>) -> Option<Problem> {
    // An emptied type disables the filter, regardless of the filter's values in the file.
    if at.is_emptied("filter.type") {
        return None;
    }
    let (kind, values) = (at.get::<FilterType>("filter.type"), at.get::<Vec<String>>("filter.values")?);
    let channel = at.get::<Channel>("channel");
    let key = if kind.is_some() { "filter.type" } else { "filter.values" };
    if kind.is_none() && (values.is_empty() || at.is_set("filter.type")) {
        return None;
    }
    if let Some(channel) = channel.filter(|channel| channel.exchange().is_none()) {
        let fault = format!(
            "there is nothing to filter: {} has no exchange",
            beside(at, "channel", &format!("{:?}", channel.to_string()))
        );
        let cure = "name the exchange in `channel`, `<exchange>.<queue>`, or remove `filter`";
        return Some(problem(at, key, fault, cure.to_owned()));
    }
    match (kind, values.is_empty()) {
        (Some(_), true) => {
            let fault = format!("there is nothing to match: {}", beside(at, "filter.values", "[]"));
            Some(problem(at, key, fault, "list routing keys in `filter.values`, or remove `filter`".to_owned()))
        }
        (None, false) => {
            let fault = format!("{} is not set, so these values have no effect", at.path("filter.type"));
            Some(problem(at, key, fault, "set `filter.type` to `exact`, `prefix` or `exclude`".to_owned()))
        }
        _ => None,
    }
}

fn breaker(at: &Section<'_>) -> Option<Problem> {
    let others = ["breaker.over", "breaker.min", "breaker.pause"];
    // An emptied key disables the breaker, regardless of the breaker's other keys.
    let is_said = at.is_set("breaker.failures") || at.is_emptied("breaker.failures");
    let key = others.into_iter().find(|key| at.is_set(key)).filter(|_| !is_said)?;
    let fault = format!("{} is not set, so this key has no effect", at.path("breaker.failures"));
    Some(problem(at, key, fault, "set `breaker.failures` to a share such as 0.5".to_owned()))
}

fn throughput(at: &Section<'_>) -> Option<Problem> {
    let (Some(true), Some(false)) = (at.get::<bool>("high_throughput"), at.get::<bool>("ordered")) else { return None };
    let fault = "only FIFO queues have a high throughput to turn on, and `ordered` is false".to_owned();
    Some(problem(at, "high_throughput", fault, "set `ordered = true`, or leave `high_throughput` out".to_owned()))
}

fn timeout(at: &Section<'_>) -> Option<Problem> {
    let (then, dead_letter): (OnProcessingTimeout, bool) = (at.get("on_processing_timeout")?, at.get("dead_letter")?);
    (then == OnProcessingTimeout::DeadLetter && !dead_letter).then(|| {
        let fault = format!("there is no dead-letter queue: {}", beside(at, "dead_letter", "false"));
        let cure = "write `retry` or `exit`, or set `dead_letter = true`".to_owned();
        problem(at, "on_processing_timeout", fault, cure)
    })
}

fn delays(at: &Section<'_>) -> Option<Problem> {
    let (delay, max): (Duration, Duration) = (at.get("retry.delay")?, at.get("retry.max_delay")?);
    (delay > max).then(|| {
        let fault = format!("{} is longer than {}", duration_text(delay), lasting(at, "retry.max_delay", max));
        problem(at, "retry.delay", fault, "lower `retry.delay` or raise `retry.max_delay`".to_owned())
    })
}

/// Checks that an ordered queue on SQS has no long delays. hostler refuses to send a delayed message to a FIFO queue,
/// because the message would block its group.
fn waits(at: &Section<'_>) -> Option<Problem> {
    let (longest, ordered): (Duration, bool) = (at.get("longest_delay")?, at.get("ordered")?);
    (ordered && longest > SHORT_DELAY).then(|| {
        let fault = format!(
            "{} has no effect: SQS cannot delay a message of a FIFO queue, and {}",
            duration_text(longest),
            beside(at, "ordered", "true")
        );
        problem(at, "longest_delay", fault, "remove `longest_delay`, or set `ordered = false`".to_owned())
    })
}

fn reply(at: &Section<'_>, settings: &Settings) -> Option<Problem> {
    let (reply, own): (Channel, Channel) = (at.get("reply_channel")?, at.get("channel")?);
    let itself = beside(at, "channel", &format!("{:?}", own.to_string()));
    if reply.queue() == own.queue() {
        let fault = format!("replies would come back to the consumer itself: {itself}");
        return Some(problem(at, "reply_channel", fault, "name another queue".to_owned()));
    }
    // Replies have no routing key, so they pass no filter.
    let exchange = own.exchange().filter(|_| !at.is_set("filter.type"))?;
    // A name means the queue with this name. If there is no such queue, the name means an exchange.
    let reaches = match reply.exchange() {
        Some(other) => other == exchange,
        None => reply.queue() == exchange && listening(settings, exchange).is_none(),
    };
    reaches.then(|| {
        let fault = format!("replies would come back by the exchange {exchange:?} to the consumer itself: {itself}");
        let cure = "name a queue outside of this exchange, or set `filter`: replies have no routing key, and pass none";
        problem(at, "reply_channel", fault, cure.to_owned())
    })
}

/// Returns the consumer that receives from a queue.
fn listening<'a>(settings: &'a Settings, queue: &str) -> Option<Section<'a>> {
    let mut consumers = settings.consumers.keys().map(|name| settings.consumer(name));
    consumers.find(|at| at.get::<Channel>("channel").is_some_and(|channel| channel.queue() == queue))
}

fn in_flight(at: &Section<'_>) -> Option<Problem> {
    let (processing, lease): (Duration, Duration) = (at.get("processing_timeout")?, at.get("lease")?);
    (processing + lease > MAX_IN_FLIGHT).then(|| {
        let fault = format!(
            "{} and {} are more than the 12 h that SQS keeps a message in flight",
            duration_text(processing),
            lasting(at, "lease", lease)
        );
        problem(at, "processing_timeout", fault, "lower `processing_timeout` to 12 h less `lease`".to_owned())
    })
}

fn queue_name(at: &Section<'_>, root: &Section<'_>) -> Option<Problem> {
    let (channel, prefix): (Channel, String) = (at.get("channel")?, root.get("queue.sqs.prefix")?);
    let length = prefix.len() + channel.queue().len();
    (length > MAX_NAME).then(|| {
        let prefix = beside(root, "queue.sqs.prefix", &format!("{prefix:?}"));
        let fault = format!("{:?} after {prefix} makes a queue name of {length} characters", channel.queue());
        let cure = format!("shorten one of them: {MAX_NAME} is the most, so that `-dlq.fifo` fits into SQS's 80");
        problem(at, "channel", fault, cure)
    })
}

/// Reports consumers that share a queue, because each of them would receive messages of the other.
fn shared_queues(settings: &Settings, problems: &mut Vec<Problem>) {
    let mut taken: BTreeMap<String, &str> = BTreeMap::new();
    for name in settings.consumers.keys() {
        let at = settings.consumer(name);
        let Some(channel) = at.get::<Channel>("channel") else { continue };
        let Some(other) = taken.insert(channel.queue().to_owned(), name) else { continue };
        let other = settings.consumer(other);
        let fault = format!(
            "the queue {:?} already has a consumer: {} ({})",
            channel.queue(),
            other.path("channel"),
            other.place("channel")
        );
        let cure =
            "give each its own queue (on one exchange, `<exchange>.<queue>`), or raise the first one's `concurrency`";
        problems.push(problem(&at, "channel", fault, cure.to_owned()));
    }
}

/// Reports dead-letter queues that have their own consumer, if its `ordered` differs from that of the source queue's
/// consumer.
fn dead_letter_queues(settings: &Settings, problems: &mut Vec<Problem>) {
    for name in settings.consumers.keys() {
        let at = settings.consumer(name);
        let (Some(channel), Some(ordered)) = (at.get::<Channel>("channel"), at.get::<bool>("ordered")) else {
            continue;
        };
        let Some(parent) = channel.of_dead_letters() else { continue };
        let Some(of) = listening(settings, parent.queue()) else { continue };
        let (Some(wanted), Some(true)) = (of.get::<bool>("ordered"), of.get::<bool>("dead_letter")) else { continue };
        if ordered != wanted {
            let other = beside(&of, "ordered", &wanted.to_string());
            let (queue, parent) = (channel.queue(), parent.queue());
            let fault = format!("{ordered} contradicts {other}: {queue:?} takes the dead letters of {parent:?}");
            let cure = "set `ordered` alike for both consumers".to_owned();
            let place = at.place(if at.is_set("ordered") { "ordered" } else { "channel" });
            problems.push(Problem { place, ..problem(&at, "ordered", fault, cure) });
        }
    }
}

/// Reports exchanges with both ordered and unordered queues. On AWS, an exchange is one topic, which is FIFO or
/// standard for all its queues.
fn mixed_exchanges(settings: &Settings, problems: &mut Vec<Problem>) {
    let mut kinds: BTreeMap<String, (bool, &str)> = BTreeMap::new();
    for name in settings.consumers.keys() {
        let at = settings.consumer(name);
        let (Some(channel), Some(ordered)) = (at.get::<Channel>("channel"), at.get::<bool>("ordered")) else {
            continue;
        };
        let Some(exchange) = channel.exchange() else { continue };
        let (first, other) = *kinds.entry(exchange.to_owned()).or_insert((ordered, name));
        if ordered != first {
            let other = beside(&settings.consumer(other), "ordered", &first.to_string());
            let fault = format!("the exchange {exchange:?} is one topic on AWS, FIFO or not, but {other}");
            let cure = "set `ordered` alike for all consumers of the exchange, or give them another exchange";
            problems.push(problem(&at, "ordered", fault, cure.to_owned()));
        }
    }
}
