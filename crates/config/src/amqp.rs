//! Faults of an `amqp(s)://` URL. Their texts quote nothing of it, because it usually contains a password.

use super::hosts::host_fault;

/// Parameters behind the `?`, and the largest value of each. `None`: its value is not a number.
const PARAMETERS: [(&str, Option<u64>); 5] = [
    ("heartbeat", Some(u16::MAX as u64)),
    ("frame_max", Some(u32::MAX as u64)),
    ("channel_max", Some(u16::MAX as u64)),
    ("connection_timeout", Some(u64::MAX)),
    ("auth_mechanism", None),
];

/// Returns the fault of a URL of RabbitMQ. `None`: none is found. Several hosts are separated by commas.
pub fn amqp_fault(url: &str) -> Option<&'static str> {
    if url.contains(|char: char| char.is_whitespace() || char.is_control()) {
        return Some("has a space or a control character, which is written %20 in a name or a password");
    }
    let Some((scheme, rest)) = url.split_once("://") else { return Some("does not begin with amqp:// or amqps://") };
    match scheme {
        "amqp" | "amqps" => {}
        _ if scheme.eq_ignore_ascii_case("amqp") || scheme.eq_ignore_ascii_case("amqps") => {
            return Some("begins with capitals instead of amqp:// or amqps://");
        }
        _ => return Some("does not begin with amqp:// or amqps://"),
    }
    let (authority, more) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if more.contains('@') {
        return Some("has `/`, `?` or `#` in the name or the password, which are written %2F, %3F and %23");
    }
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    let (path, parameters) = more.split_once('?').unwrap_or((more, ""));
    hosts.split(',').find_map(host_fault).or_else(|| vhost_fault(path)).or_else(|| parameters_fault(parameters))
}

/// Returns the fault of the path, which names the virtual host.
fn vhost_fault(path: &str) -> Option<&'static str> {
    match path.strip_prefix('/').unwrap_or(path) {
        vhost if vhost.contains('#') => Some("has a `#`, which is written %23"),
        vhost if vhost.contains('/') => Some("has a `/` in the name of the virtual host, which is written %2F"),
        _ => None,
    }
}

fn parameters_fault(parameters: &str) -> Option<&'static str> {
    parameters.split('&').filter(|parameter| !parameter.is_empty()).find_map(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match PARAMETERS.iter().find(|(known, _)| *known == name) {
            None => Some(
                "has a parameter other than heartbeat, frame_max, channel_max, connection_timeout and auth_mechanism",
            ),
            Some((_, Some(most))) if !value.parse::<u64>().is_ok_and(|value| value <= *most) => {
                Some("has a parameter that is not a number, or too large; a heartbeat is in seconds")
            }
            Some(_) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_all_forms_pass() {
        for url in [
            "amqp://h",
            "amqps://me:p%2Fw@h:1,i:65535/v?frame_max=8192",
            "amqp://me:a@b@h/",
            "amqp://me:1:2@[2001:db8::1]:5671,[::1]/%2f",
            "amqp://h?heartbeat=60&auth_mechanism=external",
            "amqp://h/a%2Fb",
        ] {
            assert_eq!(amqp_fault(url), None, "{url}");
        }
    }

    #[test]
    fn each_mistake_has_a_text_of_its_own_without_the_password() {
        for (url, part) in [
            (" amqp://me:pw@h", "space"),
            ("amqp://me:pw@h\n", "space"),
            ("AMQP://me:pw@h", "capitals"),
            ("http://me:pw@h", "begin with"),
            ("h:5672", "begin with"),
            ("amqp://", "lacks the name"),
            ("amqp://me:pw@/v", "lacks the name"),
            ("amqp://me:pw@one,,/v", "lacks the name"),
            ("amqp://me:pw@:5672", "lacks the name"),
            ("amqp://me:pw", "a port"),
            ("amqp://me:pw@h:99999", "a port"),
            ("amqp://me:pw@h:0", "a port"),
            ("amqp://me:pw@h:", "a port"),
            ("amqp://me:pw@[::1]5672", "a port"),
            ("amqp://me:pw@2001:db8::1", "brackets"),
            ("amqp://me:pw@[::1", "bracket"),
            ("amqp://me:1/pw@h", "%2F, %3F and %23"),
            ("amqp://me:pw@h/%2f/x", "virtual host"),
            ("amqp://me:pw@h/v#x", "%23"),
            ("amqp://me:pw@h/v?pw=1", "a parameter other"),
            ("amqp://me:pw@h?heartbeat=5s", "a heartbeat is in seconds"),
            ("amqp://me:pw@h?heartbeat=70000", "too large"),
        ] {
            let fault = amqp_fault(url).unwrap_or_else(|| panic!("{url} passes"));
            assert!(fault.contains(part) && !fault.contains("pw"), "{url}: {fault}");
        }
    }
}
