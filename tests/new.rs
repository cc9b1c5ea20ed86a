//! `hostler new`: a project in every language that builds, tests itself and runs, by the commands of its own README.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::damaged::{damage, damages_all};
use crate::support::hostler::{Host, Said, World};
use crate::support::toolchains::{here, programs, without_own_flags};

/// The body in the READMEs, and what the handlers reply to it.
const GOOD: (&str, &str) = (r#"{"name": "Ada"}"#, "Hello, Ada!");

/// A project in the build folder, at the same place in every run, so that what its tools keep fits.
struct Project {
    folder: PathBuf,
    /// Output of `new`.
    said: Said,
}

impl Project {
    /// Makes it; `keeps` are folders of its tools that stay from run to run.
    fn new(lang: &str, keeps: &[&str]) -> Self {
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new").join(lang);
        let folder = home.join("order-mails");
        fs::create_dir_all(home.join("bin")).unwrap();
        let _ = fs::remove_dir_all(&folder);
        let hostler = home.join("bin/hostler");
        let _ = fs::remove_file(&hostler);
        symlink(env!("CARGO_BIN_EXE_hostler"), &hostler).unwrap();

        let mut command = Command::new(&hostler);
        let said = Said::new(command.args(["new", "order-mails", "--lang", lang]).current_dir(&home).output().unwrap());
        assert_eq!(said.code, 0, "{said:?}");
        let cache = home.join("cache");
        fs::create_dir_all(&cache).unwrap();
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o700)).unwrap();
        for keep in keeps {
            let kept = home.join(keep);
            fs::create_dir_all(&kept).unwrap();
            symlink(kept, folder.join(keep)).unwrap();
        }
        Self { folder, said }
    }

    /// The commands of its README.
    fn commands(&self) -> Vec<String> {
        let readme = fs::read_to_string(self.folder.join("README.md")).unwrap();
        let blocks = readme.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```"));
        blocks.flat_map(|(block, _)| block.lines().map(str::to_owned)).collect()
    }

    /// A command in its folder, as someone types it who has the toolchains.
    fn command(&self, line: &str) -> Command {
        let path = std::env::var_os("PATH").unwrap();
        let first = [self.folder.with_file_name("bin"), programs()];
        let path = std::env::join_paths(first.into_iter().chain(std::env::split_paths(&path))).unwrap();
        let mut command = Command::new("bash");
        command.args(["-c", line]).current_dir(&self.folder).env("PATH", path);
        command.env("HOSTLER_HOST__HEALTH_FILE", self.folder.join("health.json"));
        // Compiling some guests takes long, and each command needs one.
        command.env("HOSTLER_HOST__CACHE_DIR", self.folder.with_file_name("cache"));
        // What these tests are built with is not for others.
        without_own_flags(&mut command);
        command.env_remove("CARGO_TARGET_DIR");
        command
    }

    fn run(&self, line: &str) -> Said {
        Said::new(self.command(line).output().unwrap())
    }
}

/// Makes a project and does what its README says; then what `hostler run` makes of its messages, and of its handler when that is
/// damaged.
fn works(lang: &str, keeps: &[&str]) {
    let project = Project::new(lang, keeps);
    let commands = project.commands();
    let next: Vec<_> = project.said.stdout.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    assert!(next.len() >= 3 && next[0] == "cd order-mails", "{}", project.said.stdout);
    assert!(next[1..].iter().all(|command| commands.iter().any(|line| line == command)), "{next:?} in {commands:?}");
    assert!(commands.iter().any(|line| line.contains("test")), "{commands:?} test nothing");

    // In one shell, as one line may set up what the next ones need.
    let said = project.run(&format!("set -e\n{}", commands.join("\n")));
    assert_eq!(said.code, 0, "{commands:?} failed; if a tool is missing, run tests/toolchains.sh\n{said:?}");
    let reply = format!("reply     {}", GOOD.1);
    assert!(said.stdout.lines().any(|line| line == reply), "{said:?}");
    let invoke = commands.iter().find(|line| line.starts_with("hostler invoke") && line.contains(GOOD.0));
    let invoke = invoke.unwrap_or_else(|| panic!("{commands:?} invoke nothing"));
    for bad in ["Ada", "{}", "[1]"] {
        let said = project.run(&format!("{} --json", invoke.replace(GOOD.0, bad)));
        let answer: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"));
        assert_eq!((said.code, &answer["outcome"]), (1, &"dead-letter".into()), "{bad}: {answer}");
        assert!(answer["reason"].as_str().is_some_and(|reason| reason.len() > 5), "{bad}: {answer}");
    }

    for body in [GOOD.0, "Ada"] {
        let said = project.run(&format!("hostler send order-mails --body '{body}'"));
        assert_eq!(said.code, 0, "{said:?}");
    }
    let mut host = Host::start(project.command("exec hostler run"));
    let mut outcomes: Vec<_> = host.settled(2).into_iter().map(|line| line["outcome"].clone()).collect();
    outcomes.sort_by_key(Value::to_string);
    assert_eq!(outcomes, ["dead-letter", "reply"]);
    assert_eq!(host.stop(), 0);
    let replies = project.run("hostler queues --json order-mails-replies order-mails-dlq").stdout;
    let replies: Value = serde_json::from_str(&replies).unwrap();
    assert_eq!([&replies[0]["visible"], &replies[1]["visible"]], [1, 1], "{replies}");

    if lang == "ts" && !damages_all() {
        // Its handler is built by the toolchain of JavaScript, whose handler is damaged already.
        return;
    }
    let config = fs::read_to_string(project.folder.join("hostler.toml")).unwrap();
    let handler = config.lines().find_map(|line| line.strip_prefix("handler = \"")?.strip_suffix('"')).unwrap();
    damage(lang, &fs::read(project.folder.join(handler)).unwrap());
}

#[test]
fn rust_projects_work() {
    works("rust", &["target"]);
}

#[test]
fn go_projects_work() {
    works("go", &[]);
}

#[test]
fn python_projects_work() {
    works("python", &[]);
}

#[test]
fn js_projects_work() {
    works("js", &[]);
}

#[test]
fn ts_projects_work() {
    works("ts", &[]);
}

#[test]
fn c_projects_work() {
    works("c", &[]);
}

/// All files below a folder, from there.
fn files(folder: &Path) -> BTreeSet<String> {
    let (mut found, mut left) = (BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(folder_below) = left.pop() {
        for path in fs::read_dir(folder_below).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => left.push(path),
                false => drop(found.insert(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned())),
            }
        }
    }
    found
}

#[test]
fn every_file_of_a_template_is_written() {
    for template in fs::read_dir(here("templates")).unwrap().map(|entry| entry.unwrap()) {
        let world = World::new("");
        let lang = template.file_name().into_string().unwrap();
        let said = world.output(&["new", "order-mails", "--lang", &lang]);
        assert_eq!(said.code, 0, "{said:?}");
        let written = files(&world.path("order-mails"));
        for file in files(&template.path()) {
            let target = match file.strip_suffix(".template") {
                Some(ignored) if ignored.ends_with("ignore") => format!(".{ignored}"),
                other => other.unwrap_or(&file).to_owned(),
            };
            assert!(written.contains(&target), "{lang}: {target} in {written:?}");
            let text = fs::read_to_string(world.path("order-mails").join(target)).unwrap();
            assert!(!text.contains("{{"), "{lang}: {file}");
        }
    }
}

#[test]
fn the_sdk_of_a_rust_project_is_the_whole_sdk() {
    let world = World::new("");
    assert_eq!(world.output(&["new", "order-mails", "--lang", "rust"]).code, 0);
    let written = files(&world.path("order-mails/hostler-guest"));
    let mut sdk: BTreeSet<String> = ["Cargo.toml", "README.md", "macros/Cargo.toml"].map(str::to_owned).into();
    for folder in ["src", "macros/src", "wit"] {
        sdk.extend(files(&here("sdk/rust").join(folder)).into_iter().map(|file| format!("{folder}/{file}")));
    }
    assert_eq!(written, sdk);
    for file in sdk {
        let [here, there] = [here("sdk/rust").join(&file), world.path("order-mails/hostler-guest").join(&file)];
        assert_eq!(fs::read_to_string(there).unwrap(), fs::read_to_string(here).unwrap(), "{file}");
    }
}

#[test]
fn a_name_must_fit_wherever_it_goes() {
    let world = World::new("");
    let longest = "a".repeat(63);
    for name in
        ["", "Order", "1st", "-a", "a-", "a_b", "a.b", "../a", "a/b", "ü", "hostler-guest", &format!("{longest}a")]
    {
        let said = world.output(&["new", "--lang", "rust", "--", name]);
        assert!(said.code == 2 && said.stderr.contains("such as order-mails"), "{name}: {said:?}");
    }
    for name in ["a", "a1", "a--b", &longest] {
        let said = world.output(&["new", name, "--lang", "rust"]);
        assert_eq!(said.code, 0, "{name}: {said:?}");
    }
    let said = world.output(&["new", "a", "--lang", "cobol"]);
    assert!(said.code == 2 && said.stderr.contains("rust, go, python, js, ts, c"), "{said:?}");
}

#[test]
fn what_is_there_stays_as_it_is() {
    let world = World::new("");
    fs::create_dir_all(world.path("full/empty")).unwrap();
    fs::write(world.path("file"), "mine").unwrap();
    symlink("nowhere", world.path("link")).unwrap();
    for name in ["full", "file", "link"] {
        let said = world.output(&["new", name, "--lang", "rust"]);
        assert!(said.code == 1 && said.stdout.is_empty(), "{said:?}");
        assert!(said.stderr.contains(&format!("{name} exists and is not an empty folder\n  cure: ")), "{said:?}");
    }
    assert_eq!(files(&world.path("full")), BTreeSet::new());
    assert_eq!(fs::read_to_string(world.path("file")).unwrap(), "mine");
    assert!(!world.path("nowhere").exists());
    assert_eq!(world.output(&["new", "empty", "--lang", "rust"]).code, 0);

    fs::create_dir(world.path("there")).unwrap();
    assert_eq!(world.output(&["new", "there", "--lang", "rust"]).code, 0);
    assert!(world.path("there/src/lib.rs").exists());
}

#[test]
fn a_project_that_cannot_be_written_leaves_nothing() {
    let world = World::new("");
    fs::create_dir(world.path("there")).unwrap();
    // No file may have more than 1 KiB; some of a project's have.
    let script = format!("trap '' XFSZ; ulimit -f 1; exec '{}' new \"$0\" --lang rust", env!("CARGO_BIN_EXE_hostler"));
    for name in ["fresh", "there"] {
        let said = Said::new(world.program("bash", &["-c", &script, name]).output().unwrap());
        assert_eq!((said.code, said.stdout.as_str()), (1, ""), "{said:?}");
        let reason = format!("hostler: cannot write {name}/");
        assert!(said.stderr.starts_with(&reason) && said.stderr.contains("nothing was left behind"), "{said:?}");
    }
    assert!(!world.path("fresh").exists());
    assert_eq!(fs::read_dir(world.path("there")).unwrap().count(), 0);
}

/// A module of such a name would be taken for a package of Go's own, or for one that Go treats apart.
#[test]
fn go_projects_build_whatever_their_name() {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new/go-names");
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(&home).unwrap();
    for name in ["image", "time", "fmt", "main", "vendor", "con", "v2"] {
        let mut new = Command::new(env!("CARGO_BIN_EXE_hostler"));
        let said = Said::new(new.args(["new", name, "--lang", "go"]).current_dir(&home).output().unwrap());
        assert_eq!(said.code, 0, "{said:?}");
        let path = std::env::var_os("PATH").unwrap();
        let path = std::env::join_paths([programs()].into_iter().chain(std::env::split_paths(&path))).unwrap();
        let mut vet = Command::new("go");
        vet.args(["vet", "./..."]).current_dir(home.join(name)).env("PATH", path);
        vet.env("GOOS", "wasip1").env("GOARCH", "wasm");
        let said = Said::new(vet.output().unwrap());
        assert_eq!(said.code, 0, "{name}: if a tool is missing, run tests/toolchains.sh\n{said:?}");
    }
}

/// Cargo itself refuses some of these for `cargo new`.
#[test]
fn rust_projects_are_packages_whatever_their_name() {
    let world = World::new("");
    for name in ["test", "std", "core", "fn", "self", "async", "build", "serde", "handler", "a--1"] {
        assert_eq!(world.output(&["new", name, "--lang", "rust"]).code, 0);
        let mut cargo = Command::new("cargo");
        cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(world.path(name));
        let said = Said::new(cargo.output().unwrap());
        assert_eq!(said.code, 0, "{name}: {said:?}");
    }
}

#[test]
fn a_js_module_without_a_default_export_is_told_what_is_missing() {
    let build = "import { component } from './hostler.js'; const { handler } = component({ greet() {} }, {});";
    let mut node = crate::support::toolchains::with_toolchains("node");
    let said = Said::new(node.args(["--input-type=module", "-e", build]).current_dir(here("sdk/js")).output().unwrap());
    assert!(
        said.code != 0 && said.stderr.contains("the handler is missing: index.js has to `export default`"),
        "{said:?}"
    );
}
