//! The examples that are built by a toolchain: their own tests, and what they answer to good and bad input by their own
//! config. An example has a test here, a `build.sh OUT.wasm` and a `hostler.toml`.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::invoke::{answer, reply};
use crate::support::hostler::World;
use crate::support::toolchains::{built, here, run, with_toolchains};

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

    /// What it answers to a file of its folder.
    fn of_file(&self, name: &str, attributes: &[&str]) -> Value {
        let file = self.folder.join(name);
        let attributes = attributes.iter().flat_map(|attribute| ["--attr", *attribute]);
        let args: Vec<&str> = ["--file", file.to_str().unwrap()].into_iter().chain(attributes).collect();
        answer(&self.world, self.consumer, &args)
    }

    /// What it answers to a body.
    fn of(&self, body: &str, attributes: &[&str]) -> Value {
        fs::write(self.world.path("body"), body).unwrap();
        self.of_file(self.world.path("body").to_str().unwrap(), attributes)
    }

    /// Its own tests, by the command that its README gives.
    fn tests_pass(&self, program: &str, args: &[&str]) {
        let mut command = with_toolchains(program);
        command.args(args).current_dir(&self.folder);
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
