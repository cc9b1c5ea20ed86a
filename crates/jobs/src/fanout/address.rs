//! The address of RabbitMQ: one URI for each node of a URL.

use lapin::uri::AMQPUri;

/// Interval of heartbeats in seconds, unless the URL names one.
const HEARTBEAT: u16 = 10;

/// The URL of RabbitMQ is faulty. The text does not contain the URL, which may contain a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the address is not a URL such as amqp://user:password@host/vhost")]
pub struct AddressError;

/// Reads the nodes of a URL, which all have the account and the virtual host of the URL.
pub(super) fn nodes(url: &str) -> Result<Vec<AMQPUri>, AddressError> {
    let (scheme, rest) = url.split_once("://").ok_or(AddressError)?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (account, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    hosts.split(',').map(|host| node(host, &format!("{scheme}://{account}{host}{path}"))).collect()
}

fn node(host: &str, url: &str) -> Result<AMQPUri, AddressError> {
    if host.is_empty() {
        // The client would take it for `localhost`.
        return Err(AddressError);
    }
    // The client's error is dropped, because it may quote the URL.
    let mut uri: AMQPUri = url.parse().map_err(|_| AddressError)?;
    // The client would connect to `localhost` in place of an IPv6 address.
    if let Some((address, _)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        address.clone_into(&mut uri.authority.host);
    }
    // No virtual host has an empty name.
    if uri.vhost.is_empty() {
        uri.vhost = "/".to_owned();
    }
    uri.query.heartbeat.get_or_insert(HEARTBEAT);
    Ok(uri)
}

/// Returns `host:port` of all nodes, without the user and the password.
pub(super) fn place(nodes: &[AMQPUri]) -> String {
    let places = nodes.iter().map(|node| format!("{}:{}", node.authority.host, node.authority.port));
    places.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_share_account_and_virtual_host() {
        let nodes = nodes("amqp://me:p%2Fw,d@one,two:4711,[::1]/work").unwrap();
        assert_eq!(place(&nodes), "one:5672,two:4711,::1:5672");
        assert!(nodes.iter().all(|node| node.vhost == "work" && node.authority.userinfo.username == "me"));
    }

    #[test]
    fn a_slash_at_the_end_is_the_default_virtual_host() {
        for url in ["amqp://h", "amqp://h/", "amqp://h/%2f", "amqps://h/?heartbeat=5"] {
            assert_eq!(nodes(url).unwrap()[0].vhost, "/", "{url}");
        }
    }

    #[test]
    fn faults_do_not_show_the_password() {
        for url in [
            "amqp:hunter2",
            "http://me:hunter2@h",
            "amqp://me:hunter2@",
            "amqp://me:hunter2@one,",
            "amqp://me:hunter2@h:port",
        ] {
            let error = nodes(url).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{url}");
        }
    }
}
