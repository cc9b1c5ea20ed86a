//! Syntax of handlers, addresses and folder grants.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Component, Path, PathBuf};

use figment::value::Value;
use ipnet::IpNet;

use super::choice::DirMode;
use super::read::{Read, quoted, shown, text};

/// Location of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerRef {
    /// A file. A relative path is resolved from the current directory.
    Path(PathBuf),
    /// `s3://bucket/key`.
    S3 {
        /// Name of the bucket.
        bucket: String,
        /// Key of the object, without a leading slash.
        key: String,
    },
    /// `oci://registry/repository[:tag][@sha256:…]`.
    Oci {
        /// Reference without the scheme.
        reference: String,
    },
}

impl fmt::Display for HandlerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::S3 { bucket, key } => write!(f, "s3://{bucket}/{key}"),
            Self::Oci { reference } => write!(f, "oci://{reference}"),
        }
    }
}

impl Read for HandlerRef {
    fn read(value: &Value) -> Result<Self, String> {
        let text = text(value)?;
        let both = |rest: &str| {
            let (first, second) =
                rest.split_once('/').filter(|(first, second)| !first.is_empty() && !second.is_empty())?;
            Some((first.to_owned(), second.to_owned()))
        };
        match text.split_once("://") {
            None => PathBuf::read(value).map(Self::Path),
            Some(("s3", rest)) => both(rest)
                .map(|(bucket, key)| Self::S3 { bucket, key })
                .ok_or_else(|| format!("{} lacks a bucket or a key", quoted(text))),
            Some(("oci", rest)) if both(rest).is_some() => Ok(Self::Oci { reference: rest.to_owned() }),
            Some(("oci", _)) => Err(format!("{} lacks a registry or a repository", quoted(text))),
            Some((scheme, _)) => Err(format!("{}: handlers are not fetched by `{scheme}://`", quoted(text))),
        }
    }
}

/// An origin `http(s)://host[:port]` in canonical form: lower case, without a default port.
pub(super) struct Origin(pub String);

impl Read for Origin {
    fn read(value: &Value) -> Result<Self, String> {
        let text = text(value)?;
        let (origin, rest) = split_address(text)?;
        match rest {
            "" => Ok(Self(origin)),
            _ => Err(format!("{} has a path; a grant is a whole origin, {}", quoted(text), quoted(&origin))),
        }
    }
}

/// A network of IP addresses, for example `10.0.0.0/16`. A single address is a network with one address.
pub(super) struct Network(pub IpNet);

impl Read for Network {
    fn read(value: &Value) -> Result<Self, String> {
        let text = text(value)?;
        let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map(|network| Self(network.trunc())).map_err(|_| format!("{} is not a network", quoted(text)))
    }
}

/// An `http(s)://` URL with or without a path, as written.
pub(super) struct Url(pub String);

impl Read for Url {
    fn read(value: &Value) -> Result<Self, String> {
        let text = text(value)?;
        split_address(text).map(|_| Self(text.to_owned()))
    }
}

/// An `http(s)://` URL that is itself a secret, for example the URL of a webhook. `Debug` omits it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// Returns the URL as written. The caller must keep it out of logs, errors and output.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretUrl")
    }
}

impl Read for SecretUrl {
    fn read(value: &Value) -> Result<Self, String> {
        let url = value.as_str().filter(|url| split_address(url).is_ok());
        let fault =
            || "the value is not an address without user information (it is not shown: it is secret)".to_owned();
        url.map(|url| Self(url.to_owned())).ok_or_else(fault)
    }
}

/// A token or a secret that is sent in a header or signs what is sent. `Debug` omits it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Maximum length in bytes.
    const MAX: usize = 512;

    /// Returns the token as written. The caller must keep it out of logs, errors and output.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Read for Token {
    fn read(value: &Value) -> Result<Self, String> {
        let is_one =
            |text: &&str| (1..=Self::MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        let fault = || "the value is not a token (it is not shown: it is secret)".to_owned();
        value.as_str().filter(is_one).map(|text| Self(text.to_owned())).ok_or_else(fault)
    }
}

/// Defines the URL of a server, which usually contains a password. `Debug` omits it.
macro_rules! server_url {
    ($(#[$doc:meta])* $name:ident, $server:literal, $($scheme:literal)|+) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq)]
        pub struct $name(String);

        impl $name {
            /// Returns the URL as written. The caller must keep it out of logs, errors and output.
            pub fn expose(&self) -> &str {
                &self.0
            }

            /// Returns `true` if the text has the form of such a URL. Behind the hosts there is no `@`: a part of the password would
            /// be taken for a host, and shown.
            pub fn is_one(text: &str) -> bool {
                let rest = text.split_once("://").filter(|(scheme, _)| matches!(*scheme, $($scheme)|+));
                let has_space = text.contains(|char: char| char.is_whitespace() || char.is_control());
                let is_whole = |rest: &str| !rest[rest.find(['/', '?', '#']).unwrap_or(rest.len())..].contains('@');
                rest.is_some_and(|(_, rest)| !rest.is_empty() && is_whole(rest)) && !has_space
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }

        impl Read for $name {
            fn read(value: &Value) -> Result<Self, String> {
                let url = value.as_str().filter(|url| Self::is_one(url));
                let fault = || {
                    let server = $server;
                    format!(
                        "the value is not an address of {server} (it is not shown: it may contain a password, in which `/`, `?` and \
                         `#` are %2F, %3F and %23)"
                    )
                };
                url.map(|url| Self(url.to_owned())).ok_or_else(fault)
            }
        }
    };
}

server_url! {
    /// An `amqp(s)://` URL.
    AmqpUrl, "RabbitMQ", "amqp" | "amqps"
}
server_url! {
    /// A `nats://` or `tls://` URL.
    NatsUrl, "NATS", "nats" | "tls"
}
server_url! {
    /// A `postgres(ql)://` URL.
    PostgresUrl, "PostgreSQL", "postgres" | "postgresql"
}

/// Splits a URL into its canonical origin and the rest, which is the path, the query and the fragment.
fn split_address(text: &str) -> Result<(String, &str), String> {
    let fault = |what: &str| format!("{} {what}", quoted(text));
    let (scheme, rest) = text.split_once("://").ok_or_else(|| fault("names no scheme"))?;
    let scheme = scheme.to_ascii_lowercase();
    let default_port = match scheme.as_str() {
        "http" => 80,
        "https" => 443,
        _ => return Err(fault("is neither `http://` nor `https://`")),
    };
    if text.contains(|char: char| char.is_whitespace() || char.is_control()) {
        return Err(fault("contains a space or a control character"));
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(fault("carries user information, which has no place here"));
    }
    let port_at = authority.rfind(':').filter(|at| authority.rfind(']').is_none_or(|bracket| bracket < *at));
    let (host, port) = authority.split_at(port_at.unwrap_or(authority.len()));
    if !is_host(host) {
        return Err(fault("names no valid host"));
    }
    let port = match port.strip_prefix(':') {
        None => default_port,
        Some(port) => port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(|| fault("has no valid port"))?,
    };
    let suffix = if port == default_port { String::new() } else { format!(":{port}") };
    Ok((format!("{scheme}://{}{suffix}", host.to_ascii_lowercase()), path))
}

fn is_host(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)),
    }
}

/// A folder of the host to which a guest has access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirGrant {
    /// Path on the host. A relative path is resolved from the current directory.
    pub host: PathBuf,
    /// Path for the guest: absolute, without `..`.
    pub guest: PathBuf,
    /// Access of the guest.
    pub mode: DirMode,
}

impl Read for DirGrant {
    fn read(value: &Value) -> Result<Self, String> {
        let Value::Dict(_, table) = value else {
            return Err(format!("{} is not a table", shown(value)));
        };
        if let Some(unknown) = table.keys().find(|key| !["host", "guest", "mode"].contains(&key.as_str())) {
            return Err(format!("unknown key `{unknown}`"));
        }
        let path = |key| {
            let value = table.get(key).ok_or_else(|| format!("`{key}` is missing"))?;
            PathBuf::read(value).map_err(|fault| format!("`{key}`: {fault}"))
        };
        let mode = table.get("mode").map_or(Ok(DirMode::ReadOnly), DirMode::read);
        let grant =
            Self { host: path("host")?, guest: path("guest")?, mode: mode.map_err(|f| format!("`mode`: {f}"))? };
        if !is_plain(&grant.guest) {
            return Err(format!("`guest`: {:?} is not an absolute path without `..`", grant.guest));
        }
        Ok(grant)
    }
}

fn is_plain(path: &Path) -> bool {
    path.is_absolute() && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

/// Folder grants, each with a different guest path.
pub(super) struct Dirs(pub Vec<DirGrant>);

impl Read for Dirs {
    fn read(value: &Value) -> Result<Self, String> {
        let grants = Vec::<DirGrant>::read(value)?;
        let mut seen = BTreeSet::new();
        match grants.iter().find(|grant| !seen.insert(grant.guest.as_path())) {
            Some(again) => Err(format!("`guest` {:?} is granted twice", again.guest)),
            None => Ok(Self(grants)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handler(text: &str) -> Result<HandlerRef, String> {
        HandlerRef::read(&Value::from(text))
    }

    #[test]
    fn handlers_read_as_they_print() {
        for text in
            ["a.wasm", "/handlers/a.wasm", "s3://bucket/some/key.wasm", "oci://registry.example/me/h:1@sha256:ab"]
        {
            assert_eq!(handler(text).unwrap().to_string(), text);
        }
        for bad in ["", "s3://bucket", "s3:///key", "oci://registry", "https://x/y.wasm"] {
            assert!(handler(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn origins_are_canonical() {
        let origin = |text: &str| Origin::read(&Value::from(text)).map(|origin| origin.0);
        assert_eq!(origin("HTTPS://API.example.com:443").unwrap(), "https://api.example.com");
        assert_eq!(origin("http://[::1]:8080").unwrap(), "http://[::1]:8080");
        for bad in ["", "api.example.com", "ftp://x", "https://", "https://x/", "https://x:0", "https://x:99999"] {
            assert!(origin(bad).is_err(), "{bad}");
        }
        for bad in ["https://*.x", "https://a b", "https://x?y", "http://[::1", "http://x:", "https://u:p@x"] {
            assert!(origin(bad).is_err(), "{bad}");
        }
        assert!(!origin("https://u:hunter2@x").unwrap_err().contains("hunter2"));
    }

    #[test]
    fn networks_are_read_with_and_without_their_length() {
        let network = |text: &str| Network::read(&Value::from(text)).map(|network| network.0.to_string());
        assert_eq!(network("10.1.2.3/16").unwrap(), "10.1.0.0/16");
        assert_eq!(network("169.254.170.2").unwrap(), "169.254.170.2/32");
        assert_eq!(network("fd00::/8").unwrap(), "fd00::/8");
        for bad in ["", "10.0.0.0/33", "10.0.0", "example.com", "10.0.0.0/"] {
            assert!(network(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn guest_folders_are_absolute_and_unique() {
        let dirs = |text: &str| Dirs::read(&text.parse().unwrap()).map(|dirs| dirs.0);
        assert_eq!(dirs("[{host=\"a\",guest=\"/a\"}]").unwrap()[0].mode, DirMode::ReadOnly);
        for bad in [
            "[{host=\"a\",guest=\"a\"}]",
            "[{host=\"a\",guest=\"/a/../b\"}]",
            "[{host=\"a\"}]",
            "[{host=\"a\",guest=\"/a\",mode=\"w\"}]",
            "[{host=\"a\",guest=\"/a\",ro=true}]",
            "[{host=\"a\",guest=\"/a\"},{host=\"b\",guest=\"/a/\"}]",
            "[\"/a\"]",
            "/a",
        ] {
            assert!(dirs(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_address_of_rabbitmq_has_no_part_of_a_password_behind_its_hosts() {
        for url in ["amqp://h", "amqps://me:p%2Fw@h:1,i:2/v?frame_max=8192", "amqp://me:a@b@h/"] {
            assert!(AmqpUrl::is_one(url), "{url}");
        }
        let urls = ["amqp://me:1/pw@h", "amqp://me:1?pw@h", "amqp://me:1#pw@h", "amqp://me:pw@h:1,amqp://me:pw@i:2"];
        for url in urls.into_iter().chain(["amqp://", "http://h", "amqp://h x"]) {
            assert!(!AmqpUrl::is_one(url), "{url}");
        }
    }
}
