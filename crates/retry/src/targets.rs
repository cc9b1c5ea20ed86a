//! The subjects to which messages may be delivered.
//!
//! The service publishes with its own permissions, so a producer that may only write to `retry.>` could otherwise reach
//! every subject that the service may publish to.

/// Maximum length of a subject in bytes. The server closes connections whose control lines exceed 4096 bytes, and a control
/// line also has the reply subject and two numbers.
pub const MAX_SUBJECT: usize = 1_024;

/// The subjects to which a retry service delivers.
#[derive(Debug, Clone)]
pub struct Targets {
    service: String,
    allowed: Vec<String>,
}

impl Targets {
    /// Creates the set. `service`: subject of the retry service, to which nothing is delivered. `allowed`: subjects, which
    /// may have wildcards.
    pub fn new(service: &str, allowed: Vec<String>) -> Self {
        Self { service: service.to_owned(), allowed }
    }

    /// Returns the subject of the retry service.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// Returns why nothing may be delivered to a subject, and the cure. `None`: messages may be delivered to it.
    pub fn fault(&self, target: &str) -> Option<String> {
        if target.len() > MAX_SUBJECT {
            return Some(format!("the subject has {} bytes: use at most {MAX_SUBJECT}", target.len()));
        }
        let has_odd = |token: &str| token.contains(|char: char| char.is_whitespace() || char.is_control());
        if target.split('.').any(|token| matches!(token, "" | "*" | ">") || has_odd(token)) {
            return Some(format!(
                "{target:?} is not a subject to deliver to: it must have no empty parts, wildcards or spaces"
            ));
        }
        if target.starts_with(['$', '_']) {
            return Some(format!(
                "{target:?} is a subject of NATS itself: use one that begins with neither `$` nor `_`"
            ));
        }
        if target.strip_prefix(&*self.service).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) {
            return Some(format!("{target:?} is a subject of the retry service itself: use another one"));
        }
        let is_allowed = self.allowed.iter().any(|pattern| matches(pattern, target));
        (!is_allowed).then(|| format!("{target:?} is not one of the subjects in `retry.targets`: add it there"))
    }
}

/// Returns `true` if a subject matches a pattern with wildcards.
fn matches(pattern: &str, subject: &str) -> bool {
    let (mut patterns, mut tokens) = (pattern.split('.'), subject.split('.'));
    loop {
        match (patterns.next(), tokens.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some(pattern), Some(token)) if pattern == "*" || pattern == token => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(allowed: &[&str], target: &str) -> Option<String> {
        Targets::new("jobs.retry", allowed.iter().map(|&pattern| pattern.to_owned()).collect()).fault(target)
    }

    #[test]
    fn subjects_of_nats_and_of_the_service_are_refused() {
        for (target, reason) in [
            ("", "no empty parts"),
            ("a..b", "no empty parts"),
            ("a.*", "wildcards"),
            (">", "wildcards"),
            ("a b", "spaces"),
            ("a\r\nPUB b 0", "spaces"),
            ("$JS.API.STREAM.DELETE.ORDERS", "of NATS itself"),
            ("$SYS.REQ.SERVER.PING", "of NATS itself"),
            ("_INBOX.abc.1", "of NATS itself"),
            ("jobs.retry", "of the retry service itself"),
            ("jobs.retry.a", "of the retry service itself"),
        ] {
            let fault = fault(&[">"], target).unwrap_or_else(|| panic!("{target:?} is accepted"));
            assert!(fault.contains(reason), "{fault}");
        }
        for target in ["a", "jobs.retryx", "jobs.a", "a.$b._c"] {
            assert_eq!(fault(&[">"], target), None);
        }
    }

    #[test]
    fn a_subject_that_the_server_would_refuse_with_the_whole_connection_is_refused() {
        assert_eq!(fault(&[">"], &"a".repeat(MAX_SUBJECT)), None);
        assert!(fault(&[">"], &"a".repeat(MAX_SUBJECT + 1)).is_some_and(|fault| fault.contains("at most 1024")));
    }

    #[test]
    fn only_allowed_subjects_are_delivered_to() {
        let allowed = ["webhooks.*", "orders.>", "plain"];
        for target in ["webhooks.a", "orders.a", "orders.a.b", "plain"] {
            assert_eq!(fault(&allowed, target), None);
        }
        for target in ["webhooks", "webhooks.a.b", "orders", "plain.a", "other"] {
            assert!(fault(&allowed, target).is_some_and(|fault| fault.contains("`retry.targets`")), "{target}");
        }
    }
}
