//! The addresses that a callback may be sent to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reqwest::Url;

/// The reason that an address is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressRefused {
    /// The text is not a URL with a host, or its port is out of range.
    #[error("the callback's address is not a URL with a host and a port from 1 to 65535")]
    Malformed,
    /// The scheme is neither http nor https.
    #[error("the callback's scheme is neither http nor https")]
    Scheme,
    /// The host is a link-local address or a cloud's metadata service.
    #[error("the callback's host is a link-local address or a metadata service")]
    Reserved,
}

/// Parses the address of a callback.
///
/// # Errors
/// If it is not an http or https URL, or its host is a reserved address as it stands. Names are checked by
/// [`is_reserved`] once they are resolved.
pub fn parse(url: &str) -> Result<Url, AddressRefused> {
    let url = Url::parse(url).map_err(|_| AddressRefused::Malformed)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(AddressRefused::Scheme);
    }
    let host = url.host_str().ok_or(AddressRefused::Malformed)?;
    if url.port() == Some(0) {
        return Err(AddressRefused::Malformed);
    }
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    if literal.is_ok_and(is_reserved) {
        return Err(AddressRefused::Reserved);
    }
    Ok(url)
}

/// Tells whether an address is link-local, a cloud's metadata service, or names no host.
pub fn is_reserved(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_reserved_v4(address),
        IpAddr::V6(address) => embedded(address).map_or_else(|| is_reserved_v6(address), is_reserved_v4),
    }
}

fn is_reserved_v4(address: Ipv4Addr) -> bool {
    // Alibaba Cloud and Azure have their services outside of the link-local range.
    const SERVICES: [Ipv4Addr; 3] =
        [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];
    address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || address.octets()[0] == 0
        || SERVICES.contains(&address)
}

fn is_reserved_v6(address: Ipv6Addr) -> bool {
    /// The metadata service of EC2 by IPv6.
    const EC2: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    /// The metadata service of Google Cloud by IPv6.
    const GOOGLE: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);
    address.is_unicast_link_local()
        || address.is_multicast()
        || address.is_unspecified()
        || address == EC2
        || address == GOOGLE
}

/// Returns the IPv4 address that an IPv6 address stands for: mapped, compatible, NAT64 or 6to4.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let of = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(of(high, low)),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(of(high, low)),
        [0, 0, 0, 0, 0xffff, 0, high, low] => Some(of(high, low)),
        [0x64, 0xff9b, 1, _, _, _, high, low] => Some(of(high, low)),
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_and_https_are_sent_to() {
        assert!(parse("http://example.com/x?y=1").is_ok() && parse("https://127.0.0.1:8080/").is_ok());
        for scheme in ["ftp://example.com", "file:///etc/passwd", "gopher://x", "unix:/run/x"] {
            assert_eq!(parse(scheme), Err(AddressRefused::Scheme), "{scheme}");
        }
        assert_eq!(parse("not a url"), Err(AddressRefused::Malformed));
    }

    #[test]
    fn metadata_services_are_refused_in_every_spelling() {
        for host in [
            "169.254.169.254",
            "2852039166",
            "0xa9fea9fe",
            "0251.0376.0251.0376",
            "169.254.43518",
            "[::ffff:169.254.169.254]",
            "[::ffff:a9fe:a9fe]",
            "[::169.254.169.254]",
            "[64:ff9b::a9fe:a9fe]",
            "[64:ff9b:1::a9fe:a9fe]",
            "[2002:a9fe:a9fe::1]",
            "[fe80::1]",
            "[fd00:ec2::254]",
            "[fd20:ce::254]",
            "100.100.100.200",
            "168.63.129.16",
            "0.0.0.0",
            "[::]",
            "169.254.170.2",
        ] {
            assert_eq!(parse(&format!("http://{host}/latest")), Err(AddressRefused::Reserved), "{host}");
        }
    }

    #[test]
    fn private_and_local_addresses_are_legal() {
        for host in ["127.0.0.1", "10.1.2.3", "192.168.1.1", "[::1]", "[fd12::1]", "[2001:db8::1]", "1.1.1.1"] {
            assert!(parse(&format!("http://{host}/")).is_ok(), "{host}");
        }
    }
}
