//! How a handler fails.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Why a handler did not succeed, and what is to become of the message.
///
/// `?` makes one of every error: the message goes to the retry policy, with the error and its causes as the reason. If the
/// error is a [`Malformed`], or one is among its causes, the message is dead-lettered instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// To the retry policy, with this reason.
    Error(String),
    /// To the retry policy, without a reason.
    Retry,
    /// Again after this time, within the attempts that the retry policy allows. Parts of a second count as a whole one.
    Delay(Duration),
    /// It can never succeed: to the dead-letter queue, with this reason.
    DeadLetter(String),
}

impl Failure {
    /// A failure with this reason: a text, an error, or what libraries box errors in (`Box<dyn Error + Send + Sync>`,
    /// `anyhow::Error`).
    pub fn error(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        match reason.into().downcast::<Boxed>() {
            Ok(boxed) => boxed.0,
            Err(error) => Self::of(&*error),
        }
    }

    /// The message is tried again as the retry policy says.
    #[must_use]
    pub fn retry() -> Self {
        Self::Retry
    }

    /// The message is tried again after this time, within the attempts that the retry policy allows.
    #[must_use]
    pub fn delay(time: Duration) -> Self {
        Self::Delay(time)
    }

    /// The message can never succeed, for this reason.
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
            // Many errors end with their cause's text already.
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

/// A failure as an error that can be boxed. `Failure` itself is none, so that every error can become one.
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

/// A part of a message is not what the handler expects, and never will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(String);

impl Malformed {
    /// With this text, which names the part and what is wrong with it.
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
