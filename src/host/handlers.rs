//! Creates the handler definitions of the config. Fetches each remote reference once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::assemble::definition;
use crate::exit::{Exit, Failure, Result};
use hostler_config::{Config, Consumer, HandlerRef};
use hostler_queue_telemetry::Producer;
use hostler_wasm::cache::Cache;
use hostler_wasm::fetch::{FetchError, Fetcher, Options, Reference, Wanted};
use hostler_wasm::{Definition, Fetched, Source};

/// Opens the cache of compiled handlers that the config names. `None`: the config names no cache, or the cache is unusable. In
/// the second case, the log states the reason.
pub fn cache(config: &Config) -> Option<Arc<Cache>> {
    config.host.cache_dir.as_deref().and_then(Cache::open)
}

/// Fetches the handlers and hooks of the consumers. Returns the definitions, in the order of `consumers`. Guests send messages
/// through `producer`. `None`: guests cannot send.
pub async fn definitions(
    config: &Config,
    consumers: &[Consumer],
    cache: Option<Arc<Cache>>,
    producer: Option<Producer>,
) -> Vec<Result<Definition>> {
    let references = consumers.iter().flat_map(|consumer| {
        let hooks = consumer.hooks.iter().map(|hooks| wanted(hooks, consumer.hooks_sha256));
        std::iter::once(wanted(&consumer.handler, consumer.sha256)).chain(hooks)
    });
    let wanted = references.filter_map(|wanted| wanted.ok().flatten()).collect();
    let fetched = Fetcher::new(options(config), cache).fetch_all(wanted).await;
    let define = |consumer: &Consumer| {
        let handler = source(&consumer.handler, consumer.sha256, &fetched)?;
        let hooks = consumer.hooks.as_ref().map(|hooks| source(hooks, consumer.hooks_sha256, &fetched)).transpose()?;
        Ok(definition(consumer, handler, hooks, producer.clone()))
    };
    consumers.iter().map(define).collect()
}

/// Returns the values of all results. If any result is an error, returns a single failure instead. The failure has the exit code
/// of the first permanent error. If all errors may be temporary, the failure has the exit code of the first error.
///
/// # Errors
/// One failure with the messages of all errors.
pub fn all<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let (mut fine, mut failed) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(one) => fine.push(one),
            Err(failure) => failed.push(failure),
        }
    }
    let Some(first) = failed.first() else { return Ok(fine) };
    let exit = failed.iter().map(|failure| failure.exit).find(|exit| *exit != Exit::QueueUnreachable);
    let messages: Vec<_> = failed.iter().map(|failure| failure.message.as_str()).collect();
    Err(Failure::new(exit.unwrap_or(first.exit), messages.join("\nhostler: ")))
}

/// Fetches a handler that the command line names. `config` provides the AWS settings.
///
/// # Errors
/// Exit code 65 if the reference or the file is invalid. Exit code 69 if the error may be temporary.
pub async fn fetch(text: &str, config: Option<&Config>, cache: Option<Arc<Cache>>) -> Result<Source> {
    let reference: Reference = text.parse().map_err(|error| Failure::new(Exit::BadHandler, error))?;
    let fetcher = Fetcher::new(config.map(options).unwrap_or_default(), cache);
    fetcher.fetch(&reference, None).await.map(Source::Fetched).map_err(|error| failure(&error))
}

fn options(config: &Config) -> Options {
    let sqs = &config.queue.sqs;
    Options { region: sqs.region.clone(), endpoint_url: sqs.endpoint_url.clone(), ..Options::default() }
}

/// Returns the remote reference to fetch. `None`: the handler is a local file, which needs no fetch.
fn wanted(handler: &HandlerRef, sha256: Option<[u8; 32]>) -> Result<Option<Wanted>> {
    match handler {
        HandlerRef::Path(_) => Ok(None),
        elsewhere => match elsewhere.to_string().parse() {
            Ok(reference) => Ok(Some((reference, sha256))),
            Err(error) => Err(Failure::new(Exit::BadHandler, error)),
        },
    }
}

fn source(
    handler: &HandlerRef,
    sha256: Option<[u8; 32]>,
    fetched: &BTreeMap<Wanted, std::result::Result<Fetched, FetchError>>,
) -> Result<Source> {
    if let HandlerRef::Path(path) = handler {
        return Ok(Source::File(path.clone()));
    }
    match wanted(handler, sha256)?.and_then(|wanted| fetched.get(&wanted)) {
        Some(Ok(fetched)) => Ok(Source::Fetched(fetched.clone())),
        Some(Err(error)) => Err(failure(error)),
        None => Err(Failure::new(Exit::Internal, format!("handler {handler}: fetching it failed"))),
    }
}

fn failure(error: &FetchError) -> Failure {
    Failure::new(if error.passing { Exit::QueueUnreachable } else { Exit::BadHandler }, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_counts_for_the_exit_code() {
        let failed = |exits: &[Exit]| {
            let results = exits.iter().map(|exit| Err::<(), _>(Failure::new(*exit, *exit as u8))).collect();
            all(results).unwrap_err()
        };
        assert_eq!(failed(&[Exit::QueueUnreachable]).exit, Exit::QueueUnreachable);
        let both = failed(&[Exit::QueueUnreachable, Exit::BadHandler]);
        assert_eq!((both.exit, both.message.as_str()), (Exit::BadHandler, "69\nhostler: 65"));
        assert_eq!(all(vec![Ok(1), Ok(2)]).unwrap(), [1, 2]);
    }
}
