//! The OpenAPI document: completes what the routes say with the refusals, limits and examples that they share.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::api::input::BODY;
use crate::api::roles::{Access, Role};
use crate::api::work::{TYPES, WAIT};
use crate::limits::{MAX_ASSIGNMENTS, MAX_CLAIM, MAX_DELAY, MAX_ITEMS, MAX_JOBS, MAX_KEY, MAX_SEALS, MAX_TYPE};

/// The refusals that many operations share, with the description of each.
const REFUSALS: [(u16, &str); 13] = [
    (400, "The request is malformed: bad JSON, or a bad percent-encoding."),
    (401, "No valid token was given."),
    (403, "The token's role may not do this; or, where there are no tokens, the client is not local."),
    (404, "There is no such thing."),
    (405, "The route does not have this method."),
    (408, "The body came too slowly."),
    (413, "The body is larger than 64 MiB."),
    (415, "The body is not declared as JSON."),
    (422, "A field is unknown, missing or out of its limits; `field` names it."),
    (429, "Too many requests."),
    (431, "The head of the request is too large."),
    (500, "The service has a fault."),
    (
        503,
        "The database does not answer, the service stops, or an applet cannot run here. The request may be repeated, except where `detail` says that it may have been carried out.",
    ),
];

/// Completes the document of the routes.
pub fn complete(mut document: Value) -> Value {
    document["openapi"] = json!("3.1.0");
    document["info"] = json!({
        "title": "hostler jobs",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "Trees of jobs whose items are claimed by workers. Errors are `application/problem+json`.",
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    document["tags"] = json!([
        { "name": "jobs", "description": "Creating, reading and deleting jobs." },
        { "name": "items", "description": "Reading items and their results." },
        { "name": "work", "description": "Claiming and settling items." },
        { "name": "service", "description": "Health, metrics and this document." },
    ]);
    document["components"]["securitySchemes"] = json!({ "token": {
        "type": "http", "scheme": "bearer",
        "description": "A token of a role. A server without tokens lets in clients on its own machine only.",
    }});
    document["components"]["responses"] = REFUSALS.iter().map(|(status, text)| refusal(*status, text)).collect();
    edit(&mut document["paths"], |paths| {
        for (_, path) in paths {
            edit(path, |operations| operations.values_mut().for_each(complete_operation));
        }
    });
    edit(&mut document["components"]["schemas"], limit_schemas);
    document
}

/// Returns the shared response of a status.
fn refusal(status: u16, text: &str) -> (String, Value) {
    let mut response = json!({
        "description": text,
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    });
    let header = match status {
        401 => Some(("WWW-Authenticate", json!({ "type": "string", "example": "Bearer" }))),
        405 => Some(("Allow", json!({ "type": "string", "example": "GET,HEAD" }))),
        429 | 503 => Some(("Retry-After", json!({ "type": "integer", "minimum": 1, "example": 1 }))),
        _ => None,
    };
    if let Some((name, schema)) = header {
        response["headers"] = json!({ name: { "schema": schema } });
    }
    (format!("Refusal{status}"), response)
}

/// Adds the refusals that follow from an operation's shape, and the limits of its parameters.
fn complete_operation(operation: &mut Value) {
    let takes_body = operation.get("requestBody").is_some();
    let secured = roles(operation) != Access::Open;
    let mut takes_parameters = false;
    if let Some(Value::Array(parameters)) = operation.get_mut("parameters") {
        takes_parameters = !parameters.is_empty();
        parameters.iter_mut().for_each(limit_parameter);
    }
    if takes_body {
        operation["requestBody"]["required"] = json!(true);
        operation["requestBody"]["description"] = json!(format!("JSON of {} MiB at most.", BODY >> 20));
    }
    for (status, _) in REFUSALS {
        let occurs = match status {
            401 => secured,
            408 | 413 | 415 => takes_body,
            422 => takes_body || takes_parameters,
            404 => false,
            _ => true,
        };
        if occurs {
            let reference = json!({ "$ref": format!("#/components/responses/Refusal{status}") });
            edit(&mut operation["responses"], |responses| {
                responses.entry(status.to_string()).or_insert(reference);
            });
        }
    }
}

/// Adds the limits of a parameter.
fn limit_parameter(parameter: &mut Value) {
    let limits = match parameter["name"].as_str() {
        Some("id" | "worker_id" | "root_id" | "job_id" | "cursor") => json!({ "minLength": 1, "maxLength": MAX_KEY }),
        Some("Idempotency-Key") => {
            json!({ "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[!-~]([ -~]*[!-~])?$", "type": "string" })
        }
        Some("type") => json!({ "minLength": 1, "maxLength": MAX_KEY }),
        Some("limit") => json!({ "minimum": 1, "maximum": 1000, "default": 100, "type": "integer" }),
        Some("complete" | "final_stage") => json!({ "type": "boolean" }),
        _ => json!({}),
    };
    apply(&mut parameter["schema"], limits);
    // A parameter that is not given is left out: there is no way to write null.
    if parameter["schema"]["type"].is_array() {
        parameter["schema"]["type"] = json!("string");
    }
    if let Some(Value::Array(choices)) = parameter["schema"].get_mut("oneOf") {
        choices.retain(|choice| choice["type"] != "null");
    }
}

/// Adds the limits of the fields of bodies, which the checks of store and handlers enforce.
fn limit_schemas(schemas: &mut Map<String, Value>) {
    let key = || json!({ "maxLength": MAX_KEY });
    let id = || json!({ "minLength": 1, "maxLength": MAX_KEY });
    let kind = || json!({ "minLength": 1, "maxLength": MAX_TYPE, "pattern": "^[A-Za-z0-9._-]+$" });
    let metadata = || json!({ "type": "object", "default": {}, "$ref": null });
    // An id of any length that is no assignment's is stale.
    let ids = || json!({ "maxItems": MAX_ASSIGNMENTS });
    let delay = || json!({ "minimum": 0, "maximum": MAX_DELAY });
    let added = || json!({ "maxItems": MAX_ITEMS });
    let seals = || json!({ "maxItems": MAX_SEALS, "items": merged(id(), json!({ "type": "string" })) });
    let limits = [
        ("NewJob", "type", kind()),
        ("NewJob", "id", id()),
        ("NewJob", "dedupe_key", id()),
        ("NewJob", "metadata", metadata()),
        ("NewJob", "items", json!({ "maxItems": MAX_ITEMS })),
        ("NewJob", "children", json!({ "maxItems": MAX_JOBS - 1 })),
        ("NewItem", "id", id()),
        ("NewItem", "dedupe_key", id()),
        ("NewItem", "serialize_key", id()),
        ("NewItem", "metadata", metadata()),
        ("AddItems", "items", json!({ "maxItems": MAX_ITEMS })),
        (
            "Claim",
            "types",
            json!({ "minItems": 1, "maxItems": TYPES, "items": merged(kind(), json!({ "type": "string" })) }),
        ),
        ("Claim", "worker_id", id()),
        ("Claim", "max", json!({ "minimum": 1, "maximum": MAX_CLAIM })),
        ("Claim", "wait_seconds", json!({ "minimum": 0, "maximum": WAIT, "default": 0 })),
        ("FailureBody", "retry_in_seconds", delay()),
        ("Failure", "retry_in_seconds", delay()),
        ("SettleRequest", "results", json!({ "maxItems": MAX_ASSIGNMENTS })),
        ("SettleRequest", "failures", json!({ "maxItems": MAX_ASSIGNMENTS })),
        ("Heartbeat", "assignment_ids", ids()),
        ("Release", "assignment_ids", ids()),
        ("Release", "delay_seconds", delay()),
        ("ResultBody", "add_items", added()),
        ("ResultBody", "seal", seals()),
        ("Success", "add_items", added()),
        ("Success", "seal", seals()),
        ("AddedTo", "target", id()),
        ("AddedTo", "items", added()),
        ("AddedItem", "dedupe_key", id()),
        ("AddedItem", "serialize_key", id()),
        ("AddedItem", "metadata", metadata()),
        ("Progress", "fraction", json!({ "minimum": 0, "maximum": 1 })),
        ("Progress", "text", key()),
    ];
    for (schema, property, limits) in limits {
        if let Some(field) = schemas.get_mut(schema).and_then(|schema| schema["properties"].get_mut(property)) {
            apply(field, limits);
        }
    }
    for (schema, example) in examples() {
        if let Some(Value::Object(schema)) = schemas.get_mut(schema) {
            schema.insert("example".to_owned(), example);
        }
    }
}

/// Returns an example of each request.
fn examples() -> [(&'static str, Value); 8] {
    let assignment = "a-5007-2a-0123456789abcdef";
    [
        (
            "NewJob",
            json!({
                "type": "thumbnails", "sealed": true, "max_failures_per_item": 3,
                "items": [{ "payload": { "image": "cat.png" } }, { "payload": { "image": "dog.png" }, "priority": -1 }],
            }),
        ),
        ("AddItems", json!({ "items": [{ "payload": { "image": "owl.png" }, "dedupe_key": "owl" }] })),
        ("Claim", json!({ "types": ["thumbnails"], "worker_id": "worker-1", "max": 10, "wait_seconds": 0 })),
        (
            "ResultBody",
            json!({
                "result": { "width": 64 },
                "add_items": [{ "target": "frames", "items": [{ "payload": { "frame": 1 } }] }], "seal": ["frames"],
            }),
        ),
        ("FailureBody", json!({ "error": "the image is broken", "retry_in_seconds": 30 })),
        ("SettleRequest", json!({ "results": [{ "assignment_id": assignment, "result": 1 }], "failures": [] })),
        (
            "Heartbeat",
            json!({ "assignment_ids": [assignment], "progress": { assignment: { "fraction": 0.5, "text": "half" } } }),
        ),
        ("Release", json!({ "assignment_ids": [assignment], "delay_seconds": 5 })),
    ]
}

/// Writes the members of `limits` over those of a schema. `null` removes a member.
fn apply(schema: &mut Value, limits: Value) {
    let Value::Object(limits) = limits else { return };
    edit(schema, |members| {
        for (name, value) in limits {
            if value.is_null() {
                members.remove(&name);
            } else {
                members.insert(name, value);
            }
        }
    });
}

fn merged(mut schema: Value, more: Value) -> Value {
    apply(&mut schema, more);
    schema
}

/// Changes the object that `value` is.
fn edit(value: &mut Value, change: impl FnOnce(&mut Map<String, Value>)) {
    if let Value::Object(members) = value {
        change(members);
    }
}

/// Reads the callers that each operation lets in, by route and method.
pub fn access(document: &Value) -> HashMap<(String, String), Access> {
    let paths = document["paths"].as_object().into_iter().flatten();
    let operations = paths.flat_map(|(path, item)| {
        let operations = item.as_object().into_iter().flatten();
        operations.map(move |(method, operation)| ((path.clone(), method.to_ascii_uppercase()), roles(operation)))
    });
    operations.collect()
}

/// Reads the callers that an operation lets in. An operation that says nothing is for operators.
fn roles(operation: &Value) -> Access {
    let requirements = operation["security"].as_array().map_or(&[][..], Vec::as_slice);
    if requirements.iter().any(|requirement| requirement.as_object().is_some_and(Map::is_empty)) {
        return Access::Open;
    }
    let names = requirements.iter().filter_map(|requirement| requirement["token"].as_array()).flatten();
    Access::Roles(names.filter_map(|name| Role::parse(name.as_str()?)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_without_security_is_for_operators() {
        assert_eq!(roles(&json!({})), Access::Roles(vec![]));
        assert_eq!(roles(&json!({ "security": [{}] })), Access::Open);
        let both = json!({ "security": [{ "token": ["worker"] }, { "token": ["operator"] }] });
        assert_eq!(roles(&both), Access::Roles(vec![Role::Worker, Role::Operator]));
    }

    #[test]
    fn refusals_follow_from_the_shape_of_an_operation() {
        let mut operation =
            json!({ "responses": { "200": {} }, "requestBody": {}, "security": [{ "token": ["worker"] }] });
        complete_operation(&mut operation);
        for status in ["401", "403", "405", "408", "413", "415", "422", "429", "500", "503"] {
            assert!(operation["responses"].get(status).is_some(), "{status}");
        }
        let mut open = json!({ "responses": { "200": {} }, "security": [{}] });
        complete_operation(&mut open);
        assert!(open["responses"].get("401").is_none() && open["responses"].get("415").is_none());
    }
}
