//! The examples that are built by a toolchain: their own tests, and what they answer to good and bad input by their own
//! config. An example has a test here, a `build.sh OUT.wasm` and a `hostler.toml`.

#[cfg(feature = "jobs")]
mod payroll;
mod webhooks;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::invoke::{answer, reply};
use crate::support::guests::command;
use crate::support::hostler::World;
use crate::support::toolchains::{built, here, run, with_toolchains};
use crate::support::web::{Reply, Web};

/// A folder with an example's config, whose handler is built, and which is run as a user would in its own folder.
struct Example {
    folder: PathBuf,
    consumer: &'static str,
    world: World,
}

impl Example {
    /// The consumer of `examples/<name>/hostler.toml`; `needs` is what the handler is made of beside that folder.
    fn new(name: &str, consumer: &'static str, needs: &[&str]) -> Self {
        let folder = here("examples").join(name);
        let guest = built(&format!("examples/{name}"), needs);
        let config = fs::read_to_string(folder.join("hostler.toml")).unwrap();
        let env = vec![
            ("HOSTLER_HOST__CACHE_DIR", guest.cache.display().to_string()),
            ("HOSTLER_HOST__HEALTH_FILE", "health.json".to_owned()),
        ];
        let world = World::with("", env, &config);
        let handler = config.lines().find_map(|line| line.strip_prefix("handler = \"")?.strip_suffix('"')).unwrap();
        std::os::unix::fs::symlink(&guest.wasm, world.path(handler)).unwrap();
        Self { folder, consumer, world }
    }

    /// Runs it on a file of its folder.
    fn of_file(&self, name: &str, attributes: &[&str]) -> Value {
        let file = self.folder.join(name);
        let attributes = attributes.iter().flat_map(|attribute| ["--attr", *attribute]);
        let args: Vec<&str> = ["--file", file.to_str().unwrap()].into_iter().chain(attributes).collect();
        answer(&self.world, self.consumer, &args)
    }

    /// Runs it on a body.
    fn of(&self, body: impl AsRef<[u8]>, attributes: &[&str]) -> Value {
        fs::write(self.world.path("body"), body).unwrap();
        self.of_file(self.world.path("body").to_str().unwrap(), attributes)
    }

    /// Its own tests, by the command that its README gives.
    fn tests_pass(&self, program: &str, args: &[&str]) {
        let mut command = with_toolchains(program);
        command.args(args).current_dir(&self.folder);
        command.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("examples"));
        run(&format!("{program} {} in {}", args.join(" "), self.folder.display()), command);
    }
}

/// Outcome and reason.
fn ended(answer: &Value) -> [&str; 2] {
    ["outcome", "reason"].map(|name| answer[name].as_str().unwrap_or_default())
}

fn replied(answer: &Value) -> Value {
    assert_eq!(answer["outcome"], "reply", "{answer}");
    serde_json::from_slice(&reply(answer)).unwrap()
}

#[test]
fn validator() {
    let validator = Example::new("validator", "orders", &["sdk/go"]);
    validator.tests_pass("go", &["test", "./..."]);

    let totals = json!({ "CHF": "90.00", "EUR": "1324.70" });
    let summary = json!({ "orders": 4, "totals": totals, "first": "2026-11-02", "last": "2026-11-21" });
    assert_eq!(replied(&validator.of_file("orders.csv", &[])), summary);
    assert_eq!(replied(&validator.of_file("orders.jsonl", &["content-type=application/x-ndjson"])), summary);

    let bad = validator.of_file("bad.csv", &["content-type=text/csv"]);
    let reason = "row 2 (line 3), column `quantity`: `0` is not a whole number from 1 to 10000 (and 1 more)";
    assert_eq!(ended(&bad), ["dead-letter", reason]);
    assert!(bad["stderr"].as_str().unwrap().contains("column `ordered_on`: `2026-11-31` is not a date"), "{bad}");
    let as_json = validator.of_file("orders.csv", &["content-type=application/jsonl"]);
    assert_eq!(ended(&as_json), ["dead-letter", "row 1 (line 1): is not JSON (and 5 more)"]);
    assert_eq!(ended(&validator.of("", &[])), ["dead-letter", "the file has no orders"]);
}

#[test]
fn etl() {
    let etl = Example::new("etl", "tables", &["sdk/c"]);
    etl.tests_pass("python3", &["-m", "unittest", "test.py"]);

    let told = replied(&etl.of_file("stations.csv", &[]));
    assert_eq!(
        [&told["rows"], &told["read"]],
        [&json!(3), &json!(fs::read(etl.folder.join("stations.csv")).unwrap().len())]
    );
    let written = fs::read_to_string(etl.world.path("out").join(told["file"].as_str().unwrap())).unwrap();
    assert_eq!(told["written"], written.len());
    let rows: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows[0]["note"], "main hall \"Zürich Real\"\nopen all night");
    assert_eq!(rows[1], json!({ "id": "008507000", "name": "Bern", "lines": null, "note": "" }));

    // The SHA-256 of "a\n1\n", by another program.
    let sum = "sha256=309b0e45a73d3fc5325e2b6ed0a01ef8b9cde6b05a5633c1f893f970d52bfddc";
    let summed = etl.of("a\n1\n", &[sum]);
    assert_eq!(replied(&summed)["rows"], 1);
    let cut = etl.of("a\n1", &[sum]);
    assert_eq!(cut["outcome"], "dead-letter");
    assert!(cut["reason"].as_str().unwrap().starts_with("the body has the SHA-256 "), "{cut}");
    let bad = etl.of("a,b\n1,x\"y\n", &[]);
    assert_eq!(ended(&bad), ["dead-letter", "row 1 (line 2), column `b`: a quote within a value that is not quoted"]);
    assert_eq!(fs::read_dir(etl.world.path("out")).unwrap().count(), 2, "a body that was refused leaves nothing");
}

/// The width and the height that the first frame of a JPEG tells.
fn jpeg_size(jpeg: &[u8]) -> [u16; 2] {
    assert_eq!(jpeg[..2], [0xff, 0xd8], "it is no JPEG");
    let frame = jpeg.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
    [frame + 7, frame + 5].map(|at| u16::from_be_bytes([jpeg[at], jpeg[at + 1]]))
}

#[test]
fn thumbnailer() {
    let thumbnailer = Example::new("thumbnailer", "thumbnails", &["sdk/rust", "wit"]);
    thumbnailer.tests_pass("cargo", &["test", "--locked"]);

    // The picture is stored on its side, 960 x 1280.
    let upright = reply(&thumbnailer.of_file("picture.jpg", &[]));
    assert_eq!(jpeg_size(&upright), [320, 240]);
    let png = reply(&thumbnailer.of_file("picture.jpg", &["width=64", "format=png"]));
    assert_eq!(png[..8], *b"\x89PNG\r\n\x1a\n");
    assert_eq!(png[16..24], [0, 0, 0, 64, 0, 0, 0, 48]);
    assert_eq!(jpeg_size(&reply(&thumbnailer.of_file("picture.jpg", &["width=2048"]))), [1280, 960], "not enlarged");

    let picture = fs::read(thumbnailer.folder.join("picture.jpg")).unwrap();
    let dead_lettered = |body: &[u8], attributes: &[&str]| {
        let answer = thumbnailer.of(body, attributes);
        assert_eq!(answer["outcome"], "dead-letter", "{answer}");
        answer["reason"].as_str().unwrap().to_owned()
    };
    assert!(dead_lettered(b"{}", &[]).starts_with("the body is no image of a known format"));
    assert!(dead_lettered(b"GIF89a", &[]).starts_with("the body is of the format Gif"));
    assert!(dead_lettered(&picture[..200], &[]).starts_with("the image cannot be read: "));
    assert!(dead_lettered(&picture, &["format=bmp"]).starts_with("the attribute `format` is `bmp`"));
    let mut bomb = picture.clone();
    let frame = bomb.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
    bomb[frame + 5..frame + 9].fill(0xff);
    assert!(dead_lettered(&bomb, &[]).starts_with("the image is too large: 65535 x 65535 pixels"));

    // What takes the most memory of all that is let in has enough of it.
    let largest = thumbnailer.world.path("largest.png");
    let mut python = thumbnailer.world.program("python3", &["-c", LARGEST_PNG, largest.to_str().unwrap()]);
    assert!(python.status().unwrap().success());
    assert_eq!(&reply(&thumbnailer.of_file(largest.to_str().unwrap(), &[]))[..4], b"\x89PNG");
}

/// Writes a PNG of 16 bits with transparency.
const LARGEST_PNG: &str = "
import struct, sys, zlib
side = 4250
def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
head = chunk(b'IHDR', struct.pack('>IIBBBBB', side, side, 16, 6, 0, 0, 0))
rows = (b'\\0' + b'\\x80\\x40\\x20\\x10\\xff\\xff\\x7f\\x7f' * side) * side
open(sys.argv[1], 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + head + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))
";

/// Orders, one after the other, whose locales must not leak: what each asks for, and the reply that it must get.
const ORDERS: [(&[&str], Option<&str>); 12] = [
    (&["locale=de"], Some("Danke, Ada: 1.234,50")),
    (&[], Some("Thank you, Ada: 1,234.50")),
    (&["locale=fr-CH"], Some("Merci, Ada : 1\u{202f}234,50")),
    (&["locale=nl"], Some("Thank you, Ada: 1,234.50")),
    (&["locale=de", "fail=error"], None),
    (&[], Some("Thank you, Ada: 1,234.50")),
    (&["locale=de", "fail=trap"], None),
    (&[], Some("Thank you, Ada: 1,234.50")),
    (&["locale=de", "fail=hang"], None),
    (&[], Some("Thank you, Ada: 1,234.50")),
    (&["locale=fr", "fail=hang", "when-late=later"], None),
    (&[], Some("Thank you, Ada: 1,234.50")),
];

#[test]
fn locale() {
    let locale = Example::new("locale", "inside", &["sdk/rust", "wit"]);
    let built = fs::read_link(locale.world.path("inside.wasm")).unwrap();
    for name in ["handler.wasm", "hooks.wasm"] {
        std::os::unix::fs::symlink(built.with_file_name(name), locale.world.path(name)).unwrap();
    }
    locale.tests_pass("cargo", &["test", "--locked"]);

    for consumer in ["inside", "apart"] {
        let order = ["--body", r#"{"name": "Ada", "cents": 123450}"#, "--attr"];
        let invoke = |attribute| answer(&locale.world, consumer, &[&order[..], &[attribute]].concat());
        assert_eq!(reply(&invoke("locale=de-AT")), b"Danke, Ada: 1.234,50");
        assert_eq!(ended(&invoke("fail=error")), ["failed", "the printer is out of paper"]);
        assert_eq!(ended(&answer(&locale.world, consumer, &["--body", "{}"]))[0], "dead-letter");
        never_leaks(&locale, consumer);
    }
    assert_eq!(fs::read_dir(locale.world.path("active")).unwrap().count(), 0, "what was activated is deactivated");
}

/// Lets one instance process all `ORDERS`, and compares what they became and their replies.
fn never_leaks(locale: &Example, consumer: &str) {
    let world = &locale.world;
    let config = fs::read_to_string(locale.folder.join("hostler.toml")).unwrap();
    // One order at a time, each once while the test lasts, and another consumer prints the replies.
    let one = format!("[consumers.{consumer}]\nconcurrency = 1\nretry = {{ requeues = 1, requeue_delay = '1h' }}");
    let config = config.replace(&format!("[consumers.{consumer}]"), &one);
    let printer = command("main-echoes");
    let printer = format!("channel = 'receipts'\nconcurrency = 1\nhandler = '{}'", printer.display());
    world.config(&format!("{config}\n[consumers.printer]\n{printer}"));
    let channel = format!("receipts-{consumer}");
    for (attributes, _) in ORDERS {
        let attributes = attributes.iter().flat_map(|attribute| ["--attr", attribute]);
        let order = ["send", &channel, "--body", r#"{"name": "Ada", "cents": 123450}"#];
        assert_eq!(world.output(&order.into_iter().chain(attributes).collect::<Vec<_>>()).code, 0);
    }
    let mut host = world.started();
    let mut replies: Vec<&str> = ORDERS.iter().filter_map(|(_, reply)| *reply).collect();
    replies.sort_unstable();
    let settled = host.settled(ORDERS.len() + replies.len());
    assert_eq!(host.stop(), 0);
    let is_of = |line: &&Value| line["consumer"] == consumer;
    let mut became: Vec<[&str; 2]> = settled
        .iter()
        .filter(is_of)
        .map(|line| ["outcome", "disposition"].map(|name| line[name].as_str().unwrap()))
        .collect();
    became.sort_unstable();
    let mut expected = vec![["reply", "ack"]; replies.len()];
    expected.extend([
        ["failed", "release"],
        ["trapped", "release"],
        ["timed-out", "dead-letter"],
        ["timed-out", "release"],
    ]);
    expected.sort_unstable();
    assert_eq!(became, expected, "{consumer}");
    let lines = host.lines();
    let mut printed: Vec<&str> = lines
        .iter()
        .filter(|line| line["consumer"] == "printer" && line["stream"] == "stdout")
        .map(|line| line["message"].as_str().unwrap())
        .collect();
    printed.sort_unstable();
    assert_eq!(printed, replies, "{consumer}");
    let reason = settled.iter().find(|line| line["disposition"] == "dead-letter").unwrap()["reason"].as_str().unwrap();
    assert!(reason.starts_with("no receipt after "), "{reason}");
}

/// A webhook's receiver: paths are what it answers, `/<status>/<Retry-After>`.
fn receiver() -> Web {
    Web::start(|request, before| {
        let mut parts = request.path.trim_start_matches('/').split('/');
        let status = match parts.next().unwrap() {
            "silence" => return Reply::Silence,
            "endless" => return Reply::Endless,
            "busy-once" if before > 0 => 204,
            "busy-once" => 429,
            status => status.parse().unwrap(),
        };
        let wait = parts.next().map(|wait| ("Retry-After", wait.replace('_', " ")));
        let body = if status == 204 { Vec::new() } else { "no such customer\n".repeat(100).into_bytes() };
        Reply::Of(status, wait.into_iter().collect(), body)
    })
}

/// The webhook example with this receiver granted and these further changes of its config.
fn webhook(receiver: &Web, changes: &[[&str; 2]]) -> Example {
    let webhook = Example::new("webhook", "webhooks", &["sdk/js", "wit"]);
    let mut config = fs::read_to_string(webhook.folder.join("hostler.toml")).unwrap();
    let secret = ["env = {", "env = { WEBHOOK_SECRET = \"s3cret\","];
    for [from, to] in [secret, ["127.0.0.1:8080", &receiver.address]].iter().chain(changes) {
        assert!(config.contains(from), "{from} is not in {config}");
        config = config.replace(from, to);
    }
    webhook.world.config(&config);
    // A host has a deadline to start in, and compiling has none: it happens here.
    assert_eq!(ended(&webhook.of("", &["url=here"])), ["dead-letter", "this is no URL to deliver to: here"]);
    webhook
}

#[test]
fn webhook_says_by_the_answer_what_becomes_of_the_message() {
    let receiver = receiver();
    let webhook = webhook(&receiver, &[]);
    webhook.tests_pass("node", &["--test"]);
    let to = |path: &str| webhook.of("{}", &[&format!("url=http://{}/{path}", receiver.address)]);

    assert_eq!(ended(&to("204")), ["ack", ""]);
    assert_eq!((to("429/33")["delay_seconds"].as_u64(), to("503/0")["delay_seconds"].as_u64()), (Some(33), Some(1)));
    let capped = to("503/Fri,_01_Jan_2100_00:00:00_GMT");
    assert_eq!((capped["outcome"].as_str(), capped["delay_seconds"].as_u64()), (Some("delay"), Some(43_200)));
    let refused = to("422");
    assert_eq!(refused["outcome"], "dead-letter");
    let said =
        refused["reason"].as_str().unwrap().strip_prefix("the receiver said 422: no such customer no such").unwrap();
    assert!(said.len() < 200, "{said}");
    for (path, reason) in [("429", "said 429: no such customer"), ("500/9", "said 500: no such customer")] {
        let answer = to(path);
        assert_eq!(answer["outcome"], "failed");
        assert!(answer["reason"].as_str().unwrap().contains(reason), "{answer}");
    }
    assert_eq!(ended(&to("endless")), ["ack", ""]);
    let denied = webhook.of("", &["url=https://example.com"]);
    assert!(denied["reason"].as_str().unwrap().starts_with("Undelivered: no answer: "), "{denied}");
}

#[test]
fn webhook_gives_up_before_its_time_is_over() {
    let receiver = receiver();
    let webhook = webhook(&receiver, &[["processing_timeout = \"30s\"", "processing_timeout = \"4s\""]]);
    let silent = webhook.of("", &[&format!("url=http://{}/silence", receiver.address)]);
    assert_eq!(ended(&silent), ["failed", "Undelivered: no answer in time"]);
}

#[test]
fn webhook_delivers_again_with_the_same_key_and_a_signature_that_holds() {
    let receiver = receiver();
    let webhook = webhook(&receiver, &[["/hook", "/busy-once/1"]]);
    let mut host = webhook.world.started();
    webhook.world.send("webhooks", [r#"{"order": 1}"#]);
    let outcomes: Vec<Value> = host.settled(2).iter().map(|line| line["outcome"].clone()).collect();
    assert_eq!(outcomes, ["delay", "ack"]);
    assert_eq!(host.stop(), 0);

    let [first, second]: [_; 2] = receiver.requests("/busy-once/1").try_into().unwrap();
    assert_eq!(first.headers["idempotency-key"], second.headers["idempotency-key"]);
    assert_eq!([&*first.body, &*second.body], [br#"{"order": 1}"#; 2]);
    let script = "import base64, hmac, sys
content = '.'.join(sys.argv[1:]).encode()
print('v1,' + base64.b64encode(hmac.digest(b's3cret', content, 'sha256')).decode())";
    let mut python = Command::new("python3");
    python.args(["-c", script, &second.headers["webhook-id"], &second.headers["webhook-timestamp"], r#"{"order": 1}"#]);
    assert_eq!(run("python3", python).trim_end(), second.headers["webhook-signature"]);
}

/// The fan-out example, whose consumers of lines ack, and which tries again at once; with a change of its config.
fn fan_out(change: [&str; 2]) -> Example {
    let fan_out = Example::new("fan-out", "orders", &["sdk/python", "wit"]);
    let mut config = fs::read_to_string(fan_out.folder.join("hostler.toml")).unwrap();
    let tour = here("examples/tour/tour.wat").display().to_string();
    let at_once = ["delay = \"1m\"", "delay = \"0s\""];
    for [from, to] in [["../tour/tour.wat", &tour], ["delay = \"10s\"", "delay = \"0s\""], at_once, change] {
        assert!(config.contains(from), "{from} is not in {config}");
        config = config.replace(from, to);
    }
    fan_out.world.config(&config);
    // A host has a deadline to start in, and compiling has none: it happens here.
    assert_eq!(fan_out.of("", &[])["outcome"], "dead-letter");
    fan_out
}

/// Outcomes and reasons of the messages that a consumer settled.
fn settled_by<'a>(lines: &'a [Value], consumer: &str) -> Vec<[&'a str; 2]> {
    lines.iter().filter(|line| line["consumer"] == consumer).map(ended).collect()
}

#[test]
fn fan_out_sends_each_line_to_its_warehouse() {
    let fan_out = fan_out(["", ""]);
    fan_out.tests_pass("env", &["PYTHONPATH=../../sdk/python", "python3", "-B", "-m", "unittest"]);
    let said = fan_out.world.output(&["send", "orders", "--file", fan_out.folder.join("order.json").to_str().unwrap()]);
    assert_eq!(said.code, 0, "{said:?}");
    let mut host = fan_out.world.started();
    let lines = host.settled(4);
    assert_eq!(host.stop(), 0);
    assert_eq!(settled_by(&lines, "orders"), [["reply", ""]]);
    assert_eq!(settled_by(&lines, "picks-basel"), [["ack", ""]; 2]);
    assert_eq!(settled_by(&lines, "picks-elsewhere"), [["ack", ""]]);
    assert_eq!(fan_out.world.depth("orders-split").visible, 1);
}

#[test]
fn fan_out_that_fails_half_way_doubles_nothing() {
    let fan_out = fan_out(["", ""]);
    // The third line is too large for the queue once its letters are escaped.
    let line = |sku: &str| json!({ "sku": sku, "quantity": 1, "warehouse": "basel" });
    let order = json!({ "order": "A-1", "lines": [line("a"), line("b"), line(&"\u{fc}".repeat(3_000_000))] });
    fs::write(fan_out.world.path("order.json"), order.to_string()).unwrap();
    let mut host = fan_out.world.started();
    assert_eq!(fan_out.world.output(&["send", "orders", "--file", "order.json"]).code, 0);
    let lines = host.settled(6);
    assert_eq!(host.stop(), 0);
    let orders = settled_by(&lines, "orders");
    assert_eq!(orders.iter().map(|[outcome, _]| *outcome).collect::<Vec<_>>(), ["failed"; 4]);
    assert!(orders[3][1].starts_with("SendError: invalid: "), "{orders:?}");
    assert_eq!(settled_by(&lines, "picks-basel"), [["ack", ""]; 2], "four attempts, and each line once");
    assert_eq!(fan_out.world.depth("lines.picks-basel").visible, 0);
    assert_eq!(fan_out.world.depth("orders").dead_lettered, 1);
}

#[test]
fn fan_out_to_a_channel_that_is_not_granted_is_an_error_that_names_the_grant() {
    let fan_out = fan_out(["allow.send = [\"lines\"]", "allow.send = [\"others\"]"]);
    let denied = fan_out.of_file("order.json", &[]);
    let [outcome, reason] = ended(&denied);
    assert!(
        outcome == "failed" && reason.starts_with("SendError: denied: ") && reason.contains("allow.send"),
        "{denied}"
    );
}
