//! Copies the header fields of a response into separate memory, up to a maximum size.
//!
//! In a response from the HTTP client, the values of the fields are slices of the client's read buffer, which may be as
//! large as 400 KiB. Without a copy, the entire buffer would stay in memory as long as the guest keeps the fields. The
//! copy fits in the memory that the host allows for each handle in the guest's table.

use bytes::{Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Maximum total size of the header fields in bytes: half of the memory that the host allows per handle.
pub(super) const MAX_HEAD: usize = 32 * 1024;

/// Memory in bytes that a field uses in the header map in addition to its name and value.
const FIELD: usize = 128;

/// Copies header fields. `None`: the fields exceed [`MAX_HEAD`].
pub(super) fn copied(fields: &HeaderMap) -> Option<HeaderMap> {
    let size = fields.iter().map(|(name, value)| FIELD + name.as_str().len() + value.len());
    if size.fold(0, usize::saturating_add) > MAX_HEAD {
        return None;
    }
    let mut values = BytesMut::with_capacity(fields.values().map(HeaderValue::len).sum());
    fields.values().for_each(|value| values.extend_from_slice(value.as_bytes()));
    let values = values.freeze();
    let mut copy = HeaderMap::with_capacity(fields.keys_len());
    let mut from = 0;
    for (name, value) in fields {
        let to = from + value.len();
        let (name, value) = field(name, values.slice(from..to), value.is_sensitive())?;
        copy.append(name, value);
        from = to;
    }
    Some(copy)
}

/// Creates a field with the given value and a copy of the name.
fn field(name: &HeaderName, value: Bytes, is_sensitive: bool) -> Option<(HeaderName, HeaderValue)> {
    let mut value = HeaderValue::from_maybe_shared(value).ok()?;
    value.set_sensitive(is_sensitive);
    Some((HeaderName::from_bytes(name.as_str().as_bytes()).ok()?, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_copied_as_it_is() {
        let mut fields = HeaderMap::new();
        for (name, value) in [("set-cookie", "a=1"), ("x-own", "\u{e9}"), ("set-cookie", ""), ("date", "now")] {
            fields.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        assert_eq!(copied(&fields), Some(fields));
        assert_eq!(copied(&HeaderMap::new()), Some(HeaderMap::new()));
    }

    #[test]
    fn a_head_that_is_too_large_is_refused() {
        let of = |count: usize, size: usize| {
            let mut fields = HeaderMap::new();
            for number in 0..count {
                let name = HeaderName::from_bytes(format!("x-{number}").as_bytes()).unwrap();
                fields.append(name, HeaderValue::from_bytes(&vec![b'x'; size]).unwrap());
            }
            copied(&fields).is_some()
        };
        assert!(of(1, MAX_HEAD - 200));
        assert!(!of(1, MAX_HEAD));
        assert!(of(100, 100));
        assert!(!of(300, 0));
    }
}
