//! Secrets: references to where they are kept, as a config writes them, and their values.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Partitions of AWS whose secrets can be referred to.
const PARTITIONS: [&str; 3] = ["aws", "aws-cn", "aws-us-gov"];

/// Number of digits of an AWS account.
const ACCOUNT: usize = 12;

/// Length of the random part with which Secrets Manager ends the name of a secret in its ARN.
const SUFFIX: usize = 6;

/// Maximum length of a secret's name in characters, random part included (AWS: 512, and 7).
const MAX_NAME: usize = 519;

/// Maximum length of a stage in characters (AWS: VersionStage).
const MAX_STAGE: usize = 256;

/// Maximum length of a JSON key in characters.
const MAX_KEY: usize = 256;

/// Reference to a secret: `file:` and an absolute path, or an ARN as in a task definition of ECS.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SecretRef {
    /// The content of a file. The path is absolute.
    File(PathBuf),
    /// A secret in AWS Secrets Manager, or a part of it.
    Managed(ManagedRef),
}

/// Reference to a secret in AWS Secrets Manager, or to the value at one key of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManagedRef {
    /// The secret, of which there may be several versions.
    pub secret: ManagedSecret,
    /// Key in the secret's JSON object. `None`: the whole secret.
    pub json_key: Option<String>,
}

/// Version of a secret in AWS Secrets Manager: all that one call has to name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManagedSecret {
    /// ARN of the secret, without what follows its name.
    pub arn: String,
    /// Stage of the version, such as `AWSPREVIOUS`. `None`: `AWSCURRENT`, unless `version` is set.
    pub stage: Option<String>,
    /// Id of the version. `None`: the version of the stage.
    pub version: Option<String>,
}

/// The fault of a text that is not a [`SecretRef`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretRefError {
    /// The text has neither of the two beginnings, so it may be a secret itself. Errors must not show it.
    #[error("begins with neither `file:/` nor `arn:`")]
    Unknown,
    /// The path of a file is relative.
    #[error("has a path that does not begin with `/`")]
    Relative,
    /// The path of a file contains a NUL character, or ends with `/`.
    #[error("has a path that is not that of a file")]
    NoFile,
    /// The ARN is that of an SSM parameter.
    #[error("is a parameter of SSM, and hostler looks secrets up in Secrets Manager only")]
    Parameter,
    /// The ARN belongs to another service, or to no secret.
    #[error("is not the ARN of a secret in Secrets Manager")]
    NoSecret,
    /// The partition, region or account of the ARN is invalid.
    #[error("has a partition, a region or an account that is none")]
    BadHome,
    /// The name lacks the random part that Secrets Manager added.
    #[error("has no name that ends with `-` and the six characters that Secrets Manager added")]
    NoSuffix,
    /// Some, but not all, of the three parts after the name are there.
    #[error("has after its name neither nothing nor the three parts `:json-key:stage:version`")]
    Parts,
    /// One of the three parts after the name is invalid.
    #[error("has a JSON key, a stage or a version that is none")]
    BadPart,
}

impl SecretRefError {
    /// Returns `true` if the text may be a secret itself. Messages must not quote it then.
    pub fn may_be_a_secret(self) -> bool {
        matches!(self, Self::Unknown)
    }

    /// Returns the fix, where it is more than to write a valid reference.
    pub fn cure(self) -> Option<&'static str> {
        match self {
            Self::Parameter => Some("keep it in Secrets Manager and write that secret's ARN"),
            Self::NoSuffix => Some("copy the whole ARN that Secrets Manager shows"),
            Self::Parts => Some("write all three colons, with nothing between them for a part that you do not need"),
            _ => None,
        }
    }
}

impl FromStr for SecretRef {
    type Err = SecretRefError;

    fn from_str(text: &str) -> Result<Self, SecretRefError> {
        if let Some(path) = text.strip_prefix("file:") {
            return file(path).map(Self::File);
        }
        if text.starts_with("arn:") { managed(text).map(Self::Managed) } else { Err(SecretRefError::Unknown) }
    }
}

fn file(path: &str) -> Result<PathBuf, SecretRefError> {
    if !path.starts_with('/') {
        return Err(SecretRefError::Relative);
    }
    if path.contains('\0') || path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..") {
        return Err(SecretRefError::NoFile);
    }
    Ok(path.into())
}

fn managed(text: &str) -> Result<ManagedRef, SecretRefError> {
    let parts: Vec<_> = text.split(':').collect();
    let [_, partition, service, region, account, rest @ ..] = parts.as_slice() else {
        return Err(SecretRefError::NoSecret);
    };
    let (name, after) = match (*service, rest) {
        ("ssm", _) => return Err(SecretRefError::Parameter),
        ("secretsmanager", ["secret", name, after @ ..]) => (*name, after),
        _ => return Err(SecretRefError::NoSecret),
    };
    if !PARTITIONS.contains(partition) || !is_region(region) || !is_account(account) {
        return Err(SecretRefError::BadHome);
    }
    if !is_name(name) {
        return Err(SecretRefError::NoSuffix);
    }
    let (key, stage, version) = match after {
        [] => ("", "", ""),
        [key, stage, version] => (*key, *stage, *version),
        _ => return Err(SecretRefError::Parts),
    };
    let is_plain = |text: &str, most: usize| text.chars().count() <= most && !text.contains(char::is_control);
    if !is_plain(key, MAX_KEY) || !is_plain(stage, MAX_STAGE) || !is_version(version) {
        return Err(SecretRefError::BadPart);
    }
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let arn = format!("arn:{partition}:secretsmanager:{region}:{account}:secret:{name}");
    let secret = ManagedSecret { arn, stage: some(stage), version: some(version) };
    Ok(ManagedRef { secret, json_key: some(key) })
}

fn is_region(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (4..=32).contains(&text.len()) && text.bytes().all(is_part) && text.contains('-')
}

fn is_account(text: &str) -> bool {
    text.len() == ACCOUNT && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns `true` for the name of a secret with its random part.
fn is_name(text: &str) -> bool {
    let is_of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || b"/_+=.@-".contains(&byte);
    let Some((name, suffix)) = text.rsplit_once('-') else { return false };
    let is_suffix = suffix.len() == SUFFIX && suffix.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_suffix && !name.is_empty() && text.len() <= MAX_NAME && text.bytes().all(is_of_a_name)
}

/// Returns `true` for the id of a version (AWS: 32 to 64 characters), and for nothing.
fn is_version(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    text.is_empty() || (32..=64).contains(&text.len()) && text.bytes().all(is_part)
}

impl SecretRef {
    /// Returns the path of the file. `None`: the secret is not in a file.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Managed(_) => None,
        }
    }

    /// Returns the secret in Secrets Manager. `None`: the secret is in a file.
    pub fn managed(&self) -> Option<&ManagedSecret> {
        match self {
            Self::File(_) => None,
            Self::Managed(managed) => Some(&managed.secret),
        }
    }
}

impl ManagedSecret {
    /// Returns the region, which is part of the ARN.
    pub fn region(&self) -> &str {
        self.arn.split(':').nth(3).unwrap_or_default()
    }

    /// Returns `true` if the secret is wanted as it is now, without a stage or a version.
    pub fn is_current(&self) -> bool {
        self.stage.is_none() && self.version.is_none()
    }
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Managed(ManagedRef { secret, json_key: None }) if secret.is_current() => f.write_str(&secret.arn),
            Self::Managed(ManagedRef { secret, json_key }) => {
                let text = |part: &Option<String>| part.clone().unwrap_or_default();
                write!(f, "{}:{}:{}:{}", secret.arn, text(json_key), text(&secret.stage), text(&secret.version))
            }
        }
    }
}

/// Value of a secret. `Debug` omits it, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Arc<str>);

impl SecretValue {
    /// Returns the value itself. It must not be logged.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for SecretValue {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARN: &str = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:prod/db-AbC123";
    const VERSION: &str = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f";

    fn parsed(text: &str) -> Result<SecretRef, SecretRefError> {
        text.parse()
    }

    fn managed(text: &str) -> ManagedRef {
        match parsed(text).unwrap() {
            SecretRef::Managed(managed) => managed,
            SecretRef::File(path) => panic!("{path:?}"),
        }
    }

    #[test]
    fn a_file_is_named_by_its_absolute_path() {
        let file = parsed("file:/run/secrets/my key").unwrap();
        assert_eq!(file.file(), Some(Path::new("/run/secrets/my key")));
        assert_eq!((file.to_string().as_str(), file.managed()), ("file:/run/secrets/my key", None));
        for relative in ["file:", "file:x", "file:./x", "file:~/x"] {
            assert_eq!(parsed(relative), Err(SecretRefError::Relative), "{relative}");
        }
        for none in ["file:/", "file:/run/", "file:/run/.", "file:/run/..", "file:/a\0b"] {
            assert_eq!(parsed(none), Err(SecretRefError::NoFile), "{none}");
        }
    }

    #[test]
    fn an_arn_may_have_three_parts_that_may_be_empty() {
        let some = |text: &str| Some(text.to_owned());
        for (after, key, stage, version, shown) in [
            ("", None, None, None, ""),
            (":::", None, None, None, ""),
            (":password::", some("password"), None, None, ":password::"),
            ("::AWSPREVIOUS:", None, some("AWSPREVIOUS"), None, "::AWSPREVIOUS:"),
            (&format!(":::{VERSION}"), None, None, some(VERSION), &format!(":::{VERSION}")),
            (":a b:S:", some("a b"), some("S"), None, ":a b:S:"),
        ] {
            let text = format!("{ARN}{after}");
            let found = managed(&text);
            assert_eq!((found.json_key, found.secret.arn.as_str()), (key, ARN), "{text}");
            assert_eq!(found.secret.is_current(), stage.is_none() && version.is_none(), "{text}");
            assert_eq!((&found.secret.stage, &found.secret.version), (&stage, &version), "{text}");
            assert_eq!(parsed(&text).unwrap().to_string(), format!("{ARN}{shown}"));
        }
    }

    #[test]
    fn each_partition_has_its_regions() {
        for (partition, region) in [("aws", "eu-west-1"), ("aws-cn", "cn-north-1"), ("aws-us-gov", "us-gov-west-1")] {
            let text = format!("arn:{partition}:secretsmanager:{region}:123456789012:secret:a-b-000000");
            assert_eq!(managed(&text).secret.region(), region);
        }
        for text in [
            "arn:azure:secretsmanager:eu-west-1:123456789012:secret:a-000000",
            "arn:aws:secretsmanager::123456789012:secret:a-000000",
            "arn:aws:secretsmanager:EU:123456789012:secret:a-000000",
            "arn:aws:secretsmanager:eu-west-1@evil.example:123456789012:secret:a-000000",
            "arn:aws:secretsmanager:eu-west-1:12345:secret:a-000000",
        ] {
            assert_eq!(parsed(text), Err(SecretRefError::BadHome), "{text}");
        }
    }

    #[test]
    fn other_arns_are_refused() {
        use SecretRefError::{BadPart, NoSecret, NoSuffix, Parameter, Parts};
        for (text, expected) in [
            ("arn:aws:ssm:eu-west-1:123456789012:parameter/db", Parameter),
            ("arn:aws:sqs:eu-west-1:123456789012:queue", NoSecret),
            ("arn:aws:secretsmanager:eu-west-1:123456789012:other:a-000000", NoSecret),
            ("arn:aws", NoSecret),
            ("arn:aws:secretsmanager:eu-west-1:123456789012:secret:", NoSuffix),
            ("arn:aws:secretsmanager:eu-west-1:123456789012:secret:db", NoSuffix),
            ("arn:aws:secretsmanager:eu-west-1:123456789012:secret:-000000", NoSuffix),
            ("arn:aws:secretsmanager:eu-west-1:123456789012:secret:d b-000000", NoSuffix),
            ("arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-000000:key", Parts),
            ("arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-000000:key:", Parts),
            ("arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-000000::::", Parts),
            ("arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-000000:::7", BadPart),
            ("arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-000000:a\nb::", BadPart),
        ] {
            assert_eq!(parsed(text), Err(expected), "{text}");
            assert!(!expected.may_be_a_secret());
        }
        for cured in [Parameter, NoSuffix, Parts] {
            assert!(cured.cure().is_some(), "{cured}");
        }
    }

    #[test]
    fn a_text_that_may_be_the_secret_itself_is_marked() {
        for text in ["", "hunter2", "FILE:/x", "https://example.com"] {
            assert!(parsed(text).unwrap_err().may_be_a_secret(), "{text}");
        }
    }

    #[test]
    fn a_value_is_not_shown() {
        let value = SecretValue::from("hunter2");
        assert_eq!((value.expose(), format!("{value:?}").as_str()), ("hunter2", "SecretValue(…)"));
    }
}
