//! Messages that a handler receives.

use std::str::FromStr;
use std::time::SystemTime;

use crate::Malformed;

/// One delivery of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Id of the message in the queue. All deliveries of the message have the same id. Therefore, the id is a key for work that
    /// must happen only once.
    pub id: String,
    /// Channel from which the message came: `<queue>` or `<exchange>.<queue>`.
    pub channel: String,
    /// The body.
    pub body: Vec<u8>,
    /// The attribute `content-type`, if the producer sent one.
    pub content_type: Option<String>,
    /// Attributes that the producer sent with the body. [`attribute`](Self::attribute) returns one by its name.
    pub attributes: Vec<Attribute>,
    /// Number of this delivery, counted by the queue. The first is 1.
    pub attempt: u32,
    /// Time at which the queue accepted the message from its producer, with a precision of milliseconds.
    pub enqueued_at: SystemTime,
    /// The FIFO group (or the tenant on a standard queue).
    pub group: Option<String>,
    /// Routing key with which the message was published.
    pub routing_key: Option<String>,
}

/// A named value that accompanies a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// The name.
    pub name: String,
    /// The value.
    pub value: Value,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text. Numbers are also text.
    Text(String),
    /// Bytes.
    Binary(Vec<u8>),
}

impl Message {
    /// Creates the first delivery of a message with this body, for tests. To change other values, set the public fields.
    ///
    /// ```
    /// use hostler_guest::Message;
    ///
    /// let mut message = Message::test(r#"{"seats": 2}"#).with("locale", "de");
    /// message.attempt = 3;
    /// assert_eq!(message.attribute("locale"), Some("de"));
    /// ```
    #[must_use]
    pub fn test(body: impl Into<Vec<u8>>) -> Self {
        Self {
            id: "test".into(),
            channel: "test".into(),
            body: body.into(),
            content_type: None,
            attributes: Vec::new(),
            attempt: 1,
            enqueued_at: SystemTime::now(),
            group: None,
            routing_key: None,
        }
    }

    /// Adds an attribute, for tests. For `content-type`, also sets the field `content_type`, as a host does.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        let attribute = Attribute::new(name, value);
        if let ("content-type", Value::Text(text)) = (attribute.name.as_str(), &attribute.value) {
            self.content_type = Some(text.clone());
        }
        self.attributes.push(attribute);
        self
    }

    /// Returns the body as text.
    ///
    /// # Errors
    /// [`Malformed`] if the body is not valid UTF-8. If a handler returns this error by `?`, hostler dead-letters the message.
    pub fn text(&self) -> Result<&str, Malformed> {
        std::str::from_utf8(&self.body).map_err(|error| Malformed::new(format!("the body is not valid UTF-8: {error}")))
    }

    /// Parses the body as JSON.
    ///
    /// # Errors
    /// [`Malformed`] if the body is not valid JSON or does not match the type `T`. If a handler returns this error by `?`,
    /// hostler dead-letters the message.
    #[cfg(feature = "json")]
    pub fn json<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, Malformed> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Malformed::new(format!("the body is not the JSON that is expected: {error}")))
    }

    /// Returns the text of an attribute. `None`: the message has no attribute of this name, or the attribute is binary.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        match self.value(name)? {
            Value::Text(text) => Some(text),
            Value::Binary(_) => None,
        }
    }

    /// Returns the bytes of a binary attribute. `None`: the message has no attribute of this name, or the attribute is text.
    #[must_use]
    pub fn binary(&self, name: &str) -> Option<&[u8]> {
        match self.value(name)? {
            Value::Text(_) => None,
            Value::Binary(bytes) => Some(bytes),
        }
    }

    /// Returns the value of an attribute, text or binary.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.attributes.iter().find(|attribute| attribute.name == name).map(|attribute| &attribute.value)
    }

    /// Parses the text of an attribute. `None`: the message has no attribute of this name.
    ///
    /// ```
    /// use hostler_guest::Message;
    ///
    /// let message = Message::test("").with("seats", "2").with("row", "x");
    /// assert_eq!(message.parse::<u8>("seats"), Ok(Some(2)));
    /// assert_eq!(message.parse::<u8>("class"), Ok(None));
    /// assert_eq!(message.parse::<u8>("row").unwrap_err().to_string(), "the attribute `row`: invalid digit found in string");
    /// ```
    ///
    /// # Errors
    /// [`Malformed`] if the text cannot be parsed, or if the attribute is binary. If a handler returns this error by `?`, hostler
    /// dead-letters the message.
    pub fn parse<T>(&self, name: &str) -> Result<Option<T>, Malformed>
    where
        T: FromStr<Err: std::fmt::Display>,
    {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Text(text)) => {
                let parsed = text.parse().map_err(|error| Malformed::new(format!("the attribute `{name}`: {error}")));
                parsed.map(Some)
            }
            Some(Value::Binary(_)) => Err(Malformed::new(format!("the attribute `{name}` is binary"))),
        }
    }
}

impl Attribute {
    /// Creates an attribute.
    pub fn new(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::Binary(bytes.into())
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Binary(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_text_or_binary() {
        let message = Message::test("").with("t", "über").with("b", vec![0, 255]).with("content-type", "text/csv");
        assert_eq!((message.attribute("t"), message.binary("t")), (Some("über"), None));
        assert_eq!((message.attribute("b"), message.binary("b")), (None, Some(&[0, 255][..])));
        assert_eq!(message.value("none"), None);
        assert_eq!(message.content_type.as_deref(), Some("text/csv"));
        assert_eq!(message.parse::<u8>("b").unwrap_err().to_string(), "the attribute `b` is binary");
    }

    #[test]
    fn a_body_that_is_not_what_it_should_be_says_where() {
        let fault = Message::test([b'a', 0xff]).text().unwrap_err().to_string();
        assert_eq!(fault, "the body is not valid UTF-8: invalid utf-8 sequence of 1 bytes from index 1");
        assert_eq!(Message::test("a").text(), Ok("a"));
    }

    #[cfg(feature = "json")]
    #[test]
    fn json_may_borrow_from_the_body() {
        let message = Message::test(r#"["a", 1]"#);
        assert_eq!(message.json::<(&str, u8)>(), Ok(("a", 1)));
        let fault = message.json::<Vec<u8>>().unwrap_err().to_string();
        assert!(fault.starts_with("the body is not the JSON that is expected: invalid type: string \"a\""), "{fault}");
    }
}
