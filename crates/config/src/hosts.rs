//! Faults of a host in an address of RabbitMQ or PostgreSQL.

/// Returns the fault of a host with or without a port.
pub(super) fn host_fault(host: &str) -> Option<&'static str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(address) => match address.split_once(']') {
            Some((address, port)) => (address, port.strip_prefix(':').or((!port.is_empty()).then_some(""))),
            None => return Some("has a bracket that is not closed"),
        },
        None if host.matches(':').count() > 1 => return Some("has an IPv6 address without brackets"),
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    match (name, port) {
        ("", _) => Some("lacks the name of a host"),
        (_, Some(port)) if !is_port(port) => Some("has a port that is not a number from 1 to 65535"),
        _ => None,
    }
}
