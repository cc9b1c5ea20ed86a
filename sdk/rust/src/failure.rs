//! Failures of a handler.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Reason why a handler did not succeed, and what hostler does with the message.
///
/// The operator `?` converts any error to a failure. The message then goes to the retry policy. The reason consists of the error
/// and its causes. If the error or one of its causes is a [`Malformed`], hostler dead-letters the message instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The attempt failed for this reason. The retry policy decides.
    Error(String),
    /// The attempt failed without a reason. The retry policy decides.
    Retry,
    /// Deliver the message again after this time. The retry policy limits the number of attempts. Rounded up to whole seconds.
    Delay(Duration),
    /// The message can never succeed. hostler moves it to the dead-letter queue, with this reason.
    DeadLetter(String),
}

impl Failure {
    /// Creates a failure with this reason. The reason may be a text, an error, or a boxed error (`Box<dyn Error + Send + Sync>`,
    /// `anyhow::Error`).
    pub fn error(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        match reason.into().downcast::<Boxed>() {
            Ok(boxed) => boxed.0,
            Err(error) => Self::of(&*error),
        }
    }

    /// Creates a failure after which the retry policy decides.
    #[must_use]
    pub fn retry() -> Self {
        Self::Retry
    }

    /// Creates a failure after which hostler delivers the message again after this time. The retry policy limits the number of
    /// attempts.
    #[must_use]
    pub fn delay(time: Duration) -> Self {
        Self::Delay(time)
    }

    /// Creates the failure of a message that can never succeed, with this reason.
    pub fn dead_letter(reason: impl Into<String>) -> Self {
        Self::DeadLetter(reason.into())
    }

    fn of(error: &(dyn Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut lasting = error.is::<Malformed>();
        let mut next = error.source();
        while let Some(cause) = next {
            if let Some(Boxed(failure)) = cause.downcast_ref() {
                return failure.clone();
            }
            lasting |= cause.is::<Malformed>();
            let cause_text = cause.to_string();
            // The text of many errors already ends with the text of their cause.
            if !text.ends_with(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            next = cause.source();
        }
        if lasting { Self::DeadLetter(text) } else { Self::Error(text) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(reason) | Self::DeadLetter(reason) => formatter.write_str(reason),
            Self::Retry => formatter.write_str("retry"),
            Self::Delay(time) => write!(formatter, "again after {time:?}"),
        }
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        match (&error as &dyn Any).downcast_ref() {
            Some(Boxed(failure)) => failure.clone(),
            None => Self::of(&error),
        }
    }
}

/// A failure as an error that can be boxed. `Failure` itself is not an error, because otherwise not every error could be
/// converted to a `Failure`.
#[derive(Debug)]
struct Boxed(Failure);

impl fmt::Display for Boxed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl Error for Boxed {}

impl From<Failure> for Box<dyn Error + Send + Sync> {
    fn from(failure: Failure) -> Self {
        Box::new(Boxed(failure))
    }
}

/// Error for a part of a message that is not as the handler expects. Another attempt cannot succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(String);

impl Malformed {
    /// Creates the error. The text should name the part and the fault.
    pub fn new(fault: impl Into<String>) -> Self {
        Self(fault.into())
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Error for Malformed {}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(&'static str, Box<dyn Error + Send + Sync>);

    impl fmt::Display for Outer {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str(self.0)
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&*self.1)
        }
    }

    #[test]
    fn an_error_is_told_with_its_causes_each_once() {
        let error = Outer("the order", Box::new(Outer("the line: too long", "too long".into())));
        assert_eq!(Failure::from(error), Failure::Error("the order: the line: too long".into()));
        assert_eq!(Failure::error("no seats"), Failure::Error("no seats".into()));
    }

    #[test]
    fn what_is_malformed_is_dead_lettered_however_deep() {
        let malformed = || Malformed::new("the body is empty");
        assert_eq!(Failure::from(malformed()), Failure::DeadLetter("the body is empty".into()));
        assert_eq!(Failure::error(malformed()), Failure::DeadLetter("the body is empty".into()));
        let wrapped = Outer("the order", Box::new(malformed()));
        assert_eq!(Failure::from(wrapped), Failure::DeadLetter("the order: the body is empty".into()));
    }

    #[test]
    fn a_failure_survives_a_box() {
        let delay = Failure::delay(Duration::from_secs(3));
        let boxed = || Box::<dyn Error + Send + Sync>::from(Failure::Delay(Duration::from_secs(3)));
        assert_eq!(Failure::error(boxed()), delay);
        assert_eq!(Failure::from(Outer("context", boxed())), delay);
    }
}
