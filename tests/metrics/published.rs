//! Schemas that others published, which `tests/servers.sh` installs, and what they have against a document.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::hostler::Said;
use crate::support::servers::installed;

/// Validates each line of a file; what names no draft was written in the days of the seventh.
const VALIDATE: &str = "
import json, sys
from jsonschema import Draft7Validator
from jsonschema.validators import validator_for
schema = json.load(open(sys.argv[1]))
kind = validator_for(schema, default=Draft7Validator)
kind.check_schema(schema)
for line in open(sys.argv[2]):
    for error in kind(schema).iter_errors(json.loads(line)):
        print(error.json_path, error.message)
";

/// Returns the schema's errors in the lines of a file, each a JSON document. Empty: no errors.
pub fn complaints(schema: &Path, lines: &Path) -> String {
    let mut python = Command::new(installed("collector").join("bin/python"));
    let said = Said::new(python.args(["-c", VALIDATE]).args([schema, lines]).output().unwrap());
    said.stdout + &said.stderr
}

/// AWS's schema of CloudWatch's embedded metric format, out of its Powertools for Lambda.
pub fn emf() -> PathBuf {
    let mut versions = fs::read_dir(installed("emf").join("lib")).unwrap();
    let packages = versions.next().unwrap().unwrap().path().join("site-packages");
    packages.join("aws_lambda_powertools/metrics/schema.json")
}

/// Grafana's schema of a dashboard, made of its types; in a folder that goes with it.
pub fn dashboard() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let grafana = installed("grafana");
    let types = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/metrics/dashboard.ts");
    fs::copy(types, folder.path().join("dashboard.ts")).unwrap();
    // Types are looked up beside the file that imports them.
    symlink(grafana.join("node_modules"), folder.path().join("node_modules")).unwrap();
    let mut generator = Command::new(grafana.join("node"));
    generator.arg("node_modules/ts-json-schema-generator/bin/ts-json-schema-generator.js").current_dir(&folder);
    // Exposing no type lets two have the same name: each version of Grafana's has its own.
    generator.args(["--path", "dashboard.ts", "--type", "Dashboard", "--expose", "none", "--out", "schema.json"]);
    let output = generator.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let schema = folder.path().join("schema.json");
    (folder, schema)
}
