//! Kinds of values. Checks and describes values, and converts the text of environment variables.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use figment::value::{Empty, Tag, Value};

use super::amqp::amqp_fault;
use super::grants::{AmqpUrl, Dirs, HandlerRef, NatsUrl, Network, Origin, PostgresUrl, SecretUrl, Token, Url};
use super::guest_variable::{GuestVariable, of_variable};
use super::likeness::alike;
use super::postgres::postgres_fault;
use super::read::{Bytes, Read, quoted, shown, text};
use super::servers::Servers;
use super::units::{MAX_PERMITS, Share, duration_text, size_text};
use hostler_schedules::{Cron, CronFault};
use hostler_types::channel::Channel;
use hostler_types::{KeySource, Rate};

/// Kind of the values that a key accepts. Limits are inclusive.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Duration {
        min: Duration,
        max: Duration,
    },
    /// Limits in bytes.
    Size {
        min: u64,
        max: u64,
    },
    Integer {
        min: u64,
        max: u64,
    },
    Bool,
    Choice(&'static [&'static str]),
    /// Letters, digits and the characters of `also`. `min` and `max` limit the number of characters.
    Word {
        also: &'static str,
        min: usize,
        max: usize,
    },
    /// Text that is never displayed, or a table with a reference to a secret.
    Variable,
    /// A URL that is never displayed.
    SecretUrl,
    /// A URL of RabbitMQ, which is never displayed.
    AmqpUrl,
    /// A URL of NATS, which is never displayed.
    NatsUrl,
    /// A URL of PostgreSQL, which is never displayed.
    PostgresUrl,
    /// A token or a secret in visible ASCII characters, which is never displayed.
    Token,
    Path,
    /// A command for a shell.
    Command,
    Handler,
    /// A cron expression.
    Cron,
    /// Place of a key in a message.
    MessageKey,
    /// A time zone of the IANA database.
    Zone,
    /// Any text. The limit is in bytes.
    Text {
        max: usize,
    },
    /// A URL. `example` is an example for the key.
    Url {
        example: &'static str,
    },
    Address,
    Rate,
    Share,
    Sha256,
    Channel,
    /// A subject of NATS, with wildcards.
    Subject,
    Channels,
    /// Subjects of NATS, with wildcards.
    Subjects,
    Texts,
    Paths,
    Origins,
    Networks,
    /// TCP servers: host and port, and TLS.
    Servers,
    Dirs,
}

impl Kind {
    /// Checks a value and returns its fault.
    pub(super) fn check(self, value: &Value) -> Result<(), String> {
        match self {
            _ if matches!(value, Value::Empty(..)) => Err("the value is not UTF-8 text".to_owned()),
            Self::Duration { min, max } => within(Duration::read(value)?, min, max, value),
            Self::Size { min, max } => within(Bytes::read(value)?.0, min, max, value),
            Self::Integer { min, max } => within(u64::read(value)?, min, max, value),
            Self::Bool => bool::read(value).map(drop),
            Self::Choice(words) if words.contains(&text(value)?) => Ok(()),
            Self::Choice(_) => Err(format!("{} is not one of the choices", shown(value))),
            Self::Word { also, min, max } => word(text(value)?, also, min, max),
            Self::Variable => GuestVariable::read(value).map(drop),
            Self::SecretUrl => SecretUrl::read(value).map(drop),
            Self::AmqpUrl => fault_of(value, amqp_fault).map_or_else(|| AmqpUrl::read(value).map(drop), Err),
            Self::NatsUrl => NatsUrl::read(value).map(drop),
            Self::PostgresUrl => {
                fault_of(value, postgres_fault).map_or_else(|| PostgresUrl::read(value).map(drop), Err)
            }
            Self::Token => Token::read(value).map(drop),
            Self::Path => PathBuf::read(value).map(drop),
            Self::Command => command(text(value)?),
            Self::Handler => HandlerRef::read(value).map(drop),
            Self::Cron => cron(text(value)?),
            Self::MessageKey => message_key(text(value)?),
            Self::Zone => zone(text(value)?),
            Self::Text { max } => within_bytes(text(value)?, max),
            Self::Url { .. } => Url::read(value).map(drop),
            Self::Address => SocketAddr::read(value).map(drop),
            Self::Rate => Rate::read(value).map(drop),
            Self::Share => Share::read(value).map(drop),
            Self::Sha256 => <[u8; 32]>::read(value).map(drop),
            Self::Channel => Channel::read(value).map(drop),
            Self::Subject => subject(text(value)?),
            Self::Channels => Vec::<Channel>::read(value).map(drop),
            Self::Subjects => Vec::<String>::read(value)?.iter().try_for_each(|text| subject(text)),
            Self::Texts => texts(value),
            Self::Paths => Vec::<PathBuf>::read(value).map(drop),
            Self::Origins => Vec::<Origin>::read(value).map(drop),
            Self::Networks => Vec::<Network>::read(value).map(drop),
            Self::Servers => Servers::read(value).map(drop),
            Self::Dirs => Dirs::read(value).map(drop),
        }
    }

    /// Converts the text of a variable or of a default to a value. For a key that accepts text, the value is text even
    /// if it looks like a number.
    pub(super) fn value(self, raw: &str) -> Value {
        match self {
            Self::Bool | Self::Integer { .. } | Self::Share | Self::Dirs => parsed(raw),
            Self::Channels
            | Self::Subjects
            | Self::Texts
            | Self::Paths
            | Self::Origins
            | Self::Networks
            | Self::Servers => list(raw),
            Self::Variable => of_variable(raw),
            _ => Value::from(raw),
        }
    }

    /// Converts the value of a variable as the operating system provides it. If the value is not UTF-8, returns
    /// [`Value::Empty`], which is not the result for any valid text. [`Self::check`] refuses [`Value::Empty`] without
    /// displaying the original value, because it may be secret.
    pub(super) fn value_of_variable(self, raw: &OsStr) -> Value {
        raw.to_str().map_or(Value::Empty(Tag::Default, Empty::Unit), |raw| self.value(raw))
    }

    /// Returns `true` for a quoted text that would be valid without quotes.
    pub(super) fn is_quoted(self, value: &Value) -> bool {
        let bare = matches!(self, Self::Bool | Self::Integer { .. } | Self::Share);
        bare && value.as_str().is_some_and(|text| self.check(&self.value(text)).is_ok())
    }

    /// Describes the accepted values, to complete the sentence "write …".
    pub(super) fn accepts(self) -> String {
        match self {
            Self::Duration { min, max } => {
                format!("a duration from `{}` to `{}`", duration_text(min), duration_text(max))
            }
            Self::Size { min, max } => format!("a size from `{}` to `{}`", size_text(min), size_text(max)),
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Self::Bool => "`true` or `false`".to_owned(),
            Self::Choice(words) => one_of(words),
            Self::Word { also, min, max } => {
                let also: Vec<String> =
                    also.chars().map(|char| if char == ' ' { "space".into() } else { char.into() }).collect();
                format!("{min} to {max} of the characters `A-Z a-z 0-9 {}`", also.join(" "))
            }
            Self::Variable => {
                "text in quotes, or a table such as `{ secret = \"file:/run/secrets/token\" }`; in place of the file, the ARN of a \
                 secret in Secrets Manager, with `:json-key:stage:version` where needed"
                    .to_owned()
            }
            Self::SecretUrl => "an address that begins with `https://` or `http://`".to_owned(),
            Self::AmqpUrl => "an address such as `amqp://user:password@host/vhost`, or with `amqps://`".to_owned(),
            Self::NatsUrl => "an address such as `nats://user:password@host:4222`, or with `tls://`".to_owned(),
            Self::PostgresUrl => {
                "an address such as `postgres://user:password@host:5432/database`, or with `postgresql://`".to_owned()
            }
            Self::Token => "1 to 512 visible ASCII characters in quotes, without spaces".to_owned(),
            Self::Path => "a path".to_owned(),
            Self::Command => "a shell command such as `make`".to_owned(),
            Self::Handler => "a path, `s3://bucket/key` or `oci://registry/repository:tag`".to_owned(),
            Self::Cron => "a cron expression such as `0 2 * * *` or `@hourly`".to_owned(),
            Self::MessageKey => "a place such as `$.order.id`, `attr:order-id` or `id`".to_owned(),
            Self::Zone => "a time zone such as `Europe/Berlin` or `UTC`".to_owned(),
            Self::Text { max } => format!("text of at most {max} bytes"),
            Self::Url { example } => format!("an address such as `{example}`"),
            Self::Address => "an IP address and port such as `0.0.0.0:9464`".to_owned(),
            Self::Rate => format!("a rate such as `100/s`, per `s`, `m` or `h`, from 1 to {MAX_PERMITS}"),
            Self::Share => "a share such as `0.5`, from 0 to less than 1".to_owned(),
            Self::Sha256 => "64 hexadecimal digits".to_owned(),
            Self::Channel => "`<queue>` or `<exchange>.<queue>`, each 1 to 71 of `A-Z a-z 0-9 _ -`".to_owned(),
            Self::Subject => {
                "a subject such as `webhooks.*`: tokens between dots, without spaces, of which the first is a word"
                    .to_owned()
            }
            Self::Channels => "a list of channels such as `[\"orders\"]`".to_owned(),
            Self::Subjects => "a list of subjects such as `[\"webhooks.*\"]`".to_owned(),
            Self::Texts => "a list of texts such as `[\"MOBILE.\"]`".to_owned(),
            Self::Paths => "a list of paths such as `[\"src\"]`".to_owned(),
            Self::Origins => "a list of origins such as `[\"https://api.example.com\"]`".to_owned(),
            Self::Networks => "a list of networks such as `[\"10.0.0.0/16\"]`".to_owned(),
            Self::Servers => {
                "a list of servers such as `[\"10.0.3.7:6379\", { to = \"db.internal:5432\", tls = \"postgres\" }]`, \
                 tls `direct` or `postgres`"
                    .to_owned()
            }
            Self::Dirs => {
                "a list of tables such as `[{ host = \"/data\", guest = \"/data\", mode = \"ro\" }]`, mode `ro` or `rw`"
                    .to_owned()
            }
        }
    }
}

/// Formats words as a choice: "`a`, `b` or `c`".
fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => format!("`{only}`"),
        [first, last] => format!("`{first}` or `{last}`"),
        [first, rest @ ..] => format!("`{first}`, {}", one_of(rest)),
    }
}

fn within<T: PartialOrd>(given: T, min: T, max: T, value: &Value) -> Result<(), String> {
    if given < min {
        Err(format!("{} is too small", shown(value)))
    } else if given > max {
        Err(format!("{} is too large", shown(value)))
    } else {
        Ok(())
    }
}

/// Describes the fault of an address that may contain a password.
fn fault_of(value: &Value, find: impl Fn(&str) -> Option<&'static str>) -> Option<String> {
    let fault = value.as_str().and_then(find)?;
    Some(format!("the address {fault} (it is not shown: it may contain a password)"))
}

fn texts(value: &Value) -> Result<(), String> {
    match Vec::<String>::read(value)?.iter().position(String::is_empty) {
        Some(index) => Err(format!("item {} is empty", index + 1)),
        None => Ok(()),
    }
}

fn command(text: &str) -> Result<(), String> {
    match text {
        _ if text.contains('\0') => Err("the command contains a NUL character".to_owned()),
        _ if text.trim().is_empty() => Err(format!("{} is not a command", quoted(text))),
        _ => Ok(()),
    }
}

/// Checks a subject of NATS: `*` is a whole token, and `>` the last one.
fn subject(text: &str) -> Result<(), String> {
    let fault = |what: &str| Err(format!("{} {what}", quoted(text)));
    let tokens: Vec<_> = text.split('.').collect();
    if tokens.iter().any(|token| token.is_empty()) {
        return fault("has an empty token");
    }
    if text.contains(|char: char| char.is_whitespace() || char.is_control()) {
        return fault("contains a space or a control character");
    }
    if text.starts_with(['$', '_']) || text.len() > 255 {
        return fault("is the server's or a client's own, or has more than 255 bytes");
    }
    if tokens[0].contains(['*', '>']) {
        return fault("has a wildcard in its first token, so answers to requests could come as requests");
    }
    let is_wild = |(number, token): (usize, &&str)| match *token {
        "*" => true,
        ">" => number + 1 == tokens.len(),
        token => !token.contains(['*', '>']),
    };
    if tokens.iter().enumerate().all(is_wild) { Ok(()) } else { fault("has a wildcard at a place where it is none") }
}

fn word(text: &str, also: &str, min: usize, max: usize) -> Result<(), String> {
    if let Some(odd) = text.chars().find(|char| !char.is_ascii_alphanumeric() && !also.contains(*char)) {
        return Err(format!("{} contains {odd:?}", quoted(text)));
    }
    match text.len() {
        length if length < min || length > max => Err(format!("{} has {length} characters", quoted(text))),
        _ => Ok(()),
    }
}

fn cron(text: &str) -> Result<(), String> {
    Cron::parse(text, "UTC").map(drop).map_err(|fault| match fault {
        CronFault::Fields(_) | CronFault::Never => format!("{} {fault}", quoted(text)),
        fault => format!("{} is not a cron expression: {fault}", quoted(text)),
    })
}

fn message_key(text: &str) -> Result<(), String> {
    KeySource::parse(text).map(drop).map_err(|fault| format!("{} is not a place of a key: {fault}", quoted(text)))
}

fn zone(text: &str) -> Result<(), String> {
    let city = |zone: &&str| zone.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(text));
    let meant = || hostler_schedules::zones().find(city).or_else(|| alike(text, hostler_schedules::zones()));
    Cron::check_zone(text).map_err(|fault| match meant() {
        Some(other) => format!("{fault}; did you mean `{other}`?"),
        None => fault.to_string(),
    })
}

fn within_bytes(text: &str, max: usize) -> Result<(), String> {
    match text.len() {
        length if length > max => Err(format!("the text has {length} bytes")),
        _ if text.contains('\0') => Err("the text contains a NUL character".to_owned()),
        _ => Ok(()),
    }
}

fn parsed(raw: &str) -> Value {
    raw.parse().unwrap_or_else(|never: std::convert::Infallible| match never {})
}

/// Parses a list of strings, for example `[a, 'b', "c"]`. An item without quotes is also a string. For example, `[007]`
/// contains the string `007`, not the number 7.
fn list(raw: &str) -> Value {
    let inner = raw.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.and_then(items).map_or_else(|| parsed(raw), Value::from)
}

/// Parses the items between the brackets of a list. `None`: the text is not a list of strings.
fn items(mut rest: &str) -> Option<Vec<String>> {
    let mut items = Vec::new();
    loop {
        rest = rest.trim_start();
        let (item, after) = match rest.chars().next() {
            // As in TOML, a comma may follow the last item.
            None => return Some(items),
            Some(quote @ ('"' | '\'')) => in_quotes(rest, quote)?,
            Some('[' | '{') => return None,
            Some(_) => {
                let (item, after) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
                (item.trim_end().to_owned(), after)
            }
        };
        items.push(item);
        rest = match after.trim_start() {
            "" => return Some(items),
            after => after.strip_prefix(',')?,
        };
    }
}

/// Parses the quoted string at the start of `text` by the rules of TOML. Returns the string without its quotes, and the
/// rest of `text`. `quote`: the opening quotation mark.
fn in_quotes(text: &str, quote: char) -> Option<(String, &str)> {
    let mut escaped = false;
    let mut closes = |char: char| {
        let closes = char == quote && !escaped;
        escaped = quote == '"' && char == '\\' && !escaped;
        closes
    };
    let (end, _) = text.char_indices().skip(1).find(|(_, char)| closes(*char))?;
    let (item, after) = text.split_at(end + quote.len_utf8());
    Some((item.parse::<toml_edit::Value>().ok()?.as_str()?.to_owned(), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_keep_text_as_written() {
        assert_eq!(Kind::Path.value("007"), Value::from("007"));
        assert_eq!(Kind::Variable.value("true"), Value::from("true"));
        assert_eq!(Kind::Integer { min: 0, max: 9 }.value("7"), Value::from(7_usize));
        assert_eq!(Kind::Bool.value("false"), Value::from(false));
    }

    #[test]
    fn variables_take_lists() {
        assert_eq!(Kind::Texts.value("[a, 007]"), Value::from(vec!["a", "007"]));
        assert_eq!(Kind::Texts.value("[\"a,b\", c]"), Value::from(vec!["a,b", "c"]));
        assert_eq!(Kind::Texts.value("[]"), Value::from(Vec::<String>::new()));
        assert_eq!(Kind::Texts.value("a,b"), Value::from("a,b"));
        assert_eq!(Kind::Origins.value("[http://[::1]:80]"), Value::from(vec!["http://[::1]:80"]));
    }

    #[test]
    fn lists_of_variables_are_quoted_as_in_toml() {
        for (raw, items) in [
            ("['MOBILE.']", vec!["MOBILE."]),
            ("['a,b', \"c\\\"]\\u00e4\" , it's, d\"e]", vec!["a,b", "c\"]ä", "it's", "d\"e"]),
            (r"['\', '']", vec![r"\", ""]),
            ("[MOBILE.,]", vec!["MOBILE."]),
            ("[ 'a', ]", vec!["a"]),
            ("[a,,b]", vec!["a", "", "b"]),
            ("[,]", vec![""]),
        ] {
            assert_eq!(Kind::Texts.value(raw), Value::from(items), "{raw}");
        }
        for bad in ["['a]", "[\"a]", "['a' b]", "[\"\\q\"]", "[[a]]", "[{a}]", "['''a''']", "'a'"] {
            assert!(Kind::Texts.check(&Kind::Texts.value(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_empty_text_is_no_item() {
        let check = |raw| Kind::Texts.check(&Kind::Texts.value(raw));
        assert_eq!([check("[]"), check("[a,]")], [Ok(()), Ok(())]);
        for (raw, item) in [("[a,,b]", 2), ("[,a]", 1), ("[a, '']", 2), ("[\"\"]", 1)] {
            assert_eq!(check(raw), Err(format!("item {item} is empty")), "{raw}");
        }
    }

    #[test]
    fn limits_are_inclusive() {
        let kind = Kind::Integer { min: 1, max: 3 };
        let verdicts = [0, 1, 3, 4].map(|number| kind.check(&Value::from(number)).is_ok());
        assert_eq!(verdicts, [false, true, true, false]);
    }

    #[test]
    fn only_what_would_be_right_without_its_quotes_is_quoted() {
        let number = Kind::Integer { min: 1, max: 9 };
        for (kind, text, quoted) in [
            (number, "8", true),
            (number, "\"8\"", false),
            (number, "80", false),
            (number, "eight", false),
            (Kind::Bool, "true", true),
            (Kind::Bool, "yes", false),
            (Kind::Share, "0.5", true),
            (Kind::Path, "8", false),
        ] {
            assert_eq!(kind.is_quoted(&Value::from(text)), quoted, "{kind:?} {text}");
        }
        assert!(!number.is_quoted(&Value::from(8)));
    }

    #[test]
    fn choices_read_as_a_sentence() {
        assert_eq!(one_of(&["a", "b", "c"]), "`a`, `b` or `c`");
    }

    #[test]
    fn a_secret_is_not_quoted() {
        assert!(!Kind::Variable.check(&Value::from(4711)).unwrap_err().contains("4711"));
        assert_eq!(Kind::SecretUrl.check(&Value::from("https://hooks.example.com/4711")), Ok(()));
        for bad in
            [Value::from(4711), Value::from("hooks.example.com/4711"), Value::from("https://me:4711@example.com")]
        {
            assert!(!Kind::SecretUrl.check(&bad).unwrap_err().contains("4711"), "{bad:?}");
        }
    }
}
