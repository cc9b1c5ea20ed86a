//! Pointers to message bodies in S3. A message contains the pointer instead of the body, in the format of the Java and
//! Python extended clients for SQS.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the attribute that marks a message whose body is only a pointer. The value is the size in bytes of the body
/// in S3 (payload-offloading-java-common).
pub const SIZE_ATTRIBUTE: &str = "ExtendedPayloadSize";
/// Older name of [`SIZE_ATTRIBUTE`]. Clients before 2021 used this name. The Java client still uses this name by
/// default.
pub const LEGACY_SIZE_ATTRIBUTE: &str = "SQSLargePayloadSize";

/// Java class name in front of the pointer.
const CLASS: &str = "software.amazon.payloadoffloading.PayloadS3Pointer";
/// Java class name that clients before 2019 wrote in front of the pointer.
const LEGACY_CLASS: &str = "com.amazon.sqs.javamessaging.MessageS3Pointer";

/// The location of a message's body in S3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Name of the S3 bucket.
    #[serde(rename = "s3BucketName")]
    pub bucket: String,
    /// Key of the object in the bucket.
    #[serde(rename = "s3Key")]
    pub key: String,
    /// Size of the body in bytes, as reported by the producer. `None`: the producer did not report the size.
    #[serde(skip)]
    pub size: Option<u64>,
}

impl Claim {
    /// Returns the message body that contains the pointer. SQS refuses control characters, U+FFFE and U+FFFF. The JSON
    /// encoder escapes control characters, and this function escapes U+FFFE and U+FFFF.
    pub fn to_body(&self) -> String {
        let body = serde_json::json!([CLASS, { "s3BucketName": self.bucket, "s3Key": self.key }]).to_string();
        body.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff")
    }

    /// Parses a pointer with either class name. `None`: the text is not a pointer.
    pub fn from_body(text: &str, size: Option<u64>) -> Option<Self> {
        let pair: [Value; 2] = serde_json::from_str(text).ok()?;
        let [class, pointer] = pair;
        if !matches!(class.as_str(), Some(CLASS | LEGACY_CLASS)) {
            return None;
        }
        let claim: Self = serde_json::from_value(pointer).ok()?;
        Some(Self { size, ..claim })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_classes_and_writes_the_current_one() {
        let claim = Claim { bucket: "b".into(), key: "k/1".into(), size: Some(7) };
        let current = r#"["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3BucketName":"b","s3Key":"k/1"}]"#;
        assert_eq!(claim.to_body(), current);
        for class in [CLASS, LEGACY_CLASS] {
            // Python's `json.dumps` writes a space after each comma and colon.
            let spaced = format!(r#"["{class}", {{"s3BucketName": "b", "s3Key": "k/1"}}]"#);
            assert_eq!(Claim::from_body(&spaced, Some(7)).as_ref(), Some(&claim));
        }
    }

    #[test]
    fn what_is_no_pointer_is_a_body() {
        for text in [
            "",
            "[]",
            r#"["software.amazon.payloadoffloading.PayloadS3Pointer",{}]"#,
            r#"["another.Class",{"s3BucketName":"b","s3Key":"k"}]"#,
            r#"["software.amazon.payloadoffloading.PayloadS3Pointer",{"s3BucketName":"b","s3Key":"k"},1]"#,
        ] {
            assert_eq!(Claim::from_body(text, None), None, "{text}");
        }
    }
}
