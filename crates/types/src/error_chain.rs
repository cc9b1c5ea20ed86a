//! Formats an error and its causes on one line. Many libraries omit the causes from the text of an error.

use std::error::Error;

/// Formats an error and its causes, outermost first. Skips a cause that the text already contains.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source()).map(ToString::to_string);
    causes.fold(error.to_string(), |text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Fault {
        text: &'static str,
        source: Option<Box<Fault>>,
    }

    #[test]
    fn causes_follow_and_none_is_said_twice() {
        let fault = |text, source: Option<Fault>| Fault { text, source: source.map(Box::new) };
        let innermost = fault("no route", None);
        let inner = fault("connect: no route", Some(innermost));
        assert_eq!(with_causes(&fault("cannot send", Some(inner))), "cannot send: connect: no route");
        assert_eq!(with_causes(&fault("alone", None)), "alone");
    }
}
