//! The W3C trace context that a message carries, so that what a handler causes joins the trace that caused the message.

use super::{AttributeValue, Attributes, MAX_ATTRIBUTES};

/// The attribute and header that names the trace (W3C Trace Context, section 3.2).
pub(crate) const TRACEPARENT: &str = "traceparent";

/// The attribute and header with what vendors add (W3C Trace Context, section 3.3).
pub(crate) const TRACESTATE: &str = "tracestate";

/// The longest `tracestate` that is carried on, in bytes (W3C Trace Context, section 3.3.1.5: at least 512).
const MAX_TRACESTATE: usize = 512;

/// A trace context, as it was received: who passes it on and takes no span of its own leaves it as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// A valid `traceparent`.
    pub traceparent: String,
    /// What vendors added.
    pub tracestate: Option<String>,
}

impl TraceContext {
    /// The context that these attributes carry; none if it is not valid.
    pub fn of(attributes: &Attributes) -> Option<Self> {
        let text = |name: &str| {
            let mut attributes = attributes.iter();
            attributes.find(|(key, _)| key.eq_ignore_ascii_case(name)).and_then(|(_, value)| value.as_text())
        };
        let traceparent = text(TRACEPARENT).filter(|text| is_traceparent(text))?.to_owned();
        let tracestate = text(TRACESTATE).filter(|text| is_tracestate(text)).map(str::to_owned);
        Some(Self { traceparent, tracestate })
    }

    /// Its fields, by the names of their attributes and headers.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let tracestate = self.tracestate.as_deref().map(|value| (TRACESTATE, value));
        std::iter::once((TRACEPARENT, &*self.traceparent)).chain(tracestate)
    }

    /// Adds it to the attributes of a message, unless they carry one, or there is no room for it.
    pub fn add_to(&self, attributes: &mut Attributes) {
        if attributes.keys().any(|name| name.eq_ignore_ascii_case(TRACEPARENT)) {
            return;
        }
        for (name, value) in self.fields() {
            if attributes.len() < MAX_ATTRIBUTES {
                attributes.entry(name.to_owned()).or_insert_with(|| AttributeValue::Text(value.to_owned()));
            }
        }
    }
}

/// `version-trace-parent-flags`, each lower-case hexadecimal; ids of zeros are invalid, as is version ff, and a later version
/// may have more after a dash (W3C Trace Context, section 3.2.2).
fn is_traceparent(text: &str) -> bool {
    let mut parts = text.splitn(5, '-');
    let mut part = |length: usize| {
        parts.next().filter(|part| part.len() == length && part.bytes().all(|byte| b"0123456789abcdef".contains(&byte)))
    };
    let (Some(version), Some(trace), Some(parent), Some(_)) = (part(2), part(32), part(16), part(2)) else {
        return false;
    };
    let set = |id: &str| id.bytes().any(|byte| byte != b'0');
    version != "ff" && set(trace) && set(parent) && (version != "00" || parts.next().is_none())
}

/// Printable ASCII of a length that everyone passes on; its members are the vendors' affair.
fn is_tracestate(text: &str) -> bool {
    (1..=MAX_TRACESTATE).contains(&text.len()) && text.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn attributes(pairs: &[(&str, &str)]) -> Attributes {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), AttributeValue::Text((*value).to_owned()))).collect()
    }

    #[test]
    fn a_valid_context_is_found_and_carried_on() {
        let context = TraceContext::of(&attributes(&[("TraceParent", PARENT), (TRACESTATE, "a=1,b=2")])).unwrap();
        let mut sent = attributes(&[("x", "1")]);
        context.add_to(&mut sent);
        assert_eq!(sent, attributes(&[(TRACEPARENT, PARENT), (TRACESTATE, "a=1,b=2"), ("x", "1")]));
        let own = attributes(&[("Traceparent", "mine")]);
        let mut sent = own.clone();
        context.add_to(&mut sent);
        assert_eq!(sent, own);
    }

    #[test]
    fn it_takes_no_room_that_is_not_there() {
        let context = TraceContext::of(&attributes(&[(TRACEPARENT, PARENT), (TRACESTATE, "a=1")])).unwrap();
        let names: Vec<String> = (0..9).map(|n| format!("a{n}")).collect();
        let mut sent = attributes(&names.iter().map(|name| (&**name, "")).collect::<Vec<_>>());
        context.add_to(&mut sent);
        assert_eq!(sent.len(), MAX_ATTRIBUTES);
        assert!(sent.contains_key(TRACEPARENT));
    }

    #[test]
    fn what_is_not_valid_is_nobodys_context() {
        let zeros = PARENT.replace("b7ad6b7169203331", "0000000000000000");
        let (upper, longer) = (PARENT.to_uppercase(), format!("{PARENT}-x"));
        for bad in ["", "00", &zeros, &upper, &longer, &PARENT.replace("00-", "ff-"), &PARENT[1..]] {
            assert_eq!(TraceContext::of(&attributes(&[(TRACEPARENT, bad)])), None, "{bad}");
        }
        assert!(TraceContext::of(&attributes(&[(TRACEPARENT, &longer.replacen("00", "01", 1))])).is_some());
        let odd = TraceContext::of(&attributes(&[(TRACEPARENT, PARENT), (TRACESTATE, "a=ü")])).unwrap();
        assert_eq!(odd.tracestate, None);
    }
}
