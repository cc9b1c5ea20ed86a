//! Handlers from elsewhere: S3 and OCI registries of others, faults that only a scripted server shows, and the cache.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::guests::component;
use crate::support::hostler::{PATIENCE, Said, World, until};
use crate::support::python::python_with_input;
use crate::support::registry::{Registry, WASM, digest};
use crate::support::servers::{Kind, Server, unique};
use crate::support::web::{Reply, Request, Web};

/// Common start of the configs of these tests.
const HEAD: &str = "
    host.health_file = 'health.json'
    host.cache_dir = 'cache'
    queue.embedded.path = 'queue.db'
";

/// A handler that acks.
fn acks() -> Vec<u8> {
    fs::read(component("acks")).unwrap()
}

/// A world with a cache and a consumer `one` of this handler; `lines` follow in its table.
fn world(handler: &str, lines: &str) -> World {
    world_with(Vec::new(), handler, lines)
}

fn world_with(env: Vec<(&'static str, String)>, handler: &str, lines: &str) -> World {
    World::with(HEAD, env, &format!("[consumers.one]\nchannel = 'one'\nhandler = '{handler}'\n{lines}"))
}

/// Runs `invoke` on a handler or a consumer.
fn outcome(world: &World, handler: &str) -> String {
    let said = world.output(&["invoke", handler, "--body", "", "--json"]);
    let answer: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"));
    answer["outcome"].as_str().unwrap().to_owned()
}

/// Asserts that `invoke` of the consumer `one` is refused with this exit code for this reason, and says how to cure it.
fn refused(world: &World, code: i32, reason: &str) -> Said {
    let said = world.output(&["invoke", "one", "--body", ""]);
    assert!(said.code == code && said.stdout.is_empty(), "{said:?}");
    assert!(said.stderr.contains(reason) && said.stderr.contains("\n  cure: "), "{reason}: {said:?}");
    assert!(!said.stderr.contains("panicked"), "{said:?}");
    said
}

/// Puts an object into a bucket of the shared server, which it makes.
fn put(key: &str, bytes: &[u8]) -> (&'static Server, String) {
    let server = Server::shared(Kind::Moto);
    let bucket = unique("handlers");
    let script = "
bucket, key = sys.argv[1:]
s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={'LocationConstraint': 'eu-west-1'})
s3.put_object(Bucket=bucket, Key=key, Body=sys.stdin.buffer.read())";
    python_with_input(server, script, &[&bucket, key], bytes);
    (server, bucket)
}

/// A server of one artifact `h`, whatever its tag, but for what the script answers.
fn artifact(bytes: Vec<u8>, script: impl Fn(&Request, usize) -> Option<Reply> + Send + Sync + 'static) -> Web {
    let manifest = json!({ "schemaVersion": 2, "layers": [
        { "mediaType": WASM, "digest": digest(&bytes), "size": bytes.len() }
    ] });
    Web::start(move |request, before| {
        script(request, before).unwrap_or_else(|| match request.path.contains("/blobs/") {
            true => Reply::ok(bytes.clone()),
            false => Reply::ok(manifest.to_string()),
        })
    })
}

fn of(web: &Web) -> String {
    format!("oci://{}/h:1", web.address)
}

#[test]
fn runs_a_handler_from_s3_at_every_command() {
    let (server, bucket) = put("some/acks.wasm", &acks());
    let reference = format!("s3://{bucket}/some/acks.wasm");
    let world = world_with(server.env(), &reference, "");
    assert_eq!(outcome(&world, "one"), "ack");
    assert_eq!(outcome(&world, &reference), "ack");
    let said = world.output(&["check"]);
    assert!(said.code == 0 && said.stdout.contains(&format!("handler   ok  one: {reference}")), "{said:?}");
    assert_eq!(world.output(&["compile", &reference, "-o", "out.cwasm"]).code, 0);
    assert_eq!(outcome(&world, "out.cwasm"), "ack");
    world.send("one", ["a"]);
    let mut host = world.started();
    assert_eq!(host.settled(1)[0]["outcome"], "ack");
    assert_eq!(host.stop(), 0);
}

#[test]
fn iam_lets_handlers_in_s3_be_read() {
    let world = world("s3://bucket/a/b.wasm", "hooks = 's3://bucket/hooks.wasm'");
    let policy: Value = serde_json::from_str(&world.output(&["iam"]).stdout).unwrap();
    let resources = ["arn:aws:s3:::bucket/a/b.wasm", "arn:aws:s3:::bucket/hooks.wasm"];
    let statement = json!({ "Sid": "Handlers", "Effect": "Allow", "Action": ["s3:GetObject"], "Resource": resources });
    assert_eq!(policy["Statement"], json!([statement]));
}

#[test]
fn says_what_s3_answered() {
    let (server, bucket) = put("acks.wasm", &acks());
    let of = |reference: &str, lines: &str| world_with(server.env(), reference, lines);
    refused(&of(&format!("s3://{bucket}/missing"), ""), 65, "404 NoSuchKey");
    refused(&of(&format!("s3://{}/missing", unique("none")), ""), 65, "404 NoSuchBucket");
    let pinned = format!("sha256 = '{}'", "0".repeat(64));
    refused(&of(&format!("s3://{bucket}/acks.wasm"), &pinned), 65, "but the config pins 0000");

    let mut env = server.env();
    env.retain(|(name, _)| !name.ends_with("REGION"));
    refused(&world_with(env, &format!("s3://{bucket}/acks.wasm"), ""), 65, "no AWS region");
    // What the config says of AWS counts, whatever the queue; nobody listens there.
    let world = of(&format!("s3://{bucket}/acks.wasm"), "");
    world.config(&format!(
        "queue.sqs.endpoint_url = 'http://127.0.0.1:1'\n[consumers.one]\nchannel = 'one'\nhandler = 's3://{bucket}/acks.wasm'"
    ));
    let said = refused(&world, 69, "refused");
    assert!(said.stderr.contains("tried 6 times"), "{said:?}");
}

#[test]
fn runs_handlers_and_hooks_from_a_registry() {
    let registry = Registry::open();
    let pushed = registry.push("team/acks", "1", &[("text/plain", b"read me"), (WASM, &acks())]);
    let hooks = fs::read(component("hook-end-traps")).unwrap();
    registry.push("hooks", "latest", &[("application/vnd.wasm.content.layer.v1+wasm", &hooks)]);
    let other = registry.push("team/acks", "other", &[("text/plain", b"no handler")]);
    registry.push_index("team/acks", "both", &[("amd64", &other), ("wasm", &pushed)]);
    registry.push_index("team/acks", "neither", &[("amd64", &other), ("arm64", &pushed)]);
    let address = registry.address();
    for reference in [
        format!("oci://{address}/team/acks:1"),
        format!("oci://{address}/team/acks@{pushed}"),
        format!("oci://{address}/team/acks:other@{pushed}"),
        format!("oci://{address}/team/acks:both"),
    ] {
        let world = world(&reference, &format!("hooks = 'oci://{address}/hooks'"));
        let said = world.output(&["invoke", "one", "--body", ""]);
        // That the hook ran is seen by its fault, which changes nothing.
        assert!(said.code == 0 && said.stderr.contains("hook failed"), "{reference}: {said:?}");
    }
    let of = |path: &str| world(&format!("oci://{address}/{path}"), "");
    refused(&of("team/acks:neither"), 65, "it has amd64, arm64");
    refused(&of("team/acks:2"), 65, "404 MANIFEST_UNKNOWN");
    refused(&of(&format!("team/acks@{}", digest(b"other"))), 65, "404 MANIFEST_UNKNOWN");
    refused(&of("team/acks:other"), 65, "neither WASM nor a .cwasm");
    registry.push("two", "1", &[(WASM, &acks()), (WASM, &hooks)]);
    refused(&of("two:1"), 65, "not one of its 2 layers");
    refused(&of("Text"), 65, "its repository is not of");
    drop(registry);
    refused(&of("team/acks:1"), 69, "tried 6 times");
}

#[test]
fn logs_in_with_what_docker_knows() {
    let registry = Registry::asking();
    registry.push("acks", "1", &[(WASM, &acks())]);
    let folder = tempfile::tempdir().unwrap();
    let with = |password: &str| {
        let auths = json!({ "auths": { registry.address(): { "auth": STANDARD.encode(format!("me:{password}")) } } });
        fs::write(folder.path().join("config.json"), auths.to_string()).unwrap();
        let env = vec![("DOCKER_CONFIG", folder.path().display().to_string())];
        world_with(env, &format!("oci://{}/acks:1", registry.address()), "")
    };
    assert_eq!(outcome(&with("secret"), "one"), "ack");
    let said = refused(&with("wrongword"), 65, "401 UNAUTHORIZED");
    assert!(!said.stderr.contains("wrongword"), "{said:?}");
    refused(&world(&format!("oci://{}/acks:1", registry.address()), ""), 65, "401 UNAUTHORIZED");
}

#[test]
fn asks_for_a_token_where_the_registry_wants_one() {
    let web = artifact(acks(), |request, before| {
        let asked = request.headers.get("authorization").map(String::as_str);
        match (request.path.starts_with("/token"), asked) {
            (true, _) if before == 0 => Some(Reply::status(503)),
            (true, _) => Some(Reply::ok(json!({ "token": "secret-token" }).to_string())),
            (false, Some("Bearer secret-token")) => None,
            (false, _) => {
                let realm = format!("Bearer realm=\"http://{}/token\",service=\"r\"", request.headers["host"]);
                Some(Reply::Of(401, vec![("WWW-Authenticate", realm)], Vec::new()))
            }
        }
    });
    let world = world(&of(&web), "");
    let said = world.output(&["invoke", "one", "--body", ""]);
    assert!(said.code == 0 && said.stderr.contains("token service answered 503"), "{said:?}");
    assert!(!said.stderr.contains("secret"), "{said:?}");
    assert_eq!(web.requests("/token?scope=repository%3Ah%3Apull&service=r").len(), 2);
}

#[test]
fn tries_again_what_may_pass() {
    let web = artifact(acks(), |request, before| match (request.path.contains("/blobs/"), before) {
        (false, 0) => Some(Reply::status(429)),
        (false, 1) => Some(Reply::status(500)),
        (true, 0) => Some(Reply::Half(acks())),
        _ => None,
    });
    let said = world(&of(&web), "").output(&["invoke", "one", "--body", ""]);
    assert!(said.code == 0 && said.stderr.matches("cannot fetch the handler; trying again").count() == 3, "{said:?}");
    assert!(said.stderr.contains("answered 429") && said.stderr.contains("answered 500"), "{said:?}");
}

#[test]
fn gives_up_where_it_does_not_pass() {
    let web = artifact(acks(), |_, _| Some(Reply::status(503)));
    refused(&world(&of(&web), ""), 69, "the registry answered 503 (tried 6 times)");
    assert_eq!(web.requests("/manifests/1").len(), 6);
    // What will not pass by itself is not tried again.
    let web = artifact(acks(), |_, _| Some(Reply::status(403)));
    refused(&world(&of(&web), ""), 65, "the registry answered 403");
    assert_eq!(web.requests("/manifests/1").len(), 1);
}

#[test]
fn refuses_bytes_that_do_not_fit_their_digest() {
    let other = fs::read(component("retries")).unwrap();
    let mut changed = acks();
    *changed.last_mut().unwrap() ^= 1;
    let web = artifact(acks(), move |request, _| request.path.contains("/blobs/").then(|| Reply::ok(changed.clone())));
    refused(&world(&of(&web), ""), 65, "the registry sent sha256:");
    assert_eq!(web.requests(&digest(&acks())).len(), 1);
    // A manifest too, if its digest was said.
    let web = artifact(other, |_, _| None);
    refused(&world(&format!("oci://{}/h@{}", web.address, digest(b"another")), ""), 65, "the registry sent sha256:");
}

#[test]
fn takes_no_more_than_was_announced() {
    let announced = bytesize::ByteSize(acks().len() as u64).to_string();
    for (what, limit) in [("/blobs/", announced.as_str()), ("/manifests/", "4.0 MiB")] {
        let web = artifact(acks(), move |request, _| request.path.contains(what).then_some(Reply::Endless));
        refused(&world(&of(&web), ""), 65, &format!("it has more than the {limit} that"));
    }
}

#[test]
fn a_signal_ends_a_pull_at_once() {
    let web = artifact(acks(), |request, _| request.path.contains("/blobs/").then_some(Reply::Silence));
    let world = world(&of(&web), "");
    let mut host = world.start();
    until("the pull", PATIENCE, || web.requests(&digest(&acks())).pop());
    let stopped = Instant::now();
    assert_eq!(host.stop(), 0);
    assert!(stopped.elapsed().as_secs() < 5, "{:?}", host.lines());
    assert!(host.lines().iter().any(|line| line["message"] == "stopped before it was ready"), "{:?}", host.lines());
}

#[test]
fn fetches_side_by_side_and_the_same_once() {
    let web = artifact(acks(), |_, _| None);
    let world = World::new("");
    let consumer = |name: &str, path: &str| {
        format!("[consumers.{name}]\nchannel = '{name}'\nhandler = 'oci://{}/{path}'\n", web.address)
    };
    world.config(&[consumer("a", "h:1"), consumer("b", "h:1"), consumer("c", "other:1")].concat());
    assert_eq!(world.output(&["check"]).code, 0);
    assert_eq!((web.requests("/h/manifests/1").len(), web.requests("/other/manifests/1").len()), (1, 1));
}

#[test]
fn tells_of_every_handler_that_is_wrong() {
    let missing = artifact(acks(), |_, _| Some(Reply::status(404)));
    let away = "oci://127.0.0.1:1/h:1";
    let world = World::new("");
    let consumer =
        |name: &str, handler: &str| format!("[consumers.{name}]\nchannel = '{name}'\nhandler = '{handler}'\n");
    world.config(&[consumer("a", away), consumer("b", &of(&missing))].concat());
    for command in ["check", "run"] {
        let said = world.output(&[command]);
        let text = format!("{}{}", said.stdout, said.stderr);
        assert!(said.code == 65 && text.contains(away) && text.contains("answered 404"), "{said:?}");
    }
    world.config(&consumer("a", away));
    assert_eq!(world.output(&["check"]).code, 69);
}

#[test]
fn what_is_pinned_needs_no_network_the_second_time() {
    let registry = Registry::open();
    let pushed = registry.push("acks", "1", &[(WASM, &acks())]);
    let pin = digest(&acks()).replace("sha256:", "");
    let by_manifest = world(&format!("oci://{}/acks@{pushed}", registry.address()), "");
    let by_bytes = world(&format!("oci://{}/acks:1", registry.address()), &format!("sha256 = '{pin}'"));
    let unpinned = world(&format!("oci://{}/acks:1", registry.address()), "");
    for world in [&by_manifest, &by_bytes, &unpinned] {
        assert_eq!(outcome(world, "one"), "ack");
    }
    drop(registry);
    for world in [&by_manifest, &by_bytes] {
        assert_eq!(outcome(world, "one"), "ack");
        assert_eq!(world.started().stop(), 0);
    }
    refused(&unpinned, 69, "tried 6 times");
}

#[test]
fn what_is_not_pinned_is_asked_for_again_and_sent_once() {
    let web = artifact(acks(), |_, _| None);
    let world = world(&of(&web), "");
    for _ in 0..2 {
        assert_eq!(outcome(&world, "one"), "ack");
    }
    assert_eq!((web.requests("/manifests/1").len(), web.requests(&digest(&acks())).len()), (2, 1));

    // The same with an object of S3, by its ETag; a new one is taken.
    let retries = fs::read(component("retries")).unwrap();
    let web = Web::start(move |request, before| match (before, request.headers.get("if-none-match")) {
        (0, None) => Reply::Of(200, vec![("ETag", "\"1\"".into())], acks()),
        (1, Some(etag)) if etag == "\"1\"" => Reply::status(304),
        (2, Some(_)) => Reply::Of(200, vec![("ETag", "\"2\"".into())], retries.clone()),
        _ => Reply::status(400),
    });
    let mut env = Server::shared(Kind::Moto).env();
    env.retain(|(name, _)| *name != "AWS_ENDPOINT_URL");
    env.push(("AWS_ENDPOINT_URL", format!("http://{}", web.address)));
    let world = world_with(env, "s3://bucket/key", "");
    assert_eq!([(); 3].map(|()| outcome(&world, "one")), ["ack", "ack", "retry"]);
}

/// The names in the cache that begin so.
fn entries(world: &World, kind: &str) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(world.path("cache")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(kind)).collect()
}

#[test]
fn a_damaged_entry_is_made_anew() {
    let web = artifact(acks(), |_, _| None);
    let world = world(&of(&web), "");
    assert_eq!(outcome(&world, "one"), "ack");
    for kind in ["sha256-", "code-"] {
        for entry in entries(&world, kind) {
            let mut bytes = fs::read(&entry).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(&entry, bytes).unwrap();
        }
    }
    let said = world.output(&["invoke", "one", "--body", ""]);
    assert!(said.code == 0 && said.stderr.matches("replacing an unusable cache entry").count() == 2, "{said:?}");
    assert_eq!(web.requests(&digest(&acks())).len(), 2);
    let said = world.output(&["invoke", "one", "--body", ""]);
    assert!(said.code == 0 && said.stderr.is_empty(), "{said:?}");
}

#[test]
fn a_cache_that_others_may_write_to_is_not_believed() {
    // What somebody planted: the code of another handler, under the name of this one.
    let world = world(component("acks").to_str().unwrap(), "");
    assert_eq!(outcome(&world, "one"), "ack");
    let code = entries(&world, "code-").remove(0);
    let other = world_with(Vec::new(), component("retries").to_str().unwrap(), "");
    assert_eq!(outcome(&other, "one"), "retry");
    fs::copy(entries(&other, "code-").remove(0), &code).unwrap();
    assert_eq!(outcome(&world, "one"), "retry", "the test plants what would be run");

    fs::set_permissions(world.path("cache"), fs::Permissions::from_mode(0o777)).unwrap();
    let said = world.output(&["invoke", "one", "--body", ""]);
    assert!(said.code == 0 && said.stderr.contains("host.cache_dir is not used"), "{said:?}");
    assert!(said.stderr.contains("others may write to it"), "{said:?}");
}

#[test]
fn a_cache_that_cannot_be_written_is_no_failure() {
    let world = world(component("acks").to_str().unwrap(), "");
    fs::write(world.path("cache"), "a file").unwrap();
    let said = world.output(&["invoke", "one", "--body", ""]);
    assert!(said.code == 0 && said.stderr.contains("host.cache_dir is not used"), "{said:?}");
}

#[test]
fn compiled_code_from_elsewhere_is_believed_only_when_it_is_pinned() {
    let folder = World::new("");
    let compile = |out: &str, more: &[&str]| {
        let handler = component("acks");
        let said = folder.output(&[&["compile", handler.to_str().unwrap(), "-o", out], more].concat());
        assert_eq!(said.code, 0, "{said:?}");
        fs::read(folder.path(out)).unwrap()
    };
    let (with, without) = (compile("with.cwasm", &[]), compile("without.cwasm", &["--no-source"]));
    let pin = |bytes: &[u8]| format!("sha256 = '{}'", digest(bytes).replace("sha256:", ""));
    for (bytes, pinned, code, warned) in
        [(&with, true, 0, false), (&without, true, 0, false), (&with, false, 0, true), (&without, false, 65, false)]
    {
        let web = artifact(bytes.clone(), |_, _| None);
        let lines = if pinned { pin(bytes) } else { String::new() };
        let said = world(&of(&web), &lines).output(&["invoke", "one", "--body", ""]);
        assert_eq!(said.code, code, "{said:?}");
        assert_eq!(said.stderr.contains("compiled code is not used"), warned, "{said:?}");
        assert_eq!(said.stderr.contains("pin it"), !pinned, "{said:?}");
    }
}

#[test]
fn local_handlers_compile_once() {
    let world = world("guests/main-exits.wat", "");
    let from_cache = || {
        let mut host = world.started();
        let found = host.lines().iter().any(|line| line["message"] == "compiled code is from the cache");
        assert_eq!(host.stop(), 0);
        found
    };
    assert_eq!((from_cache(), from_cache()), (false, true));
}
