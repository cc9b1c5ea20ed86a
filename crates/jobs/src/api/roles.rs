//! Bearer tokens and their roles. Without tokens, only local callers are let in.

use std::net::{IpAddr, SocketAddr};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode, Uri};

use crate::api::problem::Problem;

/// A role of callers. A token has one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Creates jobs, adds items, seals, deletes and reads.
    Producer,
    /// Claims, settles and extends assignments, and reads items.
    Worker,
    /// Does everything.
    Operator,
}

impl Role {
    /// Parses the name that the OpenAPI document uses.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "producer" => Some(Self::Producer),
            "worker" => Some(Self::Worker),
            "operator" => Some(Self::Operator),
            _ => None,
        }
    }
}

/// The callers that an operation lets in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Everyone who may connect.
    Open,
    /// The callers with one of these roles, and operators.
    Roles(Vec<Role>),
}

/// An authenticated caller: the number of its token, or `None` for a local caller where there are no tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller(pub Option<usize>);

/// The tokens that a server accepts. Keeps digests only.
#[derive(Clone, Default)]
pub struct Tokens(Vec<(Role, [u8; 32])>);

impl Tokens {
    /// Creates the set from pairs of a role and its secret. Empty secrets are ignored.
    pub fn new(pairs: impl IntoIterator<Item = (Role, String)>) -> Self {
        let pairs = pairs.into_iter().filter(|(_, secret)| !secret.is_empty());
        Self(pairs.map(|(role, secret)| (role, fingerprint(secret.as_bytes()))).collect())
    }

    /// Tells whether there are none, so that only local callers are let in.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Authenticates a caller for an operation.
    pub fn admit(&self, access: &Access, headers: &HeaderMap) -> Result<Caller, Problem> {
        let Access::Roles(roles) = access else { return Ok(Caller(None)) };
        if self.is_empty() {
            return Ok(Caller(None));
        }
        let Some((number, role)) = bearer(headers).and_then(|token| self.find(token)) else {
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "a valid bearer token is needed").field("Authorization"));
        };
        if role == Role::Operator || roles.contains(&role) {
            return Ok(Caller(Some(number)));
        }
        let detail = "the role of this token may not do this";
        Err(Problem::new(StatusCode::FORBIDDEN, detail).field("Authorization"))
    }

    /// Finds a token in a time that depends neither on its content nor on its place.
    fn find(&self, token: &[u8]) -> Option<(usize, Role)> {
        let presented = fingerprint(token);
        let mut found = None;
        for (number, (role, known)) in self.0.iter().enumerate() {
            if verify_slices_are_equal(known, &presented).is_ok() {
                found = Some((number, *role));
            }
        }
        found
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

fn fingerprint(secret: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, secret).as_ref());
    bytes
}

/// Returns the token of the header `Authorization`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then(|| token.trim_ascii())
}

/// Refuses callers that are not local: for servers without tokens.
///
/// The header `Host` must name this machine, which defeats DNS rebinding. A header `Origin` must do so too, which
/// keeps pages of other sites from sending requests through a browser.
pub fn admit_local(peer: SocketAddr, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let refuse = |detail: &'static str| Problem::new(StatusCode::FORBIDDEN, detail);
    if !peer.ip().to_canonical().is_loopback() {
        return Err(refuse("without tokens, only clients on this machine are let in"));
    }
    let hosts = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
    if !hosts.chain(uri.authority().map(|authority| authority.as_str())).all(is_local_host) {
        return Err(refuse("without tokens, Host must be localhost or a loopback address").field("Host"));
    }
    let mut origins = headers.get_all(ORIGIN).iter().map(|origin| origin.to_str().unwrap_or_default());
    if !origins.all(|origin| origin.split_once("://").is_some_and(|(_, host)| is_local_host(host))) {
        return Err(refuse("without tokens, pages of other sites are not let in").field("Origin"));
    }
    Ok(())
}

/// Tells whether the host of `host[:port]` is this machine.
fn is_local_host(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(host, _)| host),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn tokens() -> Tokens {
        let pairs = [(Role::Producer, "p1"), (Role::Producer, "p2"), (Role::Worker, "w"), (Role::Operator, "o")];
        Tokens::new(pairs.map(|(role, secret)| (role, secret.to_owned())))
    }

    fn ask(access: &Access, authorization: &'static str) -> Result<Option<usize>, u16> {
        let admitted = tokens().admit(access, &headers(&[("authorization", authorization)]));
        admitted.map(|caller| caller.0).map_err(|problem| problem.status().as_u16())
    }

    #[test]
    fn a_token_opens_what_its_role_may_do() {
        let producers = Access::Roles(vec![Role::Producer]);
        assert_eq!(ask(&producers, "Bearer p1"), Ok(Some(0)));
        assert_eq!(ask(&producers, "bearer p2"), Ok(Some(1)));
        assert_eq!(ask(&producers, "Bearer w"), Err(403));
        assert_eq!(ask(&producers, "Bearer o"), Ok(Some(3)));
        assert_eq!(ask(&Access::Roles(vec![]), "Bearer p1"), Err(403));
        for wrong in ["Bearer x", "Bearer ", "Bearer", "Basic p1", "p1", ""] {
            assert_eq!(ask(&producers, wrong), Err(401), "{wrong}");
        }
        assert_eq!(ask(&Access::Open, "Bearer x"), Ok(None));
    }

    #[test]
    fn empty_secrets_admit_nobody() {
        assert!(Tokens::new([(Role::Operator, String::new())]).is_empty());
    }

    #[test]
    fn without_tokens_only_this_machine_is_let_in() {
        let ask = |peer: &str, pairs: &[(&'static str, &'static str)]| {
            admit_local(peer.parse().unwrap(), &Uri::from_static("/job"), &headers(pairs)).is_ok()
        };
        for host in ["localhost", "LOCALHOST:80", "localhost.", "127.0.0.1:8081", "[::1]:8081", "[::1]", "127.9.9.9"] {
            assert!(ask("127.0.0.1:5000", &[("host", host)]), "{host}");
        }
        for host in ["evil.example", "evil.example:8081", "localhost.evil.example", "10.0.0.1", "", "[::2]:80"] {
            assert!(!ask("127.0.0.1:5000", &[("host", host)]), "{host}");
        }
        assert!(ask("[::ffff:127.0.0.1]:5000", &[("host", "localhost")]));
        assert!(ask("127.0.0.1:5000", &[]));
        assert!(!ask("10.0.0.9:5000", &[("host", "localhost")]));
        assert!(!ask("127.0.0.1:1", &[("host", "localhost"), ("origin", "https://evil.example")]));
        assert!(!ask("127.0.0.1:1", &[("host", "localhost"), ("origin", "null")]));
        assert!(ask("127.0.0.1:1", &[("host", "localhost"), ("origin", "http://localhost:3000")]));
    }

    #[test]
    fn the_debug_form_has_no_secret() {
        assert_eq!(format!("{:?}", tokens()), "Tokens(4)");
    }
}
