//! JSON that is passed through as text, so that numbers, the order of keys and spaces survive.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::openapi::{RefOr, Schema, schema};
use utoipa::{PartialSchema, ToSchema};

/// Any JSON value, kept as the text it came as. `null` is a value.
#[derive(Clone)]
pub struct RawJson(Box<RawValue>);

impl RawJson {
    /// Takes text that is one JSON value.
    ///
    /// # Errors
    /// If the text is not JSON.
    pub fn parse(text: String) -> Result<RawJson, serde_json::Error> {
        RawValue::from_string(text).map(RawJson)
    }

    /// The text of a value.
    ///
    /// # Errors
    /// If the value cannot be written as JSON, for instance a map whose keys are not strings.
    pub fn of(value: &impl Serialize) -> Result<RawJson, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(RawJson)
    }

    /// The value `null`.
    pub fn null() -> RawJson {
        RawJson(RawValue::NULL.to_owned())
    }

    /// The value `{}`.
    pub fn object() -> RawJson {
        RawValue::from_string("{}".to_owned()).map_or_else(|_| RawJson::null(), RawJson)
    }

    /// The JSON text.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Set if the value is an object.
    pub fn is_object(&self) -> bool {
        self.text().starts_with('{')
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text())
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &RawJson) -> bool {
        self.text() == other.text()
    }
}

impl Default for RawJson {
    fn default() -> RawJson {
        RawJson::null()
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawJson, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(RawJson)
    }
}

impl PartialSchema for RawJson {
    fn schema() -> RefOr<Schema> {
        schema::Object::builder().schema_type(schema::SchemaType::AnyValue).into()
    }
}

impl ToSchema for RawJson {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Json")
    }
}
