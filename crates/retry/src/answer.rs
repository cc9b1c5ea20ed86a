//! Reads the replies of receivers, as the driver of NATS does.

use hostler_queue_nats::replies;
pub use hostler_queue_nats::replies::{ERROR, ERROR_CODE, RETRY_AFTER};

use crate::scheduler::Answer;

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The delivery has ended.
    End(Answer),
    /// The receiver is still working on the message.
    InProgress,
}

/// Reads a reply. `status`: status of the server's own replies. `header`: finds a header of the reply.
pub fn read<'h>(payload: &[u8], status: Option<u16>, header: impl Fn(&str) -> Option<&'h str>) -> Reply {
    Reply::End(match replies::read(payload, status, header) {
        replies::Reply::InProgress => return Reply::InProgress,
        replies::Reply::Ack => Answer::Ack,
        replies::Reply::Nak { delay, .. } => Answer::Nak(delay),
        replies::Reply::Term(reason) => Answer::Term(reason),
        replies::Reply::NoResponders => Answer::NoResponders,
        replies::Reply::Other(reason) => Answer::NoAck(reason),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_acknowledgement_ends_as_one() {
        let read = |payload: &str, status| read(payload.as_bytes(), status, |_| None);
        assert_eq!(read("+ACK", None), Reply::End(Answer::Ack));
        for (payload, status) in [("OK", None), ("{}", None), ("", Some(408))] {
            let reply = read(payload, status);
            assert!(matches!(reply, Reply::End(Answer::NoAck(_))), "{payload:?}, {status:?}: {reply:?}");
        }
    }
}
