//! Addresses of TCP servers that a config grants: `host:port`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use super::metadata::is_metadata;

/// Maximum length of a host name in bytes (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 253;

/// Maximum length of one label of a host name in bytes (RFC 1035, section 2.3.4).
const MAX_LABEL: usize = 63;

/// A TCP server: a host and a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The host.
    pub host: EndpointHost,
    /// The port; never 0.
    pub port: u16,
}

/// The host of an [`Endpoint`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointHost {
    /// A name in lower case, without a final dot.
    Name(String),
    /// An IP address. An IPv4 address that is mapped into IPv6 is an IPv4 address here.
    Ip(IpAddr),
}

/// The fault of a text that is not an [`Endpoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The text has no `:` before a port.
    #[error("names no port")]
    NoPort,
    /// The port is not a number from 1 to 65535.
    #[error("has a port that is not a number from 1 to 65535")]
    BadPort,
    /// An IPv6 address stands without brackets.
    #[error("has an IPv6 address without brackets")]
    NoBrackets,
    /// The host is neither a name nor an IP address.
    #[error("names neither a host nor an IP address")]
    BadHost,
    /// The address is unspecified, a broadcast address or a multicast address.
    #[error("has an address at which there is no single server")]
    NoServer,
    /// The address belongs to a service that hands out credentials.
    #[error("is the address of a service that hands out the host's credentials, which guests never reach")]
    Metadata,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if text.parse::<Ipv6Addr>().is_ok() {
            return Err(EndpointError::NoBrackets);
        }
        let (host, port) = text.rsplit_once(':').ok_or(EndpointError::NoPort)?;
        if host.contains(':') && !host.starts_with('[') {
            return Err(EndpointError::NoBrackets);
        }
        let host = host.parse()?;
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| is_number && *port > 0);
        Ok(Self { host, port: port.ok_or(EndpointError::BadPort)? })
    }
}

impl FromStr for EndpointHost {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let in_brackets = text.strip_prefix('[').map(|rest| rest.strip_suffix(']').unwrap_or_default());
        let address = match in_brackets {
            Some(address) => Some(address.parse::<Ipv6Addr>().map_err(|_| EndpointError::BadHost)?.into()),
            None => text.parse::<IpAddr>().ok(),
        };
        match address.map(|address| address.to_canonical()) {
            None if is_name(text) => Ok(Self::Name(text.to_ascii_lowercase())),
            None => Err(EndpointError::BadHost),
            Some(address) if is_metadata(address) => Err(EndpointError::Metadata),
            Some(address) if !is_one_server(address) => Err(EndpointError::NoServer),
            Some(address) => Ok(Self::Ip(address)),
        }
    }
}

/// Returns `true` for an address that can belong to one server.
fn is_one_server(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !address.is_unspecified() && !address.is_multicast() && !is_broadcast
}

/// Returns `true` for a host name. Resolvers read a text whose last label is a number as an address (`127.1`), so it is not
/// a name.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let chars = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        (1..=MAX_LABEL).contains(&label.len()) && chars && !label.starts_with('-') && !label.ends_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    text.len() <= MAX_NAME && text.split('.').all(is_label) && !is_number
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            EndpointHost::Name(name) => write!(f, "{name}:{}", self.port),
            EndpointHost::Ip(IpAddr::V4(address)) => write!(f, "{address}:{}", self.port),
            EndpointHost::Ip(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Endpoint, EndpointError> {
        text.parse()
    }

    #[test]
    fn endpoints_are_canonical() {
        for (text, canonical) in [
            ("DB.Internal:5432", "db.internal:5432"),
            ("10.0.3.7:6379", "10.0.3.7:6379"),
            ("[FD00:0::7]:1", "[fd00::7]:1"),
            ("[::ffff:10.0.0.1]:65535", "10.0.0.1:65535"),
            ("localhost:05432", "localhost:5432"),
            ("my_db-1.x9:1", "my_db-1.x9:1"),
            ("3f2a9c0d1e4b:1", "3f2a9c0d1e4b:1"),
        ] {
            let endpoint = read(text).unwrap_or_else(|fault| panic!("{text} {fault}"));
            assert_eq!(endpoint.to_string(), canonical);
            assert_eq!(read(canonical), Ok(endpoint));
        }
    }

    #[test]
    fn faults_are_told_apart() {
        use EndpointError::{BadHost, BadPort, Metadata, NoBrackets, NoPort, NoServer};
        let faults: [(EndpointError, &[&str]); 6] = [
            (NoPort, &["", "db.internal", "10.0.3.7"]),
            (BadPort, &["db:", "db:0", "db:65536", "db:+1", "db:5432x", "db: 1", "[::1]:"]),
            (NoBrackets, &["::1", "fd00::1:5432", "a:b:1"]),
            (BadHost, &[":1", "a b:1", "*.x:1", "a..b:1", "a.:1", "-a:1", "[10.0.0.1]:1", "[::1:1", "[]:1", "ä:1"]),
            (NoServer, &["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "255.255.255.255:1", "[ff02::1]:1"]),
            (
                Metadata,
                &["169.254.169.254:80", "[fd00:ec2::254]:80", "[::ffff:169.254.170.2]:80", "[2002:a9fe:a9fe::]:1"],
            ),
        ];
        for (fault, texts) in faults {
            for text in texts {
                assert_eq!(read(text), Err(fault), "{text}");
            }
        }
        for scheme in ["http://db:1", "postgres://u:hunter2@db:1"] {
            assert!(read(scheme).is_err(), "{scheme}");
        }
    }

    #[test]
    fn a_text_that_resolvers_read_as_an_address_is_no_name() {
        for text in ["127.1:1", "2130706433:1", "0x7f000001:1", "10.0.0:1", "0177.0.0.01:1", "a.0x1:1", "1.2.3.4.5:1"] {
            assert_eq!(read(text), Err(EndpointError::BadHost), "{text}");
        }
        let long = |labels: usize| format!("{}:1", vec!["a".repeat(MAX_LABEL); labels].join("."));
        assert!(read(&long(3)).is_ok());
        assert!(read(&long(4)).is_err());
        assert!(read(&format!("{}:1", "a".repeat(MAX_LABEL + 1))).is_err());
    }

    #[test]
    fn any_address_and_port_is_read_as_it_prints() {
        let mut seed = 7_u64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut read_back = 0;
        for _ in 0..10_000 {
            let [high, low, port] = [next(), next(), next()];
            let v6 = Ipv6Addr::from((u128::from(high) << 64) | u128::from(low));
            let v4 = IpAddr::from(low.to_be_bytes()[..4].try_into().map(|octets: [u8; 4]| octets).unwrap());
            for address in [v4, v6.into()] {
                let Ok(port) = u16::try_from(port % 65_536) else { continue };
                let endpoint = Endpoint { host: EndpointHost::Ip(address), port };
                match read(&endpoint.to_string()) {
                    Ok(read) => {
                        assert_eq!(read, endpoint);
                        read_back += 1;
                    }
                    Err(_) => assert!(port == 0 || !is_one_server(address) || is_metadata(address), "{endpoint}"),
                }
            }
        }
        assert!(read_back > 15_000, "{read_back}");
    }
}
