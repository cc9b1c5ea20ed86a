//! Outcomes that a handler returns.

use std::error::Error;
use std::time::Duration;

use crate::Failure;

/// Outcome of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The message is done. hostler removes it from the queue.
    Ack,
    /// The message is done. hostler sends this body to the consumer's reply channel.
    Reply(Vec<u8>),
    /// The attempt failed. The consumer's retry policy decides whether and when the message is delivered again.
    Retry,
    /// Deliver the message again after this time. The retry policy limits the number of attempts. Rounded up to whole seconds.
    Delay(Duration),
    /// The message can never succeed. hostler moves it to the dead-letter queue, with this reason.
    DeadLetter(String),
}

impl Outcome {
    /// Creates a reply with this body.
    pub fn reply(body: impl Into<Vec<u8>>) -> Self {
        Self::Reply(body.into())
    }

    /// Creates a reply with this value as JSON.
    ///
    /// # Errors
    /// The value cannot be serialized as JSON. An example is a map whose keys are not text.
    #[cfg(feature = "json")]
    pub fn json<T: serde::Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::to_vec(value).map(Self::Reply)
    }

    /// Creates the outcome of a message that can never succeed, with this reason.
    pub fn dead_letter(reason: impl Into<String>) -> Self {
        Self::DeadLetter(reason.into())
    }
}

/// Rounds up to whole seconds, the unit of the contract.
#[cfg(any(test, target_family = "wasm"))]
pub(crate) fn seconds(time: Duration) -> u32 {
    let whole = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    u32::try_from(whole).unwrap_or(u32::MAX)
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Ack
    }
}

/// Values that a function with `#[handler]` may return: `()`, [`Outcome`], or a `Result` of one of these. The error may be a
/// [`Failure`], any error that is `Send` and `Sync`, or a text.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "returns `{Self}`",
    note = "return `()`, `Outcome`, or a `Result` of one of these with `Failure` or another error"
)]
pub trait Answer {
    /// Converts the value to an outcome or a failure.
    ///
    /// # Errors
    /// The handler failed.
    fn answer(self) -> Result<Outcome, Failure>;
}

impl Answer for () {
    fn answer(self) -> Result<Outcome, Failure> {
        Ok(Outcome::Ack)
    }
}

impl Answer for Outcome {
    fn answer(self) -> Result<Outcome, Failure> {
        Ok(self)
    }
}

impl<T: Into<Outcome>, E: Into<Box<dyn Error + Send + Sync>>> Answer for Result<T, E> {
    fn answer(self) -> Result<Outcome, Failure> {
        self.map(Into::into).map_err(Failure::error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Malformed;

    #[test]
    fn all_that_a_handler_may_return() {
        assert_eq!(().answer(), Ok(Outcome::Ack));
        assert_eq!(Outcome::Retry.answer(), Ok(Outcome::Retry));
        assert_eq!(Ok::<_, Failure>(()).answer(), Ok(Outcome::Ack));
        assert_eq!(Ok::<_, std::io::Error>(Outcome::reply("a")).answer(), Ok(Outcome::Reply(vec![b'a'])));
        assert_eq!(Err::<(), _>(Failure::Retry).answer(), Err(Failure::Retry));
        assert_eq!(Err::<(), _>("late").answer(), Err(Failure::Error("late".into())));
        assert_eq!(Err::<(), _>(Malformed::new("no id")).answer(), Err(Failure::DeadLetter("no id".into())));
        let boxed = Box::<dyn Error + Send + Sync>::from(Failure::dead_letter("never"));
        assert_eq!(Err::<Outcome, _>(boxed).answer(), Err(Failure::DeadLetter("never".into())));
    }

    #[test]
    fn a_part_of_a_second_is_a_whole_one() {
        let times = [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_secs(3),
            Duration::from_millis(3001),
            Duration::MAX,
        ];
        assert_eq!(times.map(seconds), [0, 1, 3, 4, u32::MAX]);
    }

    #[cfg(feature = "json")]
    #[test]
    fn a_value_is_a_reply() {
        assert_eq!(Outcome::json(&[1, 2]).ok(), Some(Outcome::Reply(b"[1,2]".to_vec())));
    }
}
