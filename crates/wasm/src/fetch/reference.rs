//! References to handlers outside this machine, in the syntax of the config.

use std::fmt;
use std::str::FromStr;

/// The location of a handler that is not a local file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reference {
    /// An object in an S3 bucket: `s3://bucket/key`.
    S3 {
        /// Name of the bucket.
        bucket: String,
        /// Key of the object.
        key: String,
    },
    /// An artifact in an OCI registry: `oci://registry/repository[:tag][@sha256:…]`.
    Oci(Address),
}

/// The address of an artifact in a registry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// Host of the registry, with an optional port.
    pub registry: String,
    /// Path of the repository in the registry.
    pub repository: String,
    /// Tag of the manifest. `None`: `latest`, unless there is a digest.
    pub tag: Option<String>,
    /// SHA-256 of the manifest. Takes precedence over the tag.
    pub digest: Option<[u8; 32]>,
}

/// The error for a reference with invalid syntax.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("handler {text}: {fault}\n  cure: write s3://bucket/key or oci://registry/repository[:tag][@sha256:…]")]
pub struct ReferenceError {
    text: String,
    fault: &'static str,
}

impl Reference {
    /// Returns `true` if `text` is meant to be a reference rather than a path. Checks only the scheme.
    pub fn is_meant_by(text: &str) -> bool {
        ["s3://", "oci://"].iter().any(|scheme| text.starts_with(scheme))
    }

    /// Returns `true` if the reference contains a digest, which pins the content.
    pub fn is_pinned(&self) -> bool {
        matches!(self, Self::Oci(Address { digest: Some(_), .. }))
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let parsed = match text.split_once("://") {
            Some(("s3", rest)) => match rest.split_once('/') {
                Some((bucket, key)) if !bucket.is_empty() && !key.is_empty() => {
                    Ok(Self::S3 { bucket: bucket.to_owned(), key: key.to_owned() })
                }
                _ => Err("it lacks a bucket or a key"),
            },
            Some(("oci", rest)) => address(rest).map(Self::Oci),
            _ => Err("it is not a reference"),
        };
        parsed.map_err(|fault| ReferenceError { text: text.to_owned(), fault })
    }
}

/// Parses an address according to the grammar in the OCI distribution specification. The address must contain a
/// registry, because there is no default registry.
fn address(text: &str) -> Result<Address, &'static str> {
    let (registry, rest) = text.split_once('/').ok_or("it lacks a repository")?;
    let (rest, digest) = match rest.split_once('@') {
        Some((rest, digest)) => {
            (rest, Some(sha256(digest).ok_or("its digest is not sha256: and 64 hexadecimal digits")?))
        }
        None => (rest, None),
    };
    let colon = rest.rfind(':').filter(|colon| rest.rfind('/').is_none_or(|slash| slash < *colon));
    let (repository, tag) = match colon.and_then(|colon| rest.split_at_checked(colon)) {
        Some((repository, tag)) => (repository, Some(tag.get(1..).unwrap_or_default())),
        None => (rest, None),
    };
    let of = |text: &str, also: &[u8]| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || also.contains(&byte));
    if registry.is_empty() || !of(registry, b".-:[]") {
        return Err("its registry is not a host or host:port");
    }
    let lower =
        |part: &str| !part.is_empty() && of(part, b"._-") && !part.bytes().any(|byte| byte.is_ascii_uppercase());
    if !repository.split('/').all(|part| lower(part) && part.starts_with(|first: char| first.is_ascii_alphanumeric())) {
        return Err("its repository is not of a-z 0-9 . _ - and /");
    }
    if tag.is_some_and(|tag| tag.is_empty() || tag.len() > 128 || !of(tag, b"._-") || tag.starts_with(['.', '-'])) {
        return Err("its tag is not of A-Z a-z 0-9 . _ -, 128 at most");
    }
    Ok(Address {
        registry: registry.to_owned(),
        repository: repository.to_owned(),
        tag: tag.map(str::to_owned),
        digest,
    })
}

/// Parses a digest of the form `sha256:…`.
pub(super) fn sha256(text: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64)?;
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(digest)
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3 { bucket, key } => write!(f, "s3://{bucket}/{key}"),
            Self::Oci(Address { registry, repository, tag, digest }) => {
                write!(f, "oci://{registry}/{repository}")?;
                tag.iter().try_for_each(|tag| write!(f, ":{tag}"))?;
                digest.iter().try_for_each(|digest| write!(f, "@sha256:{}", super::hex(digest)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_read_as_they_print() {
        let digest = "a1".repeat(32);
        for text in [
            "s3://bucket/some/key.wasm",
            "oci://registry.example/me/handlers/thumbnails",
            "oci://localhost:5000/h:1.2_x",
            "oci://[::1]:5000/h:1",
            &format!("oci://r.example/h@sha256:{digest}"),
            &format!("oci://r.example/h:1@sha256:{digest}"),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.to_string(), text);
            assert_eq!(reference.is_pinned(), text.contains('@'));
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for text in [
            "handler.wasm",
            "s3://bucket",
            "s3:///key",
            "oci://registry",
            "oci:///h",
            "oci://user@registry/h",
            "oci://r/H",
            "oci://r/../h",
            "oci://r/a//b",
            "oci://r/h:",
            "oci://r/h:.x",
            "oci://r/h@sha256:ab",
            "oci://r/h@sha512:ab",
            &format!("oci://r/h@sha256:{}", "+1".repeat(32)),
            "oci://r/h?x=y",
            "https://x/y",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text}");
        }
    }
}
