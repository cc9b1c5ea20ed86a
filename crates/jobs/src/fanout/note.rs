//! The text of a notification: the instance that sent it, and the types that have ready items, separated by spaces. No I/O.

/// The content of a notification.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Hinted<'n> {
    /// Items of any type may be ready.
    All,
    /// Items of these types are ready.
    Types(Vec<&'n str>),
    /// The notification is this instance's own, or empty.
    Nothing,
}

/// Reads a notification. `own`: the name of this instance.
pub(super) fn read<'n>(payload: &'n str, own: &str) -> Hinted<'n> {
    let mut words = payload.split(' ').filter(|word| !word.is_empty());
    if words.next().is_none_or(|instance| instance == own) {
        return Hinted::Nothing;
    }
    let types: Vec<&str> = words.collect();
    match types.as_slice() {
        [] => Hinted::Nothing,
        types_given if types_given.contains(&"*") => Hinted::All,
        _ => Hinted::Types(types),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_of_others_name_types() {
        assert_eq!(read("b mail sms", "a"), Hinted::Types(vec!["mail", "sms"]));
        assert_eq!(read("b *", "a"), Hinted::All);
    }

    #[test]
    fn own_and_empty_notifications_wake_nobody() {
        for payload in ["a mail", "a *", "b", "", " "] {
            assert_eq!(read(payload, "a"), Hinted::Nothing, "{payload}");
        }
    }
}
