//! Errors of the model's calls.

use hostler_queue::LeaseError;

/// Returns the error of a call for a lease that is gone.
pub fn lost() -> LeaseError {
    LeaseError::Lost("it has ended, or the connection was lost".to_owned())
}

/// Returns the error of a call that has no answer.
pub fn unheard() -> LeaseError {
    LeaseError::Retry("the connection is lost".to_owned())
}

/// Returns the error of a call for which a message must be published.
pub fn blocked() -> LeaseError {
    LeaseError::Retry("the service accepts no messages".to_owned())
}
