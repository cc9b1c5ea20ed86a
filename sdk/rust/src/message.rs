//! A message, as a handler gets it.

use std::str::FromStr;
use std::time::SystemTime;

use crate::Malformed;

/// A message, as one delivery of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The queue's id of the message: the same at every delivery, so a key for work that must happen once.
    pub id: String,
    /// The channel that it came from: `<queue>` or `<exchange>.<queue>`.
    pub channel: String,
    /// The body.
    pub body: Vec<u8>,
    /// The attribute `content-type`, if the producer sent one.
    pub content_type: Option<String>,
    /// What the producer sent with the body. [`attribute`](Self::attribute) finds one by its name.
    pub attributes: Vec<Attribute>,
    /// Which delivery of this message it is, by the queue's own count; 1 is the first.
    pub attempt: u32,
    /// When the queue took the message from its producer, to the millisecond.
    pub enqueued_at: SystemTime,
    /// The FIFO group (or the tenant on a standard queue).
    pub group: Option<String>,
    /// The routing key that it was published with.
    pub routing_key: Option<String>,
}

/// A named value that goes with a body.
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
    /// Text. Numbers are text, too.
    Text(String),
    /// Bytes.
    Binary(Vec<u8>),
}

impl Message {
    /// A first delivery of this body, for tests. Set what else it is to have: its fields are public.
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

    /// The same message with this attribute, for tests. `content-type` is a field as well, as a host sets it.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        let attribute = Attribute::new(name, value);
        if let ("content-type", Value::Text(text)) = (attribute.name.as_str(), &attribute.value) {
            self.content_type = Some(text.clone());
        }
        self.attributes.push(attribute);
        self
    }

    /// The body as text.
    ///
    /// # Errors
    /// [`Malformed`] if it is no UTF-8; by `?` in a handler, the message is dead-lettered.
    pub fn text(&self) -> Result<&str, Malformed> {
        std::str::from_utf8(&self.body).map_err(|error| Malformed::new(format!("the body is no UTF-8: {error}")))
    }

    /// The body, parsed as JSON.
    ///
    /// # Errors
    /// [`Malformed`] if it is no JSON, or not of this shape; by `?` in a handler, the message is dead-lettered.
    #[cfg(feature = "json")]
    pub fn json<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, Malformed> {
        serde_json::from_slice(&self.body)
            .map_err(|error| Malformed::new(format!("the body is not the JSON that is expected: {error}")))
    }

    /// The text of an attribute; none if the message has no such attribute, or a binary one.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        match self.value(name)? {
            Value::Text(text) => Some(text),
            Value::Binary(_) => None,
        }
    }

    /// The bytes of a binary attribute; none if the message has no such attribute, or a text one.
    #[must_use]
    pub fn binary(&self, name: &str) -> Option<&[u8]> {
        match self.value(name)? {
            Value::Text(_) => None,
            Value::Binary(bytes) => Some(bytes),
        }
    }

    /// The value of an attribute, of either kind.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.attributes.iter().find(|attribute| attribute.name == name).map(|attribute| &attribute.value)
    }

    /// The text of an attribute, parsed; none if the message has no such attribute.
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
    /// [`Malformed`] if it does not parse, or is binary; by `?` in a handler, the message is dead-lettered.
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
    /// An attribute.
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
        assert_eq!(fault, "the body is no UTF-8: invalid utf-8 sequence of 1 bytes from index 1");
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
