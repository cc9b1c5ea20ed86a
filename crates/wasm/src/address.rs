//! Checks the IP addresses to which a host name resolves. Only public addresses and addresses in granted networks are
//! allowed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::LazyLock;

use ipnet::IpNet;

/// IPv4 blocks that guests may not reach: blocks that are not globally reachable (IANA IPv4 special-purpose address
/// registry), and multicast and reserved blocks.
const SPECIAL_V4: &str = "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 \
                          192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4";

/// The block from which IPv6 unicast addresses are allocated (RFC 4291, section 2.5.4).
const GLOBAL_V6: &str = "2000::/3";

/// Blocks within [`GLOBAL_V6`] that guests may not reach: blocks that are not globally reachable, and blocks whose
/// addresses embed another address (IANA IPv6 special-purpose address registry).
const SPECIAL_V6: &str = "2001::/23 2001:db8::/32 2002::/16 3fff::/20";

/// The parsed blocks of [`SPECIAL_V4`] and [`SPECIAL_V6`], which guests may not reach.
static SPECIAL: LazyLock<Vec<IpNet>> =
    LazyLock::new(|| [SPECIAL_V4, SPECIAL_V6].into_iter().flat_map(blocks).collect());
/// The parsed block of [`GLOBAL_V6`].
static GLOBAL: LazyLock<Vec<IpNet>> = LazyLock::new(|| blocks(GLOBAL_V6).collect());

fn blocks(text: &'static str) -> impl Iterator<Item = IpNet> {
    text.split(' ').filter_map(|block| block.parse().ok())
}

/// Prefix of IPv6 addresses that embed an IPv4 address for translation, as 16-bit segments (RFC 6052, section 2.1).
const TRANSLATED: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// Returns `true` if a connection to the address is allowed, that is, if the address is public or in a granted network.
fn may_be_reached(address: IpAddr, granted: &[IpNet]) -> bool {
    let behind = behind(address);
    granted.iter().any(|network| network.contains(&address) || network.contains(&behind)) || is_public(behind)
}

/// Returns the IPv4 address that is embedded in an IPv6 address. Returns any other address unchanged.
fn behind(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let translated = v6.segments().starts_with(&TRANSLATED).then(|| {
        let [.., a, b, c, d] = v6.octets();
        Ipv4Addr::new(a, b, c, d)
    });
    v6.to_ipv4_mapped().or(translated).map_or(address, IpAddr::V4)
}

fn is_public(address: IpAddr) -> bool {
    let within = |blocks: &[IpNet]| blocks.iter().any(|block| block.contains(&address));
    (address.is_ipv4() || within(&GLOBAL)) && !within(&SPECIAL)
}

/// Returns the addresses in `found` that connections to `name` may use. `localhost` may resolve to loopback addresses.
pub(super) fn reachable(
    name: &str,
    mut found: Vec<SocketAddr>,
    networks: &[IpNet],
) -> Result<Vec<SocketAddr>, Prohibited> {
    let first = found.first().map(SocketAddr::ip);
    let meant = |at: &SocketAddr| name.eq_ignore_ascii_case("localhost") && at.ip().is_loopback();
    found.retain(|at| meant(at) || may_be_reached(at.ip(), networks));
    match (found.is_empty(), first) {
        (true, Some(address)) => Err(Prohibited { name: name.to_owned(), address }),
        _ => Ok(found),
    }
}

/// The error for a granted name that resolves only to addresses that guests may not reach.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` resolves to {address}, which is not public")]
pub(super) struct Prohibited {
    pub(super) name: String,
    pub(super) address: IpAddr,
}

impl Prohibited {
    /// Returns the fix.
    pub(super) fn cure(&self) -> String {
        format!("add \"{}\" to the consumer's allow.networks", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_blocks_are_read() {
        assert_eq!((SPECIAL.len(), GLOBAL.len()), (19, 1));
    }

    #[test]
    fn only_public_addresses_need_no_grant() {
        let publics = "1.1.1.1 93.184.215.14 172.15.255.255 172.32.0.1 2606:4700:4700::1111 ::ffff:1.1.1.1 \
            64:ff9b::101:101";
        for public in publics.split(' ') {
            assert!(may_be_reached(public.parse().unwrap(), &[]), "{public}");
        }
        let specials = "0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 127.255.255.254 169.254.169.254 169.254.170.2 \
            172.16.0.1 172.31.255.255 192.168.1.1 198.19.0.1 224.0.0.1 255.255.255.255 :: ::1 \
            ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.170.2 64:ff9b::7f00:1 64:ff9b:1::1 fe80::1 \
            fc00::1 fd00:ec2::254 ff02::1 2001:db8::1 2002:7f00:1:: 2001::1";
        for special in specials.split(' ') {
            assert!(!may_be_reached(special.parse().unwrap(), &[]), "{special}");
        }
    }

    #[test]
    fn a_granted_network_is_reached_however_it_is_written() {
        let granted = ["10.0.0.0/8".parse().unwrap(), "fd00:ec2::/32".parse().unwrap()];
        for inside in ["10.200.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "fd00:ec2::23"] {
            assert!(may_be_reached(inside.parse().unwrap(), &granted), "{inside}");
        }
        assert!(!may_be_reached("127.0.0.1".parse().unwrap(), &granted));
    }

    #[test]
    fn a_name_leads_only_where_it_may() {
        let at = |address: &str| SocketAddr::new(address.parse().unwrap(), 0);
        let found = |name: &str, addresses: &[&str], networks: &[&str]| {
            let networks: Vec<IpNet> = networks.iter().map(|network| network.parse().unwrap()).collect();
            reachable(name, addresses.iter().map(|address| at(address)).collect(), &networks)
        };
        assert_eq!(found("x.example", &["127.0.0.1", "1.1.1.1"], &[]), Ok(vec![at("1.1.1.1")]));
        let refused = found("x.example", &["169.254.170.2", "::1"], &[]).unwrap_err();
        assert_eq!(refused.to_string(), "`x.example` resolves to 169.254.170.2, which is not public");
        assert_eq!(found("x.example", &["10.0.0.7"], &["10.0.0.0/24"]), Ok(vec![at("10.0.0.7")]));
        assert_eq!(found("localhost", &["127.0.0.1", "10.0.0.1"], &[]), Ok(vec![at("127.0.0.1")]));
        assert!(found("a.localhost.example", &["127.0.0.1"], &[]).is_err());
        assert_eq!(found("x.example", &[], &[]), Ok(vec![]));
    }
}
