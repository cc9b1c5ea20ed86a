//! The signature of a callback, which its receiver checks.

use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};

/// The header of the event's id, which is the same for each attempt.
pub const EVENT_ID: &str = "Hostler-Event-Id";

/// The header of the signature.
pub const SIGNATURE: &str = "Hostler-Signature";

/// Returns the value of the header `Hostler-Signature`: the time in seconds since 1970, and an HMAC-SHA256 of the time,
/// a full stop and the body.
pub fn signature(secret: &[u8], seconds: u64, body: &[u8]) -> String {
    let mut text = format!("{seconds}.").into_bytes();
    text.extend_from_slice(body);
    let tag = sign(&Key::new(HMAC_SHA256, secret), &text);
    format!("t={seconds},v1={}", crate::hex::encode(tag.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_covers_time_and_body() {
        // printf '1700000000.{}' | openssl dgst -sha256 -hmac secret
        let known = "t=1700000000,v1=b8569b78799ff9e3cbff0fc2d63a33a2b57f3282abd07c37ae5e8e7d79a5f163";
        assert_eq!(signature(b"secret", 1_700_000_000, b"{}"), known);
    }
}
