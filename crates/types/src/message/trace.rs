//! The trace context of a message. With the context, the spans of a handler belong to the trace in which the message
//! was sent.

use std::fmt::{self, Display};

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

use super::{AttributeValue, Attributes, MAX_ATTRIBUTES};

/// Name of the attribute and header that identifies the trace and the span (W3C Trace Context, section 3.2).
pub const TRACEPARENT: &str = "traceparent";

/// Name of the attribute and header with vendor-specific data (W3C Trace Context, section 3.3).
pub const TRACESTATE: &str = "tracestate";

/// Maximum length of a `tracestate` in bytes. A longer `tracestate` is ignored (W3C Trace Context, section 3.3.1.5,
/// requires support for at least 512).
const MAX_TRACESTATE: usize = 512;

/// A valid trace context: a span and its sampling decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext(SpanContext);

impl TraceContext {
    /// Returns the context from the attributes `traceparent` and `tracestate`. Matches the names of the attributes
    /// without regard to case. `None`: the attributes contain no valid context.
    pub fn of(attributes: &Attributes) -> Option<Self> {
        let text = |name: &str| {
            let mut attributes = attributes.iter();
            attributes.find(|(key, _)| key.eq_ignore_ascii_case(name)).and_then(|(_, value)| value.as_text())
        };
        Self::parse(text(TRACEPARENT)?, text(TRACESTATE))
    }

    /// Parses the two fields of W3C Trace Context. Ignores an invalid `tracestate`, as the standard requires. `None`:
    /// the `traceparent` is not valid.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let (trace, span, flags) = read_traceparent(traceparent)?;
        let state = tracestate.filter(|text| is_tracestate(text)).and_then(|text| text.parse().ok());
        Self::remote(trace, span, flags, state.unwrap_or(TraceState::NONE))
    }

    /// Parses the header of AWS X-Ray, for example
    /// `Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1` (AWS X-Ray developer guide, tracing
    /// header). `None`: the root or the parent is missing or not valid. A trace is sampled only if the header contains
    /// `Sampled=1`.
    pub fn from_xray(header: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut fields = header.split(';').filter_map(|field| field.trim().split_once('='));
            fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
        };
        let (time, unique) = field("Root")?.strip_prefix("1-")?.split_once('-')?;
        if time.len() != 8 || unique.len() != 24 {
            return None;
        }
        let trace = hexadecimal(&format!("{time}{unique}"), 32)?;
        let span = u64::try_from(hexadecimal(field("Parent")?, 16)?).ok()?;
        let flags = TraceFlags::default().with_sampled(field("Sampled") == Some("1"));
        Self::remote(trace, span, flags, TraceState::NONE)
    }

    /// Formats the context as an AWS X-Ray header.
    pub fn xray(&self) -> String {
        let (trace, sampled) = (self.trace_id().to_string(), u8::from(self.0.is_sampled()));
        let (time, unique) = trace.split_at(8);
        format!("Root=1-{time}-{unique};Parent={};Sampled={sampled}", self.0.span_id())
    }

    fn remote(trace: u128, span: u64, flags: TraceFlags, state: TraceState) -> Option<Self> {
        Self::new(SpanContext::new(TraceId::from(trace), SpanId::from(span), flags, true, state))
    }

    /// Returns the context of a span. `None`: the span is not valid.
    pub fn new(span: SpanContext) -> Option<Self> {
        span.is_valid().then_some(Self(span))
    }

    /// Returns the span.
    pub fn span(&self) -> &SpanContext {
        &self.0
    }

    /// Returns the id of the trace: 32 hexadecimal digits.
    pub fn trace_id(&self) -> TraceId {
        self.0.trace_id()
    }

    /// Formats the context as W3C's `traceparent`.
    pub fn traceparent(&self) -> String {
        self.to_string()
    }

    /// Returns the `tracestate` with vendor-specific data. `None`: the context has no such data.
    pub fn tracestate(&self) -> Option<String> {
        Some(self.0.trace_state().header()).filter(|state| !state.is_empty())
    }

    /// Returns the fields of the context with their names as attributes and headers.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, String)> {
        let tracestate = self.tracestate().map(|value| (TRACESTATE, value));
        std::iter::once((TRACEPARENT, self.traceparent())).chain(tracestate)
    }

    /// Adds the context to the attributes of a message. Adds nothing if the attributes already contain a context, or if
    /// there are already [`MAX_ATTRIBUTES`] attributes.
    pub fn add_to(&self, attributes: &mut Attributes) {
        self.add_within(attributes, MAX_ATTRIBUTES);
    }

    /// Adds the context like [`Self::add_to`], but allows at most `most` attributes in total.
    pub fn add_within(&self, attributes: &mut Attributes, most: usize) {
        if is_carried_by(attributes) {
            return;
        }
        for (name, value) in self.fields() {
            if attributes.len() < most {
                attributes.entry(name.to_owned()).or_insert(AttributeValue::Text(value));
            }
        }
    }
}

/// Formats the context as a `traceparent` of version 00.
impl Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = &self.0;
        write!(f, "00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags())
    }
}

/// Returns `true` if the attributes contain a `traceparent`, even if its value is not valid. The producer's
/// `traceparent` must not be replaced.
pub fn is_carried_by(attributes: &Attributes) -> bool {
    attributes.keys().any(|name| name.eq_ignore_ascii_case(TRACEPARENT))
}

/// Parses `version-trace-parent-flags`. Each field consists of lowercase hexadecimal digits. The version ff is invalid.
/// A version after 00 may have further fields after another dash (W3C Trace Context, section 3.2.2).
fn read_traceparent(text: &str) -> Option<(u128, u64, TraceFlags)> {
    let mut parts = text.splitn(5, '-');
    let mut part = |length| parts.next().and_then(|part| hexadecimal(part, length));
    let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    let is_known = version == 0;
    if version == 0xff || is_known && parts.next().is_some() {
        return None;
    }
    let flags = TraceFlags::new(u8::try_from(flags).ok()?);
    // In later versions, only the meaning of the `sampled` flag is guaranteed to be the same.
    let flags = if is_known { flags } else { flags & TraceFlags::SAMPLED };
    Some((trace, u64::try_from(span).ok()?, flags))
}

/// Parses exactly `length` lowercase hexadecimal digits.
fn hexadecimal(text: &str, length: usize) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let fits = text.len() == length && text.bytes().all(is_digit);
    fits.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Returns `true` if the text consists of 1 to [`MAX_TRACESTATE`] printable ASCII characters. Does not check the
/// entries that a `tracestate` lists.
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
        context.add_within(&mut sent, 9);
        assert_eq!(sent.len(), 9);
        context.add_to(&mut sent);
        assert_eq!(sent.len(), MAX_ATTRIBUTES);
        assert!(sent.contains_key(TRACEPARENT));
    }

    #[test]
    fn what_is_not_valid_is_nobodys_context() {
        let zeros = PARENT.replace("b7ad6b7169203331", "0000000000000000");
        let no_trace = PARENT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32));
        let (upper, longer) = (PARENT.to_uppercase(), format!("{PARENT}-x"));
        let (signed, other) = (PARENT.replace("-01", "-+1"), PARENT.replace("00-", "ff-"));
        for bad in ["", "00", &zeros, &no_trace, &upper, &longer, &signed, &other, &PARENT[1..]] {
            assert_eq!(TraceContext::of(&attributes(&[(TRACEPARENT, bad)])), None, "{bad}");
        }
        let odd = TraceContext::of(&attributes(&[(TRACEPARENT, PARENT), (TRACESTATE, "a=ü")])).unwrap();
        assert_eq!(odd.tracestate(), None);
    }

    #[test]
    fn of_a_later_version_is_taken_what_is_known() {
        let later = format!("{}-x", PARENT.replace("00-", "cc-").replace("-01", "-ff"));
        assert_eq!(TraceContext::parse(&later, None).unwrap().to_string(), PARENT);
        assert_eq!(TraceContext::parse(&PARENT.replace("-01", "-03"), None).unwrap().to_string()[53..], *"03");
    }

    #[test]
    fn an_x_ray_header_is_a_context_if_it_names_trace_and_parent() {
        let read = |header: &str| TraceContext::from_xray(header).map(|context| context.to_string());
        let of = |sampled| Some(format!("00-5759e988bd862e3fe1be46a994272793-53995c3f42cd8ad8-{sampled}"));
        let root = "Root=1-5759e988-bd862e3fe1be46a994272793";
        for (rest, sampled) in [
            (";Parent=53995c3f42cd8ad8;Sampled=1", "01"),
            ("; Sampled=1; Parent=53995c3f42cd8ad8", "01"),
            (";Parent=53995c3f42cd8ad8;Sampled=0", "00"),
            (";Parent=53995c3f42cd8ad8;Sampled=?", "00"),
            (";Parent=53995c3f42cd8ad8", "00"),
            (";Self=1-x;Parent=53995c3f42cd8ad8;Sampled=1;Lineage=a:1|b:0", "01"),
        ] {
            assert_eq!(read(&format!("{root}{rest}")), of(sampled), "{rest}");
            let context = TraceContext::from_xray(&format!("{root}{rest}")).unwrap();
            assert_eq!(read(&context.xray()), of(sampled), "there and back");
        }
        assert_eq!(read(&format!("sampled=1;parent=53995c3f42cd8ad8;{}", root.replace("Root", "root"))), of("01"));
        for bad in [
            "",
            ";;;",
            "=",
            root,
            &format!("{root};Parent="),
            &format!("{root};Parent=0000000000000000"),
            &format!("{root};Parent=53995C3F42CD8AD8"),
            &format!("{root};Parent=53995c3f42cd8ad"),
            "Root=2-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8",
            "Root=1-5759e98-8bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8",
            "Root=1-00000000-000000000000000000000000;Parent=53995c3f42cd8ad8",
            "Root=1-5759e988;Parent=53995c3f42cd8ad8",
            "Root=1-\u{fc}759e98-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
