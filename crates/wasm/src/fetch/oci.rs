//! Fetches a handler from an OCI registry: first the manifest, then the layer (OCI distribution specification 1.1).
//! Verifies both by digest, except a manifest that is requested by tag, because its digest is not known.
//!
//! hostler implements the protocol itself for two reasons: the next step depends on the status of each response, and
//! the size of every response must be limited, including manifests and tokens.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;

use super::login::{Challenge, docker_login};
use super::manifest::{self, Leads, Part};
use super::reference::Address;
use super::{Bounded, Fault, MAX_HANDLER};
use crate::cache::Cache;
use hostler_types::digest::{hex, sha256};
use hostler_types::error_chain::with_causes;

const CONNECT: Duration = Duration::from_secs(5);

/// Maximum time to wait for the next data on a connection.
const SILENCE: Duration = Duration::from_secs(20);

/// Maximum size of a manifest or a token in bytes. The specification requires registries to accept manifests of 4 MiB.
const MAX_MANIFEST: u64 = 4 * 1024 * 1024;

/// Maximum number of bytes to read from an error response, to find the reason for the error.
const MAX_REASON: u64 = 16 * 1024;

/// Maximum number of manifests to fetch for an artifact: an index, and the manifest that the index refers to.
const MAX_MANIFESTS: usize = 2;

/// An artifact in a registry, with the HTTP client that fetches it.
pub(super) struct Artifact<'a> {
    address: &'a Address,
    client: Client,
    /// URL of the repository: `https://host/v2/repository`.
    base: String,
    cache: Option<&'a Cache>,
}

/// Value of the `Authorization` header during one attempt to fetch a handler. The attempt obtains the value when the
/// registry first requires authentication, and sends it in all further requests. `None`: requests are sent without the
/// header.
type Session = Option<HeaderValue>;

impl<'a> Artifact<'a> {
    pub(super) fn new(address: &'a Address, cache: Option<&'a Cache>) -> Result<Self, Fault> {
        let local = is_local(&address.registry);
        let client = Client::builder()
            .user_agent(concat!("hostler/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            // Also applies to redirects and to the addresses of token services.
            .https_only(!local)
            .build();
        let client = client.map_err(|error| {
            Fault::Lasting(format!("no HTTPS: {}", with_causes(&error)), "install the machine's CA certificates")
        })?;
        let scheme = if local { "http" } else { "https" };
        let base = format!("{scheme}://{}/v2/{}", address.registry, address.repository);
        Ok(Self { address, client, base, cache })
    }

    /// Fetches the handler. Manifests and layers come from the cache if the cache contains them.
    pub(super) async fn pull(&self) -> Result<Bytes, Fault> {
        let mut session = Session::None;
        let mut manifest = match &self.address.digest {
            Some(digest) => self.by_digest(&mut session, "manifests", digest, MAX_MANIFEST).await?,
            None => {
                let tag = self.address.tag.as_deref().unwrap_or("latest");
                self.get(&mut session, &format!("manifests/{tag}"), MAX_MANIFEST).await?
            }
        };
        for _ in 0..MAX_MANIFESTS {
            match manifest::read(&manifest)? {
                Leads::ToLayer(part) => {
                    let layer = self.layer(&mut session, part).await?;
                    return manifest::check_layer(&layer).map(|()| layer);
                }
                Leads::ToManifest(part) => {
                    manifest = self.by_digest(&mut session, "manifests", &part.digest, MAX_MANIFEST).await?;
                }
            }
        }
        Err(Fault::Lasting("its indexes only lead to further ones".into(), "name the manifest by its digest"))
    }

    async fn layer(&self, session: &mut Session, part: Part) -> Result<Bytes, Fault> {
        // A descriptor without a size violates the specification, but the digest still protects the layer.
        let limit = if part.size == 0 { MAX_HANDLER } else { part.size };
        self.by_digest(session, "blobs", &part.digest, limit).await
    }

    /// Fetches content by its digest, from the cache if the cache contains it. `kind`: `manifests` or `blobs`. `limit`:
    /// maximum size in bytes.
    async fn by_digest(
        &self,
        session: &mut Session,
        kind: &str,
        digest: &[u8; 32],
        limit: u64,
    ) -> Result<Bytes, Fault> {
        if let Some(bytes) = self.cache.and_then(|cache| cache.blob(digest)) {
            return Ok(bytes);
        }
        let bytes = self.get(session, &format!("{kind}/sha256:{}", hex(digest)), limit).await?;
        let found = sha256(&bytes);
        if found != *digest {
            let what = format!("the registry sent sha256:{} instead of sha256:{}", hex(&found), hex(digest));
            return Err(Fault::Lasting(what, "find out who changed it: a digest matches only the original bytes"));
        }
        if let Some(cache) = self.cache {
            cache.put_blob(digest, &bytes);
        }
        Ok(bytes)
    }

    /// Fetches a path below the repository's URL. Authenticates if the registry requires a login. `limit`: maximum size
    /// in bytes.
    async fn get(&self, session: &mut Session, path: &str, limit: u64) -> Result<Bytes, Fault> {
        let url = format!("{}/{path}", self.base);
        let request = |session: &Session| {
            let request = self.client.get(&url).header(ACCEPT, manifest::ACCEPT);
            session.iter().fold(request, |request, value| request.header(AUTHORIZATION, value))
        };
        let mut response = send(request(session)).await?;
        if response.status() == StatusCode::UNAUTHORIZED && session.is_none() {
            let headers = response.headers().get_all(WWW_AUTHENTICATE);
            let challenge = headers.iter().find_map(|header| Challenge::read(header.to_str().ok()?));
            *session = self.answer(challenge).await?;
            if session.is_some() {
                response = send(request(session)).await?;
            }
        }
        match response.status() {
            StatusCode::OK => body(response, limit).await,
            _ => Err(refusal("the registry", response).await),
        }
    }

    /// Returns the value of the `Authorization` header that answers a challenge. `None`: there is no login for the
    /// registry, or hostler does not support the challenge.
    async fn answer(&self, challenge: Option<Challenge>) -> Result<Session, Fault> {
        let login = docker_login(&self.address.registry);
        let header = match (challenge, login) {
            (Some(Challenge::Bearer { realm, service }), login) => {
                let bad =
                    |_| Fault::Lasting("the registry names no valid address for tokens".into(), "contact its operator");
                let mut url = Url::parse(&realm).map_err(bad)?;
                let scope = format!("repository:{}:pull", self.base.split_once("/v2/").map_or("", |(_, name)| name));
                url.query_pairs_mut().append_pair("scope", &scope);
                if let Some(service) = &service {
                    url.query_pairs_mut().append_pair("service", service);
                }
                let request = self.client.get(url);
                let request = match &login {
                    Some(login) => request.basic_auth(&login.user, Some(&login.password)),
                    None => request,
                };
                format!("Bearer {}", token(send(request).await?).await?)
            }
            (Some(Challenge::Basic), Some(login)) => {
                use base64::Engine as _;
                let pair = format!("{}:{}", login.user, login.password);
                format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
            }
            _ => return Ok(None),
        };
        let mut header = HeaderValue::try_from(header)
            .map_err(|_| Fault::Lasting("the registry gave no valid token".into(), "contact its operator"))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

async fn token(response: Response) -> Result<String, Fault> {
    if response.status() != StatusCode::OK {
        return Err(refusal("the registry's token service", response).await);
    }
    let answer: Value = serde_json::from_slice(&body(response, MAX_MANIFEST).await?).unwrap_or_default();
    let token = ["token", "access_token"].iter().find_map(|name| answer.get(name)?.as_str());
    token.map(str::to_owned).ok_or_else(|| Fault::Lasting("the registry gave no token".into(), "contact its operator"))
}

async fn send(request: RequestBuilder) -> Result<Response, Fault> {
    request.send().await.map_err(broken)
}

async fn body(mut response: Response, limit: u64) -> Result<Bytes, Fault> {
    let mut bounded = Bounded::new(limit, response.content_length())?;
    while let Some(piece) = response.chunk().await.map_err(broken)? {
        bounded.push(&piece)?;
    }
    Ok(bounded.bytes.into())
}

/// Converts an error from the HTTP client to a [`Fault`]. Removes the URL from the error message, because a registry
/// may redirect to a storage service whose URLs contain secret signatures.
fn broken(error: reqwest::Error) -> Fault {
    let error = error.without_url();
    if error.is_builder() || error.is_redirect() {
        Fault::Lasting(with_causes(&error), "use a registry that speaks HTTPS; HTTP is for localhost alone")
    } else {
        Fault::Passing(with_causes(&error))
    }
}

/// Converts an error response to a fault. `who`: sender of the response, for the error message.
async fn refusal(who: &str, response: Response) -> Fault {
    let status = response.status();
    let reason = match body(response, MAX_REASON).await {
        Ok(bytes) => reason(&bytes),
        Err(_) => String::new(),
    };
    let what = format!("{who} answered {}{reason}", status.as_u16());
    match status.as_u16() {
        408 | 429 | 500.. => Fault::Passing(what),
        401 | 403 => Fault::Lasting(
            what,
            "give hostler a config.json with `auths` for this registry (DOCKER_CONFIG names its folder), or make it public",
        ),
        404 => Fault::Lasting(what, "push it, or name a repository and tag that exist"),
        _ => Fault::Lasting(what, "name a repository and tag that exist"),
    }
}

/// Returns the code and the message of the first error in a registry's error response, with a leading space. Returns an
/// empty string if the response contains no error.
fn reason(bytes: &[u8]) -> String {
    let answer: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let error = answer.pointer("/errors/0").unwrap_or(&Value::Null);
    let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
    let reason = format!(" {}: {}", text("code"), text("message"));
    let clean: String = reason.chars().filter(|char| !char.is_control()).take(200).collect();
    if error.is_null() { String::new() } else { clean }
}

/// Returns `true` if a registry is on this machine. As with Docker, only a local registry may be used without TLS.
fn is_local(registry: &str) -> bool {
    let host = match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => registry,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_registries_of_this_machine_may_do_without_tls() {
        for local in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.9.9.9", "[::1]:5000", "[::1]"] {
            assert!(is_local(local), "{local}");
        }
        for remote in "registry.example 10.0.0.1:5000 localhost.example 127.0.0.1.example:80 r:443 \
                     [2001:db8::1]:80"
            .split(' ')
        {
            assert!(!is_local(remote), "{remote}");
        }
    }

    #[test]
    fn the_address_is_what_the_specification_says() {
        let base = |registry: &str| {
            let address = Address { registry: registry.into(), repository: "me/h".into(), tag: None, digest: None };
            Artifact::new(&address, None).unwrap_or_else(|fault| panic!("{fault:?}")).base
        };
        assert_eq!(base("localhost:5000"), "http://localhost:5000/v2/me/h");
        assert_eq!(base("registry.example"), "https://registry.example/v2/me/h");
    }

    #[test]
    fn a_reason_is_short_and_plain() {
        let answer = r#"{"errors":[{"code":"DENIED","message":"no\nway"}]}"#;
        assert_eq!(reason(answer.as_bytes()), " DENIED: noway");
        assert_eq!(reason(b"<html>"), "");
    }
}
