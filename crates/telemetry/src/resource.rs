//! The attributes of this process under OpenTelemetry's names. Logs, metrics and traces contain them.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use opentelemetry::{KeyValue, StringValue, Value};
use opentelemetry_sdk::resource::{EnvResourceDetector, ResourceDetector as _, TelemetryResourceDetector};
use opentelemetry_semantic_conventions::attribute::SERVICE_NAME;
use serde::Serialize;

use hostler_types::printable::in_json;

/// Value of an attribute: a string, or a list of strings.
pub type Attribute = serde_json::Value;

/// A set of attributes, by their OpenTelemetry names (opentelemetry.io/docs/specs/semconv/resource). Serializes as one
/// object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Resource {
    attributes: BTreeMap<&'static str, Attribute>,
}

impl Default for Resource {
    fn default() -> Self {
        Self::new()
    }
}

impl Resource {
    /// Returns the attributes of the program itself: `service.name` and `service.version`.
    pub fn new() -> Self {
        let attributes = [("service.name", "hostler"), ("service.version", env!("CARGO_PKG_VERSION"))];
        Self { attributes: attributes.map(|(name, value)| (name, value.into())).into() }
    }

    /// Sets an attribute. Does nothing if `value` is `None`.
    pub fn set<A: Into<Attribute>>(&mut self, name: &'static str, value: Option<A>) {
        if let Some(value) = value {
            self.attributes.insert(name, value.into());
        }
    }

    /// Returns all attributes, sorted by name.
    pub fn attributes(&self) -> impl Iterator<Item = (&'static str, &Attribute)> {
        self.attributes.iter().map(|(name, value)| (*name, value))
    }

    /// Converts the attributes for the SDK. As the specification requires, values from the standard variables take
    /// precedence (OpenTelemetry specification, resource SDK; general SDK configuration).
    pub(super) fn for_sdk(&self) -> opentelemetry_sdk::Resource {
        let text = |value: &Attribute| StringValue::from(value.as_str().unwrap_or_default().to_owned());
        let own = self.attributes().map(|(name, value)| match value {
            Attribute::Array(texts) => {
                KeyValue::new(name, Value::Array(texts.iter().map(text).collect::<Vec<_>>().into()))
            }
            one => KeyValue::new(name, Value::String(text(one))),
        });
        let environment = EnvResourceDetector::new().detect();
        let environment = environment.iter().map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
        let service = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
        opentelemetry_sdk::Resource::builder_empty()
            .with_attributes(own)
            .with_detector(Box::new(TelemetryResourceDetector))
            .with_attributes(environment)
            .with_attributes(service.map(|name| KeyValue::new(SERVICE_NAME, name)))
            .build()
    }
}

/// The resource and its JSON for log lines.
struct Known {
    resource: Resource,
    json: String,
}

/// The resource of this process, set once.
static KNOWN: OnceLock<Known> = OnceLock::new();

/// Sets the resource of this process. JSON log lines contain the resource from then on. Further calls have no effect.
pub fn describe(resource: Resource) {
    if let Ok(json) = serde_json::to_string(&resource) {
        KNOWN.get_or_init(|| Known { resource, json: in_json(&json).into_owned() });
    }
}

/// Returns the resource of this process. `None`: [`describe`] was not called yet.
pub fn resource() -> Option<&'static Resource> {
    KNOWN.get().map(|known| &known.resource)
}

/// Returns the resource as a JSON object, which is serialized once.
pub(super) fn json() -> Option<&'static str> {
    KNOWN.get().map(|known| known.json.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_object_of_texts_and_lists() {
        let mut resource = Resource::new();
        resource.set("cloud.provider", Some("aws"));
        resource.set("container.image.tags", Some(vec!["1.2".to_owned()]));
        resource.set("cloud.region", None::<String>);
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            r#"{{"cloud.provider":"aws","container.image.tags":["1.2"],"service.name":"hostler","service.version":"{version}"}}"#
        );
        assert_eq!(serde_json::to_string(&resource).unwrap(), expected);
        assert_eq!(resource.attributes().count(), 4);
    }
}
