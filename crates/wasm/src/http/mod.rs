//! Outgoing HTTP requests from guests (`wasi:http`). Guests may send requests only to granted origins, and the name of
//! an origin may resolve only to allowed IP addresses.
//!
//! | file | job |
//! |---|---|
//! | `exchange.rs` | one request and its response, with their limits |
//! | `head.rs` | header fields of responses, limited in size |
//! | `imports.rs` | `wasi:http` in the linker |
//! | `span.rs`, `redact.rs` | the span of a request, and the redacted URL in the span |
//! | `upload.rs` | the body of a request, which is complete only if the guest finished it |
//!
//! The host returns a redirect to the guest as an ordinary response. If the guest follows the redirect, it sends
//! another request, which the host checks like any other. A connection uses the IP address that was checked, so a
//! change of the DNS record after the check has no effect.

mod exchange;
mod head;
mod imports;
mod redact;
mod span;
mod upload;

pub(super) use imports::add;
pub(super) use upload::Uploads;

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, Url, redirect};
use tokio::sync::Semaphore;
use wasmtime_wasi_http::{RequestOptions, WasiBody, WasiHttpHooks};

use super::address::reachable;
use super::scope::Scope;
use exchange::{Answer, Exchange};
use hostler_telemetry::traces::Traces;
use hostler_types::error_chain::with_causes;

/// Maximum number of open requests per sandbox. A request is open from its start until the guest has read or dropped
/// the response body. If the guest keeps the response head after that, the head counts as a handle, not as an open
/// request.
pub const MAX_OPEN: u64 = 16;

/// Maximum host memory for one open request, in bytes. A request needs the HTTP/1 buffer (at most 408 KiB in hyper),
/// TLS records, and a chunk of the body in each direction.
const OPEN_SIZE: u64 = 512 * 1024;

/// Maximum host memory for all open requests of a sandbox, in bytes.
pub const FOOTPRINT: u64 = MAX_OPEN * OPEN_SIZE;

/// Maximum number of bytes that a guest can write to a request body at once.
const CHUNK: usize = 64 * 1024;

/// Maximum time to wait for a connection. A guest's timeouts do not change this time, because the HTTP client has one
/// connection timeout for all requests.
const CONNECT: Duration = Duration::from_secs(10);

/// Maximum time for which an idle connection is kept for reuse. AWS load balancers close idle connections after 60 s.
const IDLE: Duration = Duration::from_secs(30);
/// Maximum number of idle connections per origin.
pub const MAX_IDLE_PER_ORIGIN: usize = 16;

/// The origins to which the guests of one consumer may send requests, and the HTTP client with its connections.
#[derive(Debug)]
pub(super) struct Web {
    origins: BTreeSet<String>,
    /// The HTTP client. `None`: no origin is granted.
    client: Option<Client>,
    /// Destination for the spans of requests. `None`: requests have no spans.
    traces: Option<Traces>,
}

impl Web {
    /// Creates the HTTP client if any origin is granted. `networks`: networks that guests may reach in addition to
    /// public networks.
    ///
    /// # Errors
    /// An origin is not valid, or TLS cannot be set up, for example because there are no root certificates.
    pub(super) fn new(origins: &[String], networks: &[IpNet]) -> Result<Self, String> {
        // Uses the same URL parser as for requests, so equal strings always have equal origins.
        let origin = |text: &String| {
            let url = Url::parse(text).map_err(|error| format!("`{text}` is not a valid origin: {error}"))?;
            Ok(url.origin().ascii_serialization())
        };
        let origins = origins.iter().map(origin).collect::<Result<BTreeSet<String>, String>>()?;
        let client = (!origins.is_empty()).then(|| client(networks)).transpose();
        Ok(Self { origins, client: client.map_err(|error| with_causes(&error))?, traces: None })
    }

    /// Returns this value with `traces` as the destination for the spans of its requests, or `None` for no spans.
    pub(super) fn traced(self, traces: Option<Traces>) -> Self {
        Self { traces, ..self }
    }

    /// Returns the client if the URL's origin is granted. The error is the origin that is not granted.
    fn admit(&self, url: &Url) -> Result<&Client, String> {
        let origin = url.origin().ascii_serialization();
        match &self.client {
            Some(client) if self.origins.contains(&origin) => Ok(client),
            _ => Err(origin),
        }
    }
}

fn client(networks: &[IpNet]) -> reqwest::Result<Client> {
    Client::builder()
        .redirect(redirect::Policy::none())
        // A proxy would resolve names itself, without checking the addresses.
        .no_proxy()
        .retry(reqwest::retry::never())
        .referer(false)
        .connect_timeout(CONNECT)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MAX_IDLE_PER_ORIGIN)
        .dns_resolver(Arc::new(Guarded { networks: networks.into() }))
        .build()
}

/// Resolves host names and removes addresses that guests may not reach. An IP address in a URL is not resolved, and is
/// therefore not checked. An operator who grants an IP address as an origin grants access to that address.
struct Guarded {
    networks: Arc<[IpNet]>,
}

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let networks = Arc::clone(&self.networks);
        Box::pin(async move {
            let name = name.as_str();
            let found = tokio::net::lookup_host((name, 0)).await?.collect();
            let addresses = reachable(name, found, &networks)?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Returns the first error of type `T` in an error's chain of causes.
fn cause<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    std::iter::successors(Some(error), |&error| error.source()).find_map(|error| error.downcast_ref::<T>())
}

/// The host's side of `wasi:http`, for one sandbox.
pub(super) struct Hooks {
    web: Arc<Web>,
    /// Limits the number of open requests. Created for the first request, because many guests send no requests.
    open: Option<Arc<Semaphore>>,
    /// The call that runs in the sandbox.
    pub(super) scope: Arc<Scope>,
    /// The bodies of the sandbox's requests.
    pub(super) uploads: Uploads,
}

impl Hooks {
    pub(super) fn new(web: &Arc<Web>, scope: Arc<Scope>) -> Self {
        Self { web: Arc::clone(web), open: None, scope, uploads: Uploads::default() }
    }
}

impl WasiHttpHooks for Hooks {
    // The client sets the header from the URL that was checked.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK
    }

    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _received: Box<dyn Future<Output = wasmtime_wasi_http::Result<()>> + Send>,
    ) -> Box<dyn Future<Output = wasmtime_wasi_http::Result<Answer>> + Send> {
        let exchange = Exchange { web: Arc::clone(&self.web), scope: Arc::clone(&self.scope) };
        let open = self.open.get_or_insert_with(|| Arc::new(Semaphore::new(MAX_OPEN as usize)));
        let permit = Arc::clone(open).try_acquire_owned();
        Box::new(async move {
            let permit = permit.map_err(|_| wasmtime_wasi_http::Error::ConnectionLimitReached)?;
            exchange.run(request, options.unwrap_or_default(), permit).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn web(origins: &[&str]) -> Web {
        Web::new(&origins.iter().map(|origin| (*origin).to_owned()).collect::<Vec<_>>(), &[]).unwrap()
    }

    #[test]
    fn only_the_very_origin_is_admitted() {
        let web = web(&["https://api.example.com", "http://[::1]:8080", "http://127.0.0.1"]);
        let admits = |url: &str| web.admit(&Url::parse(url).unwrap()).is_ok();
        for granted in [
            "https://api.example.com/a?b",
            "https://API.example.com:443/",
            "http://[0:0:0:0:0:0:0:1]:8080/",
            // The same address in other notations.
            "http://127.1/",
            "http://0x7f000001/",
        ] {
            assert!(admits(granted), "{granted}");
        }
        for other in [
            "http://api.example.com/",
            "https://api.example.com:8443/",
            "https://api.example.com./",
            "https://api.example.com.evil.example/",
            "https://example.com/",
            "https://a.api.example.com/",
            "https://api.example.com@evil.example/",
            "http://127.0.0.1:81/",
            "http://127.0.0.2/",
        ] {
            assert!(!admits(other), "{other}");
        }
        assert!(super::Web::new(&[], &[]).unwrap().admit(&Url::parse("https://x/").unwrap()).is_err());
    }
}
