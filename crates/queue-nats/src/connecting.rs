//! Client options by an address, for a connection of its own. No I/O.

use async_nats::ConnectOptions;
use hostler_queue::QueueError;

use super::address::{Address, User};

/// Returns the servers of an address, and options that name its user and ask for TLS where the address does.
///
/// # Errors
/// [`QueueError::Refused`]: the address is not valid. The text does not contain it.
pub fn to(url: &str) -> Result<(Vec<String>, ConnectOptions), QueueError> {
    let Address { servers, user } = Address::read(url)?;
    let options = match user {
        User::Unnamed => ConnectOptions::new(),
        User::Token(token) => ConnectOptions::new().token(token),
        User::Password(name, password) => ConnectOptions::new().user_and_password(name, password),
    };
    // Servers of a cluster that the client hears of have no scheme, so `tls://` alone would not hold for them.
    let is_encrypted = servers.iter().any(|server| server.starts_with("tls://"));
    Ok((servers, if is_encrypted { options.require_tls(true) } else { options }))
}
