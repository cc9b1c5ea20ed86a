//! Keys of messages: the place of a key in a message, and its value.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::message::{AttributeValue, Message, ORIGINAL_ID_ATTRIBUTE, is_attribute_name};

/// Characters that other dialects of paths give a meaning to. A name that contains one of them cannot be written.
const SPECIAL: &[char] = &['[', ']', '*', '?', '@', '$', '(', ')', ',', ':', '\'', '"'];

/// Place of the key in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A member of the JSON body, by the names on the way to it. Written as `$.order.id`.
    Body(Vec<String>),
    /// A text attribute. Written as `attr:NAME`.
    Attribute(String),
    /// The id of the message: of a requeued one, the id that it had at first. Written as `id`.
    Id,
}

impl KeySource {
    /// Parses a place: `$.` and names joined by dots, where a number is an index of an array; `attr:` and the name of an attribute;
    /// or `id`.
    ///
    /// # Errors
    /// A description of the fault, with the cure.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "id" {
            return Ok(Self::Id);
        }
        if let Some(name) = text.strip_prefix("attr:") {
            let fault = || format!("`{name}` is not a valid attribute name");
            return is_attribute_name(name).then(|| Self::Attribute(name.to_owned())).ok_or_else(fault);
        }
        let Some(path) = text.strip_prefix("$.") else {
            return Err("a key is `$.` and names joined by dots such as `$.order.id`, `attr:NAME`, or `id`".to_owned());
        };
        let is_name = |name: &str| !name.is_empty() && !name.contains(SPECIAL) && !name.contains(char::is_whitespace);
        if let Some(name) = path.split('.').find(|name| !is_name(name)) {
            return Err(format!(
                "`{name}` is not a name in a path: use names joined by dots, without brackets, wildcards and quotes"
            ));
        }
        Ok(Self::Body(path.split('.').map(str::to_owned).collect()))
    }

    /// Returns the key of a message whose body is loaded. A text and a number in a body differ: a text has quotes.
    ///
    /// # Errors
    /// A description of what the message lacks.
    pub fn of(&self, message: &Message) -> Result<String, String> {
        let lacks = |why: &str| Err(format!("the message has no idempotency key: {self} {why}"));
        match self {
            Self::Id => match message.attributes.get(ORIGINAL_ID_ATTRIBUTE) {
                Some(AttributeValue::Text(original)) => Ok(original.clone()),
                _ => Ok(message.id.clone()),
            },
            Self::Attribute(name) => match message.attributes.get(name) {
                None => lacks("is not set"),
                Some(AttributeValue::Text(text)) if text.is_empty() => lacks("is empty"),
                Some(AttributeValue::Text(text)) => Ok(text.clone()),
                Some(_) => lacks("is not a text"),
            },
            Self::Body(names) => {
                let mut body = serde_json::Deserializer::from_slice(&message.body);
                let found = Place(names).deserialize(&mut body).and_then(|found| body.end().map(|()| found));
                match found {
                    Err(_) => lacks("needs a body of JSON"),
                    Ok(Found::Nothing) => lacks("is not in the body"),
                    Ok(Found::Text(text)) if text.is_empty() => lacks("is empty"),
                    Ok(Found::Text(text)) => Ok(Value::String(text).to_string()),
                    Ok(Found::Number(number)) => Ok(number),
                    Ok(Found::Other) => lacks("is neither a text nor a whole number below 2^64"),
                }
            }
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body(names) => write!(f, "`$.{}`", names.join(".")),
            Self::Attribute(name) => write!(f, "the attribute `{name}`"),
            Self::Id => f.write_str("the message id"),
        }
    }
}

/// The rest of the way to a member. Of what lies beside it, nothing is kept.
struct Place<'a>(&'a [String]);

/// Value at the end of the way.
enum Found {
    Nothing,
    Text(String),
    Number(String),
    Other,
}

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Found, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Place<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let Some((first, rest)) = self.0.split_first() else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Found::Other);
        };
        let mut found = Found::Nothing;
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            // Of members with the same name, the last one counts.
            if name == first.as_str() {
                found = map.next_value_seed(Place(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Found, A::Error> {
        let mut found = if self.0.is_empty() { Found::Other } else { Found::Nothing };
        if let Some((first, rest)) = self.0.split_first()
            && let Ok(index) = first.parse::<usize>()
        {
            let mut before = 0;
            while before < index && seq.next_element::<IgnoredAny>()?.is_some() {
                before += 1;
            }
            if before == index {
                found = seq.next_element_seed(Place(rest))?.unwrap_or(Found::Nothing);
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }

    fn visit_str<E>(self, text: &str) -> Result<Found, E> {
        Ok(self.end(Found::Text(text.to_owned())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Found, E> {
        Ok(self.end(Found::Number(number.to_string())))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Found, E> {
        Ok(self.end(Found::Number(number.to_string())))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Found, E> {
        Ok(self.end(Found::Other))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Found, E> {
        Ok(self.end(Found::Other))
    }

    fn visit_unit<E>(self) -> Result<Found, E> {
        Ok(Found::Nothing)
    }
}

impl Place<'_> {
    /// Returns what was found, if the way ends here.
    fn end(self, found: Found) -> Found {
        if self.0.is_empty() { found } else { Found::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(source: &str, body: &str) -> Result<String, String> {
        KeySource::parse(source).unwrap().of(&Message::new("m-1", body.to_owned()))
    }

    #[test]
    fn a_key_is_a_text_or_a_whole_number_of_the_body() {
        assert_eq!(key("$.order.id", r#"{"order":{"id":"A-17"}}"#).unwrap(), "\"A-17\"");
        assert_eq!(key("$.order.id", r#"{"order":{"id":17}}"#).unwrap(), "17");
        assert_eq!(key("$.items.1.id", r#"{"items":[{"id":1},{"id":-2}]}"#).unwrap(), "-2");
        assert_eq!(key("$.n", r#"{"n":[1],"n":"last","m":{"n":2}}"#).unwrap(), "\"last\"");
        assert_eq!(key("$.0.0", "[[7,8],9]").unwrap(), "7");
        assert_eq!(key("$.a~b/c", r#"{"a~b/c":"x"}"#).unwrap(), "\"x\"");
        assert_eq!(key("$.n", r#"{"n":18446744073709551615}"#).unwrap(), "18446744073709551615");
        assert_eq!(key("$.n", "{\"n\":\"a\\u0000\"}").unwrap(), "\"a\\u0000\"", "a key has no control characters");
        for body in
            ["", "[", "{}", "[1]", r#"{"n":null}"#, r#"{"n":""}"#, r#"{"n":1.5}"#, r#"{"n":[1]}"#, r#"{"n":true}"#]
        {
            let fault = key("$.n", body).unwrap_err();
            assert!(fault.contains("no idempotency key: `$.n`"), "{body}: {fault}");
        }
        assert!(key("$.n", r#"{"n":18446744073709551616}"#).is_err(), "two large numbers could be taken for one");
    }

    #[test]
    fn a_key_is_an_attribute_or_the_first_id() {
        let mut message = Message::new("m-1", "");
        let attribute = KeySource::parse("attr:order-id").unwrap();
        assert!(attribute.of(&message).unwrap_err().contains("the attribute `order-id` is not set"));
        assert_eq!(KeySource::Id.of(&message).unwrap(), "m-1");
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        message.attributes.insert("order-id".to_owned(), text("7"));
        message.attributes.insert(ORIGINAL_ID_ATTRIBUTE.to_owned(), text("m-0"));
        assert_eq!(attribute.of(&message).unwrap(), "7");
        assert_eq!(KeySource::Id.of(&message).unwrap(), "m-0");
        for bad in [text(""), AttributeValue::Binary(vec![1])] {
            message.attributes.insert("order-id".to_owned(), bad);
            assert!(attribute.of(&message).is_err());
        }
    }

    #[test]
    fn a_place_that_is_no_place_is_refused() {
        for bad in [
            "",
            "$",
            "$.",
            "$..id",
            "$.a.",
            "$.a[0]",
            "$.*",
            "order.id",
            "/order/id",
            "$.a b",
            "attr:",
            "attr:a b",
            "ID",
        ] {
            assert!(KeySource::parse(bad).is_err(), "{bad}");
        }
        for good in ["$.order.id", "$.a~b/c", "$.items.0"] {
            assert_eq!(KeySource::parse(good).unwrap().to_string(), format!("`{good}`"));
        }
    }
}
