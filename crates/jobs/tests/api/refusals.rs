//! Refusals that the service decides on before it asks the database, and those when the database is away.

use hostler_jobs::api::rate::Rate;
use hostler_jobs::server::ServerSettings;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Server, read, with_tokens};

#[tokio::test]
async fn unknown_routes_and_methods_are_refused() {
    let server = Server::without_database(ServerSettings::default()).await;
    assert_eq!(server.get("/what").await.0, 404);
    assert_eq!(server.get("/").await.0, 404);
    assert_eq!(server.get("/job/").await.0, 404);
    assert_eq!(server.get("/job//status").await.0, 422);
    for (method, path, allow) in [
        (Method::PUT, "/job", "GET,HEAD,POST"),
        (Method::OPTIONS, "/job", "GET,HEAD,POST"),
        (Method::TRACE, "/claim", "POST"),
        (Method::GET, "/claim", "POST"),
        (Method::POST, "/job/x", "DELETE"),
    ] {
        let response = server.request(method, path).send().await.unwrap();
        let mut allowed: Vec<_> = response.headers()["allow"].to_str().unwrap().split(',').collect();
        allowed.sort_unstable();
        assert_eq!(allowed.join(","), allow);
        assert_eq!(read(response).await.0, 405);
    }
    server.stop().await;
}

#[tokio::test]
async fn faulty_bodies_are_refused_with_their_place() {
    let server = Server::without_database(ServerSettings::default()).await;
    for (path, body, status, field) in [
        ("/job", "{", 400, Value::Null),
        ("/job", "", 400, Value::Null),
        ("/job", r#"{"type":"a"} x"#, 400, Value::Null),
        ("/job", r#"{"type":"a","colour":"red"}"#, 422, json!("/colour")),
        ("/job", r#"{"items":[]}"#, 422, json!("/type")),
        ("/job", r#"{"type":"a","children":[{"type":"b","items":[{}]}]}"#, 422, json!("/children/0/items/0/payload")),
        ("/job", r#"{"type":"a","type":"b"}"#, 422, json!("")),
        ("/job", r#"{"type":"a","dedupe_key":"x\u0000"}"#, 422, json!("/dedupe_key")),
        ("/job", "[]", 422, json!("")),
        ("/claim", "{}", 422, json!("/types")),
        ("/claim", r#"{"types":[],"worker_id":"w","max":1}"#, 422, json!("/types")),
        ("/claim", r#"{"types":["a"],"worker_id":"w","max":0}"#, 422, json!("/max")),
        ("/claim", r#"{"types":["a"],"worker_id":"w","max":-1}"#, 422, json!("/max")),
        ("/claim", r#"{"types":["a"],"worker_id":"w","max":1,"wait_seconds":61}"#, 422, json!("/wait_seconds")),
        ("/settle", r#"{"results":[{"assignment_id":"a"}]}"#, 422, json!("/results/0/result")),
        (
            "/settle",
            r#"{"failures":[{"assignment_id":"a","error":1,"retry_in_seconds":-1}]}"#,
            422,
            json!("/failures/0/retry_in_seconds"),
        ),
        ("/heartbeat", r#"{"assignment_ids":"a"}"#, 422, json!("/assignment_ids")),
    ] {
        let request = server.request(Method::POST, path).header("content-type", "application/json").body(body);
        let (found, problem) = read(request.send().await.unwrap()).await;
        assert_eq!((found, &problem["field"]), (status, &field), "{path} {body}: {problem}");
    }
    server.stop().await;
}

#[tokio::test]
async fn numbers_that_cannot_be_held_are_refused_with_their_place() {
    let server = Server::start(ServerSettings::default()).await;
    for (path, body, field) in [
        ("/job", r#"{"type":"a","items":[{"payload":[1e999]}]}"#, "/items/0/payload"),
        ("/job", r#"{"type":"a","items":[{"payload":["\ud83d\ude00",1e999]}]}"#, "/items/0/payload"),
        ("/job", r#"{"type":"a","metadata":{"a":-1e309}}"#, "/metadata"),
        ("/job", r#"{"type":"a","children":[{"type":"b","feed":{"payload":1e999}}]}"#, "/children/0/feed/payload"),
        ("/settle", r#"{"results":[{"assignment_id":"a","result":{"b":1e-99999}}]}"#, "/results/0/result"),
        ("/settle", r#"{"failures":[{"assignment_id":"a","error":1e999}]}"#, "/failures/0/error"),
        (
            "/settle",
            r#"{"results":[{"assignment_id":"a","result":1,"add_items":[{"target":"c","items":[{"payload":1e999}]}]}]}"#,
            "/results/0/add_items/0/items/0/payload",
        ),
        ("/assignment/a/result", r#"{"result":1e999}"#, "/result"),
    ] {
        let request = server.request(Method::POST, path).header("content-type", "application/json").body(body);
        let (found, problem) = read(request.send().await.unwrap()).await;
        assert_eq!((found, &problem["field"]), (422, &json!(field)), "{path} {body}: {problem}");
    }
    server.stop().await;
}

#[tokio::test]
async fn arrays_are_no_objects() {
    let server = Server::without_database(ServerSettings::default()).await;
    let job = r#"["a",null,null,0,false,true,{},null,null,[],[]]"#;
    let in_job = |field: &str, value: &str| format!(r#"{{"type":"a","{field}":{value}}}"#);
    for (path, body, field) in [
        ("/job", job.to_owned(), ""),
        ("/job", in_job("items", r#"[[1,"id",null,null,7,{}]]"#), "/items/0"),
        ("/job", in_job("children", &format!("[{job}]")), "/children/0"),
        ("/job", in_job("children", r#"[{"type":"b","feed":["$"]}]"#), "/children/0/feed"),
        ("/job", in_job("callback", r#"["url","http://127.0.0.1"]"#), "/callback"),
        ("/job", in_job("callback", r#""http://127.0.0.1""#), "/callback"),
        ("/job", in_job("callback", "{}"), "/callback"),
        ("/job", in_job("callback", r#"{"url":"http://127.0.0.1","channel":"c"}"#), "/callback"),
        ("/job", in_job("callback", r#"{"mail":"c"}"#), "/callback/mail"),
        ("/job", in_job("metadata", "[]"), "/metadata"),
        ("/job/j/items", "[[]]".to_owned(), ""),
        ("/job/j/items", r#"{"items":[[1]]}"#.to_owned(), "/items/0"),
        ("/claim", r#"[["a"],"w",1]"#.to_owned(), ""),
        ("/heartbeat", r#"[["a-1-1-0123456789abcdef"]]"#.to_owned(), ""),
        ("/heartbeat", r#"{"assignment_ids":[],"progress":{"a":[0.5,""]}}"#.to_owned(), "/progress/a"),
        ("/heartbeat", r#"{"assignment_ids":[],"progress":[]}"#.to_owned(), "/progress"),
        ("/release", r#"[["a-1-1-0123456789abcdef"]]"#.to_owned(), ""),
        ("/settle", "[[],[]]".to_owned(), ""),
        ("/settle", r#"{"results":[["a-1-1-0123456789abcdef",1]]}"#.to_owned(), "/results/0"),
        ("/settle", r#"{"failures":[["a-1-1-0123456789abcdef",1]]}"#.to_owned(), "/failures/0"),
        ("/assignment/a-1-1-0123456789abcdef/result", "[5]".to_owned(), ""),
        (
            "/assignment/a-1-1-0123456789abcdef/result",
            r#"{"result":5,"add_items":[["b",[]]]}"#.to_owned(),
            "/add_items/0",
        ),
        (
            "/assignment/a-1-1-0123456789abcdef/result",
            r#"{"result":5,"add_items":[{"target":"b","items":[[1]]}]}"#.to_owned(),
            "/add_items/0/items/0",
        ),
        ("/assignment/a-1-1-0123456789abcdef/failure", "[5]".to_owned(), ""),
    ] {
        let request = server.request(Method::POST, path).header("content-type", "application/json").body(body.clone());
        let (status, problem) = read(request.send().await.unwrap()).await;
        assert_eq!((status, &problem["field"]), (422, &json!(field)), "{path} {body}: {problem}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_job_with_a_feed_is_sealed_by_its_parent_only() {
    let server = Server::without_database(ServerSettings::default()).await;
    let child = json!({ "type": "b", "sealed": true, "feed": { "payload": "$" } });
    let (status, problem) = server.post("/job", &json!({ "type": "a", "children": [child] })).await;
    assert_eq!((status, &problem["field"]), (422, &json!("/children/0/sealed")), "{problem}");
    server.stop().await;
}

#[tokio::test]
async fn without_a_queue_callbacks_to_channels_are_refused() {
    let server = Server::without_database(ServerSettings::default()).await;
    let (status, problem) = server.post("/job", &json!({ "type": "a", "callback": { "channel": "done" } })).await;
    assert_eq!((status, &problem["field"]), (422, &json!("/callback/channel")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("[queue]"), "the cure: {problem}");
    server.stop().await;
}

#[tokio::test]
async fn callbacks_to_faulty_addresses_are_refused() {
    let server = Server::without_database(ServerSettings::default()).await;
    let ask = |url: String| {
        let body = json!({ "type": "a", "callback": { "url": url } });
        let server = &server;
        async move { server.post("/job", &body).await }
    };
    let long = format!("http://x/{}", "y".repeat(2_000));
    for url in [
        "",
        "x",
        "http://",
        "https://:80/",
        "http://?x",
        "http://x:65536/",
        "http://x:99999",
        "http://x:0/",
        "http://x:y/",
        "ftp://x",
        "file:///etc/passwd",
        "http://a b/",
        "http://[::1",
        "http://[fe80::1%25eth0]/",
        &long,
    ] {
        let (status, problem) = ask(url.to_owned()).await;
        assert_eq!((status, &problem["field"]), (422, &json!("/callback/url")), "{url}: {problem}");
    }
    for host in [
        "169.254.169.254",
        "169.254.169.254.",
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "%31%36%39.254.169.254",
        "user:word@169.254.169.254",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "100.100.100.200",
        "0.0.0.0",
    ] {
        let (status, problem) = ask(format!("http://{host}:80/latest")).await;
        assert_eq!((status, &problem["field"]), (422, &json!("/callback/url")), "{host}: {problem}");
    }
    for url in ["http://127.0.0.1:8080/x", "https://example.com", "http://10.1.2.3/", "http://[::1]:65535/"] {
        assert_eq!(ask(url.to_owned()).await.0, 503, "{url}: the database is away");
    }
    server.stop().await;
}

#[tokio::test]
async fn other_content_types_are_refused() {
    let server = Server::without_database(ServerSettings::default()).await;
    for kind in ["text/plain", "application/x-www-form-urlencoded"] {
        let request = server.request(Method::POST, "/job").header("content-type", kind).body(r#"{"type":"a"}"#);
        let (status, problem) = read(request.send().await.unwrap()).await;
        assert_eq!((status, &problem["field"]), (415, &json!("Content-Type")));
    }
    assert_eq!(server.poke("/claim").await.0, 415);
    server.stop().await;
}

#[tokio::test]
async fn faulty_paths_and_queries_are_refused() {
    let server = Server::without_database(ServerSettings::default()).await;
    let status = |path: &'static str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let server = &server;
        async move { server.raw(request.as_bytes()).await[9..12].to_owned() }
    };
    assert_eq!(status("/job/%zz/status").await, "400");
    assert_eq!(status("/job/%ff/status").await, "400");
    assert_eq!(status("/job/a%/status").await, "400");
    assert_eq!(status("/job/%00/status").await, "422");
    assert_eq!(status("/job?limit=%zz").await, "400");
    for (path, field) in [
        ("/job?what=1", "what"),
        ("/job?limit=0", "limit"),
        ("/job?limit=1001", "limit"),
        ("/job?limit=1&limit=2", "limit"),
        ("/job?complete=yes", "complete"),
        ("/job?cursor=", "cursor"),
        ("/job_item?state=lost", "state"),
        ("/job_item?job_id=%00", "job_id"),
    ] {
        let (status, problem) = server.get(path).await;
        assert_eq!((status, &problem["field"]), (422, &json!(field)), "{path}");
    }
    let long = format!("/job/{}/status", "x".repeat(201));
    assert_eq!(server.get(&long).await.0, 422);
    server.stop().await;
}

#[tokio::test]
async fn too_large_bodies_are_refused_before_they_are_read() {
    let server = Server::without_database(ServerSettings::default()).await;
    let head =
        "POST /job HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 67108865\r\n\r\n";
    let answer = server.raw(head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("application/problem+json"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn idempotency_keys_are_checked() {
    let server = Server::without_database(ServerSettings::default()).await;
    for key in ["", &"k".repeat(201)] {
        let request = server.request(Method::POST, "/job").header("idempotency-key", key).json(&json!({ "type": "a" }));
        let (status, problem) = read(request.send().await.unwrap()).await;
        assert_eq!((status, &problem["field"]), (422, &json!("Idempotency-Key")));
    }
    server.stop().await;
}

#[tokio::test]
async fn roles_open_their_routes_only() {
    let server = Server::without_database(with_tokens()).await;
    // The database is away: 503 says that the caller was let in.
    for (token, method, path, status) in [
        ("p", Method::GET, "/job", 503),
        ("w", Method::GET, "/job", 403),
        ("o", Method::GET, "/job", 503),
        ("x", Method::GET, "/job", 401),
        ("p", Method::GET, "/job_item", 503),
        ("w", Method::GET, "/job_item", 503),
        ("w", Method::POST, "/assignment/a-1-1-0123456789abcdef/heartbeat", 503),
        ("p", Method::POST, "/assignment/a-1-1-0123456789abcdef/heartbeat", 403),
        ("p", Method::POST, "/job/x/retry", 403),
        ("o", Method::POST, "/job/x/retry", 503),
        ("x", Method::GET, "/healthz", 200),
        ("x", Method::GET, "/openapi.json", 200),
        ("x", Method::GET, "/what", 404),
    ] {
        let response = server.request(method, path).bearer_auth(token).send().await.unwrap();
        let header = response.headers().get("www-authenticate").cloned();
        assert_eq!(read(response).await.0, status, "{token} {path}");
        assert_eq!(header.is_some(), status == 401);
    }
    assert_eq!(server.get("/job").await.0, 401);
    server.stop().await;
}

#[tokio::test]
async fn without_tokens_other_hosts_and_origins_are_refused() {
    let server = Server::without_database(ServerSettings::default()).await;
    for (name, value, status) in [
        ("host", "evil.example", 403),
        ("host", "localhost", 200),
        ("origin", "https://evil.example", 403),
        ("origin", "http://127.0.0.1:3000", 200),
    ] {
        let response = server.request(Method::GET, "/healthz").header(name, value).send().await.unwrap();
        assert_eq!(read(response).await.0, status, "{name}: {value}");
    }
    server.stop().await;
}

#[tokio::test]
async fn requests_beyond_the_rate_are_refused() {
    let mut settings = with_tokens();
    settings.limits.token_rate = Some(Rate { per_second: 0.01, burst: 2.0 });
    let server = Server::without_database(settings).await;
    let ask = |token: &'static str| server.request(Method::GET, "/job_item?limit=0").bearer_auth(token).send();
    assert_eq!(read(ask("p").await.unwrap()).await.0, 422);
    assert_eq!(read(ask("p").await.unwrap()).await.0, 422);
    let response = ask("p").await.unwrap();
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=101).contains(&wait), "{wait}");
    assert_eq!(read(response).await.0, 429);
    assert_eq!(read(ask("w").await.unwrap()).await.0, 422);
    assert_eq!(server.get("/healthz").await.0, 200);
    server.stop().await;
}

#[tokio::test]
async fn without_the_database_requests_may_be_repeated() {
    let server = Server::without_database(ServerSettings::default()).await;
    assert_eq!(server.get("/healthz").await.0, 200);
    for path in ["/readyz", "/job", "/job/x/status"] {
        let response = server.request(Method::GET, path).send().await.unwrap();
        assert_eq!(response.headers()["retry-after"], "1");
        assert_eq!(read(response).await.0, 503, "{path}");
    }
    let metrics = server.request(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("\nhostler_jobs_database_up{database=\"127.0.0.1:9/none\"} 0\n"), "{metrics}");
    let wanted = "hostler_jobs_requests_total{route=\"/job/{id}/status\",method=\"GET\",status=\"503\"} 1";
    assert!(metrics.contains(wanted), "{metrics}");
    server.stop().await;
}
