//! `book/src/porting.md`: the code after each porting is what `tests/porting` holds, builds, and does with the page's config
//! what the page says; the code before it is code.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::invoke::{answer, reply};
use crate::support::hostler::World;
use crate::support::toolchains::{built, here, run, with_toolchains};
use crate::support::web::{Reply, Web};

/// Address at which the JavaScript guest reaches the mail API, by its `build.sh`. Nothing else listens there.
const MAIL_API: &str = "127.80.25.1:8025";

const PAGE: &str = "book/src/porting.md";

/// The fenced blocks of a section of a page that are of this kind.
pub(crate) fn blocks(page: &str, section: &str, kind: &str) -> Vec<String> {
    let page = fs::read_to_string(here(page)).unwrap();
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap_or_else(|| panic!("no section {section}"));
    let section = rest.split("\n## ").next().unwrap();
    let fence = format!("```{kind}\n");
    section.split(&fence).skip(1).map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// The world of a section: its code, which this file has, is built, and runs by its config with these changes.
fn ported(section: &str, code: &str, needs: &[&str], changes: &[[&str; 2]]) -> World {
    let path = Path::new("tests/porting").join(code);
    let kind = if path.extension().unwrap() == "js" { "js" } else { "python" };
    let code_blocks = blocks(PAGE, section, kind);
    let [before, after, ..] = &code_blocks[..] else { panic!("{section} has no code before and after") };
    assert_eq!(*after, fs::read_to_string(here("").join(&path)).unwrap(), "{section} does not show {}", path.display());
    is_code(before, kind);

    let guest = built(path.parent().unwrap().to_str().unwrap(), needs);
    let configs = blocks(PAGE, section, "toml");
    let [config] = &configs[..] else { panic!("{section} has not one config") };
    let handler = config.lines().find_map(|line| line.strip_prefix("handler = ")).unwrap();
    let mut config = config.replace(handler, &format!("'{}'", guest.wasm.display()));
    for [from, to] in [["driver = \"sqs\"", "driver = \"embedded\""]].iter().chain(changes) {
        assert!(config.contains(from), "{from} is not in {config}");
        config = config.replace(from, to);
    }
    let env = vec![
        ("HOSTLER_HOST__CACHE_DIR", guest.cache.display().to_string()),
        ("HOSTLER_HOST__HEALTH_FILE", "health.json".to_owned()),
    ];
    World::with("", env, &config)
}

/// The code has no error that its language finds without running it.
pub(crate) fn is_code(code: &str, kind: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("before.mjs");
    fs::write(&file, code).unwrap();
    let (program, args) = match kind {
        "js" => ("node", vec!["--check"]),
        _ => ("python3", vec!["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())"]),
    };
    let mut command = with_toolchains(program);
    command.args(args).arg(file);
    run(code, command);
}

fn ended(answer: &Value) -> [&str; 2] {
    ["outcome", "reason"].map(|name| answer[name].as_str().unwrap_or_default())
}

#[test]
fn a_lambda_handler() {
    let world = ported("A Lambda handler (SQS event source)", "lambda/app.py", &["sdk/python", "wit"], &[]);
    assert_eq!(ended(&answer(&world, "orders", &["--body", "{}", "--attr", "test=yes"])), ["ack", ""]);
    assert_eq!(ended(&answer(&world, "orders", &["--body", "{}"])), ["failed", "KeyError: 'lines'"]);

    let lines = json!([{ "cents": 250, "quantity": 2 }, { "cents": 999, "quantity": 1 }]);
    world.send("orders", [json!({ "id": "A-1", "customer": "Ada", "lines": lines }).to_string()]);
    let mut host = world.started();
    assert_eq!(ended(&host.settled(1)[0]), ["ack", ""]);
    assert_eq!(host.stop(), 0);
    assert_eq!(world.depth("invoices").visible, 1);
}

#[test]
fn an_sqs_consumer_handler() {
    let address = format!("http://{MAIL_API}");
    let needs = ["sdk/js", "wit", "templates/js/component.js"];
    let changes = [["https://mail.example.com", address.as_str()]];
    let world = ported("An sqs-consumer handler (npm)", "sqs-consumer/index.js", &needs, &changes);
    let mail = Web::at(MAIL_API, |_, before| Reply::status([202, 429, 500][before]));
    let says = |body: &str| answer(&world, "signups", &["--body", body]);

    let ada = r#"{"email": "ada@example.com", "name": "Ada"}"#;
    assert_eq!(ended(&says(ada)), ["ack", ""]);
    assert_eq!(says(ada)["delay_seconds"], 60);
    assert_eq!(ended(&says(ada)), ["failed", "Error: the mail API said 500"]);
    assert_eq!(ended(&says("{}")), ["dead-letter", "no email"]);
    let sent = &mail.requests("/messages")[0];
    assert_eq!(
        serde_json::from_slice::<Value>(&sent.body).unwrap(),
        json!({ "to": "ada@example.com", "subject": "Welcome, Ada" })
    );
}

#[test]
fn a_celery_task() {
    let sales = tempfile::tempdir().unwrap();
    fs::write(sales.path().join("2026-10.csv"), "day,amount\n1,10.10\n2,0.05\n").unwrap();
    let host = format!("host = \"{}\"", sales.path().display());
    let world = ported("A Celery task", "celery/app.py", &["sdk/python", "wit"], &[["host = \"/sales\"", &host]]);
    let of = |month: &str| answer(&world, "month-totals", &["--body", &json!({ "month": month }).to_string()]);
    let total: Value = serde_json::from_slice(&reply(&of("2026-10"))).unwrap();
    assert_eq!(total, json!({ "month": "2026-10", "total": "10.15" }));
    assert_eq!(of("2026-11")["delay_seconds"], 300);
}
