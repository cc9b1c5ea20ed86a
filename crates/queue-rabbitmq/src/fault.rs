//! Errors of the AMQP client, sorted by what the caller does next.

use std::io;

use hostler_queue::{LeaseError, QueueError};
use lapin::ErrorKind;

/// AMQP reply codes of refusals (AMQP 0-9-1, section 1.2, and RabbitMQ's `access-refused` on login).
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// Text of the TLS library if the system has no certificates of authorities. It then trusts no others either.
const NO_ROOTS: &str = "native certificates";

/// Part of the server's text if the client wants larger frames than the server: the client library's limit is 8 KiB at least.
const FRAME_MAX: &str = "frame_max";

/// Returns the queue error for an error of the client. `what`: the operation that failed.
pub(super) fn queue_error(what: &str, error: &lapin::Error) -> QueueError {
    match code(error) {
        Some(ACCESS_REFUSED) => QueueError::Refused(format!(
            "{what}: {error}: check the user and the password of queue.rabbitmq.url, and the permissions of the user"
        )),
        Some(NOT_ALLOWED) if error.to_string().contains(FRAME_MAX) => QueueError::Refused(format!(
            "{what}: {error}: raise `{FRAME_MAX}` in rabbitmq.conf to 8192 or more, the least that hostler can publish with"
        )),
        Some(NOT_ALLOWED) => {
            QueueError::Refused(format!("{what}: {error}: check the virtual host at the end of queue.rabbitmq.url"))
        }
        Some(NOT_FOUND | PRECONDITION_FAILED) => QueueError::Refused(format!("{what}: {error}")),
        _ if error.to_string().contains(NO_ROOTS) => QueueError::Unavailable(format!(
            "{what}: the system trusts no authorities ({error}): install its `ca-certificates`, or set SSL_CERT_FILE to the file \
             of queue.rabbitmq.ca"
        )),
        _ => QueueError::Unavailable(format!("{what}: {error}")),
    }
}

/// Returns the queue error for a connection that cannot be made. `what`: the operation, with the address. `is_encrypted`: the URL
/// says so.
pub(super) fn connect_error(what: &str, is_encrypted: bool, error: &lapin::Error) -> QueueError {
    let cure = match error.kind() {
        ErrorKind::ParsingError(_) => "something else than RabbitMQ's AMQP listens there, which has port 5672",
        ErrorKind::IOError(error) if is_encrypted && is_of_tls(error) => {
            "amqps:// needs a port with TLS, which is 5671 by default: check the port of queue.rabbitmq.url, and its certificates"
        }
        ErrorKind::IOError(error) if !is_encrypted && is_end(error.kind()) => {
            "it closed the connection: check whether the port of queue.rabbitmq.url takes AMQP (5672), or TLS (amqps://, 5671)"
        }
        _ => return queue_error(what, error),
    };
    match queue_error(what, error) {
        // The cure for a system without authorities is a better one.
        QueueError::Unavailable(text) if !text.contains(NO_ROOTS) => QueueError::Unavailable(format!("{text}: {cure}")),
        other => other,
    }
}

fn is_end(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof)
}

/// Returns `true` for an error of the TLS handshake.
fn is_of_tls(error: &io::Error) -> bool {
    is_end(error.kind()) || error.kind() == io::ErrorKind::InvalidData
}

/// Returns `true` if the server has no such queue or exchange.
pub(super) fn is_missing(error: &lapin::Error) -> bool {
    code(error) == Some(NOT_FOUND)
}

/// Returns `true` if the queue is exclusive to another connection.
pub(super) fn is_locked(error: &lapin::Error) -> bool {
    code(error) == Some(RESOURCE_LOCKED)
}

/// Returns the server's text if a declaration differs from what exists.
pub(super) fn difference(error: &lapin::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::ProtocolError(amqp) if amqp.get_id() == PRECONDITION_FAILED => Some(amqp.get_message().to_string()),
        _ => None,
    }
}

/// Returns the error of a settlement whose copy could not be published.
pub(super) fn lease_error(error: &QueueError) -> LeaseError {
    match error {
        QueueError::Unavailable(text) => LeaseError::Retry(text.clone()),
        QueueError::Refused(text) => LeaseError::Refused(text.clone()),
    }
}

fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(amqp) => Some(amqp.get_id()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::{AMQPError, AMQPHardError};

    use super::*;

    #[test]
    fn a_limit_to_frames_that_is_too_low_is_named() {
        let told = |text: &str| {
            let fault = AMQPError::new(AMQPHardError::NOTALLOWED.into(), text.into());
            queue_error("cannot connect", &ErrorKind::ProtocolError(fault).into()).to_string()
        };
        let low = told("NOT_ALLOWED - negotiated frame_max = 8192 is higher than the maximum allowed value (4096)");
        assert!(low.contains("raise `frame_max`") && !low.contains("virtual host"), "{low}");
        assert!(told("NOT_ALLOWED - vhost shop not found").contains("virtual host"));
    }

    #[test]
    fn a_system_without_authorities_is_named_with_the_way_out() {
        let told = |text: &str| queue_error("cannot connect", &io::Error::other(text.to_owned()).into()).to_string();
        assert!(told("Could not load any valid native certificates").contains("SSL_CERT_FILE"));
        assert!(!told("connection refused").contains("SSL_CERT_FILE"));
    }
}
