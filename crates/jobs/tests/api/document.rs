//! The OpenAPI document: complete, and true to the routes.

use hostler_jobs::api::openapi;
use hostler_jobs::server::ServerSettings;
use reqwest::Method;
use serde_json::Value;

use crate::support::{Server, read};

/// The routes of the service, with the roles that each lets in besides operators.
const ROUTES: [(&str, &str, &[&str]); 20] = [
    ("post", "/job", &["producer"]),
    ("get", "/job", &["producer"]),
    ("get", "/job/{id}/status", &["producer"]),
    ("delete", "/job/{id}", &["producer"]),
    ("post", "/job/{id}/items", &["producer"]),
    ("post", "/job/{id}/seal", &["producer"]),
    ("post", "/job/{id}/retry", &[]),
    ("get", "/job_item", &["producer", "worker"]),
    ("post", "/claim", &["worker"]),
    ("post", "/job_item/{id}/worker/{worker_id}", &["worker"]),
    ("post", "/assignment/{id}/result", &["worker"]),
    ("post", "/assignment/{id}/failure", &["worker"]),
    ("post", "/assignment/{id}/heartbeat", &["worker"]),
    ("post", "/settle", &["worker"]),
    ("post", "/heartbeat", &["worker"]),
    ("post", "/release", &["worker"]),
    ("get", "/healthz", &["anyone"]),
    ("get", "/readyz", &["anyone"]),
    ("get", "/metrics", &["producer", "worker"]),
    ("get", "/openapi.json", &["anyone"]),
];

fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, item)| {
        let of_path = item.as_object().unwrap().iter();
        of_path.map(|(method, operation)| (method.clone(), path.clone(), operation.clone()))
    });
    operations.collect()
}

#[test]
fn every_route_is_documented_with_its_roles() {
    let operations = operations(&openapi());
    assert_eq!(operations.len(), ROUTES.len());
    for (method, path, roles) in ROUTES {
        let found = operations.iter().find(|(known, at, _)| known == method && at == path);
        let (_, _, operation) = found.unwrap_or_else(|| panic!("{method} {path} is missing"));
        let security = operation["security"].as_array().unwrap();
        let named = security.iter().map(|entry| entry["token"][0].as_str().unwrap_or("anyone"));
        let named: Vec<_> = named.filter(|role| *role != "operator").collect();
        assert_eq!(named, roles, "{method} {path}");
        assert!(operation["summary"].is_string(), "{method} {path}");
        assert!(operation["operationId"].is_string(), "{method} {path}");
    }
}

#[test]
fn every_reference_leads_somewhere() {
    fn check(document: &Value, value: &Value) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    let place = reference.strip_prefix('#').unwrap();
                    assert!(document.pointer(place).is_some(), "{reference} leads nowhere");
                }
                members.values().for_each(|member| check(document, member));
            }
            Value::Array(parts) => parts.iter().for_each(|part| check(document, part)),
            _ => {}
        }
    }
    let document = openapi();
    assert_eq!(document["openapi"], "3.1.0");
    check(&document, &document);
}

#[test]
fn bodies_have_limits_and_examples() {
    let document = openapi();
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["NewJob"]["properties"]["items"]["maxItems"], 10_000);
    assert_eq!(schemas["NewJob"]["properties"]["type"]["maxLength"], 100);
    assert_eq!(schemas["NewJob"]["properties"]["metadata"]["type"], "object");
    assert_eq!(schemas["Claim"]["properties"]["max"]["maximum"], 1000);
    assert_eq!(schemas["NewJob"]["additionalProperties"], false);
    for schema in ["NewJob", "AddItems", "Claim", "ResultBody", "FailureBody", "SettleRequest", "Heartbeat", "Release"]
    {
        assert!(schemas[schema]["example"].is_object(), "{schema}");
    }
}

#[tokio::test]
async fn the_served_document_is_the_same_and_its_routes_exist() {
    let server = Server::without_database(ServerSettings::default()).await;
    let (status, served) = server.get("/openapi.json").await;
    assert_eq!((status, &served), (200, &openapi()));
    for (method, path, _) in operations(&served) {
        let path = path.replace("{id}", "x").replace("{worker_id}", "w");
        let method: Method = method.to_ascii_uppercase().parse().unwrap();
        let response = server.request(method, &path).send().await.unwrap();
        let status = response.status().as_u16();
        if path != "/metrics" {
            read(response).await;
        }
        assert!(!matches!(status, 404 | 405), "{path} answers {status}");
    }
    server.stop().await;
}
