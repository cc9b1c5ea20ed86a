//! Addresses of the services from which a machine or container fetches its credentials. A guest that reached one of them
//! could act as the host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The services' IPv4 addresses: EC2's metadata service (and those of other clouds), ECS's credentials, EKS's pod identity.
const V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(169, 254, 169, 254), Ipv4Addr::new(169, 254, 170, 2), Ipv4Addr::new(169, 254, 170, 23)];

/// The services' IPv6 addresses: EC2's metadata service and EKS's pod identity.
const V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)];

/// Returns `true` for the address of a service that hands out credentials, also where the IPv4 address is embedded in an
/// IPv6 address: mapped, compatible, for NAT64 or for 6to4.
pub fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => V4.contains(&address),
        IpAddr::V6(address) => V6.contains(&address) || embedded(address).iter().any(|address| V4.contains(address)),
    }
}

/// Returns every IPv4 address that a network could read out of an IPv6 address. The result is empty for most addresses.
fn embedded(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let octets = address.octets();
    let at = |places: [usize; 4]| Ipv4Addr::from(places.map(|place| octets[place]));
    let last = [12, 13, 14, 15];
    match address.segments() {
        // Mapped and compatible (RFC 4291, section 2.5.5), and translated (RFC 2765).
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => vec![at(last)],
        // The well-known prefix of NAT64 (RFC 6052, section 2.1).
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => vec![at(last)],
        // The local prefix of NAT64 (RFC 8215), for each length of prefix within it (RFC 6052, section 2.2).
        [0x64, 0xff9b, 1, ..] => vec![at([6, 7, 9, 10]), at([7, 9, 10, 11]), at([9, 10, 11, 12]), at(last)],
        // 6to4 (RFC 3056, section 2).
        [0x2002, ..] => vec![at([2, 3, 4, 5])],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_every_address_is_found() {
        for address in V4 {
            let [a, b, c, d] = address.octets();
            let [high, low] = [[a, b], [c, d]].map(u16::from_be_bytes);
            let forms = [
                address.to_string(),
                format!("::ffff:{address}"),
                format!("::{address}"),
                format!("::ffff:0:{address}"),
                format!("64:ff9b::{address}"),
                format!("64:ff9b:1::{address}"),
                format!("64:ff9b:1:{high:x}:{:x}:{:x}00::", u16::from(c), u16::from(d)),
                format!("2002:{high:x}:{low:x}::"),
                format!("2002:{high:x}:{low:x}:1::7"),
            ];
            for form in forms {
                assert!(is_metadata(form.parse().unwrap()), "{form}");
            }
        }
        for form in ["fd00:ec2::254", "fd00:ec2::23"] {
            assert!(is_metadata(form.parse().unwrap()), "{form}");
        }
    }

    #[test]
    fn neighbours_are_not_taken_for_them() {
        let others = "169.254.169.253 169.254.170.3 10.0.0.1 127.0.0.1 ::1 :: fd00:ec2::253 fd00:ec2::1:254 64:ff9b::a00:1 \
            2002:a00:1:: 2001:db8::a9fe:a9fe ::ffff:10.0.0.1";
        for other in others.split(' ') {
            assert!(!is_metadata(other.parse().unwrap()), "{other}");
        }
    }
}
