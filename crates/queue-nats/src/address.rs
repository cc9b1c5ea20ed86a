//! Addresses of servers. No I/O.

use std::net::Ipv6Addr;

use hostler_queue::QueueError;

/// The servers of a cluster, and the user that the address names.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// URLs without the user.
    pub(crate) servers: Vec<String>,
    pub(crate) user: User,
}

/// Way in which the address names a user.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum User {
    /// It names none.
    Unnamed,
    Token(String),
    Password(String, String),
}

impl Address {
    /// Reads the address of one or more servers. A server without a scheme has that of the first, and the user of the first is the
    /// user on all servers.
    ///
    /// # Errors
    /// [`QueueError::Refused`]. The text does not contain the address, which may contain a password.
    pub(crate) fn read(url: &str) -> Result<Self, QueueError> {
        Self::parse(url).ok_or_else(|| {
            QueueError::Refused("queue.nats.url is not an address such as nats://user:password@host:4222".to_owned())
        })
    }

    fn parse(url: &str) -> Option<Self> {
        let (first, _) = url.split_once("://")?;
        let (mut servers, mut user) = (Vec::new(), User::Unnamed);
        for (number, server) in url.split(',').map(str::trim).enumerate() {
            let (scheme, rest) = server.split_once("://").unwrap_or((first, server));
            let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
            let (account, host) = match authority.rsplit_once('@') {
                Some((account, host)) => (Some(account), host),
                None => (None, authority),
            };
            // A password that is not escaped must not be taken for a host or a path, which errors would show.
            if !is_host(host) || path.contains('@') || !matches!(scheme, "nats" | "tls") {
                return None;
            }
            let named = match account.map(|account| account.split_once(':').ok_or(account)) {
                Some(Ok((name, password))) => User::Password(decoded(name)?, decoded(password)?),
                Some(Err(token)) => User::Token(decoded(token)?),
                None => User::Unnamed,
            };
            if number == 0 {
                user = named;
            } else if named != User::Unnamed && named != user {
                return None;
            }
            servers.push(format!("{scheme}://{host}"));
        }
        Some(Self { servers, user })
    }

    /// Returns `true` if a server is to be reached by TLS only.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.servers.iter().any(|server| server.starts_with("tls://"))
    }

    /// Returns the servers, for people.
    pub(crate) fn shown(&self) -> String {
        let host = |url: &String| url.split_once("://").map_or_else(String::new, |(_, host)| host.to_owned());
        self.servers.iter().map(host).collect::<Vec<_>>().join(",")
    }
}

/// Returns `true` for a host, with a port or without.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_name = |host: &str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let is_address = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && is_name(host),
    };
    is_address && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Decodes the percent encoding of URLs. `None`: it is not valid.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        bytes.push(match first {
            b'%' => {
                let (digits, others) = others.split_at_checked(2)?;
                rest = others;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            other => *other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_servers_and_a_user() {
        let read = |url: &str| Address::parse(url).map(|address| (address.servers.join(" "), address.user));
        let password = |user: &str, password: &str| User::Password(user.to_owned(), password.to_owned());
        // Not by `assert_eq`: a password has no `Debug`.
        assert!(read("nats://localhost") == Some(("nats://localhost".to_owned(), User::Unnamed)));
        let cluster = read("tls://me:p%40ss:1@a:4222,b,nats://c:1/");
        assert!(cluster == Some(("tls://a:4222 tls://b nats://c:1".to_owned(), password("me", "p@ss:1"))));
        let token = User::Token("s3cret".to_owned());
        assert!(read("nats://s3cret@[::1]:4222") == Some(("nats://[::1]:4222".to_owned(), token)));
        assert!(read("nats://me:p@a,me:p@b") == Some(("nats://a nats://b".to_owned(), password("me", "p"))));
        for wrong in ["localhost", "amqp://x", "nats://", "nats://a,,b", "nats://a%4:b@c", "nats://a:x", "nats://[a]:1"]
        {
            assert!(read(wrong).is_none(), "{wrong}");
        }
        // Passwords that are not escaped: a part would look like a host, a port or a path.
        for wrong in [
            "nats://me:12/34@host",
            "nats://me:pa/ss@host",
            "nats://me:12,34@host",
            "nats://me:1#@host",
            "nats://a,me:p@b",
        ] {
            assert!(read(wrong).is_none(), "{wrong}");
        }
        let address = Address::parse("nats://me:secret@a,b");
        assert_eq!(address.map(|address| address.shown()).as_deref(), Some("a,b"));
    }
}
